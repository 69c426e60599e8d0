package limit

import (
	"context"
	"encoding/binary"
	"slices"
	"strings"
	"time"

	"github.com/stint-io/stint/internal/waitline"
)

// lane is the line of one key. While somebody is in it nobody else asks.
type lane struct {
	key  string
	line waitline.Line[*waiter]

	alarm waitline.Alarm // when the first is to ask
	due   bool           // it is in Queue.ready
	busy  bool           // the first is asking, or being called back
	peek  bool           // it is not due yet; only a check whether the limit has changed is

	// Those of it who are held back are all released until heldUntil, and none was to be
	// before heldFrom, as far as is known from the time of an answer.
	heldFrom, heldUntil Time

	refused  Decision // the latest refusal; its Results are those of forecast
	forecast forecast // of that refusal
	taken    int64    // since, at most MaxInt64
	left     int64    // after the latest admission; -1 = refused since

	// notBefore is for refusals that do not say when to ask again, or say it again and
	// again; tries counts them.
	notBefore Time
	tries     int
	polls     bool // the latest refusal did not say when to ask again
}

// waiter is a request that waits. Its Deadline is when the wait ends: unserved, or
// admitted if it is held back.
type waiter struct {
	waitline.Waiter[*waiter]
	lane *lane // that it is in, or was before it was held back

	req  Request
	ctx  context.Context
	done func(Decision, error) // of one that does not block
	patience

	answer *Decision // how the wait ends, or what admits it when it is held back; nil = the zero one
	held   bool      // admitted, and held back until its Deadline
	late   bool      // its time is over, and it has been given some grace
	over   bool      // the wait has ended
}

// patience is how long somebody waits.
type patience struct {
	longest time.Duration // as was said; Never = whenever
	latest  Time          // until when, therefore; MaxInt64 = whenever
	hurried bool          // latest is the context's deadline
}

// reply is what one learns that does not come to wait.
type reply struct {
	d   Decision
	err error
}

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

// first returns the first in line, or nil.
func (l *lane) first() *waiter {
	if w := l.line.First(); w != nil {
		return w.Value
	}
	return nil
}

// earliest returns a time before which a cost behind all that is ahead cannot be admitted.
func (l *lane) earliest(ahead, cost int64) Time {
	all := waitline.Sum(ahead, cost)
	if all <= l.left {
		return 0
	}
	return l.forecast.earliest(waitline.Sum(l.taken, all))
}

// ask returns when the first in line, whose cost that is, is to ask: not before it can be
// admitted, even if the refusal was decided just before it was known.
func (l *lane) ask(cost int64) Time {
	at := l.earliest(0, cost)
	if at > 0 {
		at = at.Add(time.Duration(l.forecast.lag))
	}
	return max(at, l.notBefore)
}

// The pauses between tries where a refusal does not say how long to wait. Not shorter
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
	l.taken, l.left = 0, -1
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
		// It came when the refusal said, and was refused: others were faster, or what the
		// Taker says is wrong. A pause keeps that from becoming a loop.
		l.notBefore = now.Add(min(10*time.Microsecond<<min(l.tries, 20), shortestPause))
	}
}

// admit takes note that cost was admitted at now.
func (l *lane) admit(d *Decision, now Time, cost int64) {
	if l.earliest(0, cost) > now {
		l.forecast.results = nil // the limit has changed: the next one asks
	}
	l.taken = waitline.Sum(l.taken, cost)
	l.left, l.tries, l.notBefore = d.least(), 0, 0
}

// refusal is the answer to a request that comes at now and does not wait.
func (l *lane) refusal(now Time, cost int64) Decision {
	d := l.refused
	d.Results = slices.Clone(l.refused.Results)
	for i := range d.Results {
		if r := &d.Results[i]; !r.Shadow && !r.Allowed {
			sum := waitline.Sum(waitline.Sum(l.taken, l.line.Cost()), cost)
			r.RetryAfter = max(1, waitUntil(l.forecast.passes(r, sum), now))
			r.ResetAfter = max(r.ResetAfter-time.Duration(now-l.forecast.at), r.RetryAfter)
			r.Remaining = 0
			if r.Cost == l.forecast.cost {
				r.Cost = cost
			}
		}
	}
	return d
}
