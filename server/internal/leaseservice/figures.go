package leaseservice

import (
	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/internal/lease/coordinator"
)

// Figures are a sample of the service, a few seconds old at most.
type Figures struct {
	Streams, Instances, Resources int
	Reports, Grants, Rounds       uint64
	Expired, Broken, Panics       uint64
	StreamsRefused                uint64
	Recovering                    bool
	Refused                       map[string]uint64 // demands by status
	Limits                        []LimitFigures    // ascending by name
}

// LimitFigures are the sums over the resources of one limit that somebody uses, in
// tokens per second, or in permits.
type LimitFigures struct {
	Limit                         string
	Capacity, Lent, Wanted, Free  float64
	Saturated                     bool    // at least one key wants more than the limit
	SaturatedSeconds              float64 // since the start
	Resources, SaturatedResources int

	// Of a limit that is shared by suppression: the largest fraction that is refused of
	// a key. What was attempted and admitted in all is known to the instances.
	Suppressed bool
	Reject     float64
}

// parts are what a resource divides: the rate, or the permits of a semaphore.
func parts(r *coordinator.ResourceState) (capacity, lent, free fixed.Amount) {
	if r.Terms.Semaphore {
		return r.Terms.Burst, r.Lent.Burst, r.Free.Burst
	}
	return r.Terms.Rate, r.Lent.Rate, r.Free.Rate
}

// gets is what an instance has of what its limit divides: the rate, or the permits.
func gets(l *coordinator.LeaseState, gauge bool) fixed.Amount {
	if gauge {
		return l.Capacity.Burst
	}
	return l.Capacity.Rate
}
