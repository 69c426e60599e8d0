package limit

import (
	"context"
	"encoding/binary"
	"math"
	"slices"
	"strings"
	"time"
)

// lane is the line of one key. While somebody is in it nobody else asks.
type lane struct {
	key         string
	first, last *waiter
	cost        ticks // of all in it; 128 bits, since costs go up to 2^62

	alarm alarm // when the first is to ask
	due   bool  // it is in Queue.ready
	busy  bool  // the first is asking, or being told
	peek  bool  // it is not its time yet, only time to look

	// Those of it who are held back are all let go until heldUntil, and none was to be
	// before heldFrom, as far as the time of an answer tells.
	heldFrom, heldUntil Time

	refused  Decision // the latest refusal; its Results are those of forecast
	forecast forecast // of that refusal
	taken    ticks    // since
	left     int64    // after the latest admission; -1 = refused since

	// notBefore is for refusals that do not tell when to ask again, or tell it again
	// and again; tries counts them.
	notBefore Time
	tries     int
	polls     bool // the latest refusal did not tell
}

// waiter is one who waits.
type waiter struct {
	lane       *lane // nil = not in line: held back, or gone
	prev, next *waiter

	req  Request
	ctx  context.Context
	wake chan reply            // of one who blocks; holds one
	done func(Decision, error) // of one who does not
	patience

	alarm alarm     // when it goes away, or is let go if held
	held  *Decision // admitted, and to be held back until then
	late  bool      // its time is over, and it has been given some grace
	over  bool      // told, or left
}

// patience is how long somebody waits.
type patience struct {
	longest time.Duration // as was said; Never = whenever
	latest  Time          // until when, therefore; MaxInt64 = whenever
	hurried bool          // latest is the context's deadline
}

// reply is how a wait ends.
type reply struct {
	p   *waiter
	d   Decision
	err error
}

func (r reply) call() { r.p.done(r.d, r.err) }

// usualKey is how long a key may be before it takes memory of its own. Not longer: it
// is cleared for each request. Not shorter: an account, an address and a path fit.
const usualKey = 128

// key appends to dst the attributes that select the line, each with its length before
// it, so that no two sets of them look alike.
func (q *Queue) key(dst []byte, req Request) []byte {
	names := q.opts.Attributes
	if q.reader != nil {
		names = q.reader.Attributes()
	}
	all := names == nil && q.reader == nil
	for i := range req.Attributes {
		if a := &req.Attributes[i]; all || slices.ContainsFunc(names, a.named) {
			dst = binary.AppendUvarint(dst, uint64(len(a.Name)))
			dst = append(dst, a.Name...)
			dst = binary.AppendUvarint(dst, uint64(len(a.Value)))
			dst = append(dst, a.Value...)
		}
	}
	return dst
}

// named says whether a pattern, a name or a beginning and *, stands for a.
func (a *Attribute) named(pattern string) bool {
	if beginning, ok := strings.CutSuffix(pattern, "*"); ok {
		return strings.HasPrefix(a.Name, beginning)
	}
	return a.Name == pattern
}

// push puts p, which fits the queue's bounds, at the end.
func (l *lane) push(p *waiter) {
	p.lane, p.prev = l, l.last
	if l.last == nil {
		l.first = p
	} else {
		l.last.next = p
	}
	l.last = p
	l.cost = l.cost.plus(ticks{0, uint64(costOf(p.req))})
}

func (l *lane) remove(p *waiter) {
	if p.prev == nil {
		l.first = p.next
	} else {
		p.prev.next = p.next
	}
	if p.next == nil {
		l.last = p.prev
	} else {
		p.next.prev = p.prev
	}
	p.lane, p.prev, p.next = nil, nil, nil
	l.cost = l.cost.minus(ticks{0, uint64(costOf(p.req))})
}

// whole is a sum of costs as one cost, at most the largest.
func whole(sum ticks) int64 {
	if sum.Hi > 0 || sum.Lo > math.MaxInt64 {
		return math.MaxInt64
	}
	return int64(sum.Lo)
}

// turn returns a time before which a cost behind all in sum cannot be admitted.
func (l *lane) turn(ahead ticks, cost int64) Time {
	all := ahead.plus(ticks{0, uint64(cost)})
	if whole(all) <= l.left {
		return 0
	}
	return l.forecast.earliest(whole(l.taken.plus(all)))
}

// ask returns when the first in line, whose cost that is, is to ask: not before its turn,
// even if the refusal was decided just before it was known.
func (l *lane) ask(cost int64) Time {
	at := l.turn(ticks{}, cost)
	if at > 0 {
		at = at.Add(time.Duration(l.forecast.lag))
	}
	return max(at, l.notBefore)
}

// The pauses between tries where a refusal does not tell how long to wait. Not shorter
// than the first: it is a loop. Not longer than the longest: a place in flight may come
// free at any time.
const (
	shortestPause = time.Millisecond
	longestPause  = 100 * time.Millisecond
)

// refuse takes note of a refusal that was asked for at one time and is known now.
func (l *lane) refuse(d *Decision, asked, now Time, cost int64) {
	l.forecast.of(d, asked, now, cost)
	l.refused = *d
	l.refused.Results = l.forecast.results
	l.taken, l.left = ticks{}, -1
	l.tries++
	l.polls = true
	for i := range l.forecast.results {
		if r := &l.forecast.results[i]; !r.Allowed && !r.Shadow && r.known() {
			l.polls = false
		}
	}
	switch {
	case l.polls:
		l.notBefore = now.Add(min(shortestPause<<min(l.tries-1, 20), longestPause))
	case l.tries > 2:
		// It was told when to come, and refused then: others were faster, or the
		// Taker tells what is not so. A pause keeps that from becoming a loop.
		l.notBefore = now.Add(min(10*time.Microsecond<<min(l.tries, 20), shortestPause))
	}
}

// admit takes note that cost was admitted at now.
func (l *lane) admit(d *Decision, now Time, cost int64) {
	if l.turn(ticks{}, cost) > now {
		l.forecast.results = nil // the limit has changed: the next one asks
	}
	l.taken = l.taken.plus(ticks{0, uint64(cost)})
	l.left, l.tries, l.notBefore = d.least(), 0, 0
}

// refusal is what one is told who comes at now and does not wait.
func (l *lane) refusal(now Time, cost int64) Decision {
	d := l.refused
	d.Results = slices.Clone(l.refused.Results)
	for i := range d.Results {
		if r := &d.Results[i]; !r.Shadow && !r.Allowed {
			sum := l.taken.plus(l.cost).plus(ticks{0, uint64(cost)})
			r.RetryAfter = max(1, waitUntil(l.forecast.passes(r, whole(sum)), now))
			r.ResetAfter = max(r.ResetAfter-time.Duration(now-l.forecast.at), r.RetryAfter)
			r.Remaining = 0
			if r.Cost == l.forecast.cost {
				r.Cost = cost
			}
		}
	}
	return d
}
