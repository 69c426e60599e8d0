package lease

import (
	"github.com/stint-io/stint/internal/fairshare"
	"github.com/stint-io/stint/internal/fixed"
)

// PerInstance says whether the limit holds for each instance alone, not for their sum.
func (t *Terms) PerInstance() bool {
	return t.Allocation == fairshare.Static || t.Allocation == fairshare.None || t.Suppress != nil
}

// Unlimited is the lendable rate and burst of a limit whose sum over instances is not bounded:
// the largest amount of whole tokens.
const Unlimited = fixed.MaxAmount / fixed.Token * fixed.Token

// Lendable is the capacity that all instances together may hold.
func (t *Terms) Lendable() Capacity {
	if t.PerInstance() && (t.Rate > 0 || t.Burst > 0) {
		return Capacity{Rate: Unlimited, Burst: Unlimited}
	}
	return Capacity{Rate: t.Rate, Burst: t.Burst}
}

// Terms are the limit as configured.
type Terms struct {
	Rate      fixed.Amount // tokens per second; 0 for a semaphore
	Burst     fixed.Amount // whole tokens; the permits of a semaphore
	Semaphore bool         // the limit is of requests in flight, not of requests per second

	Allocation fairshare.Allocation
	Safe       fixed.Amount          // per instance; 0 = the limit divided by the instances
	Guarantees []fairshare.Guarantee // read-only
	// As in fairshare.Allocator.
	BusyTolerance, BusyChange float64

	// Suppress shares the limit by suppression instead of by leases of its parts: each
	// instance has a lease of the whole limit; nil = by leases. Read-only. Not for
	// semaphores.
	Suppress *Suppress
}
