package explore

import (
	"time"

	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/limit"
)

// TTL is how long a term lasts, and patience how long a record must be seen unchanged before it is
// taken over: the default of package cluster, and the drift that it allows for.
const (
	TTL      = time.Second
	patience = TTL + TTL/64
)

// grid is the shortest step of time: what is due in between happens at its end, late, as it does in
// a process that has to wait for a processor. Not shorter: orders of events which differ by
// less would be states of their own. Not longer: a quarter of a term, and the difference
// between what leases last here and there, have to be told apart.
const grid = 250 * time.Millisecond

// instant is a shorter step of time, of which there are few, for what is decided by less than the grid.
const instant = 10 * time.Millisecond

// nobody is where an instance without a stream is connected.
const nobody = -1

// World is a state of everything.
type World struct {
	now       time.Duration // since the beginning; clocks are at [clock.at] of it
	level     fixed.Amount  // of one bucket with the whole limit, from which all that was admitted was taken
	record    record
	kept      record // what the register held at an earlier moment
	lost      bool   // the register lost its record, or has that of an earlier moment, and no process has written since
	latest    uint64 // the highest epoch of a term; a wall clock that was not set back is above it
	processes [2]process
	instances [2]member
	streams   number // that were opened to replicas
	faults    budget // that may still happen
}

// record is what the register holds.
type record struct {
	run      uint64 // of the process that wrote it; 0 = there is no record
	write    uint64 // numbers the records of a run
	epoch    uint64
	resigned bool
	unled    unled
	lost     bool // what follows may be older than what a leader published last

	published bool // a leader has published what follows, which its successors hand on until they publish
	holders   number
	risen     uint64 // the epoch of the coordinator, where it has risen above that of its term; 0 = it has not
	inSync    struct {
		epoch uint64
		ids   [2]number // of the replicas that are named; 0 = none
	}
	used number // what is left of each bucket; 0 = nothing is said
}

// unled is the term before one that was given up before its process had taken over.
type unled struct {
	is    bool
	epoch uint64 // 0 = there was none
	clean bool
}

// predecessor is what a process knows of the term before its own.
type predecessor struct {
	epoch   uint64 // 0 = none is known
	clean   bool   // its leader resigned
	watched bool   // the process saw the record before it saw the resignation
	lost    bool   // its record may be older than what a leader published last
}

// process is a member of the cluster: a coordinator, and its part in the election.
type process struct {
	run     uint64 // differs from that of every other process
	machine number

	term      uint64      // the epoch of its term; 0 = none
	until     limit.Time  // the end of its term, by its clock
	from      predecessor // of the term
	beginning bool        // its coordinator has not taken over yet
	wrote     record      // the latest of the term
	writes    uint64      // records that it wrote

	current  bool       // it has seen the present revision of the record
	seenAt   limit.Time // since when, by its clock
	seen     uint64     // the epoch of the record that it saw last; 0 = there was none
	follows  bool       // it saw the record before that too, of the same epoch, or that there was one
	outdated bool       // the record is not a later one than those that it saw before
	epoch    uint64     // the highest of the records that it saw, and of which it knew when it began
	write    uint64     // the highest number of the records of that epoch
	apart    bool       // it does not reach the register
	first    bool       // it knows that no process has led before

	folder uint64 // the epoch in its state folder; 0 = none
	known  uint64 // the same when it began

	published number // holders in the record, as far as it knows
	writing   write  // a renewal that is written and not answered
	paused    bool   // it does nothing

	stream  stream   // to its replica
	listed  number   // the replica in the record, as far as it knows; 0 = none
	replica replica  // what it knows of the other one's buckets
	asks    []asking // in order
}

type write struct {
	sent    limit.Time // 0 = there is none
	holders number
	inSync  number
}

// member is an instance and its stream.
type member struct {
	session number
	machine number
	to      int // the process that its stream leads to, or nobody

	up, down []number   // messages on the way, in order
	keeper   int        // the process that knows the instance, also while it has no stream, or nobody
	waiting  []withheld // there
	paused   bool       // it does nothing
	late     number     // a grant that comes again, at any time; 0 = none
	lateUp   number     // a report of this stream that comes again; 0 = none
	replay   number     // a report with a claim that comes again, on any stream; 0 = none
}

// fault kinds, each of which may happen so many times in one history.
type faultKind int

const (
	crashes   faultKind = iota // of a coordinator process, which begins again without memory
	cuts                       // of a stream
	restarts                   // of an instance, without its last report
	losses                     // of a single message
	repeats                    // of a single message
	outages                    // of the way between a process and the register
	slows                      // writes to the register whose answer is late or lost
	leaves                     // planned ends, of a term or an instance
	pauses                     // of a process or an instance, and of all for seconds
	moments                    // steps of time of an instant
	stops                      // of processes between their election and their taking over
	oblivions                  // of the register, which loses its record or goes back to an earlier one
	copies                     // of state folders, which are put back
	keeps                      // moments to which the register may go back: no fault, but they make many states
	follows                    // streams to a replica: no fault, but they make many states
	asks                       // of servers for a token: no fault, but they make many states
	takes                      // of tokens: no fault, but what may be spent is checked without them too
	faultKinds
)

type budget [faultKinds]uint8

// clock is a machine's own: it begins anywhere, and may be slower than the fastest one by nearly what
// lease.DriftMargin allows for.
type clock struct {
	base limit.Time
	slow bool
}

// slowness is by what part of it a slow clock is behind: 1/130.
const slowness = 130

func (c clock) at(now time.Duration) limit.Time {
	if c.slow {
		now -= (now + slowness - 1) / slowness
	}
	return c.base + limit.Time(now)
}

// when returns the first time, rounded up to the grid, at which the clock shows t or more.
func (c clock) when(t limit.Time) time.Duration {
	d := time.Duration(t - c.base)
	if c.slow {
		d += d/(slowness-1) + 1
	}
	d = (d + grid - 1) / grid * grid
	for d >= grid && c.at(d-grid) >= t {
		d -= grid
	}
	for c.at(d) < t {
		d += grid
	}
	return d
}
