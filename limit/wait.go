package limit

import (
	"context"
	"fmt"
	"math"
	"time"
)

// Wait is shorthand for WaitN(ctx, 1).
func (l *Limiter) Wait(ctx context.Context) error { return l.WaitN(ctx, 1) }

// WaitN waits until n can be taken, in turn behind those who came before, and
// takes it. When ctx ends first it returns ctx's error, has taken nothing, and
// those behind move up.
//
// It fails at once with [ErrExceedsQuota] when n is above the policy's quota, and
// with [ErrWaitTooLong], which is then also a context.DeadlineExceeded, when the
// wait would outlast ctx's deadline. While the rate is 0 it waits for the rate to
// change.
func (l *Limiter) WaitN(ctx context.Context, n int64) error { return l.wait(ctx, n, Never) }

// WaitMax is shorthand for WaitMaxN(ctx, 1, d).
func (l *Limiter) WaitMax(ctx context.Context, d time.Duration) error { return l.WaitMaxN(ctx, 1, d) }

// WaitMaxN is WaitN for a caller who waits at most d: it fails at once with
// [ErrWaitTooLong] when the wait would be longer. A later change of policy may
// still make it longer.
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
	s, err := l.line(ctx, n, longest)
	if err != nil || s.wake == nil {
		return err
	}
	select {
	case err := <-s.wake:
		return err
	case <-ctx.Done():
	}
	l.lock()
	defer l.unlock()
	select {
	case err := <-s.wake:
		return err // it came in the same moment: the permit is taken, so use it
	default:
	}
	if i := l.find(s.id, s.gen); i >= 0 {
		now := l.now()
		l.vacate(&l.meter, i, now)
		l.settle(&l.meter, now)
		l.arm()
	}
	return ctx.Err()
}

// line takes n at once or stands in line for it; only then the slot has a wake.
func (l *Limiter) line(ctx context.Context, n int64, longest time.Duration) (slot, error) {
	l.lock()
	defer l.unlock()
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
	defer l.arm()
	s, ok := l.enter(&l.meter, now, latest, slot{kind: slotWaiting, cost: n, from: now})
	switch {
	case !ok && hurried:
		return slot{}, fmt.Errorf("%w: the permit would come in %v, after the deadline: %w",
			ErrWaitTooLong, waitUntil(s.act, now), context.DeadlineExceeded)
	case !ok:
		return slot{}, fmt.Errorf("%w: the permit would come in %v, want at most %v",
			ErrWaitTooLong, waitUntil(s.act, now), longest)
	case s.kind == slotWaiting:
		s.wake = make(chan error, 1)
		l.slots[l.find(s.id, s.gen)].wake = s.wake
	}
	return s, nil
}

// arm sets the timer to the time at which the first one who waits is let go. It
// lets go all who are due, so a window's edge wakes those that the window admits
// and nobody else.
func (l *Limiter) arm() {
	next := Time(0)
	if l.waiting > 0 {
		i := l.acted
		for l.slots[i].kind != slotWaiting {
			i++
		}
		l.plan(&l.meter, i+1)
		next = l.slots[i].act
	}
	if next == l.wakeAt {
		return
	}
	l.wakeAt = next
	switch wait := waitUntil(next, l.now()); {
	case next == 0 || next == math.MaxInt64:
		if l.timer != nil {
			l.timer.Stop()
		}
	case l.timer == nil:
		l.timer = time.AfterFunc(wait, l.ring)
	default:
		l.timer.Reset(wait)
	}
}

// ring is what the timer does, in the few microseconds that its goroutine lives.
func (l *Limiter) ring() {
	l.lock()
	defer l.unlock()
	l.wakeAt = 0
	l.settle(&l.meter, l.now())
	l.arm()
}
