package client

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/stint-io/stint/internal/bucket"
	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/limit"
)

// Limiter spends a lease of a rate, with the verbs of [limit.Limiter]: Allow refuses,
// Reserve says when there will be a permit, Wait waits for it, and Take is Allow with
// the whole answer, but asks the coordinator before it refuses. Callers are let go in
// the order in which they came; while some wait, or hold reservations for later, Allow
// refuses.
//
// A cost above the lease's burst is not refused for good: more burst is asked for. One
// above the limit's whole burst never fits.
//
// Before the first answer of the coordinator, and when the lease has run out, it admits
// what [LimitOptions] say of that. Waiters stay in line. It is safe for
// concurrent use; [Client.Limit] makes one.
type Limiter struct {
	bucket *bucket.Bucket // the lease's spender, for calls that do not go through the interface; below lease.paced, if any
	lease  leasedLimit
}

// Name returns the name of the limit.
func (l *Limiter) Name() string { return l.lease.id.Limit }

// Allow takes 1 if it is there, and reports whether it was. It never waits.
func (l *Limiter) Allow() bool {
	c := l.lease.client
	now := c.now()
	if l.lease.paced != nil {
		return l.AllowN(time.Now(), 1)
	}
	allowed, decided := l.bucket.Allow(now, 1)
	switch {
	case allowed:
		if c.opts.Hooks.OnAdmit != nil {
			c.opts.Hooks.OnAdmit(l.lease.id.Limit, 1)
		}
		return true
	case decided:
		l.lease.starve(now)
		l.lease.refused(1)
		return false
	}
	return l.lease.short(now, 1, decided)
}

// AllowN takes n at t if it is there, and reports whether it was. A t in the future
// counts as the present. A negative n is refused.
func (l *Limiter) AllowN(t time.Time, n int64) bool {
	now := l.lease.client.at(t)
	allow := l.bucket.Allow
	if l.lease.paced != nil {
		allow = l.lease.paced.Allow
	}
	allowed, decided := allow(now, n)
	if !allowed {
		return l.lease.short(now, n, decided)
	}
	l.lease.admitted(n)
	return true
}

// short ends an Allow that found nothing.
func (l *leasedLimit) short(now limit.Time, n int64, decided bool) bool {
	if !decided && l.allow(now, n) {
		l.admitted(n)
		return true
	}
	if !l.slowed(now, n) {
		l.starve(now)
	}
	l.refused(n)
	return false
}

// Wait is shorthand for WaitN(ctx, 1).
func (l *Limiter) Wait(ctx context.Context) error { return l.WaitN(ctx, 1) }

// WaitN waits until n can be taken, behind earlier callers, and takes it.
// When ctx ends first it returns ctx's error, and has taken nothing.
//
// It fails at once with [limit.ErrExceedsQuota] when n is above the limit's burst, and
// with [limit.ErrWaitTooLong], which is then also a context.DeadlineExceeded, when it is
// known that the permit comes after ctx's deadline; where nothing is lent to this instance
// nobody knows. [ErrClosed], [ErrRefused], [ErrKind]
// and, without a lease that runs, [ErrDuplicate] end every wait.
func (l *Limiter) WaitN(ctx context.Context, n int64) error {
	return l.lease.waitMax(ctx, n, limit.Never)
}

// WaitMax is shorthand for WaitMaxN(ctx, 1, d).
func (l *Limiter) WaitMax(ctx context.Context, d time.Duration) error { return l.WaitMaxN(ctx, 1, d) }

// WaitMaxN is WaitN for a caller who waits at most d. It fails with
// [limit.ErrWaitTooLong] when the wait would be longer by the present rate: at once if
// the limit is full, else after one question to the coordinator. An instance that is lent
// nothing has no such rate, and waits for what it is about to get, at most d.
func (l *Limiter) WaitMaxN(ctx context.Context, n int64, d time.Duration) error {
	return l.lease.waitMax(ctx, n, max(d, 0))
}

// Demand says how many tokens per second the application wants from here on; 0 wants
// nothing. It is what is reported to the coordinator if the estimator is [Declared], and means
// nothing otherwise. NaN, negative and infinite numbers are an error.
func (l *Limiter) Demand(perSecond float64) error { return l.lease.demand(perSecond) }

