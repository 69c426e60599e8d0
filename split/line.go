package split

import (
	"errors"
	"fmt"

	"github.com/stint-io/stint/internal/partition"
	"github.com/stint-io/stint/internal/waitline"
	"github.com/stint-io/stint/limit"
)

// waiter is a place in line.
type waiter struct {
	waitline.Waiter[*waiter]
	latest limit.Time // the deadline; never = none

	limiter *Limiter    // of a waiter that does not block
	done    func(error) // its call-back
}

// WaitEnded implements waitline.Handler.
func (w *waiter) WaitEnded(err error) { w.done(w.limiter.reason(err)) }

// newWaiter returns a waiter without a signal.
func newWaiter(n int64, latest limit.Time) *waiter {
	w := &waiter{latest: latest}
	w.Value, w.Cost = w, n
	return w
}

// line is the wait queue, with what follows from sums.
type line struct {
	waitline.Line[*waiter]
	bounded int // waiters with a deadline
	large   int // waiters with a cost above 1

	// tail is the position in the order of tokens behind the last waiter: it is kept where the
	// sum of costs does not determine when a waiter is due.
	tail      partition.Line
	tailKnown bool
}

// count adds w to the counts, or removes it with a sign of -1.
func (q *line) count(w *waiter, sign int) {
	if w.latest != never {
		q.bounded += sign
	}
	if w.Cost > 1 {
		q.large += sign
	}
}

// plan returns when a request for n at the end of the line would be due, and the tail behind it
// if that is known.
func (l *Limiter) plan(now limit.Time, n int64) (at limit.Time, tail partition.Line, known bool) {
	q := &l.line
	if l.window == 0 || n == 1 && q.large == 0 {
		return l.split.Earliest(now, q.Cost(), n), partition.Line{}, false
	}
	// A cost above 1 must not cross the end of a window, so go through the line, unless tail
	// still holds.
	if q.First() == nil || !q.tailKnown || !l.split.Stands(q.tail) {
		q.tail, q.tailKnown = l.split.Front(now), true
		q.Review(&l.calls, func(w *waitline.Waiter[*waiter], _ int64) error {
			_, q.tail = l.split.Behind(q.tail, w.Cost)
			return nil
		})
	}
	at, tail = l.split.Behind(q.tail, n)
	return at, tail, true
}

// enter puts w in line if it can be served by its deadline.
func (l *Limiter) enter(now limit.Time, w *waiter) error {
	// The sum of costs is bounded, so it cannot overflow.
	if quota := l.split.Quota(); quota > 0 && w.Cost > quota {
		return l.exceeds(w.Cost)
	}
	if w.Cost > limit.MaxCount-l.line.Cost() {
		return fmt.Errorf("%w: those who wait for %q ask for more than %d", limit.ErrExceedsQuota, l.name, int64(limit.MaxCount))
	}
	at, tail, known := l.plan(now, w.Cost)
	if at > w.latest {
		return errLate
	}
	if l.line.First() == nil {
		l.known = l.split.Known(now)
	}
	l.line.Push(&w.Waiter)
	l.line.count(w, 1)
	l.line.tail, l.line.tailKnown = tail, known
	l.arm(now)
	return nil
}

// errLate says that the permit would come after the deadline.
var errLate = errors.New("late")

func (l *Limiter) exceeds(n int64) error {
	return fmt.Errorf("%w: %d is above the %d that this part of %q admits at once", limit.ErrExceedsQuota, n, l.split.Quota(), l.name)
}

// leave takes w out of the line, unserved; the waiters behind it move up. It returns false when
// the wait has ended.
func (l *Limiter) leave(w *waiter) bool {
	l.mu.Lock()
	defer l.unlock()
	if !l.line.Remove(&w.Waiter) {
		return false
	}
	l.line.count(w, -1)
	l.line.tailKnown = false
	now := l.now()
	l.settle(now)
	l.arm(now)
	return true
}

// settle serves the waiters that are due by now.
func (l *Limiter) settle(now limit.Time) {
	skipped := l.split.Skipped()
	first := l.line.Serve(&l.calls, func(w *waitline.Waiter[*waiter]) bool {
		if !l.split.Allow(now, w.Cost) {
			return false
		}
		l.line.count(w.Value, -1)
		return true
	})
	if first != nil && l.line.bounded > 0 && (l.split.Skipped() != skipped || now >= l.known) {
		l.review(now) // the others are served later than planned
	}
}

// review ends the waits of those that cannot be served by their deadlines, or ever.
func (l *Limiter) review(now limit.Time) {
	l.known = l.split.Known(now)
	l.line.tailKnown = false
	quota := l.split.Quota()
	tail := l.split.Front(now)
	l.line.Review(&l.calls, func(w *waitline.Waiter[*waiter], _ int64) (err error) {
		at, behind := l.split.Behind(tail, w.Cost)
		switch {
		case quota > 0 && w.Cost > quota:
			err = l.exceeds(w.Cost)
		case at > w.Value.latest:
			err = errLate
		default:
			tail = behind
			return nil
		}
		l.line.count(w.Value, -1)
		return err
	})
}

// arm sets the timer to when the first waiter is due.
func (l *Limiter) arm(now limit.Time) {
	l.publish()
	next := never // without a time, a change of the terms settles
	if w := l.line.First(); w != nil {
		next = min(l.split.Earliest(now, 0, w.Cost), l.split.Known(now))
	}
	l.timer.Set(l, (*Limiter).fire, int64(next), int64(now))
}

// fire is the timer's function.
func (l *Limiter) fire() {
	l.mu.Lock()
	now := l.now()
	l.followWall(now)
	l.timer.Fired()
	l.settle(now)
	l.arm(now)
	l.mu.Unlock()
	l.calls.Run()
}

// unlock ends a change of the line, and starts the call-backs of waits that have ended.
func (l *Limiter) unlock() {
	l.mu.Unlock()
	l.calls.Start()
}

// reason is the error that is passed to a call-back.
func (l *Limiter) reason(err error) error {
	if errors.Is(err, errLate) {
		return fmt.Errorf("%w: no permit of %q in time", limit.ErrWaitTooLong, l.name)
	}
	return err
}
