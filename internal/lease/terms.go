package lease

import (
	"github.com/stint-io/stint/internal/fairshare"
	"github.com/stint-io/stint/internal/fixed"
)

// PerInstance says whether the limit is each instance's own, not their sum's.
func (t *Terms) PerInstance() bool {
	return t.Allocation == fairshare.Static || t.Allocation == fairshare.None || t.Suppress != nil
}

// plenty stands for the capacity of limits whose sum is not kept.
const Unlimited = fixed.MaxAmount / fixed.Token * fixed.Token

// Lendable is what all instances together may hold.
func (t *Terms) Lendable() Capacity {
	if t.PerInstance() && (t.Rate > 0 || t.Burst > 0) {
		return Capacity{Rate: Unlimited, Burst: Unlimited}
	}
	return Capacity{Rate: t.Rate, Burst: t.Burst}
}

// Terms are what a limit asks for.
type Terms struct {
	Rate      fixed.Amount // tokens per second; 0 for a gauge
	Burst     fixed.Amount // whole tokens; the places of a gauge
	Semaphore bool         // in flight, not per second

	Allocation fairshare.Allocation
	Safe       fixed.Amount          // per instance; 0 = the limit divided by the instances
	Guarantees []fairshare.Guarantee // read-only
	// As in Allocator.
	BusyTolerance, BusyChange float64

	// Suppress shares the limit by suppression, and not by leases of its parts: each
	// instance has a lease of the whole limit; nil = it does not. Read-only. Not for
	// gauges.
	Suppress *Suppress
}
