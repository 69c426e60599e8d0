package lease

import (
	"math"
	"time"

	"github.com/stint-io/stint/limit"
)

// The thresholds and times by which agents and their coordinator act together: each side
// relies on what the other one does at them. Those of an agent alone are in package agent.
const (
	// DefaultLease is how long a lease lasts without renewal. Not longer: the capacity of a
	// crashed instance is unused for that long. Not shorter: a pause of the network or of the
	// garbage collector should not end leases.
	DefaultLease = 5 * time.Second
	// DefaultRefresh is how often an agent renews. Not longer: a few renewals may be lost
	// before the lease ends. Not shorter: it is the cost of an idle instance.
	DefaultRefresh = time.Second
	// DriftMargin is by how much the clocks of an agent and of its coordinator may drift apart
	// while a lease lasts, as a fraction of it: 1/128, far more than a quartz does.
	DriftMargin = 128

	// MinReportGap is the shortest time between two reports about one resource while the first is
	// unanswered. Not shorter: a demand has to arrive before it is worth sending again. What is
	// answered has arrived, so the next one may follow at once.
	MinReportGap = 10 * time.Millisecond
	// IdleGrace is how long burst and tokens stay with an instance that became idle, and for
	// how long a coordinator does not grant burst again to an agent that returned it without
	// being asked. Not longer: others need it. Not shorter: after a short pause the next
	// request would wait for a round trip.
	IdleGrace = time.Second

	// Hysteresis is that of rates, as a fraction: a rate that is off its target by less than
	// 1/64 is not moved. Not smaller: measured demand is never exact, and each move costs two
	// messages. Not larger: what stays where it is not needed is missing where it is.
	Hysteresis = 64
	// Headroom is the fraction of its demand, 1/512, that an instance may hold on top of it
	// where the demand of all is above the limit. Not more: it is taken from the others. Not
	// less: the error of a measurement is as large.
	Headroom = 512
)

// Never is later than every time.
const Never = limit.Time(math.MaxInt64)
