package sim

import "time"

// MaxInstances is how many instances a scenario may have. More fit the loop; the
// bound keeps a mistyped number from filling the memory.
const MaxInstances = 100_000

// MaxParts is how many parts the loads of a scenario may have in all: one for each
// instance of each load. Not fewer: ten loads on the largest fleet. Not more: each is a
// stream of requests with its own source of chance, of a few hundred bytes.
const MaxParts = 10 * MaxInstances

// Scenario is what happens to a fleet: plain data, no behaviour. Times are counted
// from the start of the run; instances from 0. The zero value of a field is the
// quiet case: no delay, no loss, no stops.
//
// A Scenario is not changed by a run and may be shared by several.
type Scenario struct {
	Name  string
	About string // a sentence or two for readers of the table

	Limit   Limit
	Changes []Change // of the limit, in order of time

	Instances int
	Weights   []uint32        // per instance; nil = 1 each
	Old       []bool          // instances of an old version; nil = none
	Starts    []time.Duration // when each instance starts; nil = all at 0
	Clocks    []time.Duration // how far each instance's clock is set wrong; nil = right

	// CoordinatorClock is how far the clocks of coordinators are set wrong.
	CoordinatorClock time.Duration

	// ClockSteps are when clocks are set in the midst of the run.
	ClockSteps []ClockStep

	Duration time.Duration
	Seed     uint64 // the same seed gives the same run

	Network    Network
	Partitions []Partition
	Pauses     []Pause
	Stops      []Stop
	Rolling    []Rolling

	// Failover sends a request for an instance that is down to the next one that
	// runs. Without it the request is lost.
	Failover bool

	Loads []Load

	Measure Measure
}

// Change puts a new limit in force. Nodes that are a [LimitSetter] get it at
// once, paused ones when they resume; processes that start later start with it.
type Change struct {
	At    time.Duration
	Limit Limit
}

// ClockStep sets the wall clock of a node forth, or back where By is negative, as an
// operator or a correction of the time does. See [Env].Wall: a process keeps the clock
// of its machine when it restarts.
type ClockStep struct {
	At   time.Duration
	Node Address
	By   time.Duration
}

// Network is what every message passes, from any node to any other. A message takes
// Delay plus a random part of Jitter.
type Network struct {
	Delay  time.Duration // one way: half the round trip
	Jitter time.Duration // evenly distributed from 0 to here

	// InOrder keeps the messages from one node to another in order, as one
	// connection does. Without it those whose Jitter is small overtake others.
	InOrder bool

	Loss      float64 // probability that a message is lost, below 1
	Duplicate float64 // probability that a message arrives twice
}

// Direction says which way a partition cuts. The zero value is BothWays.
type Direction uint8

// The directions.
const (
	BothWays   Direction = iota
	Outwards             // what the nodes inside send does not arrive outside
	Inwards              // what those outside send does not arrive inside
	directions           // how many there are
)

// Partition cuts a set of nodes off from all others. Among themselves they are
// connected. Nodes [Coordinator] alone is the coordinator cut off from the fleet;
// some instances are these cut off from the coordinator and from other instances.
// A message is lost when the cut is there at the moment it is sent or arrives.
type Partition struct {
	At, For time.Duration // For 0 = until the end
	Nodes   []Address
	Cut     Direction
}

// Pause stops a process for a while, as SIGSTOP or a long collection of garbage
// does: its clock goes on, its messages queue up. When it resumes, it first decides
// the requests that still wait for it, then takes its messages in the order they came,
// then its Wake if that is due: the order in which a zombie does most harm. A
// process that starts there during the pause is paused too.
type Pause struct {
	At, For time.Duration // For 0 = until the end
	Node    Address

	// Backlog is how long a request waits for the process. Those that came
	// earlier than Backlog before it resumes are lost.
	Backlog time.Duration
}

