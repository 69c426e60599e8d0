package client

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/internal/lease/agent"
	"github.com/stint-io/stint/internal/waitline"
	"github.com/stint-io/stint/limit"
)

// waiter is one that waits in line. Its Deadline is when to check whether it is late.
type waiter struct {
	waitline.Waiter[*waiter]

	// waits says that somebody waits for it; otherwise it is a reservation.
	waits  bool
	direct bool // it was served at once, and its call-back is to be called by the caller

	// act is the time that a reservation was given. It is not served before,
	// even if it could be: what is taken early and used late would add up.
	act  limit.Time
	lost bool // sent away unserved

	// latest is when it has to be served; MaxInt64 = whenever. One that is unsure would
	// be late by what the lease is, and leaves as soon as it is known that no more comes;
	// one that is impatient leaves, besides, when the limit is saturated.
	latest            limit.Time
	unsure, impatient bool

	// until is when it leaves if nothing comes: latest, or before that when ctx or the
	// patience of one that is unsure ends; MaxInt64 = never. ends is that of one that is
	// not unsure.
	until, ends limit.Time
	last        waitline.Alarm // in line.ends
	endless     bool           // counted in line.endless

	checked bool // it was unsure, and the line is about to be gone through for it

	// Of one that does not block:
	done    func(error)
	lease   *leasedLimit
	longest time.Duration
	hook    *limit.Wait
}

// WaitEnded implements waitline.Handler.
func (t *waiter) WaitEnded(err error) {
	if errors.Is(err, errLate) {
		err = t.lease.tooLate(t.longest, false)
	}
	t.hook.End(err)
	t.done(err)
}

func newWaiter(n int64, latest limit.Time) *waiter {
	t := &waiter{latest: latest}
	t.Value, t.Cost = t, n
	return t
}

// line is first in, first out.
type line struct {
	waitline.Line[*waiter]
	act     limit.Time      // the latest of all, and of those that left
	ends    waitline.Alarms // by -until: the latest comes first
	endless int             // those that wait without end, who are not in ends
	checks  waitline.Alarms // the Deadlines of those that have one
}

func (q *line) push(t *waiter) {
	q.Push(&t.Waiter)
	q.act = max(q.act, t.act)
	q.wait(t, t.until)
}

// wait lets t, which is in line, wait until then.
func (q *line) wait(t *waiter, until limit.Time) {
	q.forget(t)
	if t.until = until; until == math.MaxInt64 {
		t.endless = true
		q.endless++
		return
	}
	q.ends.Set(&t.last, t, -int64(until))
}

// forget takes until of t, which is about to leave, out of the account.
func (q *line) forget(t *waiter) {
	if t.endless {
		t.endless = false
		q.endless--
	}
	t.last.Unset()
}

// until is the latest of all, which is reported to the coordinator; MaxInt64 = never,
// 0 = nobody waits.
func (q *line) until() limit.Time {
	switch {
	case q.endless > 0:
		return math.MaxInt64
	case q.ends.Len() == 0:
		return 0
	}
	at, _ := q.ends.First()
	return limit.Time(-at)
}

// check has t, which is in line, checked at a time; MaxInt64 = never.
func (q *line) check(t *waiter, at limit.Time) { q.checks.Set(&t.Deadline, t, int64(at)) }

// errLate says that it would not be in time.
var errLate = errors.New("late")

// enter puts t in line and serves those for whom there is enough.
func (l *leasedLimit) enter(now limit.Time, t *waiter) {
	if l.line.First() == nil {
		l.spender.Freeze()
	}
	l.line.push(t)
	l.updateUntil() // before anybody can see that it waits
	l.spender.Join(t.Cost)
	l.settle(now)
}

// updateUntil notes in the spender until when the last waiter waits: tokens that arrive later
// are of use to other instances only.
func (l *leasedLimit) updateUntil() {
	until := l.line.until()
	if until == math.MaxInt64 {
		until = 0
	}
	l.spender.WaitUntil(until)
}

