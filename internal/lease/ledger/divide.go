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
	capacity := r.capacity()
	r.claims, r.parts, r.shares = r.claims[:0], r.parts[:0], r.shares[:0]
	wanted, silent := fixed.Amount(0), fixed.Amount(0)
	for _, a := range r.accounts {
		c := fairshare.Claimant{Want: a.Demand, Has: a.Held().Rate, Used: a.Demand, Weight: a.Weight, Band: a.Band}
		if r.Terms.Semaphore {
			c.Has = a.Held().Burst
		}
		c.Used = min(c.Used, c.Has)
		if a.Silent {
			// It enforces an equal part, whatever the others demand.
			silent += r.equalPart()
			continue
		}
		c.Want = min(c.Want, a.most())
		wanted = fixed.SaturatingAdd(wanted, c.Want)
		r.addClaims(a, c)
	}
	silent = min(silent, capacity)
	if r.Terms.Allocation == fairshare.MaxMin && !r.Terms.Semaphore && wanted > capacity+capacity/lease.Hysteresis {
		// Measured demand is never exact. An instance that gets a little less than it needs runs
		// dry, and those that demand far more would not miss the difference.
		for i := range r.claims {
			r.claims[i].Want = fixed.SaturatingAdd(r.claims[i].Want, r.claims[i].Want/lease.Headroom)
		}
	}
	r.alloc.Kind, r.alloc.Guarantees, r.alloc.BusyTolerance, r.alloc.BusyChange = r.Terms.Allocation, r.Terms.Guarantees, r.Terms.BusyTolerance, r.Terms.BusyChange
	r.alloc.Allocate(capacity-silent, r.claims, r.parts)
	if wanted = fixed.SaturatingAdd(wanted, silent); r.Supply != nil {
		r.MeasureSite(r.Supply, wanted, capacity, r.wholeCapacity(), now)
	} else {
		r.Measure(wanted, capacity, now)
	}
	next := 0
	for _, a := range r.accounts {
		if a.Silent {
			r.shares = append(r.shares, min(r.equalPart(), capacity))
			continue
		}
		share := fixed.Amount(0)
		for range a.claimCount() {
			share = fixed.SaturatingAdd(share, r.parts[next])
			next++
		}
		r.shares = append(r.shares, min(share, a.most()))
	}
}
