package sim

import (
	"math/rand/v2"
	"time"

	"github.com/stint-io/stint/limit"
)

// Address names a node of a fleet: instances are 0 and up, coordinators below 0.
type Address int

// Coordinator is the address of a fleet's first coordinator; others are below it.
const Coordinator Address = -1

// Env is what a node knows of the world. Nothing else changes a node's behaviour.
type Env interface {
	// Now is the node's own clock, which may be set wrong by a constant.
	Now() limit.Time
	// Wall is what the node takes for the time of day, by which the seconds of all
	// are to be the same: it is as wrong as the scenario sets it, and may be set
	// forth and back in the midst of a run, which Now never is. Nothing that must
	// not go backwards may rest on it.
	Wall() limit.Time
	// Send hands a message to the network. bytes is its size on the wire.
	Send(to Address, message any, bytes int)
	// WakeAt asks for one Wake at t by the node's own clock. A later call replaces
	// an earlier one; limit.Time(math.MaxInt64) asks for none.
	WakeAt(t limit.Time)
	// Rand is the node's own source of chance.
	Rand() *rand.Rand
}

// Node is a process of a fleet. The loop calls one method of one node at a time; none
// is called while the process is paused or down. A process that restarts is a new
// Node.
type Node interface {
	Receive(from Address, message any)
	Wake()
}

// Enforcer is a node that admits requests of one limit.
type Enforcer interface {
	Node
	// Take decides about a request that arrives now, at once: Allow's semantics.
	Take(cost int64) bool
	// Share is the rate that the instance may use at this moment, in tokens per
	// second, for charts and for the check of the sum.
	Share() float64
}

// Waiter is an Enforcer that can hold a request back for a while. The engine hands
// requests of scenarios with wait > 0 to TakeWithin; decided is called once, at once
// or later, from within a method of the node.
type Waiter interface {
	Enforcer
	TakeWithin(cost int64, wait time.Duration, decided func(admitted bool))
}

// Leaver is an Enforcer that is notified when its process is stopped in good order.
type Leaver interface {
	Enforcer
	// Leave is the last call of a method of the node; it may send messages.
	Leave()
}

// LimitSetter is a node that learns of a new limit while it runs.
type LimitSetter interface {
	SetLimit(l Limit)
}

// Limit is the limit that a fleet shares: rate tokens per second, burst tokens.
type Limit struct {
	Rate  limit.Rate
	Burst int64
}

// PerSecond returns the rate in tokens per second.
func (l Limit) PerSecond() float64 {
	if l.Rate.Count == 0 {
		return 0
	}
	return float64(l.Rate.Count) / l.Rate.Period.Seconds()
}

// System is a way to share a limit: ours, or a baseline.
type System interface {
	// Name is how tables call it.
	Name() string
	// Coordinator makes the process at address (Coordinator or below), or nil when
	// the system has none there. It is called again after a crash, with restart
	// counting up from 0.
	Coordinator(env Env, setup Setup, address Address, restart int) Node
	// Instance makes instance i. It is called again after a restart.
	Instance(env Env, setup Setup, i, restart int) Enforcer
}

// Setup is what every process knows when it starts.
type Setup struct {
	Limit     Limit
	Instances int           // how many the fleet has
	Weights   []uint32      // per instance, such as its number of clients; nil = 1 each
	Old       []bool        // instances that run an old version, which reports nothing; nil = none
	RoundTrip time.Duration // of the network, typical

	common *commonBucket // of this run, for OneBucket
}
