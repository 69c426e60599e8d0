package ledger

import (
	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/limit"
)

// recovery is what leases of a former coordinator may still hold.
type recovery struct {
	Recovering bool
	Frozen     lease.Capacity      // the most that leases which are not claimed yet may hold
	claimed    map[uint64]struct{} // the numbers of leases that were claimed
}

// freeze adds to what is frozen until recovery ends; negative amounts reduce it.
func (r *Resource) freeze(rate, burst fixed.Amount) {
	r.Frozen.Rate += rate
	r.Frozen.Burst += burst
	r.Pool.Rate -= rate
	r.Pool.Burst -= burst
}

// Thaw ends recovery: leases that no instance has claimed have expired.
func (r *Resource) Thaw(now limit.Time) {
	if !r.Recovering {
		return
	}
	r.Pool.Refill(now)
	r.Pool.TakeBack(lease.Capacity{Rate: r.Frozen.Rate, Burst: r.Frozen.Burst})
	r.Frozen, r.claimed, r.Recovering = lease.Capacity{}, nil, false
	for _, a := range r.accounts {
		a.Pending = true // instances in fallback report their demand when recovery ends
	}
}

// Claimed says whether the lease of that number of a former coordinator was claimed.
func (r *Resource) Claimed(number uint64) bool {
	_, ok := r.claimed[number]
	return ok
}

// Claim grants an account what a former coordinator had granted it under the lease of that number,
// at most what is frozen. It does nothing, and reports so, if the lease was claimed before.
func (r *Resource) Claim(a *Account, number uint64, h lease.Capacity, now limit.Time) bool {
	if _, used := r.claimed[number]; used {
		return false
	}
	if r.claimed == nil {
		r.claimed = map[uint64]struct{}{}
	}
	r.claimed[number] = struct{}{}
	r.Pool.Refill(now)
	h = lease.Capacity{Rate: min(h.Rate, r.Frozen.Rate), Burst: min(h.Burst, r.Frozen.Burst)}
	r.Frozen = r.Frozen.Sub(h)
	r.Pool.TakeBack(h)
	a.grant(h)
	if a.refundable = h.Burst; a.own != nil { // the instance's bucket may be full
		a.own.Level = 0 // and all other tokens may have been spent
	}
	return true
}
