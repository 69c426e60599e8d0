package leased

import (
	"context"
	"errors"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stint-io/stint/client"
	"github.com/stint-io/stint/limit"
)

// rate is the purse of a limit per time.
type rate struct {
	limiter *client.Limiter

	mu sync.Mutex // held while it is looked whether there is enough, and that is taken
	// loose are tokens that were taken of the lease and came back without a
	// reservation. They are spent first. There never are more of them than the
	// bucket lacks, so that it is not fuller with them than full.
	loose atomic.Int64
	debt  debt
	doubt doubt
}

func (r *rate) take(ctx context.Context, p *part) error {
	if r.loose.Load() > 0 {
		return r.hold(ctx, p, true) // rare, and it knows how to mix the two
	}
	n := p.charge.Cost
	d, err := r.limiter.Take(ctx, limit.Request{Cost: n})
	if err != nil {
		return err
	}
	res := &d.Results[0]
	if res.Reason == limit.ReasonRate && r.doubt.worth(n) {
		came, err := await(ctx, pollFull, func() bool { return r.grab(p, n) })
		if err != nil {
			return err
		}
		if came {
			return r.holds(p, true)
		}
	}
	if p.verdict(d); res.Allowed {
		r.debt.add(n, res)
	}
	return nil
}

// The waits for more tokens.
const (
	// pollEvery is how often it is looked whether they have come. Not longer: the
	// answer is there within a fraction of a millisecond. Not shorter: looking
	// takes the lease's lock.
	pollEvery = 250 * time.Microsecond
	// pollFor is how long. Not shorter: what another instance holds comes by way
	// of the coordinator. Not longer: the caller waits.
	pollFor = 50 * time.Millisecond
	// pollFirst is pollFor before the first answer.
	pollFirst = 500 * time.Millisecond
	// pollFull is pollFor where the limit is said to be full. Not longer: most
	// likely it is. Not shorter: an instance reports about a limit every 10 ms at
	// most, and the coordinator gathers reports for a moment.
	pollFull = 25 * time.Millisecond
)

// await polls until f holds, and reports whether it did before d had passed.
func await(ctx context.Context, d time.Duration, f func() bool) (bool, error) {
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for begin := time.Now(); time.Since(begin) < d; {
		select {
		case <-ctx.Done():
			return false, ctx.Err()
		case <-tick.C:
		}
		if f() {
			return true, nil
		}
	}
	return false, nil
}

// doubt says whether a lease that is said to be full should be asked all the same. That
// it is full is as the coordinator told last, of the rate: what is left of the burst may
// be enough for a cost that was not asked for of late.
type doubt struct {
	largest atomic.Int64
	until   atomic.Int64 // Unix nanoseconds; then largest is forgotten
}

// worth says whether to wait for an answer about n, which is then asked.
func (d *doubt) worth(n int64) bool {
	now := time.Now().UnixNano()
	if until := d.until.Load(); now >= until && d.until.CompareAndSwap(until, now+int64(time.Second)) {
		d.largest.Store(0)
	}
	was := d.largest.Load()
	return n > was && d.largest.CompareAndSwap(was, n)
}

// hold takes with a reservation, which puts back exactly what it took. One that has to
// wait cannot be had for that, so it asks, and looks until there is enough.
func (r *rate) hold(ctx context.Context, p *part, wait bool) error {
	p.loose = r.spendLoose(p.charge.Cost)
	n := p.charge.Cost - p.loose
	if n == 0 || r.grab(p, n) || r.ask(p, n) {
		p.held = true
		return r.holds(p, true)
	}
	if !wait {
		r.refund(p.loose)
		return r.holds(p, false)
	}
	begin, doubtful := time.Now(), r.doubt.worth(n)
	var fault error
	_, err := await(ctx, pollFirst, func() bool {
		if r.grab(p, n) {
			return true
		}
		lease, passed := r.limiter.Lease(), time.Since(begin)
		fault = lease.Err
		full := lease.Full && (!doubtful || passed >= pollFull)
		return fault != nil || lease.Known && (full || passed >= pollFor)
	})
	if !p.held {
		r.refund(p.loose)
		if err = errors.Join(err, fault); err != nil {
			return err
		}
	}
	return r.holds(p, p.held)
}

// grab takes n for p if it is there.
func (r *rate) grab(p *part, n int64) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.limiter.Remaining() >= n && r.reserve(p, n)
}

// ask is grab when there most likely is not enough: the reservation, which is given up
// at once, tells the coordinator what is wanted.
func (r *rate) ask(p *part, n int64) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.reserve(p, n)
}

func (r *rate) reserve(p *part, n int64) bool {
	now := time.Now()
	v := r.limiter.ReserveN(now, n)
	if !v.OK() {
		return false
	}
	if v.DelayFrom(now) > 0 {
		v.Cancel()
		return false
	}
	p.held, p.reservation = true, v
	return true
}

