package lease

import (
	"math"
	"time"

	"github.com/stint-io/stint/limit"
)

// The thresholds and times by which agents and their coordinator act together. Each side
// relies on what the other one does by them, so they stand in one place.
const (
	// DefaultLease is how long a lease lasts without renewal. Not longer: the capacity of a
	// crashed instance is unused for that long. Not shorter: a pause of the network or of the
	// garbage collector should not end leases.
	DefaultLease = 5 * time.Second
	// DefaultRefresh is how often an agent renews. Not longer: a few renewals may be lost
	// before the lease ends. Not shorter: it is the cost of an idle instance.
	DefaultRefresh = time.Second
	// DriftMargin says by how much the clocks of an agent and of its coordinator may drift
	// apart while a lease lasts, as a part of it: 1/128, far more than quartz does.
	DriftMargin = 128

	// shortestGap is the shortest time between two reports about one resource. Not shorter:
	// a demand has to arrive before it is worth sending again.
	MinReportGap = 10 * time.Millisecond
	// linger is how long burst and tokens stay with an instance that became idle, and for how
	// long a coordinator does not grant burst again to an agent that gave it back unasked.
	IdleGrace = time.Second

	// relation is the hysteresis of rates, as a part of a rate: one that is off by less than
	// 1/64 is not moved. Not smaller: measured demand is never exact, and each move costs two
	// messages. Not larger: what stays where it is not needed is missing where it is.
	Hysteresis = 64
	// Headroom is the part of its demand, 1/512, that each instance may have on top where
	// demand is far above the limit. Not more: it is taken from the others. Not less:
	// measurements are off by as much.
	Headroom = 512
)

// Never is a time that does not come.
const Never = limit.Time(math.MaxInt64)
