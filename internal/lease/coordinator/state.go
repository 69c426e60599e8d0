package coordinator

import (
	"time"

	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/limit"
)

// Stats returns totals and sizes.
func (c *Coordinator) Stats() Stats {
	s := c.stats
	s.Instances, s.Resources = len(c.sessions), len(c.list)
	for _, r := range c.list {
		s.Recovering = s.Recovering || r.recovering
	}
	return s
}

// Each calls f with every resource until f returns false. What f gets is valid
// during the call.
func (c *Coordinator) Each(now limit.Time, f func(*ResourceState) bool) {
	var st ResourceState
	for _, r := range c.list {
		r.pool.refill(now)
		leases := st.Leases[:0]
		st = ResourceState{
			ID: r.id, Terms: r.terms, Demand: r.totalDemand, Recovering: r.recovering, Saturated: r.saturated, Broken: r.broken,
			Free: lease.Capacity{Rate: max(0, r.pool.rate), Burst: max(0, r.pool.burst), Tokens: max(0, r.pool.level)},
		}
		if s, ok := r.divider.(*suppression); ok {
			st.Reject = s.reject
		}
		if r.saturated {
			st.SaturatedFor = time.Duration(now - r.saturatedSince)
		}
		for _, a := range r.accounts {
			h := a.held()
			h.Tokens = 0
			st.Lent = st.Lent.Add(h)
			leases = append(leases, LeaseState{
				Member: a.session.Member, Version: a.session.version, Silent: a.silent, Weight: a.weight, Band: a.band,
				Attempted: a.attempted, Admitted: a.admitted, Demand: a.demand, Capacity: h, HeldFor: time.Duration(now - a.since), ExpiresIn: time.Duration(a.session.expires - now),
			})
		}
		st.Leases = leases
		if !f(&st) {
			return
		}
	}
}

// ResourceState is how a resource stands.
type ResourceState struct {
	ID     lease.ResourceID
	Terms  lease.Terms
	Demand fixed.Amount   // by all instances
	Lent   lease.Capacity // rate and burst that instances hold, as counted
	Free   lease.Capacity // what is not lent

	Recovering, Broken bool
	Saturated          bool          // demand is above the limit
	Reject             float64       // the fraction that is refused, if it is shared by suppression
	SaturatedFor       time.Duration // since when
	Leases             []LeaseState
}

// LeaseState is what one instance has of a resource.
type LeaseState struct {
	lease.Member
	Version            uint32
	Silent             bool
	Weight             uint32
	Band               uint8
	Demand             fixed.Amount
	Capacity           lease.Capacity // rate and burst
	HeldFor, ExpiresIn time.Duration

	// Running totals, if the limit is shared by suppression.
	Attempted, Admitted fixed.Amount
}