// leave takes t out of the line, unserved. Those behind it move up. A settle has to follow.
func (l *leasedLimit) leave(t *waiter) {
	l.spender.Leave(t.Cost)
	l.line.forget(t)
	l.line.Remove(&t.Waiter)
}

// settle serves those in line for whom there is enough at now, in their order.
func (l *leasedLimit) settle(now limit.Time) {
	first := l.line.Serve(&l.calls, func(w *waitline.Waiter[*waiter]) bool {
		if now < w.Value.act || !l.spender.Serve(now, w.Cost) {
			return false
		}
		l.line.forget(w.Value)
		return true
	})
	l.updateUntil()
	at, _ := l.line.checks.First()
	l.checker.Set(l, (*leasedLimit).expire, at, int64(now))
	next := limit.Time(waitline.Never) // an Update settles
	if first == nil {
		l.line.act = 0
		l.spender.Thaw()
	} else if first.Cost <= l.spender.MaxCost(now) {
		next = max(now.Add(l.spender.Earliest(now, first.Cost)), first.Value.act)
	}
	l.timer.Set(l, (*leasedLimit).fire, int64(next), int64(now))
}

// fire is what the timer does.
func (l *leasedLimit) fire() {
	l.mu.Lock()
	l.timer.Fired()
	l.settle(l.client.now())
	l.mu.Unlock()
	l.calls.Run()
}

// unlock is for callers that may end waits: it has the call-backs made.
func (l *leasedLimit) unlock() {
	l.mu.Unlock()
	l.calls.Start()
}

// dismiss sends one away, unserved. A settle has to follow.
func (l *leasedLimit) dismiss(t *waiter, err error) {
	l.leave(t)
	t.lost = true
	t.End(&l.calls, err)
}

// review sends away all for whom check returns an error. cost is what the waiter and those
// ahead of it wait for. A settle has to follow.
func (l *leasedLimit) review(check func(t *waiter, cost int64) error) {
	l.line.Review(&l.calls, func(w *waitline.Waiter[*waiter], cost int64) error {
		t := w.Value
		err := check(t, cost)
		if err != nil {
			l.spender.Leave(t.Cost)
			l.line.forget(t)
			t.lost = true
		}
		return err
	})
}

// empty sends everybody away with err.
func (l *leasedLimit) empty(err error) {
	l.review(func(*waiter, int64) error { return err })
	l.settle(l.client.now())
}

// hopeless sends away those that cannot be served in time by what is known, and those
// that the limit never admits.
func (l *leasedLimit) hopeless(now limit.Time) {
	saturated, quota := l.saturated(), l.quota()
	decided := saturated || !l.undecided(now, 0)
	l.review(func(t *waiter, cost int64) error {
		switch {
		case t.Cost > quota:
			return exceeds(t.Cost, quota)
		case !t.waits:
		case (decided || !l.awaits(now, t.Cost)) && (t.impatient && saturated || (t.unsure || t.impatient) && l.late(now, cost, t)):
			return errLate
		}
		return nil
	})
}

// late says whether t, before whose end cost has to come, would be late by what the
// lease is at now.
func (l *leasedLimit) late(now limit.Time, cost int64, t *waiter) bool {
	if t.latest == math.MaxInt64 {
		return false
	}
	st := l.state.Load()
	if !t.impatient && (!st.Known || lendsNothingYet(st) || l.lane().link.Load() == linkDown) {
		return false // nobody knows: the coordinator may answer in time
	}
	if t.Cost > l.spender.MaxCost(now) {
		return true
	}
	if l.semaphore && !t.impatient {
		return false // a permit in use may be released in time
	}
	return max(now.Add(l.spender.Earliest(now, cost)), l.line.act) > t.latest
}

// lendsNothingYet says of an instance that holds nothing of a limit which has something to
// lend. Whatever others hold, a part of it is this instance's as soon as the coordinator
// knows that it wants one; so the present rate, which is 0, says nothing about when.
func lendsNothingYet(st *agent.State) bool {
	return st.Status == lease.StatusOK && st.Held == (lease.Capacity{}) && (st.Limit.Rate > 0 || st.Limit.Semaphore && st.Limit.Burst > 0)
}

