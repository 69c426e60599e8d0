package spending

import (
	"sync"
	"time"

	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/limit"
)

// debt is what this instance has taken of a bucket, less what the rate of the whole limit has
// refilled since: the bucket, over all instances, is short of at least that. What was taken stays
// taken when the limit changes.
type debt struct {
	mu    sync.Mutex
	taken float64 // tokens at the time at
	at    time.Time
	each  time.Duration // in which a token is refilled; 0 = it is not known yet
}

// add says that n was taken, which is negative for what was not taken after all.
func (d *debt) add(n int64, r *limit.Result) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.repay(r)
	d.taken += float64(n)
}

// raise counts what the bucket was short of, unless more is counted already.
func (d *debt) raise(s shortfall) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.repay(new(limit.Result)); float64(s.tokens) > d.taken {
		d.taken, d.at = float64(s.tokens), s.at
	}
}

// tokens is how many are taken, rounded down, of the limit in r: no more than it has, where that is known, though more may
// have been taken of a former one.
func (d *debt) tokens(r *limit.Result) fixed.Amount {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.repay(r)
	taken := fixed.Amount(min(d.taken*float64(fixed.Token), float64(fixed.MaxAmount)))
	if r.Quota > 0 {
		return min(taken, fixed.Whole(r.Quota))
	}
	return taken
}

// repay takes off what has been refilled. A result from before the first answer about the limit
// does not say how fast that is: the rate that was known last is used, or the next one.
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

// pace is in what time a token is refilled, rounded down; 0 = it is not known, or never.
func pace(r *limit.Result) time.Duration {
	if r.Quota <= 0 || r.Window == limit.Never {
		return 0
	}
	return r.Window / time.Duration(r.Quota)
}
