package client

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/stint-io/stint/limit"
)

// turn is a place in line.
type turn struct {
	n          int64
	prev, next *turn
	in         bool
	wake       chan error // of one who waits, holds one; nil = a reservation

	// act is when the holder of a reservation was told to act. It is not served before,
	// even if it could be: what is taken early and used late would add up.
	act  limit.Time
	lost bool // sent away unserved

	// latest is when it has to be its turn; MaxInt64 = whenever. One that is unsure
	// would be late by what the lease is, and leaves as soon as it is known that no
	// more comes; one that is impatient leaves, besides, when the limit is full.
	latest            limit.Time
	unsure, impatient bool

	// until is when it goes away if nothing comes: latest, or before that when ctx or
	// the patience of one that is unsure ends; MaxInt64 = never.
	until limit.Time
}

// line is first in, first out.
type line struct {
	first, last *turn
	cost        int64      // of all
	act         limit.Time // the latest of all, and of those who left

	// until is the latest of all, which the coordinator is told, and among how many:
	// only when the last of those leaves does it have to be looked for.
	until limit.Time
	among int
}

func (q *line) push(t *turn) {
	t.in, t.prev = true, q.last
	if q.last == nil {
		q.first = t
	} else {
		q.last.next = t
	}
	q.last = t
	q.cost += t.n
	q.act = max(q.act, t.act)
	q.note(t.until)
}

// note takes note of one who waits until then.
func (q *line) note(until limit.Time) {
	switch {
	case until > q.until:
		q.until, q.among = until, 1
	case until == q.until:
		q.among++
	}
}

// forget is note undone; who waited until then is not in line any more.
func (q *line) forget(until limit.Time) {
	if until != q.until {
		return
	}
	if q.among--; q.among > 0 {
		return
	}
	q.until, q.among = 0, 0
	for t := q.first; t != nil; t = t.next {
		q.note(t.until)
	}
}

// wait lets t, which is in line, wait until then.
func (q *line) wait(t *turn, until limit.Time) {
	was := t.until
	t.until = until
	q.note(until)
	q.forget(was)
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
	t.in, t.prev, t.next = false, nil, nil
	q.cost -= t.n
	q.forget(t.until)
	if q.first == nil {
		q.act = 0
	}
}

// errLate says that it would not be in time.
var errLate = errors.New("late")

// enter puts t in line and lets go whom there is enough for.
func (l *lease) enter(now limit.Time, t *turn) {
	if l.line.first == nil {
		l.purse.Freeze()
	}
	l.line.push(t)
	l.sayUntil() // before anybody can see that it waits
	l.purse.Join(t.n)
	l.settle(now)
}

// sayUntil keeps the purse informed until when somebody waits: what comes later is of
// use to others only.
func (l *lease) sayUntil() {
	until := l.line.until
	if until == math.MaxInt64 {
		until = 0
	}
	l.purse.WaitUntil(until)
}

// leave takes t out of the line, unserved. Those behind it move up.
func (l *lease) leave(now limit.Time, t *turn) {
	l.purse.Leave(t.n)
	l.line.remove(t)
	l.settle(now)
}

// settle lets go those in line for whom there is enough at now, in their order.
func (l *lease) settle(now limit.Time) {
	t := l.line.first
	for t != nil && now >= t.act && l.purse.Serve(now, t.n) {
		l.line.remove(t)
		if t.wake != nil {
			t.wake <- nil
		}
		t = l.line.first
	}
	l.sayUntil()
	if t == nil {
		l.purse.Thaw()
		if l.timer != nil {
			l.timer.Stop()
		}
		return
	}
	wait := limit.Never
	if t.n <= l.purse.Depth(now) {
		wait = max(l.purse.Earliest(now, t.n), time.Duration(t.act-now))
	}
	switch {
	case wait == limit.Never: // an Amend settles
		if l.timer != nil {
			l.timer.Stop()
		}
	case l.timer == nil:
		l.timer = time.AfterFunc(wait, l.ring)
	default:
		l.timer.Reset(wait)
	}
}

// ring is what the timer does.
func (l *lease) ring() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.settle(l.client.now())
}

// empty sends everybody away with err.
func (l *lease) empty(err error) {
	for t := l.line.first; t != nil; t = l.line.first {
		l.purse.Leave(t.n)
		l.line.remove(t)
		if t.lost = true; t.wake != nil {
			t.wake <- err
		}
	}
	l.settle(l.client.now())
}

// review sends away those whose turn does not come in time by what is known, and those
// whom the limit never admits.
func (l *lease) review(now limit.Time) {
	st, quota := l.state.Load(), l.quota()
	vain := st.Full || !l.hopeful(0)
	cost := int64(0)
	for t := l.line.first; t != nil; {
		next := t.next
		cost += t.n
		var err error
		switch {
		case t.n > quota:
			err = exceeds(t.n, quota)
		case t.wake == nil:
		case vain && (t.impatient && st.Full || (t.unsure || t.impatient) && l.late(now, cost, t)):
			err = errLate
		}
		if err != nil {
			cost -= t.n
			l.purse.Leave(t.n)
			l.line.remove(t)
			if t.lost = true; t.wake != nil {
				t.wake <- err
			}
		}
		t = next
	}
}