// Stop ends a process, and starts another in its place For later. Messages in
// transit reach the process that runs when they arrive. What waits in the process is lost.
type Stop struct {
	At, For time.Duration // For 0 = it does not come back
	Node    Address

	Orderly bool // a [Leaver] is notified and may send its last messages
	Upgrade bool // the new process is not of an old version, see Scenario.Old
}

// Rolling restarts instances one after the other.
type Rolling struct {
	At        time.Duration // when the first stops
	Every     time.Duration // from one stop to the next
	Down      time.Duration // how long each is down, positive
	Instances []int         // in this order; nil = all
	Crash     bool          // without a word; otherwise orderly
	Upgrade   bool          // see Stop
}

// Arrivals says when requests come, given their rate. The zero value is Even.
type Arrivals uint8

// The kinds of arrivals.
const (
	Even     Arrivals = iota // evenly spaced
	Poisson                  // independent of each other
	Bursts                   // Load.Size at once, bursts evenly spaced
	Loop                     // one caller, who asks again a time after each decision: 1/rate
	arrivals                 // how many there are
)

// Load is a stream of requests to some instances. Loads add up.
type Load struct {
	Instances []int // nil = all

	// Demand is what the load asks for in all, in tokens per second: each step
	// holds until the next. Before the first it asks for nothing.
	Demand []Step
	Split  Split // among the instances

	Arrivals Arrivals
	Size     int // requests in each of Bursts, positive
	// Aligned makes Even requests and Bursts of all instances come at the same
	// moments. Without it they are staggered, so that their sum is even.
	Aligned bool

	Cost int64 // of each request, in tokens; 0 = 1
	// Wait is how long a request may be held back by a [Waiter]; 0 = not at all.
	// Other enforcers decide at once. What a Loop asks for depends on how long it
	// waits: its demand is what it would ask for if it never did.
	Wait time.Duration

	Mishaps Mishaps
}

// Step is a demand in tokens per second from a time on.
type Step struct {
	At   time.Duration
	Rate float64
}

// SplitKind says how a load is split among its instances. The zero value is Equal.
type SplitKind uint8

// The kinds of split.
const (
	Equal      SplitKind = iota // the same for each
	OnOne                       // all on one
	Zipf                        // the k-th gets 1/k^Exponent, first the first of the list
	Shares                      // as Split.Shares says
	splitKinds                  // how many there are
)

// Split divides a load among its instances.
type Split struct {
	Kind     SplitKind
	Hot      int       // OnOne: which of the load's instances, from 0
	Exponent float64   // Zipf: 0 = 1
	Shares   []float64 // Shares: one per instance of the load, relative

	// Move turns the parts on by one instance each time it has passed: a hot spot
	// moves to the next one. 0 = they stay.
	Move time.Duration
	// Shuffle deals the parts out at random instead, at each Move.
	Shuffle bool
}

// Mishaps are what befalls the demand of single instances of a load: now and then one
// of them asks for a multiple of its demand, or for a fraction, for a while. The zero
// value is none.
type Mishaps struct {
	Every  time.Duration // from one to the next, on average; 0 = none
	Length time.Duration // of each, on average; exponentially distributed
	Spike  float64       // factor of a spike; 0 = no spikes
	Trough float64       // factor of a trough, below 1; 0 = silence
	// Troughs is the part of mishaps that are troughs, from 0 to 1.
	Troughs float64
}

// Measure says what the recorder measures. It changes no decision.
type Measure struct {
	// From is when use and refusals begin to count: after the first round trip,
	// say. What is admitted too much counts from the start.
	From time.Duration
	// Step is when demand or limit changes, for the time that it takes to use
	// 95 % again.
	Step time.Duration
	// Sample is the distance of the samples for charts; 0 = 100 ms, or more
	// where the samples of all instances would be too many to keep.
	Sample time.Duration
	// Look is the time between samples of the sum of all shares; 0 = 10 ms.
	Look time.Duration
	// Grace is how long a fall of the limit may take to reach the fleet: until then
	// the former limit counts wherever admissions and shares are held against the
	// limit. A rise counts at once.
	Grace time.Duration
}
