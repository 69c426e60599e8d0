package limit

import (
	"context"
	"encoding/binary"
	"slices"
	"strings"
	"time"

	"github.com/stint-io/stint/internal/waitline"
)

// lane is the wait queue of one key. While it has waiters, no other request of the key asks the
// Taker.
type lane struct {
	key  string
	line waitline.Line[*waiter]

	alarm waitline.Alarm // when the first waiter is to ask
	due   bool           // it is in Queue.ready
	busy  bool           // the first waiter is asking, or being called back
	peek  bool           // not due yet: the Taker is only asked whether the limit has changed

	// Admitted requests that are held back are released between heldFrom and heldUntil, as far
	// as the times of the answers tell.
	heldFrom, heldUntil Time

	refused  Decision // the latest refusal; its Results are those of forecast
	forecast forecast // of that refusal
	taken    int64    // admitted since then, at most MaxInt64
	left     int64    // Remaining after the latest admission; -1 = refused since

	// notBefore is when to ask again after a refusal that does not say when, or that repeats
	// itself; tries counts these.
	notBefore Time
	tries     int
	polls     bool // the latest refusal did not say when to ask again
}

// waiter is a request that waits. Its Deadline is when the wait ends: refused, or released if it
// was admitted and is held back.
type waiter struct {
	waitline.Waiter[*waiter]
	lane *lane // its queue, also once it is held back

	req  Request
	ctx  context.Context
	done func(Decision, error) // the call-back; nil = the caller blocks
	patience

	answer *Decision // the result of the wait, also while it is held back; nil = the zero Decision
	held   bool      // admitted, and held back until its Deadline
	late   bool      // its deadline has passed, and it was given a grace time
	over   bool      // the wait has ended
}

// patience is how long a request may wait.
type patience struct {
	longest time.Duration // what the caller asked for; Never = unbounded
	latest  Time          // the deadline that follows; MaxInt64 = none
	hurried bool          // latest is the context's deadline
}

// reply is the answer to a request that does not wait.
type reply struct {
	d   Decision
	err error
}

// usualKey is the length up to which a key needs no memory of its own, in bytes. Not longer: the
// array is cleared for each request. Not shorter: an account, an address and a path fit.
const usualKey = 128

// key appends to dst the attributes that select the lane, each prefixed with its length:
// different sets of attributes have different keys.
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

// named reports whether pattern, a name or a prefix followed by *, matches a's name.
func (a *Attribute) named(pattern string) bool {
	if beginning, ok := strings.CutSuffix(pattern, "*"); ok {
		return strings.HasPrefix(a.Name, beginning)
	}
	return a.Name == pattern
}

// first returns the first waiter, or nil.
func (l *lane) first() *waiter {
	if w := l.line.First(); w != nil {
		return w.Value
	}
	return nil
}

// earliest returns a time before which cost, behind a cost of ahead, cannot be admitted.
func (l *lane) earliest(ahead, cost int64) Time {
	all := waitline.Sum(ahead, cost)
	if all <= l.left {
		return 0
	}
	return l.forecast.earliest(waitline.Sum(l.taken, all))
}

// ask returns when the first waiter, of that cost, is to ask: not before it can be admitted,
// even if the refusal was decided just before its answer was known.
func (l *lane) ask(cost int64) Time {
	at := l.earliest(0, cost)
	if at > 0 {
		at = at.Add(time.Duration(l.forecast.lag))
	}
	return max(at, l.notBefore)
}

// The pauses between tries where a refusal does not say how long to wait. Not shorter than
// shortestPause: the waiter would poll in a loop. Not longer than longestPause: a permit in
// flight may be given back at any time.
const (
	shortestPause = time.Millisecond
	longestPause  = 100 * time.Millisecond
)

// refuse records a refusal. asked is when the Taker was called.
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
		// It asked at the time that the refusal named and was refused again: other processes
		// were faster, or the Taker's times are wrong. The pause prevents a busy loop.
		l.notBefore = now.Add(min(10*time.Microsecond<<min(l.tries, 20), shortestPause))
	}
}

// admit records that cost was admitted at now.
func (l *lane) admit(d *Decision, now Time, cost int64) {
	if l.earliest(0, cost) > now {
		l.forecast.results = nil // the limit has changed: the next one asks
	}
	l.taken = waitline.Sum(l.taken, cost)
	l.left, l.tries, l.notBefore = d.least(), 0, 0
}

// refusal is the answer to a request that arrives at now, finds waiters, and does not wait
// itself.
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