// late says whether t, before whose end cost has to come, would be late by what the
// lease is at now.
func (l *lease) late(now limit.Time, cost int64, t *turn) bool {
	if t.latest == math.MaxInt64 {
		return false
	}
	if !t.impatient && (!l.state.Load().Known || l.client.link.Load() == linkDown) {
		return false // nobody knows: the coordinator may answer in time
	}
	return t.n > l.purse.Depth(now) || max(now.Add(l.purse.Earliest(now, cost)), l.line.act) > t.latest
}

func exceeds(n, quota int64) error {
	return fmt.Errorf("%w: %d is above %d", limit.ErrExceedsQuota, n, quota)
}

// wait stands in line for n until it is there, ctx ends or it would be later than
// latest: errLate. impatient is for a Take.
func (l *lease) wait(ctx context.Context, n int64, latest limit.Time, impatient bool) error {
	ends := min(latest, l.ends(ctx))
	t := &turn{n: n, latest: latest, until: ends, impatient: impatient, wake: make(chan error, 1)}
	until, err := l.stand(t)
	if err != nil || until == 0 {
		return err
	}
	var timer *time.Timer
	var expired <-chan time.Time
	if until != math.MaxInt64 {
		timer = time.NewTimer(time.Duration(until - l.client.now()))
		defer timer.Stop()
		expired = timer.C
	}
	for {
		err := ctx.Err()
		if err == nil {
			select {
			case err := <-t.wake:
				return err
			case <-ctx.Done():
				err = ctx.Err()
			case <-expired:
				err = errLate
			}
			if errors.Is(err, errLate) && l.goesOn(t, ends) {
				timer.Reset(time.Duration(t.latest - l.client.now()))
				continue
			}
		}
		return l.giveUp(t, err)
	}
}

// stand puts t in line. It returns until when to wait for it before looking again; 0
// when it has been served.
func (l *lease) stand(t *turn) (until limit.Time, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed != nil {
		return 0, l.closed
	}
	if err := l.fault(); err != nil {
		return 0, err
	}
	if quota := l.quota(); t.n > quota {
		return 0, exceeds(t.n, quota)
	}
	now := l.client.now()
	l.enter(now, t)
	if !t.in {
		<-t.wake
		return 0, nil
	}
	defer l.starve(now)
	if !l.late(now, l.line.cost, t) {
		return t.latest, nil
	}
	if !l.hopeful(t.n) {
		l.leave(now, t)
		return 0, errLate
	}
	t.unsure = true
	patience := now.Add(l.ask())
	l.line.wait(t, min(t.until, patience))
	l.sayUntil()
	return min(t.latest, patience), nil
}

// goesOn says whether one whose time to wait for an answer has passed may be in time
// yet. It then waits until ends.
func (l *lease) goesOn(t *turn, ends limit.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.client.now()
	if !t.in || !t.unsure || now >= t.latest {
		return false
	}
	t.unsure = false
	cost := t.n
	for b := t.prev; b != nil; b = b.prev {
		cost += b.n
	}
	if l.late(now, cost, t) {
		return false
	}
	l.line.wait(t, ends)
	l.sayUntil()
	return true
}

// ends is when ctx ends, by the client's clock; MaxInt64 if it has no deadline.
func (l *lease) ends(ctx context.Context) limit.Time {
	deadline, ok := ctx.Deadline()
	if !ok {
		return math.MaxInt64
	}
	return l.client.now().Add(time.Until(deadline))
}

// giveUp leaves the line with err, unless it was t's turn in the same moment.
func (l *lease) giveUp(t *turn, err error) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !t.in {
		return <-t.wake
	}
	l.leave(l.client.now(), t)
	return err
}

// waitMax is wait with the errors of limit.Limiter's verbs.
func (l *lease) waitMax(ctx context.Context, n int64, longest time.Duration) error {
	if n < 0 {
		return limit.ErrNegativeCost
	}
	if err := ctx.Err(); err != nil || n == 0 {
		return err
	}
	now := l.client.now()
	if taken, _ := l.purse.Try(now, n); taken {
		return nil
	}
	latest, hurried := now.Add(longest), false
	if d := l.ends(ctx); d < latest {
		latest, hurried = d, true
	}
	err := l.wait(ctx, n, latest, false)
	switch {
	case !errors.Is(err, errLate):
		return err
	case hurried:
		return fmt.Errorf("%w: no permit of %q before the deadline: %w", limit.ErrWaitTooLong, l.id.Limit, context.DeadlineExceeded)
	default:
		return fmt.Errorf("%w: no permit of %q within %v", limit.ErrWaitTooLong, l.id.Limit, longest)
	}
}