// debt is what this instance has taken of a bucket, as far as it has not come back by
// the rate of the whole limit: the bucket, wherever its parts are, lacks at least that.
// What was taken stays taken when the limit changes.
type debt struct {
	mu    sync.Mutex
	taken float64 // tokens at the time at
	at    time.Time
	each  time.Duration // in which a token comes; 0 = it is not known yet
}

// add says that n was taken, which is negative for what was not taken after all.
func (d *debt) add(n int64, r *limit.Result) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.repay(r)
	d.taken += float64(n)
}

// tokens is how many are taken, in whole ones, of the limit in r: no more than it has, where
// that is known, though more may have been taken of a former one.
func (d *debt) tokens(r *limit.Result) int64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.repay(r)
	if r.Quota > 0 {
		return min(int64(d.taken), r.Quota)
	}
	return int64(d.taken)
}

// repay takes off what has come back. A result from before the first answer about the
// limit, which a take may overtake, does not say how fast that is: the limit as it was
// known last does, or the next one.
func (d *debt) repay(r *limit.Result) {
	if each := pace(r); each > 0 {
		d.each = each
	}
	now := time.Now()
	switch {
	case d.taken <= 0:
		d.taken, d.at = 0, now
	case d.each > 0:
		d.taken, d.at = max(0, d.taken-float64(now.Sub(d.at))/float64(d.each)), now
	}
}

// pace is in what time a token comes, rounded down; 0 = it is not known, or never.
func pace(r *limit.Result) time.Duration {
	if r.Quota <= 0 || r.Window == limit.Never {
		return 0
	}
	return r.Window / time.Duration(r.Quota)
}

// holds makes the verdict of hold.
func (r *rate) holds(p *part, allowed bool) error {
	d, err := r.limiter.Take(context.Background(), limit.Request{Cost: p.charge.Cost, Peek: true})
	if err != nil {
		r.undo(p)
		return err
	}
	switch v := &d.Results[0].Verdict; {
	case allowed:
		v.Allowed, v.Reason, v.RetryAfter = true, limit.ReasonNone, 0
		d.Results[0].StoreFailed = false
		r.debt.add(p.charge.Cost-p.loose, &d.Results[0])
	case v.Allowed: // came this moment, when it was decided
		v.Allowed, v.Reason, v.RetryAfter = false, limit.ReasonRate, time.Nanosecond
	}
	p.verdict(d)
	return nil
}

func (r *rate) undo(p *part) {
	if !p.held {
		return
	}
	p.held = false
	if n := p.charge.Cost - p.loose; n > 0 {
		p.reservation.Cancel() // what the lease, if smaller meanwhile, has no place for is lost
		r.debt.add(-n, new(limit.Result))
	}
	r.refund(p.loose)
}

func (r *rate) peek(p *part) error {
	lease := r.limiter.Lease()
	d, err := r.limiter.Take(context.Background(), limit.Request{Cost: p.charge.Cost, Peek: true})
	if err != nil {
		return err
	}
	if v := &d.Results[0].Verdict; !v.Allowed && (p.charge.Cost == 0 || !lease.Full && v.Reason != limit.ReasonRecovering) {
		// Nobody knows that more would not come.
		v.Allowed, v.Reason, v.RetryAfter = true, limit.ReasonNone, 0
		d.Results[0].StoreFailed = false
	}
	p.verdict(d)
	return nil
}

// refund keeps what came back. How much of it counts is known when it is spent.
func (r *rate) refund(n int64) {
	for {
		was := r.loose.Load()
		if r.loose.CompareAndSwap(was, min(was, math.MaxInt64-n)+n) {
			return
		}
	}
}

// spendLoose spends up to n of what is loose, and returns how much. It drops what would
// have overflowed, in whole tokens.
func (r *rate) spendLoose(n int64) int64 {
	if r.loose.Load() == 0 {
		return 0
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	lacks := int64(0)
	d, err := r.limiter.Take(context.Background(), limit.Request{Peek: true})
	if err == nil && !d.Results[0].StoreFailed {
		lacks = r.debt.tokens(&d.Results[0])
	}
	loose := r.loose.Load()
	usable := min(loose, lacks)
	spent := min(usable, n)
	if !r.loose.CompareAndSwap(loose, usable-spent) {
		return 0 // something came back this moment: it is for the next one
	}
	return spent
}

func (r *rate) drain(n int64) {
	n -= r.spendLoose(n)
	for range 4 { // others take at the same time
		left := min(n, r.limiter.Remaining())
		if left <= 0 || r.limiter.AllowN(time.Now(), left) {
			return
		}
	}
}

func (r *rate) finish(uint64) bool { return true }

func (r *rate) reset() {
	if d, err := r.limiter.Take(context.Background(), limit.Request{Peek: true}); err == nil {
		res := &d.Results[0]
		r.debt.add(res.Quota, res)
		r.loose.Store(res.Quota)
	}
}

func (r *rate) expire(time.Time) bool { return false }

func (r *rate) close() { r.limiter.Close() }
