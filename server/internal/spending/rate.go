package spending

import (
	"context"
	"math"
	"sync/atomic"
	"time"

	"github.com/stint-io/stint/client"
	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/limit"
)

// rate spends the lease of a limit per time.
type rate struct {
	taker
	limiter *client.Limiter
	of      *lent
	key     string
	asker   *asker

	// loose are tokens that were committed and refunded. They are spent first. No more of
	// them count than the bucket of the limit is short of, so that it never has more than
	// its burst.
	loose atomic.Int64 // a fixed.Amount
	debt  debt
	owed  owed
}

func (r *rate) prepare(ctx context.Context, p *part, wait bool) (err error) {
	if owes, err := r.owes(ctx, p, wait); owes || err != nil {
		return err
	}
	p.loose = r.spendLoose(p.charge.Cost)
	n := p.charge.Cost - p.loose
	if n > 0 {
		err = r.taker.prepare(ctx, p, n, wait)
	} else if err = r.peek(p); err == nil {
		p.held, p.prepared = true, limit.Prepared{}
		p.allow()
		p.verdict()
	}
	if err != nil || !p.held {
		r.refund(p.loose)
		p.loose = 0
		if err == nil && p.more && p.charge.Shadow {
			r.ask(p)
		}
		return err
	}
	r.debt.add(n, &p.result)
	return nil
}

// ask tells the coordinator what a shadow wants, which does not wait for the answer. What has come
// just now is taken for good: a shadow is decided when the request has been.
func (r *rate) ask(p *part) {
	if n := p.charge.Cost; r.limiter.AllowN(time.Now(), n) {
		p.charge.Verdict, p.unknown = limit.Verdict{Allowed: true, Remaining: r.limiter.Remaining()}, false
		r.debt.add(n, new(limit.Result))
	}
}

func (r *rate) commit(p *part) { r.limiter.Commit(p.prepared) }

func (r *rate) rollback(p *part) {
	r.limiter.Rollback(p.prepared)
	r.debt.add(p.loose-p.charge.Cost, new(limit.Result))
	r.refund(p.loose)
}

// peek is that of the taker, unless something is owed.
func (r *rate) peek(p *part) error {
	if p.charge.Cost == 0 || r.owed.tokens.Load() == 0 {
		return r.taker.peek(p)
	}
	return r.indebted(p)
}

// refund pays what is owed with what came back, and keeps the rest.
func (r *rate) refund(n int64) {
	r.keep(min(n-r.owed.forgive(n), r.of.most.Load()))
}

// keep makes n loose. How much of it counts is known when it is spent.
func (r *rate) keep(n int64) {
	more := fixed.Whole(n)
	for {
		was := r.loose.Load()
		if r.loose.CompareAndSwap(was, int64(min(fixed.Amount(was), fixed.MaxAmount-more)+more)) {
			return
		}
	}
}

// spendLoose spends up to n of what is loose, and returns how much. It drops what would have overflowed. A part of a token
// stays: it may become a whole one with what is refunded next.
func (r *rate) spendLoose(n int64) int64 {
	loose := r.loose.Load()
	if loose == 0 {
		return 0
	}
	shortfall := fixed.Amount(0)
	var res limit.Result
	if r.stands(&res) && !res.StoreFailed {
		// A part of the debt is on its way back to the coordinator, where it is not short any more.
		returning, _ := r.asker.returning(lease.ResourceID{Limit: r.of.name, Key: r.key})
		shortfall = max(0, r.debt.tokens(&res)-fixed.Whole(returning))
	}
	usable := min(fixed.Amount(loose), shortfall)
	spent := min(usable.Floor(), n)
	if !r.loose.CompareAndSwap(loose, int64(usable-fixed.Whole(spent))) {
		return 0 // another request changed it this moment: the next one spends it
	}
	return spent
}

// stands describes the lease, and says whether it could.
func (r *rate) stands(res *limit.Result) bool {
	_, err := r.limiter.Prepare(context.Background(), limit.Request{Peek: true}, false, res)
	return err == nil
}

// close gives back to the bucket what was refunded here and is not spent.
func (r *rate) close() {
	var res limit.Result
	if len(r.of.key) > 0 && r.asker != nil && r.stands(&res) {
		short := r.debt.tokens(&res).Floor()
		if n := r.spendLoose(r.of.most.Load()); n > 0 {
			r.asker.giveBack(lease.ResourceID{Limit: r.of.name, Key: r.key}, n, shortfall{tokens: short, at: time.Now()})
		}
	}
	r.taker.close()
}

func (r *rate) finish(uint64, bool) bool { return true }

func (r *rate) reset() {
	r.owed.forgive(math.MaxInt64)
	var res limit.Result
	if r.stands(&res) {
		r.debt.add(res.Quota, &res)
		r.loose.Store(int64(fixed.Whole(res.Quota)))
	}
}

// expire pays on, where that has failed. Who owes something is in use. So is the one lease of a limit without a key, as
// long as the bucket is short of what was taken here, and that may come back.
func (r *rate) expire(limit.Time) (inUse bool) {
	if r.owed.tokens.Load() > 0 {
		r.pay()
		return true
	}
	return len(r.of.key) == 0 && r.debt.tokens(new(limit.Result)) > 0
}
