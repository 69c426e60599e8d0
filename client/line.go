package client

import (
	"container/heap"
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/internal/lease/agent"
	"github.com/stint-io/stint/limit"
)

// turn is a place in line.
type turn struct {
	n          int64
	prev, next *turn
	in         bool

	// waits says that somebody waits in it, who is told by wake, which holds one, or by
	// a call of done. Otherwise it is a reservation.
	waits  bool
	wake   chan error
	done   func(error)
	direct bool // it was served at once, and done is to be called by who stood in line

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
	// the patience of one that is unsure ends; MaxInt64 = never. ends is that of one
	// that is not unsure.
	until, ends limit.Time

	// look is when to see whether it goes away: latest, or when the patience ends;
	// reviewed says that it is being looked at.
	look     limit.Time
	reviewed bool

	inUntil, inLook int // places in the heaps of the line, plus 1
}

// line is first in, first out.
type line struct {
	first, last *turn
	cost        int64      // of all
	act         limit.Time // the latest of all, and of those who left

	until limit.Time // the latest of all, which the coordinator is told
	ends  turnHeap   // by until, the latest first
	looks turnHeap   // by look, the earliest first; those that have one
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
	q.ends.byUntil = true
	heap.Push(&q.ends, t)
	q.until = q.ends.turns[0].until
}

// wait lets t, which is in line, wait until then.
func (q *line) wait(t *turn, until limit.Time) {
	t.until = until
	heap.Fix(&q.ends, t.inUntil-1)
	q.until = q.ends.turns[0].until
}

// lookAt has t, which is in line, looked at then; MaxInt64 = never.
func (q *line) lookAt(t *turn, look limit.Time) {
	t.look = look
	switch {
	case t.inLook > 0 && look == math.MaxInt64:
		heap.Remove(&q.looks, t.inLook-1)
	case t.inLook > 0:
		heap.Fix(&q.looks, t.inLook-1)
	case look < math.MaxInt64:
		heap.Push(&q.looks, t)
	}
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
	q.lookAt(t, math.MaxInt64)
	heap.Remove(&q.ends, t.inUntil-1)
	if q.first == nil {
		q.act, q.until = 0, 0
	} else {
		q.until = q.ends.turns[0].until
	}
}

// errLate says that it would not be in time.
var errLate = errors.New("late")

// enter puts t in line and lets go whom there is enough for.
func (l *leasedLimit) enter(now limit.Time, t *turn) {
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
func (l *leasedLimit) sayUntil() {
	until := l.line.until
	if until == math.MaxInt64 {
		until = 0
	}
	l.purse.WaitUntil(until)
}

// leave takes t out of the line, unserved. Those behind it move up.
func (l *leasedLimit) leave(now limit.Time, t *turn) {
	l.purse.Leave(t.n)
	l.line.remove(t)
	l.settle(now)
}

// settle lets go those in line for whom there is enough at now, in their order.
func (l *leasedLimit) settle(now limit.Time) {
	t := l.line.first
	for t != nil && now >= t.act && l.purse.Serve(now, t.n) {
		l.line.remove(t)
		l.tell(t, nil)
		t = l.line.first
	}
	l.sayUntil()
	l.armLook()
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
func (l *leasedLimit) ring() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.settle(l.client.now())
}

// tell ends the wait of one who is not in line any more, if it has begun.
func (l *leasedLimit) tell(t *turn, err error) {
	switch {
	case t.wake != nil:
		t.wake <- err
	case t.done != nil:
		if l.calls.add(t.done, err) {
			go l.calls.run()
		}
	}
}

// dismiss sends one away, unserved. A settle has to follow.
func (l *leasedLimit) dismiss(t *turn, err error) {
	l.purse.Leave(t.n)
	l.line.remove(t)
	t.lost = true
	l.tell(t, err)
}

// empty sends everybody away with err.
func (l *leasedLimit) empty(err error) {
	for t := l.line.first; t != nil; t = l.line.first {
		l.dismiss(t, err)
	}
	l.settle(l.client.now())
}

// review sends away those whose turn does not come in time by what is known, and those
// whom the limit never admits.
func (l *leasedLimit) review(now limit.Time) {
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
		case !t.waits:
		case vain && (t.impatient && st.Full || (t.unsure || t.impatient) && l.late(now, cost, t)):
			err = errLate
		}
		if err != nil {
			cost -= t.n
			l.dismiss(t, err)
		}
		t = next
	}
}