func exceeds(n, quota int64) error {
	return fmt.Errorf("%w: %d is above %d", limit.ErrExceedsQuota, n, quota)
}

// wait waits in line for n until it is served, ctx ends or it would be later than
// latest: errLate. impatient is for a Take.
func (l *leasedLimit) wait(ctx context.Context, n int64, latest limit.Time, impatient bool) error {
	t := newWaiter(n, latest)
	t.ends, t.impatient = min(latest, l.ends(ctx)), impatient
	var w *limit.Wait
	if !impatient {
		w = l.client.opts.Hooks.NewWait(l.id.Limit, n)
	}
	if in, err := l.stand(t); !in {
		return err
	}
	w.Start()
	err := t.Await(ctx, func() bool { return l.giveUp(t) })
	w.End(err)
	return err
}

// stand takes what t wants or puts it in line.
func (l *leasedLimit) stand(t *waiter) (in bool, err error) {
	l.mu.Lock()
	defer l.unlock()
	if l.closed != nil {
		return false, l.closed
	}
	if err := l.fault(); err != nil {
		return false, err
	}
	if quota := l.quota(); t.Cost > quota {
		return false, exceeds(t.Cost, quota)
	}
	now := l.client.now()
	t.waits, t.until = true, t.ends
	l.enter(now, t)
	if !t.Waiting() {
		t.direct = t.done != nil && l.claim(t.WaitEnded)
		return false, nil
	}
	defer l.starve(now)
	check := t.latest
	if l.late(now, l.line.Cost(), t) {
		if !l.hopeful(t.Cost) {
			l.leave(t)
			l.settle(now)
			return false, errLate
		}
		t.unsure = true
		patience := now.Add(l.patience(now, t.Cost))
		l.line.wait(t, min(t.until, patience))
		l.updateUntil()
		check = min(check, patience)
	}
	if t.Signal = waitline.Callback(t); t.done == nil {
		t.Signal = waitline.Wake()
	}
	l.line.check(t, check)
	at, _ := l.line.checks.First()
	l.checker.Set(l, (*leasedLimit).expire, at, int64(now))
	return true, nil
}

// ends is when ctx ends, by the client's clock; MaxInt64 if it has no deadline.
func (l *leasedLimit) ends(ctx context.Context) limit.Time {
	deadline, ok := ctx.Deadline()
	if !ok {
		return math.MaxInt64
	}
	return l.client.now().Add(time.Until(deadline))
}

// giveUp leaves the line, unless the wait has ended before.
func (l *leasedLimit) giveUp(t *waiter) bool {
	l.mu.Lock()
	defer l.unlock()
	if !t.Waiting() {
		return false
	}
	l.leave(t)
	l.settle(l.client.now())
	return true
}

// waitMax is wait with the errors of limit.Limiter's verbs.
func (l *leasedLimit) waitMax(ctx context.Context, n int64, longest time.Duration) error {
	if n < 0 {
		return limit.ErrNegativeCost
	}
	if err := ctx.Err(); err != nil || n == 0 {
		return err
	}
	now := l.client.now()
	if taken, _ := l.spender.Try(now, n); taken {
		l.admitted(n)
		return nil
	}
	latest, hurried := now.Add(longest), false
	if d := l.ends(ctx); d < latest {
		latest, hurried = d, true
	}
	err := l.wait(ctx, n, latest, false)
	if errors.Is(err, errLate) {
		return l.tooLate(longest, hurried)
	}
	if err == nil {
		l.admitted(n)
	}
	return err
}

// tooLate is the error of one whose permit would be late.
func (l *leasedLimit) tooLate(longest time.Duration, hurried bool) error {
	if hurried {
		return fmt.Errorf("%w: no permit of %q before the deadline: %w", limit.ErrWaitTooLong, l.id.Limit, context.DeadlineExceeded)
	}
	return fmt.Errorf("%w: no permit of %q within %v", limit.ErrWaitTooLong, l.id.Limit, longest)
}
