package split

import (
	"errors"
	"fmt"
	"time"

	"github.com/stint-io/stint/internal/share"
	"github.com/stint-io/stint/limit"
)

// turn is a place in line.
type turn struct {
	n          int64
	latest     limit.Time // when it has to be its turn; never = whenever
	prev, next *turn
	waits      bool // in line, and not to be told anything yet

	wake chan error  // of one who blocks; holds one
	done func(error) // of one who is called
	err  error       // that it is called with
}

// line is first in, first out.
type line struct {
	first, last *turn
	cost        int64 // of all
	bounded     int   // those who have to have their turn by some time
	large       int   // those who ask for more than 1

	// tail is the line in the order of tokens, behind the last: it is kept when the sum
	// of costs does not say when one's turn is.
	tail      share.Line
	tailKnown bool
}

func (q *line) push(t *turn) {
	t.prev, t.next = q.last, nil
	if q.last == nil {
		q.first = t
	} else {
		q.last.next = t
	}
	q.last = t
	q.count(t, 1)
}

func (q *line) remove(t *turn) {
	if t.prev == nil {
		q.first = t.next
	} else {
		t.prev.next = t.next
	}
	if t.next == nil {
		q.last = t.prev
	} else {
		t.next.prev = t.prev
	}
	t.prev, t.next = nil, nil
	q.count(t, -1)
}

func (q *line) count(t *turn, sign int) {
	q.cost += int64(sign) * t.n
	if t.latest != never {
		q.bounded += sign
	}
	if t.n > 1 {
		q.large += sign
	}
}

// plan returns when it would be the turn of one who asks for n at the end of the line, and
// the line with it if that is known.
func (l *Limiter) plan(now limit.Time, n int64) (at limit.Time, tail share.Line, known bool) {
	q := &l.line
	if l.window == 0 || n == 1 && q.large == 0 {
		return l.split.Earliest(now, q.cost, n), share.Line{}, false
	}
	// Windows cut costs above 1 off: go through the line, unless that was done.
	if q.first == nil || !q.tailKnown || !l.split.Stands(q.tail) {
		q.tail, q.tailKnown = l.split.Front(now), true
		for t := q.first; t != nil; t = t.next {
			_, q.tail = l.split.Behind(q.tail, t.n)
		}
	}
	at, tail = l.split.Behind(q.tail, n)
	return at, tail, true
}

// enter puts t in line if it can be its turn in time.
func (l *Limiter) enter(now limit.Time, t *turn) error {
	// The sum of costs is bounded, so it cannot overflow.
	if quota := l.split.Quota(); quota > 0 && t.n > quota {
		return l.exceeds(t.n)
	}
	if t.n > limit.MaxCount-l.line.cost {
		return fmt.Errorf("%w: those who wait for %q ask for more than %d", limit.ErrExceedsQuota, l.name, int64(limit.MaxCount))
	}
	at, tail, known := l.plan(now, t.n)
	if at > t.latest {
		return errLate
	}
	if l.line.first == nil {
		l.known = l.split.Known(now)
	}
	l.line.push(t)
	l.line.tail, l.line.tailKnown = tail, known
	t.waits = true
	l.arm(now)
	return nil
}

// errLate says that it would not be in time.
var errLate = errors.New("late")

func (l *Limiter) exceeds(n int64) error {
	return fmt.Errorf("%w: %d is above the %d that this part of %q admits at once", limit.ErrExceedsQuota, n, l.split.Quota(), l.name)
}

// leave takes t out of the line, unserved; those behind it move up.
func (l *Limiter) leave(now limit.Time, t *turn) {
	l.line.remove(t)
	l.line.tailKnown = false
	t.waits = false
	l.settle(now)
	l.arm(now)
}

// settle lets go those whose turn has come by now.
func (l *Limiter) settle(now limit.Time) {
	skipped := l.split.Skipped()
	for t := l.line.first; t != nil && l.split.Allow(now, t.n); t = l.line.first {
		l.line.remove(t)
		l.tell(t, nil)
	}
	if l.line.first != nil && l.line.bounded > 0 && (l.split.Skipped() != skipped || now >= l.known) {
		l.review(now) // it is later for those who are left
	}
}

// review sends away those whose turn cannot come in time, and those who can never be
// served.
func (l *Limiter) review(now limit.Time) {
	l.known = l.split.Known(now)
	l.line.tailKnown = false
	quota := l.split.Quota()
	tail := l.split.Front(now)
	for t := l.line.first; t != nil; {
		next := t.next
		at, behind := l.split.Behind(tail, t.n)
		switch {
		case quota > 0 && t.n > quota:
			l.line.remove(t)
			l.tell(t, l.exceeds(t.n))
		case at > t.latest:
			l.line.remove(t)
			l.tell(t, errLate)
		default:
			tail = behind
		}
		t = next
	}
}

// arm sets the timer to when it is the turn of the first in line.
func (l *Limiter) arm(now limit.Time) {
	l.publish()
	next := limit.Time(0)
	if t := l.line.first; t != nil {
		if next = min(l.split.Earliest(now, 0, t.n), l.split.Known(now)); next == never {
			next = 0 // a change of the terms settles
		}
	}
	if next == l.wake {
		return
	}
	l.wake = next
	switch {
	case next == 0:
		l.timer.Stop()
	case l.timer == nil:
		l.timer = time.AfterFunc(time.Duration(next-now), l.ring)
	default:
		l.timer.Reset(time.Duration(next - now))
	}
}

// ring is what the timer does.
func (l *Limiter) ring() {
	l.mu.Lock()
	now := l.now()
	l.look(now)
	l.wake = 0
	l.settle(now)
	l.arm(now)
	l.unlock()
}

// tell ends t's wait with err.
func (l *Limiter) tell(t *turn, err error) {
	t.waits = false
	if t.wake != nil {
		t.wake <- err
		return
	}
	t.err = err
	l.told.push(t)
}

// unlock ends a change of the line, and sees to it that those who are to be called are.
func (l *Limiter) unlock() {
	tell := l.told.first != nil && !l.telling
	l.telling = l.telling || tell
	l.mu.Unlock()
	if tell {
		go l.call()
	}
}

// call calls those who are to be called, one after the other, until there are no more.
// Nobody else does meanwhile.
func (l *Limiter) call() {
	ended := false
	defer func() {
		if !ended { // one of them has ended the goroutine
			l.callers()
		}
	}()
	for {
		l.mu.Lock()
		t := l.told.first
		if t == nil {
			l.telling, ended = false, true
			l.mu.Unlock()
			return
		}
		l.told.remove(t)
		l.mu.Unlock()
		t.done(l.reason(t, t.err))
	}
}

// callers lets others call.
func (l *Limiter) callers() {
	l.mu.Lock()
	l.telling = false
	l.unlock()
}

// reason is the error that one who waited is told.
func (l *Limiter) reason(t *turn, err error) error {
	if errors.Is(err, errLate) {
		return fmt.Errorf("%w: no permit of %q in time", limit.ErrWaitTooLong, l.name)
	}
	return err
}
