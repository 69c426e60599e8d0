package coordinator

import (
	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/limit"
)

// load is how the demand of all instances stands to the limit, as the latest round saw it.
type load struct {
	totalDemand    fixed.Amount // per second; of a semaphore, permits
	contended      bool         // demand is above 7/8 of the limit: little is free
	saturated      bool         // demand is above the limit
	saturatedSince limit.Time   // since when, if saturated
}

// measure decides whether the limit is contended and whether it is saturated. A limit is
// saturated when demand is above it by more than one part in lease.Hysteresis: measured demand
// varies by about as much, and a limit that is just reached is not saturated.
func (l *load) measure(demand, capacity fixed.Amount, now limit.Time) {
	l.totalDemand = demand
	l.contended = demand > capacity-capacity/8
	l.setSaturated(demand > capacity+capacity/lease.Hysteresis, now)
}

// setSaturated keeps the time at which the limit became saturated, for as long as it is
// saturated.
func (l *load) setSaturated(saturated bool, now limit.Time) {
	if saturated && !l.saturated {
		l.saturatedSince = now
	}
	l.saturated = saturated
}

// saturatedFor says whether a share announces the limit as saturated. Where tokens are lent one by
// one it does not. A limit per instance is saturated for each instance by its own demand.
func (r *resource) saturatedFor(a *account) bool {
	return r.saturated && !r.tokenByToken || a.saturatesOwn()
}

// saturatesOwn says whether the instance has all of a limit per instance and demands more.
func (a *account) saturatesOwn() bool {
	return a.own != nil && a.demand > a.target.Rate && a.target.Rate > 0 && a.held().Rate >= a.target.Rate
}
