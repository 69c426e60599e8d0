package fleet

import "time"

// Load is what one process asks of one limit in a stretch of time: requests of cost 1
// at an even pace. Times are by the clock of [After].
type Load struct {
	Limit     string
	From, To  int64
	PerSecond float64
	// Phase, in [0, 1), is when the first request comes, in parts of the pause between
	// two: a fleet whose processes all began at once would ask in step.
	Phase float64
	// Take asks by Take, which may wait for an answer of the coordinator; without it
	// Allow is asked, which decides at once.
	Take bool
	// Loop asks by Wait, one request at a time: the next comes 1/PerSecond after the one
	// before was admitted. Loads of one limit that do so are one loop, which goes on at
	// another pace where the next of them begins; they are in the order of their times.
	Loop bool
	// Watch is how often the rate of the lease is recorded; 0 = never.
	Watch time.Duration
}

// order is what a process is told; without loads it ends.
type order struct{ Loads []Load }

// answer is what a process tells.
type answer struct {
	Connected bool
	Log       *Log
}

// Log is what one process did under its loads, by limit.
type Log struct {
	Instance int
	Limits   map[string]*Record
	CPU      time.Duration // of the process, since it was started
}

// Record is what became of the requests to one limit in one process.
type Record struct {
	Admitted []Admission
	// Refused counts refusals by stretches of [Bin], from the clock's beginning.
	Refused map[int64]int64
	// Failed are those that got neither; Error is the first reason.
	Failed int64
	Error  string
	// Late is by how much a request was made too late, at most, since the machine was
	// busy with others.
	Late time.Duration
	// Stalls are the times from when a request was due to when it was made, if the machine
	// let the process wait for longer than Patience.
	Stalls []Stall
	// Held is how the lease stood, in the order of time.
	Held []Held
	// Waiting is since when a loop waited for the permit that it had not got at its end;
	// 0 = it did not.
	Waiting int64
}

// Stall is a time in which the machine did not run a process that had something to do.
type Stall struct{ From, To int64 }

// Patience is how long a process may wait for a processor without its being a [Stall].
const Patience = 25 * time.Millisecond

// Held is the rate of a lease at a time, in tokens per second; 0 once it has expired.
type Held struct {
	At   int64
	Rate float64
}

// Admission is one request that was admitted: when it was made and when the answer was
// there. The decision is somewhere between.
type Admission struct{ Asked, Answered int64 }

// Bin is the width of the stretches that refusals are counted in.
const Bin = 10 * time.Millisecond
