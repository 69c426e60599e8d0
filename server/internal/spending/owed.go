package spending

import (
	"context"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stint-io/stint/limit"
)

const (
	// mostOwed bounds what a key owes at a server, in bursts of the limit; what is above is not charged. Not smaller: a
	// cost may be far above its estimate. Not larger: by a mistake in one commit nobody is to be locked out for good.
	mostOwed = 64
	// pieces is in how many pieces a burst is paid. Not fewer: one instance among many may never be lent a whole
	// burst. Not more: each waits for itself.
	pieces = 16
)

// owed is what has been used and could not be taken yet. It is paid by what comes, one piece after the other, each in
// the line of the lease. The zero value owes nothing.
type owed struct {
	tokens atomic.Int64 // changed under mu

	mu      sync.Mutex
	leave   func() bool // takes the piece in line out of it; nil = pay is putting it there
	waiting bool        // a piece is in line
	paying  bool        // pay is at it
	failed  bool        // the latest piece was sent away: the next tick tries again
}

// owe takes n, and what is not there as soon as it comes. Until then nothing is admitted. It does not wait.
func (r *rate) owe(n int64) {
	n -= r.spendLoose(n)
	r.owed.mu.Lock()
	was := r.owed.tokens.Load()
	r.owed.tokens.Store(max(was, min(limit.MaxCount, was+min(n, limit.MaxCount), times(mostOwed, r.of.most.Load()))))
	r.owed.mu.Unlock()
	r.pay()
}

// pay puts a piece of what is owed in line, and the next when it is paid.
func (r *rate) pay() {
	o := &r.owed
	var free func() bool
	defer func() { o.end(free) }()
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.paying {
		return
	}
	o.paying, o.failed = true, false
	for o.tokens.Load() > 0 && !o.waiting && !o.failed {
		o.waiting, o.leave = true, nil
		o.mu.Unlock()
		var res limit.Result
		r.stands(&res)
		n := max(1, min(o.tokens.Load(), max(r.limiter.Remaining(), res.Quota/pieces)))
		leave := r.limiter.WaitFunc(n, limit.Never, func(err error) { r.paid(n, err) })
		o.mu.Lock()
		o.leave = leave
	}
	o.paying = false
	free = o.free()
}

// paid is what has come of a piece in line.
func (r *rate) paid(n int64, err error) {
	o := &r.owed
	o.mu.Lock()
	o.waiting, o.failed = false, err != nil
	surplus, next := int64(0), err == nil && !o.paying
	if err == nil {
		r.debt.add(n, new(limit.Result))
		surplus = n - o.less(n)
	}
	o.mu.Unlock()
	r.keep(surplus)
	if next {
		r.pay()
	}
}

// less has n paid of what is owed, and returns how much of it was. mu is held.
func (o *owed) less(n int64) int64 {
	n = min(n, o.tokens.Load())
	o.tokens.Add(-n)
	return n
}

// forgive is less for what was given back.
func (o *owed) forgive(n int64) int64 {
	if o.tokens.Load() == 0 {
		return 0
	}
	o.mu.Lock()
	n = o.less(n)
	free := o.free()
	o.mu.Unlock()
	o.end(free)
	return n
}

// free returns how a piece leaves the line that nothing is owed for any more: others stand behind it. mu is held.
func (o *owed) free() func() bool {
	if o.tokens.Load() > 0 || !o.waiting {
		return nil
	}
	return o.leave
}

// end has a piece leave the line, by what free has returned. One that has been served by then is kept.
func (o *owed) end(leave func() bool) {
	if leave == nil || !leave() {
		return
	}
	o.mu.Lock()
	o.waiting = false
	o.mu.Unlock()
}

// owes says whether something is owed, and then makes the result of p refuse. What the coordinator may have is waited
// for, with wait; without, p.more says that there may be some.
func (r *rate) owes(ctx context.Context, p *part, wait bool) (bool, error) {
	if r.owed.tokens.Load() == 0 {
		return false, nil
	}
	lease := r.limiter.Lease()
	hopeful := !lease.Known || !lease.Full
	if wait && hopeful {
		patience := pollFull
		if !lease.Known {
			patience = askPatience
		}
		if done, err := await(ctx, patience, func() bool { return r.owed.tokens.Load() == 0 }); done || err != nil {
			return false, err
		}
	}
	p.held, p.prepared, p.more = false, limit.Prepared{}, !wait && hopeful
	return true, r.indebted(p)
}

// indebted makes the verdict of p one that refuses, until all that is owed is paid: by the rate of the whole limit,
// which is the earliest.
func (r *rate) indebted(p *part) error {
	res := &p.result
	if _, err := r.limiter.Prepare(context.Background(), limit.Request{Cost: p.charge.Cost, Peek: true}, false, res); err != nil {
		return err
	}
	res.Allowed, res.Remaining = false, 0
	if !res.StoreFailed && res.Reason != limit.ReasonRecovering {
		if res.Quota > 0 { // it is known
			res.Reason = limit.ReasonRate
		} else {
			res.Reason, res.StoreFailed = limit.ReasonStoreFailure, true
		}
		owed, each := r.owed.tokens.Load(), int64(pace(res))
		res.RetryAfter = max(1, res.RetryAfter, time.Duration(times(owed+p.charge.Cost, each)))
		res.ResetAfter = max(res.ResetAfter, time.Duration(times(owed+res.Quota, each)))
	}
	p.verdict()
	return nil
}

// times is a product of what is not negative, at most MaxInt64.
func times(a, b int64) int64 {
	if b > 0 && a > math.MaxInt64/b {
		return math.MaxInt64
	}
	return a * b
}
