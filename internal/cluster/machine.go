package cluster

import (
	"errors"
	"fmt"
	"time"
)

// machine is the election of one member, as a state machine: no clock, no goroutine, no network.
// Times are those of the member's monotonic clock since any instant. Step it with every event, and
// with a tick when output.wake says so.
//
// It has at most one operation at the register under way. So what it sends next is based on all
// that it knows, and only operations whose outcome is unknown can still be done behind its back.
type machine struct {
	cfg config

	// seen is the record as it was read or written last.
	seen observation
	// epoch is the highest of all records seen, and write the highest number of its records. A record that
	// disappears does not lower them. outdated says that the record seen last is not a later one than those
	// before: the register has lost records.
	epoch, write uint64
	outdated     bool

	// pending is the operation under way; nil = none.
	pending *operation
	// doubts are the renewals whose outcome is unknown and that may be in force or yet to come.
	// All name the revision of seen.
	doubts []operation
	// read says that the record must be read before anything is written.
	read bool
	// pace is the earliest time for the next operation after one has failed, and poll that of the
	// next read by a follower. readAt is when the last read was answered.
	pace, poll, readAt time.Duration
	writes             uint64 // sent so far

	term   tenure
	app    phase
	state  state
	resign resignation
}

// config does not change.
type config struct {
	self    Member
	run     string // of this election alone
	ttl     time.Duration
	forgets bool
	first   bool
	epoch   func() uint64            // the highest known from elsewhere
	yield   func(holder string) bool // another member should lead; nil = never
}

// observation is a record as seen by this member.
type observation struct {
	valid    bool // something was read
	revision uint64
	claim    *claim        // nil = no record, or it is not understood
	fault    error         // why it is not understood
	since    time.Duration // when this revision was received first

	// follows says that the revision before was seen too and was of the same epoch, or, for an
	// absent record, that there was one.
	follows bool
}

// tenure is the term of this member.
type tenure struct {
	held    bool // the record is ours as far as is known, and until has not come
	epoch   uint64
	from    Term          // as Began was told
	version uint64        // of the state that was taken over
	until   time.Duration // TTL after the last renewal that is known to be written was sent
	renew   time.Duration // when the next renewal is due
}

// phase is what the program that elects does with the term.
type phase int

const (
	idle      phase = iota // nothing: no term, or it has been told that there is none
	beginning              // Began runs
	serving                // Began has returned nil
	ending                 // Ended runs
)

// state is what the leader publishes. Each call of Publish is a version.
type state struct {
	value            []byte
	version, written uint64
}

// resignation is the wish to give a term up, and to say so in the record.
type resignation struct {
	write bool          // the record still has to be written
	unled *unled        // the term was given up before it led
	bound time.Duration // give up writing it then
	again time.Duration // do not campaign before
	stop  bool          // never campaign again
}

// operation is a call of the register: a read, or a swap of the record of that revision.
type operation struct {
	swap     bool
	revision uint64
	claim    *claim // to be written
	sent     time.Duration
	version  uint64 // of the state in claim
}

// Events. Each but tick and hint is the answer to an output, or a wish of the program.
type (
	tick struct{} // the time of output.wake has come
	hint struct{} // the record may have changed

	// answered is the answer to a read or a swap. err is nil, ErrChanged (swap) or anything else:
	// the outcome is unknown.
	answered struct {
		record   Record // of a read
		revision uint64 // of a swap
		err      error
	}

	began struct{ err error } // Began has returned
	ended struct{}            // Ended has returned

	publish struct{ state []byte }
	// retire gives the term up. A nil state keeps what was published last.
	retire struct {
		state []byte
		stop  bool // for good: Run ends
	}
)

// output is what the driver has to do after a step. It updates what Leads returns before anything
// else.
type output struct {
	send  *operation
	begin *Term         // call Began
	over  string        // the term is over, for this reason: end its context; "" = it is not
	end   bool          // call Ended
	done  bool          // nothing is left to do after retire.stop
	wake  time.Duration // step again then at the latest
}

// Divisors of the TTL.
const (
	// renewals per TTL. Not fewer: a renewal whose answer is lost must be found out by another
	// read, and repeated, before the term ends. Not more: each is a write of the backend.
	renewalsPerTTL = 4
	// driftPart is the part of the TTL that a candidate waits beyond it, for clocks that run at
	// different rates. Operating systems correct a clock by 1/2000 at most.
	driftPart = 64
	// retriesPerTTL is the pace after errors, which may come at once.
	retriesPerTTL = 16
	// timeoutsPerTTL bounds a call. Not shorter: a busy backend that answers late would have no
	// leader at all. Not longer: what a leader missed must be made good before its term ends.
	timeoutsPerTTL = 2
	// hintsPerTTL bounds the reads of a follower whose leader publishes often.
	hintsPerTTL = 64
	// yieldPart is the part of the TTL that a candidate waits for the one that should lead. Not
	// shorter: that one finds out by a read, which takes up to half a TTL. Not longer: nobody leads
	// meanwhile, where it has gone.
	yieldPart = 2
	// restTTLs is how long a member that resigned lets others go first.
	restTTLs = 2
)

// patience returns how long one revision must be seen before its record is taken over.
func patience(ttl time.Duration) time.Duration { return ttl + ttl/driftPart }

// step takes an event at now.
func (m *machine) step(now time.Duration, event any) output {
	var out output
	// First, so that no answer that comes after the end of a term can revive it.
	if m.term.held && now >= m.term.until {
		m.endTerm("it was not renewed in time", &out)
	}
	switch e := event.(type) {
	case tick:
	case hint:
		m.poll = min(m.poll, max(now, m.readAt+m.cfg.ttl/hintsPerTTL))
	case answered:
		m.answer(now, e, &out)
	case began:
		m.appBegan(now, e.err, &out)
	case ended:
		m.app = idle
	case publish:
		m.state.value = e.state
		m.state.version++
	case retire:
		m.retire(now, e, &out)
	default:
		panic(fmt.Sprintf("cluster: unknown event %T", event))
	}
	if m.app == serving && !m.term.held {
		m.app = ending
		out.end = true
	}
	m.giveUpResigning(now)
	if m.pending == nil {
		out.send = m.next(now)
		m.pending = out.send
	}
	out.done = m.resign.stop && m.pending == nil && m.app == idle && !m.resign.write && !m.term.held
	out.wake = m.wake(now)
	return out
}

// answer takes the answer to the pending operation.
func (m *machine) answer(now time.Duration, e answered, out *output) {
	op := *m.pending
	m.pending = nil
	switch {
	case e.err == nil && op.swap:
		m.written(now, op, e.revision, out)
	case e.err == nil:
		m.received(now, e.record, out)
	case errors.Is(e.err, ErrChanged):
		// Somebody else has the record, or it was lost, or an earlier renewal of unknown outcome has changed it.
		m.read = true
	default:
		m.read = true
		m.pace = op.sent + m.cfg.ttl/retriesPerTTL
		if op.swap && m.term.held {
			m.doubts = append(m.doubts, op)
		}
	}
}
