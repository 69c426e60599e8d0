package coordinator

import (
	"github.com/stint-io/stint/internal/fairshare"
	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/limit"
)

// divide allocates a share of the limit to each account, and measures how the demand stands to
// the limit.
func (r *resource) divide(now limit.Time) {
	capacity := r.capacity()
	r.claims, r.parts, r.shares = r.claims[:0], r.parts[:0], r.shares[:0]
	wanted, silent := fixed.Amount(0), fixed.Amount(0)
	for _, a := range r.accounts {
		c := fairshare.Claimant{Want: a.demand, Has: a.held().Rate, Used: a.demand, Weight: a.weight, Band: a.band}
		if r.terms.Semaphore {
			c.Has = a.held().Burst
		}
		c.Used = min(c.Used, c.Has)
		if a.silent {
			// It enforces an equal part, whatever the others demand.
			silent += r.equalPart()
			continue
		}
		wanted = fixed.SaturatingAdd(wanted, c.Want)
		r.claims, r.parts = append(r.claims, c), append(r.parts, 0)
	}
	silent = min(silent, capacity)
	if r.terms.Allocation == fairshare.MaxMin && !r.terms.Semaphore && wanted > capacity+capacity/lease.Hysteresis {
		// Measured demand is never exact. An instance that gets a little less than it needs runs
		// dry, and those that demand far more would not miss the difference.
		for i := range r.claims {
			r.claims[i].Want = fixed.SaturatingAdd(r.claims[i].Want, r.claims[i].Want/lease.Headroom)
		}
	}
	r.alloc.Allocate(capacity-silent, r.claims, r.parts)
	r.measure(fixed.SaturatingAdd(wanted, silent), capacity, now)
	next := 0
	for _, a := range r.accounts {
		if a.silent {
			r.shares = append(r.shares, min(r.equalPart(), capacity))
			continue
		}
		r.shares = append(r.shares, r.parts[next])
		next++
	}
}
