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
}

// Admission is one request that was admitted: when it was made and when the answer was
// there. The decision is somewhere between.
type Admission struct{ Asked, Answered int64 }

// Bin is the width of the stretches that refusals are counted in.
const Bin = 10 * time.Millisecond
