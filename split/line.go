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
	latest limit.Time // when it has to be served; never = whenever

	limiter *Limiter    // of one that does not block
	done    func(error) // its call-back
}

// WaitEnded implements waitline.Handler.
func (w *waiter) WaitEnded(err error) { w.done(w.limiter.reason(err)) }

// newWaiter returns one without a signal.
func newWaiter(n int64, latest limit.Time) *waiter {
	w := &waiter{latest: latest}
	w.Value, w.Cost = w, n
	return w
}

// line is the line of those who wait, with what can be known from sums.
type line struct {
	waitline.Line[*waiter]
	bounded int // those that have to be served by some time
	large   int // those that ask for more than 1

	// tail is the line in the order of tokens, behind the last: it is kept when the sum
	// of costs does not say when one is due.
	tail      partition.Line
	tailKnown bool
}

// count counts w in, or out with a sign of -1.
func (q *line) count(w *waiter, sign int) {
	if w.latest != never {
		q.bounded += sign
	}
	if w.Cost > 1 {
		q.large += sign
	}
}

// plan returns when one that asks for n at the end of the line would be due, and the line
// with it if that is known.
func (l *Limiter) plan(now limit.Time, n int64) (at limit.Time, tail partition.Line, known bool) {
	q := &l.line
	if l.window == 0 || n == 1 && q.large == 0 {
		return l.split.Earliest(now, q.Cost(), n), partition.Line{}, false
	}
	// Windows cut costs above 1 off: go through the line, unless that was done.
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

// enter puts w in line if it can be served in time.
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

// errLate says that it would not be in time.
var errLate = errors.New("late")

func (l *Limiter) exceeds(n int64) error {
	return fmt.Errorf("%w: %d is above the %d that this part of %q admits at once", limit.ErrExceedsQuota, n, l.split.Quota(), l.name)
}

// leave takes w out of the line, unserved; those behind it move up. It says false when
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

// settle serves those who are due by now.
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
		l.review(now) // it is later for those who are left
	}
}

// review sends away those that cannot be served in time, and those that never can.
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

// arm sets the timer to when the first in line is due.
func (l *Limiter) arm(now limit.Time) {
	l.publish()
	next := never // without a time, a change of the terms settles
	if w := l.line.First(); w != nil {
		next = min(l.split.Earliest(now, 0, w.Cost), l.split.Known(now))
	}
	l.timer.Set(l, (*Limiter).fire, int64(next), int64(now))
}

// fire is what the timer does.
func (l *Limiter) fire() {
	l.mu.Lock()
	now := l.now()
	l.look(now)
	l.timer.Fired()
	l.settle(now)
	l.arm(now)
	l.mu.Unlock()
	l.calls.Run()
}

// unlock ends a change of the line, and has those called back whose wait has ended.
func (l *Limiter) unlock() {
	l.mu.Unlock()
	l.calls.Start()
}

// reason is the error that a call-back gets.
func (l *Limiter) reason(err error) error {
	if errors.Is(err, errLate) {
		return fmt.Errorf("%w: no permit of %q in time", limit.ErrWaitTooLong, l.name)
	}
	return err
}
