package limit

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stint-io/stint/internal/waitline"
)

// The errors of a [Limiter]'s waits, for errors.Is.
var (
	// ErrExceedsQuota says that no wait is long enough: the cost is above what
	// the policy ever admits at once.
	ErrExceedsQuota = errors.New("limit: cost exceeds the quota")

	// ErrWaitTooLong says that the permit would come later than the caller wants to wait. It is
	// returned as soon as that is known, not when the time is over.
	ErrWaitTooLong = errors.New("limit: wait too long")

	// ErrNegativeCost says that a cost is below 0, which would fill a limit up.
	ErrNegativeCost = errors.New("limit: negative cost, want at least 0")
)

// Limiter is one limit in this process, with the verbs of golang.org/x/time/rate. They differ in
// what happens when there is no permit: Allow refuses, Reserve says when there will be one, Wait
// waits for it. Take is Allow with the full Decision.
//
// Waiters are served first in, first out. While some wait, or hold reservations for later, Allow
// refuses: no request overtakes a waiter.
//
// Its clock is the wall clock at the time of NewLimiter, carried on by the monotonic clock, so
// stepping the wall clock changes nothing. Times that callers pass are converted to it, by their
// monotonic reading where they have one. A time before the latest Take counts as the time of
// that Take. Until the first Take, every time is admitted, also one before NewLimiter. Times
// before 1970 count as 1970.
//
// The zero value refuses everything; use [NewLimiter]. A Limiter is safe for
// concurrent use and must not be copied.
type Limiter struct {
	origin time.Time // the clock's beginning, with its monotonic reading
	epoch  Time      // origin as a Time

	fast  atomic.Pointer[fastBucket] // nil when the policy has none
	hooks atomic.Pointer[Hooks]      // nil = none

	mu sync.Mutex // see lock and unlock
	schedule
	meter  meter
	ready  bool // meter is made; false in the zero value
	behind bool // something was taken since the ledger's last was brought up to date

	timer waitline.Timer[Limiter] // serves the first waiter
}

// limiterName is the name of the limit in a Result, which must have one.
const limiterName = "limiter"

// NewLimiter returns a limiter with policy p, which is unlimited when its rate is [Inf]. Concurrency policies are an error: their permits
// are given back by finishing, which takes a [Finisher].
func NewLimiter(p Policy) (*Limiter, error) {
	p = p.infinite()
	if err := checkLimiter(p); err != nil {
		return nil, err
	}
	now := time.Now()
	l := &Limiter{origin: now, epoch: At(now), meter: newMeter(p), ready: true}
	l.lock()
	defer l.unlock()
	l.quicken(l.epoch)
	return l, nil
}

// infinite is p, unlimited when its rate is Inf.
func (p Policy) infinite() Policy {
	p.Unlimited = p.Unlimited || p.Rate == Inf && p.Algorithm != Concurrency
	return p
}

func checkLimiter(p Policy) error {
	if p.Algorithm == Concurrency {
		return fmt.Errorf("limit: a Limiter cannot have a %v policy, whose permits are given back by finishing: use a Finisher", p.Algorithm)
	}
	return p.Validate()
}

func (l *Limiter) now() Time {
	if l.origin.IsZero() {
		return l.at(time.Now())
	}
	// time.Since reads the monotonic clock alone, which takes half the time of time.Now.
	return l.epoch.Add(time.Since(l.origin))
}

// at converts t to l's clock. A zero value that was given a policy later has no clock of its own
// and uses the wall clock.
func (l *Limiter) at(t time.Time) Time {
	if l.origin.IsZero() {
		return max(0, At(t))
	}
	return max(0, l.epoch.Add(t.Sub(l.origin)))
}

// clock returns the time up to which waiters are served: t, which the caller chose, or l's own
// time if there are waiters.
func (l *Limiter) clock(t Time) Time {
	if l.waiting > 0 {
		return l.now()
	}
	return t
}

// Allow is AllowN(time.Now(), 1). For nearly all token buckets it takes no lock.
func (l *Limiter) Allow() bool {
	now := l.now()
	f := l.fast.Load()
	if f != nil {
		if allowed, decided := f.allow(now); decided {
			if h := l.hooks.Load(); h != nil {
				h.decided(allowed, 1)
			}
			return allowed
		}
	}
	return l.report(l.allow(now, 1), 1)
}

// SetHooks makes l call h from now on, under the limit's name "limiter". It replaces earlier
// hooks.
func (l *Limiter) SetHooks(h Hooks) { l.hooks.Store(&h) }