func (l *leasedLimit) demand(wanted float64) error {
	amount, err := fixed.AmountOf(wanted)
	if err != nil {
		return fmt.Errorf("client: demand on limit %q: %w", l.id.Limit, err)
	}
	l.spender.Declare(amount)
	l.demandNow()
	return nil
}

// Remaining is how much would be admitted at this moment without asking: 0 while others
// wait.
func (l *Limiter) Remaining() int64 { return l.lease.remaining(l.lease.client.now()) }

func (l *leasedLimit) remaining(now limit.Time) int64 {
	n, _ := l.left(now)
	return n
}

// left is what remains, and what the waiters cost.
func (l *leasedLimit) left(now limit.Time) (remaining, ahead int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.line.First() != nil {
		return 0, l.line.Cost()
	}
	return l.spender.Remaining(now), 0
}

// Close gives the lease back. Waiters get [ErrClosed], and nothing is admitted
// any more. It does not wait for the coordinator.
func (l *Limiter) Close() { l.lease.close(ErrClosed) }

// Lease says how the lease stands.
func (l *Limiter) Lease() Lease { return l.lease.describe() }

// Err is why nothing is lent of the limit, as Take and Wait return it, such as [ErrRefused] for a
// name that the coordinator does not know; nil while there is no such reason, and before the
// first answer. It heals by itself when the coordinator learns the limit.
func (l *Limiter) Err() error { return l.lease.fault() }

// Lease is how a lease stands. Rates are in tokens per second.
type Lease struct {
	Known       bool    // the coordinator has answered
	Rate, Burst float64 // leased; the burst in whole tokens, or permits
	Demand      float64 // as reported to the coordinator
	Full        bool    // the demand of all instances exceeds the limit
	Recovering  bool    // the coordinator is new and lends only what is surely free
	Expired     bool    // the lease ran out
	Reject      float64 // the part of attempts that is refused, of a limit that is shared by suppression
	RoundTrip   time.Duration
	Err         error // why nothing is lent, as waits and Take return it; nil = no such reason
}

func (l *leasedLimit) describe() Lease {
	p := l.place.Load()
	p.lane.mu.Lock()
	st := p.lane.agent.State(p.handle)
	p.lane.mu.Unlock()
	return Lease{
		Known: st.Known, Rate: st.Held.Rate.Float(), Burst: st.Held.Burst.Float(), Demand: st.Demand.Float(),
		Full: l.saturated(), Recovering: st.Recovering, Expired: st.Expired, Reject: st.Suppression.Reject, RoundTrip: st.RoundTrip, Err: l.fault(),
	}
}

// outcomes are what the receiver made of what was sent.
type outcomes struct {
	good, failed atomic.Int64
	next         atomic.Int64 // limit.Time at which they are judged
}

// Report says how many requests succeeded and failed at the receiver since the last
// call; see [LimitOptions.Adjust], without which it does nothing.
func (l *Limiter) Report(succeeded, failed int64) {
	if l.lease.paced == nil || succeeded < 0 || failed < 0 {
		return
	}
	o := &l.lease.outcomes
	o.good.Add(succeeded)
	o.failed.Add(failed)
	if now := l.lease.client.now(); int64(now) >= o.next.Load() {
		l.lease.judge(now)
	}
}

// Succeeded is shorthand for Report(1, 0).
func (l *Limiter) Succeeded() { l.Report(1, 0) }

// Failed is shorthand for Report(0, 1).
func (l *Limiter) Failed() { l.Report(0, 1) }

// judge lets the adjuster observe the outcomes, and puts in force what it says.
func (l *leasedLimit) judge(now limit.Time) {
	l.mu.Lock()
	defer l.unlock()
	changed := l.paced.adjuster.Observe(now, l.outcomes.good.Load(), l.outcomes.failed.Load())
	l.outcomes.next.Store(int64(l.paced.adjuster.Next()))
	if changed {
		l.pace(now)
		l.settle(now)
	}
}

// refund puts back n that was taken and not used.
func (l *Limiter) refund(now limit.Time, n int64) {
	if l.lease.paced != nil {
		l.lease.paced.Refund(now, n)
	} else {
		l.bucket.Refund(now, n)
	}
}
