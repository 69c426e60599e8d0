package coordinator

import (
	"time"

	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/internal/lease/holding"
	"github.com/stint-io/stint/limit"
)

// Stats returns totals and sizes.
func (c *Coordinator) Stats() Stats {
	s := c.stats
	s.Instances, s.Resources, s.Unlent = len(c.sessions), len(c.list), c.unlent.Len()
	for _, r := range c.list {
		s.Recovering = s.Recovering || r.Recovering
	}
	return s
}

// Each calls f with every resource until f returns false. What f gets is valid
// during the call.
func (c *Coordinator) Each(now limit.Time, f func(*ResourceState) bool) {
	var st ResourceState
	for _, r := range c.list {
		r.Pool.Refill(now)
		leases := st.Leases[:0]
		st = ResourceState{
			ID: r.ID, Terms: *r.Terms, Demand: r.TotalDemand, Recovering: r.Recovering, Saturated: r.Saturated, Broken: r.Broken || r.Check() != nil, Reject: r.Reject(),
			Free:     lease.Capacity{Rate: max(0, r.Pool.Rate), Burst: max(0, r.Pool.Burst), Tokens: max(0, r.Pool.Level)},
			Reserved: r.Pool.Reserved,
		}
		if r.Saturated {
			st.SaturatedFor = time.Duration(now - r.SaturatedSince)
		}
		for _, a := range r.accounts {
			h := a.Held()
			h.Tokens = 0
			st.Lent = st.Lent.Add(h)
			leases = append(leases, LeaseState{
				Member: a.session.Member, Version: a.session.version, Silent: a.Silent, Weight: a.Weight, Band: a.Band,
				Attempted: a.Attempted, Admitted: a.Admitted, Demand: a.Demand, Capacity: h, HeldFor: time.Duration(now - a.since), ExpiresIn: time.Duration(a.session.expires - now),
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

	Reserved fixed.Amount // the part of the free burst that is for tokens on the way to instances

	Recovering   bool
	Broken       bool          // a round failed, or the books do not add up
	Saturated    bool          // demand is above the limit
	Reject       float64       // the fraction that is refused, if it is shared by suppression
	SaturatedFor time.Duration // since when
	Leases       []LeaseState
}

// Parts are what the resource divides: the rate, or the permits of a semaphore.
func (r *ResourceState) Parts() (capacity, lent, free fixed.Amount) {
	if r.Terms.Semaphore {
		return r.Terms.Burst, r.Lent.Burst, r.Free.Burst
	}
	return r.Terms.Rate, r.Lent.Rate, r.Free.Rate
}

// Gets is what the instance has of what its limit divides: the rate, or the permits.
func (l *LeaseState) Gets(gauge bool) fixed.Amount {
	if gauge {
		return l.Capacity.Burst
	}
	return l.Capacity.Rate
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

// Holders returns who may hold leases: of this coordinator, and of the former one as far as they
// have not reported yet.
func (c *Coordinator) Holders() holding.Holders {
	h := c.expected.Clone()
	for _, s := range c.sessions {
		for _, a := range s.accounts {
			if a.Lease != 0 || a.Held() != (lease.Capacity{}) {
				h.Include(s.Session, a.resource.ID.Limit)
			}
		}
	}
	return h
}

// LimitOf returns the name of the limit that a session has under a handle; "" = none.
func (c *Coordinator) LimitOf(m lease.Member, handle uint32) string {
	if s := c.sessions[m]; s != nil && s.accounts[handle] != nil {
		return s.accounts[handle].resource.ID.Limit
	}
	return ""
}
