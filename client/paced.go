package client

import (
	"sync"
	"time"

	"github.com/stint-io/stint/internal/bucket"
	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/internal/lease/adjust"
	"github.com/stint-io/stint/internal/lease/pool"
	"github.com/stint-io/stint/limit"
)

// paced is a bucket whose spending is slowed down while the receiver fails; see [LimitOptions.Adjust]. Beside the
// tokens of the lease each request takes tokens of a bucket of its own, at the rate that the adjuster says. That
// one goes on when the lease changes, ends or is taken anew. The lease knows nothing of it: it is reported and held
// as if all of it were spent.
type paced struct {
	*bucket.Bucket
	adjuster *adjust.Adjuster // guarded by the lease's mu

	mu    sync.Mutex
	slows bool      // else all of the lease may be spent
	pace  pool.Pool // below 0 after a cost above its burst
}

// set puts in force what the adjuster says of a lease of rate and burst.
func (p *paced) set(now limit.Time, rate, burst fixed.Amount) {
	most, slows := p.adjuster.Most(rate)
	p.mu.Lock()
	defer p.mu.Unlock()
	// The burst is that of the lease in proportion: a large one would go to a receiver that was just slowed down for.
	// Where most fails each request is a probe.
	depth := fixed.Token
	if rate > 0 && p.adjuster.Mode() == adjust.AdjusterNormal {
		depth = max(fixed.Token, burst.Scale(min(most, rate), rate)/fixed.Token*fixed.Token)
	}
	if !p.slows {
		p.pace = pool.Pool{Level: depth, At: now}
	}
	p.pace.Refill(now)
	p.slows, p.pace.Rate, p.pace.Burst = slows, most, depth
	p.pace.Clip()
}

// take takes n if the pace has as much. A cost above its burst passes when it is full, and the next ones wait for
// what it was too much: else no outcome would ever show that the receiver is well again.
func (p *paced) take(now limit.Time, n int64) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.slows {
		return true
	}
	p.pace.Refill(now)
	if p.pace.Level < min(fixed.Whole(n), p.pace.Burst) {
		return false
	}
	p.pace.Level -= fixed.Whole(n)
	return true
}

// binds says whether the pace, and not the lease, keeps n from passing.
func (p *paced) binds(now limit.Time, n int64) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.pace.Refill(now)
	return p.slows && p.pace.Level < min(fixed.Whole(n), p.pace.Burst)
}

// putBack undoes take.
func (p *paced) putBack(n int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.pace.Level += fixed.Whole(n)
	p.pace.Clip()
}

// wait is how long it takes until the pace has brought n.
func (p *paced) wait(now limit.Time, n int64) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.slows {
		return 0
	}
	p.pace.Refill(now)
	return fixed.TimeFor(fixed.Whole(n)-p.pace.Level, p.pace.Rate)
}

// Try implements spender.
func (p *paced) Try(now limit.Time, n int64) (taken, decided bool) {
	if n < 0 || !p.take(now, n) {
		return false, true
	}
	if taken, decided = p.Bucket.Try(now, n); !taken {
		p.putBack(n)
	}
	return taken, decided
}

// Allow is [bucket.Bucket.Allow].
func (p *paced) Allow(now limit.Time, n int64) (allowed, decided bool) {
	if allowed, decided = p.Try(now, n); !allowed && decided && n > 0 {
		p.Refuse(n)
	}
	return allowed, decided
}

// Prepare implements spender.
func (p *paced) Prepare(now limit.Time, n int64) (h bucket.Prepared, taken, decided bool) {
	if n < 0 || !p.take(now, n) {
		return bucket.Prepared{}, false, true
	}
	if h, taken, decided = p.Bucket.Prepare(now, n); !taken {
		p.putBack(n)
	}
	return h, taken, decided
}

// Rollback is [bucket.Bucket.Rollback].
func (p *paced) Rollback(now limit.Time, h bucket.Prepared, n int64) {
	p.putBack(n)
	p.Bucket.Rollback(now, h, n)
}

// Refund is [bucket.Bucket.Refund].
func (p *paced) Refund(now limit.Time, n int64) {
	p.putBack(n)
	p.Bucket.Refund(now, n)
}

// Serve implements spender.
func (p *paced) Serve(now limit.Time, n int64) bool {
	if !p.take(now, n) {
		return false
	}
	if p.Bucket.Serve(now, n) {
		return true
	}
	p.putBack(n)
	return false
}

// Remaining implements spender.
func (p *paced) Remaining(now limit.Time) int64 {
	n := p.Bucket.Remaining(now)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.slows {
		p.pace.Refill(now)
		n = max(0, min(n, p.pace.Level.Floor()))
	}
	return n
}

// Earliest implements spender.
func (p *paced) Earliest(now limit.Time, n int64) time.Duration {
	return max(p.Bucket.Earliest(now, n), p.wait(now, n))
}