// report calls the hooks for a decision, and says whether it admits.
func (l *Limiter) report(reason Reason, cost int64) bool {
	switch h := l.hooks.Load(); {
	case h == nil:
	case reason == ReasonNone:
		h.Admitted(limiterName, cost)
	default:
		h.Refused(limiterName, cost, reason)
	}
	return reason == ReasonNone
}

// decided calls the hooks for a decision of a fast bucket about cost, which fits into the burst.
func (h *Hooks) decided(allowed bool, cost int64) {
	if allowed {
		h.Admitted(limiterName, cost)
	} else {
		h.Refused(limiterName, cost, ReasonRate)
	}
}

// AllowN takes n at t if that is possible at once, and reports whether it did. Under a leaky
// bucket that is only without a delay. A negative n is refused.
func (l *Limiter) AllowN(t time.Time, n int64) bool { return l.report(l.allow(l.at(t), n), n) }

// allow takes n at now, or says why not.
func (l *Limiter) allow(now Time, n int64) Reason {
	l.lock()
	defer l.unlock()
	l.catchUp()
	if f := l.fast.Load(); f != nil && now-f.begin > Time(PackedHorizon)/2 {
		l.quicken(l.now()) // not now, which a caller may choose far ahead
	}
	if len(l.slots) > 0 {
		l.settle(&l.meter, l.clock(now))
		l.arm()
	}
	switch {
	case n < 0 || n > l.meter.quota && l.pending > 0:
		return ReasonCost
	case l.pending > 0:
		return ReasonRate
	case l.meter.paces():
		if v := l.meter.peek(&l.state, now, n); v.Delay > 0 {
			return ReasonRate
		}
	}
	return l.takeAt(now, n).Reason
}

// takeAt takes cost when no waiter is ahead of it.
func (l *Limiter) takeAt(now Time, cost int64) Verdict {
	at := max(now, l.state.last)
	v := l.meter.take(&l.state, now, cost)
	if v.Allowed {
		l.record(&l.meter, slotGranted, at, cost)
	} else if l.meter.policy.CountRefused || l.meter.policy.Ban > 0 {
		l.record(&l.meter, slotRefused, at, cost)
	}
	return v
}

// Take makes a Limiter a [Taker]. The request's attributes do not matter; the
// limit is called "limiter" in the answer. The only errors are [ErrNegativeCost]
// and that of ctx.
func (l *Limiter) Take(ctx context.Context, req Request) (Decision, error) {
	d, err := l.take(ctx, req)
	if err == nil && !req.Peek {
		l.report(d.Results[0].Reason, max(1, req.Cost))
	}
	return d, err
}

func (l *Limiter) take(ctx context.Context, req Request) (Decision, error) {
	if req.Cost < 0 {
		return Decision{}, ErrNegativeCost
	}
	if err := ctx.Err(); err != nil {
		return Decision{}, err
	}
	cost := costOf(req)
	l.lock()
	defer l.unlock()
	now := l.now()
	l.settle(&l.meter, now)
	l.arm()
	var v Verdict
	switch {
	case l.pending > 0 && (req.Peek || !req.CountRefused):
		v = l.takeBehind(now, cost, req.Peek)
	case req.Peek:
		if v = l.meter.peek(&l.state, now, cost); v.Allowed {
			is := l.meter.peek(&l.state, now, 0) // nothing is taken
			v.Remaining, v.ResetAfter = is.Remaining, is.ResetAfter
		}
	case req.CountRefused:
		v = l.count(now, cost)
	default:
		v = l.takeAt(now, cost)
	}
	d := Decision{Allowed: v.Allowed, Delay: v.Delay, Results: []Result{{
		Limit: limiterName, Algorithm: l.meter.policy.Algorithm, Quota: l.meter.quota, Window: l.meter.policy.Window(), Cost: cost, Verdict: v,
	}}}
	if !v.Allowed {
		d.Status = statusTooManyRequests
	}
	return d, nil
}

const statusTooManyRequests = 429

// count takes cost whether it fits or not. What does not fit is charged before the waiters are
// served: it was spent already.
func (l *Limiter) count(now Time, cost int64) Verdict {
	if l.pending > 0 {
		if v := l.takeBehind(now, cost, false); v.Allowed {
			return v
		}
	} else if v := l.meter.peek(&l.state, now, cost); v.Allowed {
		return l.takeAt(now, cost)
	}
	l.trim(&l.meter, 0)
	if len(l.slots) == 0 {
		l.meter.count(&l.state, now, cost)
		return l.meter.peek(&l.state, now, cost)
	}
	l.meter.count(&l.base, now, cost)
	l.rewind(&l.meter, now)
	l.plan(&l.meter, len(l.slots)) // refuses waiters who would miss their deadline now
	l.settle(&l.meter, now)
	l.arm()
	return l.takeBehind(now, cost, true)
}

