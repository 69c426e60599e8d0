package explore

import (
	"fmt"
	"slices"
	"time"

	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/internal/lease/holding"
	"github.com/stint-io/stint/limit"
)

// New returns a universe of a limit, what the applications want of it, and clocks, and its first state: two
// processes that have not begun a term, and two instances that are not connected.
func New(terms lease.Terms, demand [2]fixed.Amount, slow [4]bool, faults budget) (*Universe, *World) {
	u := &Universe{fleet: newFleet(terms, demand)}
	for i, s := range slow {
		u.clocks[i] = clock{base: limit.Time((1 + 977*i) * int(time.Second)), slow: s}
	}
	w := &World{level: terms.Burst, faults: faults}
	u.fleet.setOf(holding.Holders{})
	for i := range w.processes {
		w.processes[i] = process{run: uint64(2 + i), machine: u.fleet.coordinators.begin(u.clock(w, i), number(2+i)), current: true, seenAt: u.clock(w, i), first: true}
	}
	for i := range w.instances {
		session := number(10 + i)
		w.instances[i] = member{session: session, machine: u.fleet.instances.begin(u.local(w, i), session), to: nobody, keeper: nobody}
	}
	return u, w
}

// calm does the one event that comes next when nothing fails: messages arrive at once, terms are
// renewed, and everybody is on time. Actions in without are left out.
func (u *Universe) calm(w *World, without ...Action) (fault string) {
	for i := range w.instances {
		m := &w.instances[i]
		switch {
		case u.fleet.instances.factsOf(m.machine).next == lease.Never:
			u.restart(w, i)
			return ""
		case m.paused:
			m.paused = false
			return ""
		case w.processes[i].paused:
			w.processes[i].paused = false
			return ""
		}
		for _, a := range [...]Action{copied, copiedUp, deliver, submit, connect} {
			if slices.Contains(without, a<<1|Action(i)) {
				continue
			}
			if fault, ok := u.apply(w, a<<1|Action(i)); ok {
				return fault
			}
		}
	}
	for i := range Action(2) {
		for _, a := range [...]Action{learn, confirm} {
			if fault, ok := u.apply(w, a<<1|i); ok {
				return fault
			}
		}
	}
	best, at := Action(0), time.Duration(-1)
	sooner := func(a Action, i int, when time.Duration) {
		a = a<<1 | Action(i)
		if when = max(when, w.now); (at < 0 || when < at) && !slices.Contains(without, a) {
			best, at = a, when
		}
	}
	for i := range w.processes {
		p := &w.processes[i]
		switch {
		case p.apart:
			sooner(apart, i, 0)
		case p.writing.sent != 0:
			sooner(answer, i, 0)
		case p.term == 0:
			if at := u.electable(w, i); at != never {
				sooner(elect, i, at)
			}
		case p.beginning:
			sooner(begin, i, 0)
		default:
			if p.outdated || !u.recorded(w, i) {
				sooner(renew, i, 0)
			}
		}
	}
	if at < 0 || at > w.now {
		best = pass << 1
	}
	if fault, _ = u.apply(w, best); fault != "" || best != pass<<1 {
		return fault
	}
	return ""
}

// settled says whether both instances have their fair share: half of the rate, less what is not worth
// a message, and a token of burst. One token cannot be halved: then it is enough that both are connected.
func (u *Universe) settled(w *World) bool {
	for i := range w.instances {
		s := u.fleet.spendable(w.instances[i].machine, u.local(w, i))
		switch fair := min(u.fleet.terms.Rate/2, u.fleet.demand[i]); {
		case w.instances[i].to == nobody:
			return false
		case u.fleet.terms.Burst > fixed.Token && (s.rate < fair-fair/32 || s.burst < fixed.Token):
			return false
		}
	}
	return true
}

// check returns which invariant does not hold, or "".
func (u *Universe) check(w *World) string {
	rate, burst, tokens := fixed.Amount(0), fixed.Amount(0), int64(0)
	for i := range w.instances {
		s := u.fleet.spendable(w.instances[i].machine, u.local(w, i))
		rate, burst, tokens = rate+s.rate, burst+s.burst, tokens+s.tokens
	}
	t := &u.fleet.terms
	switch {
	case rate > t.Rate:
		return fmt.Sprintf("the rates of the instances are %v together, of %v", rate, t.Rate)
	case burst > t.Burst:
		return fmt.Sprintf("the bursts of the instances are %v together, of %v", burst, t.Burst)
	case fixed.Whole(tokens) > w.level+rounding:
		return fmt.Sprintf("the instances may spend %d tokens, and one bucket has %v", tokens, w.level)
	}
	return ""
}
