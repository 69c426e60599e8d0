package pool

import (
	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/limit"
)

// Load is how the demand of all instances stands to the limit, as the latest round saw it.
type Load struct {
	TotalDemand    fixed.Amount // per second; of a semaphore, permits
	Contended      bool         // demand is above 7/8 of the limit: little is free
	Saturated      bool         // demand is above the limit
	SaturatedSince limit.Time   // since when, if saturated
}

// Measure decides whether the limit is contended and whether it is saturated. A limit is
// saturated when demand is above it by more than one part in lease.Hysteresis: measured demand
// varies by about as much, and a limit that is just reached is not saturated.
func (l *Load) Measure(demand, capacity fixed.Amount, now limit.Time) {
	l.TotalDemand = demand
	l.Contended = demand > capacity-capacity/8
	l.SetSaturated(demand > capacity+capacity/lease.Hysteresis, now)
}

// MeasureSite is Measure for a site. What is free is known to the parent alone, unless the demand
// reaches all that the site can have.
func (l *Load) MeasureSite(s *Supply, demand, capacity, whole fixed.Amount, now limit.Time) {
	l.TotalDemand = demand
	l.Contended = s.Contended || s.Alone || demand > whole-whole/8
	short := demand > capacity+capacity/lease.Hysteresis
	l.SetSaturated(short && (s.Answer.Saturated || s.Alone) || demand > whole+whole/lease.Hysteresis, now)
}

// SetSaturated keeps the time at which the limit became saturated, for as long as it is
// saturated.
func (l *Load) SetSaturated(saturated bool, now limit.Time) {
	if saturated && !l.Saturated {
		l.SaturatedSince = now
	}
	l.Saturated = saturated
}
