package ledger

import (
	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/limit"
)

// recovery is what leases of a former coordinator may still hold.
type recovery struct {
	Recovering bool
	Frozen     lease.Capacity  // the most that leases which are not claimed yet may hold
	kept       fixed.Amount    // tokens of the pool that come when recovery ends; may be below 0
	claimed    map[uint64]bool // the numbers of leases that were claimed
}

// freeze adds to what is frozen until recovery ends; negative amounts reduce it.
func (r *Resource) freeze(h lease.Capacity) {
	r.Frozen = r.Frozen.Add(h)
	r.Pool.Lend(h)
}

// Thaw ends recovery: leases that no instance has claimed have expired.
func (r *Resource) Thaw(now limit.Time) {
	if !r.Recovering {
		return
	}
	r.Pool.Refill(now)
	r.Pool.TakeBack(lease.Capacity{Rate: r.Frozen.Rate, Burst: r.Frozen.Burst, Tokens: r.kept})
	r.Frozen, r.claimed, r.Recovering, r.kept = lease.Capacity{}, nil, false, 0
	for _, a := range r.accounts {
		a.Pending = true // instances in fallback report their demand when recovery ends
	}
}

// Kept is how many tokens come to the pool when recovery ends; below 0 after a limit was reduced.
func (r *Resource) Kept() fixed.Amount { return r.kept }

// Claimed says whether the lease of that number of a former coordinator was claimed.
func (r *Resource) Claimed(number uint64) bool {
	return r.claimed[number]
}

// Claim grants an account what a former coordinator had granted it under the lease of that number, at
// most what is frozen. It does nothing, and reports so, if the lease was claimed before.
func (r *Resource) Claim(a *Account, number uint64, h lease.Capacity, now limit.Time) bool {
	if r.claimed[number] {
		return false
	}
	if r.claimed == nil {
		r.claimed = map[uint64]bool{}
	}
	r.claimed[number] = true
	r.Pool.Refill(now)
	h = lease.Capacity{Rate: min(h.Rate, r.Frozen.Rate), Burst: min(h.Burst, r.Frozen.Burst)}
	r.Frozen = r.Frozen.Sub(h)
	r.Pool.TakeBack(h)
	a.grant(h)
	if a.refundable = h.Burst; a.Own != nil {
		a.Own.Level = 0 // all other tokens may have been spent
	}
	return true
}
