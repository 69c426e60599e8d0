package client

import (
	"context"
	"errors"
	"time"

	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/internal/lease/agent"
	"github.com/stint-io/stint/limit"
)

var (
	_ limit.Taker           = (*Limiter)(nil)
	_ limit.Finisher        = (*Semaphore)(nil)
	_ limit.AttributeReader = (*Keyed)(nil)
	_ limit.Finisher        = (*Keyed)(nil)
)

// The HTTP status of a refusal: unavailable where no coordinator answers, which is no fault of the client.
const (
	statusTooManyRequests = 429
	statusUnavailable     = 503
)

// Take makes a Limiter a [limit.Taker]. The request's attributes do not matter. Where
// the lease is short while capacity may be free elsewhere it asks at once and waits for
// the answer, at most as long as [LimitOptions.Ask] says, before it refuses.
//
// The errors are [limit.ErrNegativeCost], that of ctx, [ErrClosed], [ErrKind],
// [ErrRefused] and [ErrDuplicate].
func (l *Limiter) Take(ctx context.Context, req limit.Request) (limit.Decision, error) {
	return l.lease.take(ctx, req)
}

func (l *leasedLimit) take(ctx context.Context, req limit.Request) (limit.Decision, error) {
	if req.Cost < 0 {
		return limit.Decision{}, limit.ErrNegativeCost
	}
	if err := ctx.Err(); err != nil {
		return limit.Decision{}, err
	}
	cost := max(1, req.Cost)
	if req.Peek {
		if err := l.fault(); err != nil {
			return limit.Decision{}, err
		}
		// What is not here may come, as in prepare.
		return l.decision(cost, l.remaining(l.client.now()) >= cost || l.hopeful(cost)), nil
	}
	allowed, err := l.takeCost(ctx, cost)
	if err != nil {
		return limit.Decision{}, err
	}
	d := l.decision(cost, allowed)
	if h := &l.client.opts.Hooks; allowed {
		h.Admitted(l.id.Limit, cost)
	} else {
		h.Refused(l.id.Limit, cost, d.Results[0].Reason)
	}
	return d, nil
}

// takeCost takes n if it is there or comes by asking.
func (l *leasedLimit) takeCost(ctx context.Context, n int64) (bool, error) {
	now := l.client.now()
	taken, decided := l.spender.Try(now, n)
	if taken {
		return true, nil
	}
	return l.takeShort(ctx, now, n, decided, true)
}

// takeShort is takeCost of a lease that was found short at now; decided is what Try or Prepare
// returned. With wait it asks the coordinator, where an answer may bring n, and waits for that.
func (l *leasedLimit) takeShort(ctx context.Context, now limit.Time, n int64, decided, wait bool) (bool, error) {
	if err := l.fault(); err != nil {
		l.spender.Refuse(n)
		return false, err
	}
	if !wait || !l.hopeful(n) {
		taken := false
		if !decided {
			taken = l.allow(now, n)
		} else {
			l.spender.Refuse(n)
		}
		if !taken && !l.slowed(now, n) {
			l.starve(now)
		}
		return taken, nil
	}
	err := l.wait(ctx, n, now.Add(l.patience(now, n)), true)
	switch {
	case err == nil:
		return true, nil
	case errors.Is(err, errLate), errors.Is(err, limit.ErrExceedsQuota):
		return false, nil
	default:
		return false, err
	}
}

// decision describes the lease after a request of that cost.
func (l *leasedLimit) decision(cost int64, allowed bool) limit.Decision {
	var r limit.Result
	l.describeTo(&r, cost, allowed)
	if allowed {
		return limit.Decision{Allowed: true, Results: []limit.Result{r}}
	}
	return refusal(r)
}

func refusal(r limit.Result) limit.Decision {
	status := statusTooManyRequests
	if r.Reason == limit.ReasonStoreFailure {
		status = statusUnavailable
	}
	return limit.Decision{Status: status, Results: []limit.Result{r}}
}

// describeTo is decision with memory of the caller's.
func (l *leasedLimit) describeTo(r *limit.Result, cost int64, allowed bool) {
	now := l.client.now()
	st := l.state.Load()
	if allowed && !st.Known {
		st = l.stateAfterStep()
	}
	remaining, ahead := l.left(now)
	*r = limit.Result{
		Limit: l.id.Limit, Quota: st.Limit.Burst.Floor(), Cost: cost,
		Verdict: limit.Verdict{Allowed: allowed, Remaining: remaining},
	}
	if l.semaphore {
		r.Algorithm = limit.Concurrency
	} else {
		r.ResetAfter = l.resetAfter(now, remaining, ahead, st.Limit)
	}
	if st.Limit.Rate > 0 {
		r.Window = span(r.Quota, st.Limit.Rate)
	}
	if allowed {
		return
	}
	r.Reason = l.reason(st, cost)
	switch r.Reason {
	case limit.ReasonCost:
		r.RetryAfter = limit.Never
	case limit.ReasonStoreFailure:
		r.RetryAfter, r.StoreFailed = lease.DefaultRefresh, true
	case limit.ReasonRecovering:
		r.RetryAfter = lease.DefaultRefresh
	case limit.ReasonConcurrency:
		r.RetryAfter = l.ask()
	case limit.ReasonSuppressed:
		// It was drawn, so no time brings a permit for sure; by then as much has been
		// admitted again.
		r.RetryAfter = max(l.retryAfter(now, cost), min(span(cost, st.Suppression.Rate), time.Minute))
	default:
		if r.RetryAfter = l.retryAfter(now, cost); st.Former {
			r.RetryAfter = min(r.RetryAfter, lease.DefaultRefresh) // whoever coordinates next may have some
		}
	}
}

// stateAfterStep is the state for one who was served before it was known. A lease is amended
// before its state is stored, both under the lane's mu: what is served in between by the
// first answer waits for the rest of it, so as not to say that the limit is 0.
func (l *leasedLimit) stateAfterStep() *agent.State {
	a := l.lane()
	a.mu.Lock()
	defer a.mu.Unlock()
	return l.state.Load()
}

// resetAfter is when the limit is as good as new, if nobody takes anything: what the
// waiters cost and the next token come at the rate of the lease, and the others by
// then at that of the whole limit, as the instances that had the rest of it use it no more.
func (l *leasedLimit) resetAfter(now limit.Time, remaining, ahead int64, whole lease.Terms) time.Duration {
	missing := whole.Burst.Floor() - remaining
	if missing <= 0 {
		return 0
	}
	next := l.spender.Earliest(now, ahead+remaining+1)
	rest := span(missing-1, whole.Rate)
	if next >= limit.Never-rest || missing > 1 && whole.Rate <= 0 {
		return limit.Never
	}
	return next + rest
}

// retryAfter is when cost fits, as far as is known. A limit that does not refill may
// have more in an hour all the same: others give back what they do not use.
func (l *leasedLimit) retryAfter(now limit.Time, cost int64) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return max(1, min(l.expected(now, l.line.Cost()+cost, cost), time.Hour))
}

// span is how long n tokens take at a rate; 0 if it is 0.
func span(n int64, rate fixed.Amount) time.Duration {
	if rate <= 0 {
		return 0
	}
	d := float64(n) / rate.Float() * float64(time.Second)
	if d >= float64(limit.Never) {
		return limit.Never
	}
	return time.Duration(d)
}
