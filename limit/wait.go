package limit

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/stint-io/stint/internal/waitline"
)

// Wait is shorthand for WaitN(ctx, 1).
func (l *Limiter) Wait(ctx context.Context) error { return l.WaitN(ctx, 1) }

// WaitN waits until n can be taken, in line behind earlier waiters, and takes it. When ctx ends
// first it returns ctx's error, has taken nothing, and the waiters behind move up.
//
// It fails at once with [ErrExceedsQuota] when n is above the policy's quota, and
// with [ErrWaitTooLong], which is then also a context.DeadlineExceeded, when the
// wait would outlast ctx's deadline; a change of policy that makes the wait that long
// ends it in the same way. While the rate is 0 it waits for the rate to change.
func (l *Limiter) WaitN(ctx context.Context, n int64) error { return l.wait(ctx, n, Never) }

// WaitMax is shorthand for WaitMaxN(ctx, 1, d).
func (l *Limiter) WaitMax(ctx context.Context, d time.Duration) error { return l.WaitMaxN(ctx, 1, d) }

// WaitMaxN is WaitN for a caller that waits at most d: it fails at once with [ErrWaitTooLong]
// when the wait would be longer, and as soon as a change of policy makes it longer. A negative d
// counts as 0.
func (l *Limiter) WaitMaxN(ctx context.Context, n int64, d time.Duration) error {
	return l.wait(ctx, n, max(d, 0))
}

func (l *Limiter) wait(ctx context.Context, n int64, longest time.Duration) error {
	if n < 0 {
		return ErrNegativeCost
	}
	if err := ctx.Err(); err != nil || n == 0 {
		return err
	}
	h := l.hooks.Load()
	w := h.NewWait(limiterName, n)
	s, err := l.line(ctx, n, longest)
	if err != nil {
		return err
	}
	if !s.signal.Blocks() {
		h.Admitted(limiterName, n)
		return nil
	}
	w.Start()
	err = s.signal.Await(ctx, func() bool { return l.leave(s.id, s.gen) })
	if errors.Is(err, ErrWaitTooLong) {
		if deadline, ok := ctx.Deadline(); ok && l.at(deadline) == s.latest {
			err = &tooLong{changed: true, hurried: true}
		}
	}
	w.End(err)
	if err == nil {
		h.Admitted(limiterName, n)
	}
	return err
}

// leave gives up the slot of a waiter. It returns false when the wait has ended.
func (l *Limiter) leave(id, gen uint64) bool {
	l.lock()
	defer l.unlock()
	now := l.now()
	l.settle(&l.meter, now)
	defer l.arm()
	i := l.find(id, gen)
	if i < l.acted { // or none
		return false
	}
	l.vacate(&l.meter, i, now)
	l.settle(&l.meter, now)
	return true
}

// line takes n at once, or enters the queue for it: only then the slot has a signal.
func (l *Limiter) line(ctx context.Context, n int64, longest time.Duration) (slot, error) {
	l.lock()
	defer l.unlock()
	return l.stand(ctx, n, longest, nil)
}

// stand is line under the lock. A nil done means that the caller blocks.
func (l *Limiter) stand(ctx context.Context, n int64, longest time.Duration, done func(error)) (slot, error) {
	if n > l.meter.quota {
		return slot{}, fmt.Errorf("%w: %d is above %d", ErrExceedsQuota, n, l.meter.quota)
	}
	now := l.now()
	latest, hurried := now.Add(longest), false
	if deadline, ok := ctx.Deadline(); ok {
		if d := l.at(deadline); d < latest {
			latest, hurried = d, true
		}
	}
	l.settle(&l.meter, now)
	s, ok := l.enter(&l.meter, now, slot{kind: slotWaiting, cost: n, from: now, latest: latest})
	switch {
	case !ok:
		return slot{}, &tooLong{wait: waitUntil(s.act, now), longest: longest, hurried: hurried}
	case s.kind != slotWaiting:
		return s, nil
	}
	if s.signal = waitline.Callback(waitline.HandlerFunc(done)); done == nil {
		s.signal = waitline.Wake()
	}
	l.slots[l.find(s.id, s.gen)].signal = s.signal
	l.arm()
	return s, nil
}

// arm sets the timer to the time at which the first waiter is served, if there is one. The timer
// serves all waiters that are due, so the edge of a window wakes those that the window admits
// and nobody else. The caller has settled the schedule, or one batch of it: then the timer is
// due already.
func (l *Limiter) arm() {
	next := Time(waitline.Never)
	if l.waiting > 0 {
		next = max(l.slots[l.acted].act, 1) // a vacant slot has 0, which would unset the timer
	}
	if !l.timer.IsSetTo(int64(next)) {
		l.timer.Set(l, (*Limiter).fire, int64(next), int64(l.now()))
	}
}

// batch is how many waiters a timer serves before their call-backs are made. Not more: it holds
// the lock meanwhile. Not fewer: each batch costs a microsecond of overhead.
const batch = 256

// fire is the timer's function. Its goroutine lives as long as there are call-backs to make.
func (l *Limiter) fire() {
	l.lock()
	l.timer.Fired()
	l.settleSome(&l.meter, l.now(), batch)
	l.arm()
	l.release()
	l.calls.Run()
}
