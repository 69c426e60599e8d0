package ledger

import (
	"github.com/stint-io/stint/internal/fairshare"
	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/limit"
)

// divide allocates a share of the limit to each account, and measures how the demand stands to
// the limit.
func (r *Resource) divide(now limit.Time) {
	capacity, equal := r.Terms.Amount(), r.equalPart()
	r.claims, r.parts, r.shares = r.claims[:0], r.parts[:0], r.shares[:0]
	wanted, silent := fixed.Amount(0), fixed.Amount(0)
	// A silent instance enforces an equal part: what its band has of it, and by the other kinds, which
	// have no bands, whatever the others demand.
	bands := r.Terms.Allocation == fairshare.MaxMin
	for _, a := range r.accounts {
		if a.Silent {
			silent += equal
		}
		if a.Silent && bands {
			r.addClaims(a, fairshare.Claimant{Want: min(equal, a.most()), Weight: a.Weight, Band: a.Band})
		}
	}
	reported := len(r.claims)
	for _, a := range r.accounts {
		if a.Silent {
			continue
		}
		c := fairshare.Claimant{Want: min(a.Demand, a.most()), Weight: a.Weight, Band: a.Band}
		wanted = fixed.SaturatingAdd(wanted, c.Want)
		r.addClaims(a, c)
	}
	if bands && !r.Terms.Semaphore && wanted > capacity+capacity/lease.Hysteresis {
		// Measured demand is never exact. An instance that gets a little less than it needs runs
		// dry, and those that demand far more would not miss the difference.
		for i := reported; i < len(r.claims); i++ {
			r.claims[i].Want = fixed.SaturatingAdd(r.claims[i].Want, r.claims[i].Want/lease.Headroom)
		}
	}
	left := capacity
	if !bands {
		left -= silent
	}
	r.alloc.Kind, r.alloc.Guarantees = r.Terms.Allocation, r.Terms.Guarantees
	r.alloc.Allocate(left, r.claims, r.parts)
	if wanted = fixed.SaturatingAdd(wanted, silent); r.Supply != nil {
		whole := r.Whole()
		r.MeasureSite(r.Supply, wanted, capacity, whole.Amount(), now)
	} else {
		r.Measure(wanted, capacity, now)
	}
	ofSilent, next := 0, reported
	for _, a := range r.accounts {
		share := fixed.Amount(0)
		switch {
		case a.Silent && !bands:
			share = equal
		case a.Silent:
			share = r.parts[ofSilent]
			ofSilent++
		default:
			for range a.claimCount() {
				share = fixed.SaturatingAdd(share, r.parts[next])
				next++
			}
		}
		r.shares = append(r.shares, min(share, a.most()))
	}
}