// late says whether t, before whose end cost has to come, would be late by what the
// leasedLimit is at now.
func (l *leasedLimit) late(now limit.Time, cost int64, t *turn) bool {
	if t.latest == math.MaxInt64 {
		return false
	}
	st := l.state.Load()
	if !t.impatient && (!st.Known || lendsNothingYet(st) || l.client.link.Load() == linkDown) {
		return false // nobody knows: the coordinator may answer in time
	}
	if t.n > l.purse.Depth(now) {
		return true
	}
	if l.gauge && !t.impatient {
		return false // whoever holds a place may give it back in time
	}
	return max(now.Add(l.purse.Earliest(now, cost)), l.line.act) > t.latest
}

// lendsNothingYet says of an instance that holds nothing of a limit which has something to
// lend. Whatever others hold, a part of it is this instance's as soon as the coordinator
// knows that it wants one; so the present rate, which is 0, says nothing about when.
func lendsNothingYet(st *agent.State) bool {
	return st.Status == lease.StatusOK && st.Held == (lease.Capacity{}) && (st.Limit.Rate > 0 || st.Limit.Gauge && st.Limit.Burst > 0)
}

func exceeds(n, quota int64) error {
	return fmt.Errorf("%w: %d is above %d", limit.ErrExceedsQuota, n, quota)
}

// wait stands in line for n until it is there, ctx ends or it would be later than
// latest: errLate. impatient is for a Take.
func (l *leasedLimit) wait(ctx context.Context, n int64, latest limit.Time, impatient bool) error {
	t := &turn{n: n, latest: latest, ends: min(latest, l.ends(ctx)), impatient: impatient}
	var w *limit.Wait
	if !impatient {
		w = l.client.opts.Hooks.NewWait(l.id.Limit, n)
	}
	if in, err := l.stand(t, nil); !in {
		return err
	}
	w.Start()
	err := l.await(ctx, t)
	w.End(err)
	return err
}

// await waits in line.
func (l *leasedLimit) await(ctx context.Context, t *turn) error {
	select {
	case err := <-t.wake:
		return err
	case <-ctx.Done():
	}
	if !l.giveUp(t) {
		return <-t.wake // it came in the same moment: the permit is taken, so use it
	}
	return ctx.Err()
}

// stand takes what t wants or puts it in line. It is told by done, or if that is nil by
// its wake.
func (l *leasedLimit) stand(t *turn, done func(error)) (in bool, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed != nil {
		return false, l.closed
	}
	if err := l.fault(); err != nil {
		return false, err
	}
	if quota := l.quota(); t.n > quota {
		return false, exceeds(t.n, quota)
	}
	now := l.client.now()
	t.waits, t.until = true, t.ends
	l.enter(now, t)
	if !t.in {
		t.direct = done != nil && l.claim(done)
		return false, nil
	}
	defer l.starve(now)
	look := t.latest
	if l.late(now, l.line.cost, t) {
		if !l.hopeful(t.n) {
			l.leave(now, t)
			return false, errLate
		}
		t.unsure = true
		patience := now.Add(l.ask())
		l.line.wait(t, min(t.until, patience))
		l.sayUntil()
		look = min(look, patience)
	}
	if t.done = done; done == nil {
		t.wake = make(chan error, 1)
	}
	l.line.lookAt(t, look)
	l.armLook()
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

// giveUp leaves the line, unless it was t's turn before.
func (l *leasedLimit) giveUp(t *turn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !t.in {
		return false
	}
	l.leave(l.client.now(), t)
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
	if taken, _ := l.purse.Try(now, n); taken {
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
	return err
}

// tooLate is what one is told whose permit would be late.
func (l *leasedLimit) tooLate(longest time.Duration, hurried bool) error {
	if hurried {
		return fmt.Errorf("%w: no permit of %q before the deadline: %w", limit.ErrWaitTooLong, l.id.Limit, context.DeadlineExceeded)
	}
	return fmt.Errorf("%w: no permit of %q within %v", limit.ErrWaitTooLong, l.id.Limit, longest)
}
