package agent

import (
	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/limit"
)

// Lender is a Bucket of an instance that lends on what it is lent: a site. What is lent on cannot
// be given back at once, neither burst nor rate.
type Lender interface {
	Bucket
	// Load returns what the site is asked for, at now. Its Claims are valid until the next call.
	Load(now limit.Time) Load
	// Hold puts in force what the site holds under its lease, of which tokens are new. It gives
	// up what is above the ceiling, as far as it is free, and returns what is held then, and the
	// tokens that fit nowhere.
	Hold(now limit.Time, held, ceiling lease.Capacity, tokens fixed.Amount) (inForce lease.Capacity, surplus fixed.Amount)
	// Lapse ends what is held; what is lent on has to be revoked.
	Lapse(now limit.Time)
	// Expire ends what is held, and what is lent on: its leases ended before that of the site.
	Expire(now limit.Time)
	// Inform passes on what the coordinator says.
	Inform(a Answer)
}

// Load is what a site is asked for.
type Load struct {
	Permits    bool         // the limit is a semaphore: Demand is permits, not a rate
	Demand     fixed.Amount // per second; of a semaphore, permits
	Shortfall  fixed.Amount // tokens that are missing now
	ShortUntil limit.Time   // from when on they are of no use; lease.Never = not known
	Claims     []lease.Claim
	Weight     uint32
	Band       uint8
	Most       lease.Capacity // the site's own limit
	Free       lease.Capacity // not lent on
	Room       fixed.Amount   // the most tokens that Free can have
	Spare      bool           // see [lease.Demand]
}

// Answer is what the coordinator says about a resource.
type Answer struct {
	Status                           lease.Status
	Limit                            lease.Terms
	Safe                             fixed.Amount
	Contended, Saturated, Recovering bool
}

// Observed says that the load of some sites' resources may have changed.
type Observed struct{ Handles []uint32 }

func (Observed) Event() {}

// site is what an Agent knows of a resource that is lent on.
type site struct {
	lender Lender
	load   Load
	// In the latest report.
	sent     []lease.Claim
	sentMost lease.Capacity
}