// takeBehind answers a request that arrives while others wait: only a leaky bucket still admits,
// behind them.
func (l *Limiter) takeBehind(now Time, cost int64, peek bool) Verdict {
	l.plan(&l.meter, len(l.slots))
	take, act, ok := l.meter.earliest(&l.state, now, cost)
	v := l.meter.peek(&l.state, now, cost)
	if ok && take <= now && l.meter.paces() {
		if !peek {
			l.enter(&l.meter, now, slot{kind: slotPromised, cost: cost, from: now, latest: math.MaxInt64})
		}
		v.Delay = time.Duration(act - now)
		return v
	}
	v.Allowed, v.Remaining, v.Delay, v.RetryAfter = false, 0, 0, waitUntil(take, now)
	if v.Reason == ReasonNone {
		v.Reason = ReasonRate
	}
	return v
}

// Remaining is how much would be admitted now; 0 while others wait.
func (l *Limiter) Remaining() int64 { return l.RemainingAt(time.Now()) }

// RemainingAt is how much would be admitted at t.
func (l *Limiter) RemainingAt(t time.Time) int64 {
	now := l.at(t)
	l.lock()
	defer l.unlock()
	l.catchUp()
	l.settle(&l.meter, l.clock(now))
	l.arm()
	if l.pending > 0 {
		return 0
	}
	return l.meter.peek(&l.state, now, 0).Remaining
}

// Policy returns the policy in force.
func (l *Limiter) Policy() Policy {
	l.lock()
	defer l.unlock()
	return l.meter.policy
}

// SetRate changes the rate; see [Limiter.SetPolicy]. [Inf] makes l unlimited, and another rate after it limited again.
func (l *Limiter) SetRate(r Rate) error {
	return l.change(func(p *Policy) {
		p.Unlimited = p.Unlimited && p.Rate != Inf
		p.Rate = r
	})
}

// SetBurst changes the burst of a bucket; see [Limiter.SetPolicy].
func (l *Limiter) SetBurst(n int64) error {
	return l.change(func(p *Policy) { p.Burst = n })
}

// SetPolicy puts p in force at once. What was used stays used: a change neither refills nor
// forgets, except that another algorithm starts afresh. Waiters keep their order and are served
// by p, sooner or later than before. Waiters whose cost p can never admit get [ErrExceedsQuota]
// at once, and those who would have to wait longer than they want [ErrWaitTooLong]. A
// reservation is not moved to an earlier time; one above the new quota keeps its time, and its
// cost becomes debt. An invalid policy is an error and changes nothing.
//
// What was used above a smaller quota is debt, which refill pays before anything is admitted: a
// change and its reversal add no tokens.
func (l *Limiter) SetPolicy(p Policy) error {
	return l.change(func(q *Policy) { *q = p })
}

func (l *Limiter) change(edit func(*Policy)) error {
	l.lock()
	defer l.unlock()
	p := l.meter.policy
	edit(&p)
	p = p.infinite()
	if err := checkLimiter(p); err != nil {
		return err
	}
	now, next := l.now(), newMeter(p)
	l.catchUp()
	l.settle(&l.meter, now)
	if len(l.slots) > 0 {
		l.trim(&l.meter, 0) // slots that have acted did so under the old policy
	}
	if len(l.slots) == 0 {
		l.state = next.convert(l.state, &l.meter, now)
		l.meter = next
		l.quicken(now)
		return nil
	}
	l.replan(next, now)
	return nil
}

// replan puts next in force for a schedule that has slots.
func (l *Limiter) replan(next meter, now Time) {
	l.base = next.convert(l.base, &l.meter, now)
	l.meter = next
	l.quicken(now)
	l.rewind(&l.meter, now)
	bounded := false
	for i := range l.slots {
		s := &l.slots[i]
		switch {
		case s.kind == slotVacant:
		case s.cost <= next.quota:
			bounded = bounded || s.kind == slotWaiting && s.latest < math.MaxInt64
		case s.kind == slotWaiting:
			l.dismiss(s, fmt.Errorf("%w: %d is above %d", ErrExceedsQuota, s.cost, next.quota))
		}
	}
	l.settle(&l.meter, now)
	if bounded {
		l.plan(&l.meter, len(l.slots)) // refuses waiters who would miss their deadline now
		l.settle(&l.meter, now)
	}
	l.arm()
}
