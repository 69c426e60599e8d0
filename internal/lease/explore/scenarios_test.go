package explore

import (
	"fmt"
	"slices"
	"time"

	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/internal/lease/holding"
)

// Scenario is a state from which a search begins, and what may fail in it.
type Scenario struct {
	Name  string
	begin func() (*Universe, *World, error)
	// expensive says that it is searched in a long search alone.
	expensive bool
}

// rule is a limit, and what the two applications want of it per second.
type rule struct {
	terms  lease.Terms
	demand [2]fixed.Amount
}

var (
	four = rule{lease.Terms{Rate: 4 * fixed.Token, Burst: 4 * fixed.Token}, [2]fixed.Amount{4 * fixed.Token, 4 * fixed.Token}}
	one  = rule{lease.Terms{Rate: 2 * fixed.Token, Burst: fixed.Token}, [2]fixed.Amount{2 * fixed.Token, 2 * fixed.Token}}
)

// Clocks: of the processes, then of the instances.
var (
	even          = [4]bool{}
	slowInstances = [4]bool{false, false, true, true}
	slowLeader    = [4]bool{true, false, false, true}
)

// Scenarios are where searches begin. What may fail differs, since what may fail at once is what a
// search can reach with so many states.
func Scenarios() []Scenario {
	return slices.Concat(replicaScenarios(), askScenarios(), oblivionScenarios(), []Scenario{
		{"cold start", from(four, even, budget{cuts: 1, repeats: 1}, nothing), false},
		{"newcomer: one instance has all, the other comes", from(four, even, budget{cuts: 1, repeats: 1, losses: 1}, newcomer), false},
		{"newcomer, messages alone", from(four, even, budget{repeats: 1, losses: 2}, newcomer), false},
		{"lent: each has half", from(four, even, budget{cuts: 1, losses: 1, repeats: 1, restarts: 1}, halves), false},
		{"lent, slow instances", from(four, slowInstances, budget{cuts: 2, pauses: 2}, halves), false},
		{"terms: a leader that loses the register", from(four, slowLeader, budget{outages: 1, slows: 1, pauses: 1}, halves), false},
		{"behind: a leader lost the register, and one instance never left it", from(four, even, budget{cuts: 1}, behind), false},
		{"crash: a coordinator begins again", from(four, even, budget{crashes: 2, pauses: 1}, halves), false},
		{"successor: another coordinator begins, instances are cut off", from(four, even, budget{repeats: 1, pauses: 1}, successor), false},
		{"successor, with crashes and cuts", from(four, slowInstances, budget{crashes: 1, cuts: 1, pauses: 1}, successor), false},
		{"two successors: claims are of the term before the last", from(four, even, budget{}, twoSuccessors), false},
		{"orphans: leases whose claims were refused", from(four, even, budget{}, orphans), false},
		{"rejoined: a session that had ended is back while the record is written without it", from(four, even, budget{}, rejoined), false},
		{"replay: a claim comes again, to another coordinator", from(four, even, budget{}, replayed), false},
		{"claiming: a claim was accepted, and the answer is not there", from(four, even, budget{cuts: 1, repeats: 1}, claiming), false},
		{"anybody: the same, by a record that does not say who may hold leases", from(four, even, budget{cuts: 1, repeats: 1}, anybody), false},
		{"third: only one of two has claimed from the second coordinator", from(four, even, budget{}, third), false},
		{"refused: leases whose claims were refused are about to end", from(four, even, budget{moments: 1}, refused), false},
		{"silent: a lease is about to end, of an instance with a slow clock", from(four, slowInstances, budget{moments: 2, repeats: 1}, silent), false},
		{"late: a grant of a former coordinator is still on the way", from(four, even, budget{repeats: 1, cuts: 1}, lateGrant), false},
		{"unrecorded: a coordinator died before its record had the first lease", from(four, even, budget{}, unrecorded), false},
		{"hand-over: planned ends", from(four, even, budget{leaves: 2, slows: 1}, halves), false},
		{"one token for two", from(one, even, budget{cuts: 1, repeats: 1}, halves), false},
		{"forgotten: the register lost its record, and all leases have ended", from(four, even, budget{crashes: 1, cuts: 1, pauses: 1}, forgotten), false},
		{"everything at once", from(four, slowInstances, budget{crashes: 1, cuts: 1, restarts: 1, losses: 1, repeats: 1, outages: 1, slows: 1, leaves: 1, pauses: 1}, halves), true},
	})
}

// from returns the beginning of a scenario: a script, and then what may fail.
func from(of rule, slow [4]bool, faults budget, script func(*play)) func() (*Universe, *World, error) {
	return func() (*Universe, *World, error) {
		p := &play{}
		p.Universe, p.World = New(of.terms, of.demand, slow, budget{crashes: 9, cuts: 9, restarts: 9, losses: 9, repeats: 9, outages: 9, slows: 9, leaves: 9, pauses: 9, moments: 99, takes: 99, follows: 9, asks: 9, stops: 9, oblivions: 9, copies: 9, keeps: 9})
		script(p)
		p.faults = faults
		p.faults[takes] = 2
		return p.Universe, p.World, p.err
	}
}

// play makes the beginning of a scenario.
type play struct {
	*Universe
	*World
	err error
}

func nothing(*play) {}

// do does actions, which must be possible.
func (p *play) do(actions ...Action) {
	for _, a := range actions {
		if fault, ok := p.apply(p.World, a); p.err == nil && (fault != "" || !ok) {
			p.err = fmt.Errorf("explore: %v: %s", a, fault)
		}
	}
}

// until lets everything go on without faults until done, without some actions.
func (p *play) until(done func() bool, without ...Action) {
	for range 2000 {
		if done() || p.err != nil {
			return
		}
		if fault := p.calm(p.World, without...); fault != "" {
			p.err = fmt.Errorf("explore: %s", fault)
		}
	}
	p.err = fmt.Errorf("explore: this does not come to pass: %s", p.describe(p.World))
}

// halves: both instances have half of the limit.
func halves(p *play) {
	p.until(func() bool { return p.settled(p.World) })
	p.until(func() bool { return p.quiet() })
}

// quiet says whether no message is on the way.
func (p *play) quiet() bool {
	return !slices.ContainsFunc(p.instances[:], func(m member) bool { return len(m.up)+len(m.down)+len(m.waiting) > 0 })
}

// newcomer: the first instance has the whole limit, and the other has not come.
func newcomer(p *play) {
	without := []Action{connect<<1 | 1}
	p.until(func() bool {
		return p.fleet.spendable(p.instances[0].machine, p.local(p.World, 0)).rate >= p.fleet.terms.Rate*7/8
	}, without...)
	p.until(func() bool { return p.quiet() }, without...)
}

// successor: the other process has begun a term, and the instances still have leases of the first.
func successor(p *play) {
	halves(p)
	p.do(apart<<1, pass<<1, pass<<1, pass<<1, pass<<1, pass<<1, elect<<1|1)
}

// twoSuccessors: a second successor has begun, and no instance has reported to the first one.
func twoSuccessors(p *play) {
	successor(p)
	p.do(apart<<1, crash<<1|1)
	p.lead(0)
}

// await lets time pass until a process may be elected.
func (p *play) await(i int) {
	for end := p.now + 2*patience; p.err == nil && p.now < end && p.electable(p.World, i) > p.now; {
		p.do(pass << 1)
	}
}

// lead lets time pass until a process begins a term.
func (p *play) lead(i int) {
	p.await(i)
	p.do(elect<<1 | Action(i))
}

// orphans: a coordinator refused the claims of both instances, who spend their leases until the end.
func orphans(p *play) {
	twoSuccessors(p)
	p.do(connect<<1, connect<<1|1, submit<<1, submit<<1|1, pass<<1, deliver<<1, deliver<<1|1)
}

// behind: the first process does not reach the register. The second one recovers, and only the second
// instance has come to it.
func behind(p *play) {
	halves(p)
	p.do(apart << 1)
	p.lead(1)
	p.instances[1].to = nobody
	p.do(connect<<1 | 1)
	for begun := p.now; p.err == nil && p.now < begun+20*grid; {
		p.quick(0)
		p.quick(1)
		p.do(pass << 1)
	}
}

// refused: the same, and their leases end soon.
func refused(p *play) {
	orphans(p)
	for begun := p.now; p.err == nil && p.now < begun+19*grid; {
		p.do(pass << 1)
		p.quick(0)
		p.quick(1)
	}
}

// claiming: a successor has accepted the claim of an instance, which does not know it yet.
func claiming(p *play) {
	successor(p)
	p.do(connect<<1, submit<<1)
}

// anybody: the same, and the record of the former leader cannot be read.
func anybody(p *play) {
	halves(p)
	p.record.holders = p.fleet.setOf(holding.Holders{Unknown: true})
	p.do(apart << 1)
	p.lead(1)
	p.do(connect<<1, submit<<1)
}

// third: a third coordinator has begun. Of the second one, only the second instance had claimed.
func third(p *play) {
	successor(p)
	p.do(connect<<1 | 1)
	p.quick(1)
	p.do(pass<<1, apart<<1, crash<<1|1)
	p.lead(0)
}

// replayed: an instance claimed a lease from the second coordinator, and was lent all there. The third
// has begun, and the report with the claim is about to come again.
func replayed(p *play) {
	successor(p)
	p.do(connect<<1, copyReport<<1)
	p.quick(0)
	for range 80 {
		if p.fleet.spendable(p.instances[0].machine, p.local(p.World, 0)).rate < p.fleet.terms.Rate {
			p.do(pass << 1)
			if p.fleet.coordinators.factsOf(p.processes[1].machine).holders != p.processes[1].published {
				p.do(renew<<1 | 1)
			}
			p.quick(0)
		}
	}
	p.do(apart<<1, crash<<1|1)
	p.lead(0)
}

// silent: the stream of an instance was cut as it had renewed its lease, which ends soon. A grant that
// renews it is still on the way.
func silent(p *play) {
	halves(p)
	for p.err == nil && len(p.instances[0].down) == 0 {
		p.do(pass << 1)
		p.quick(1)
		if len(p.instances[0].up) > 0 {
			p.do(submit << 1)
		}
	}
	p.do(copyGrant<<1, deliver<<1, cut<<1)
	for range 19 {
		p.do(pass << 1)
		p.quick(1)
	}
}

// lateGrant: an instance that had all of the limit has half of it, from the second coordinator. A grant of
// the first one is still on the way.
func lateGrant(p *play) {
	p.latest = 2 // leases of epoch 3 have higher numbers than those of epoch 4
	p.do(elect<<1 | 1)
	without := connect<<1 | 1
	p.until(func() bool { return len(p.instances[0].down) > 0 && p.fleet.lends(p.instances[0].down[0]) }, without)
	p.do(copyGrant << 1)
	p.quick(0)
	p.do(crash<<1 | 1)
	p.lead(0)
	for range 60 {
		if !p.settled(p.World) {
			late := p.instances[0].late
			p.instances[0].late = 0
			if fault := p.calm(p.World); fault != "" {
				p.err = fmt.Errorf("explore: %s", fault)
			}
			p.instances[0].late = late
		}
	}
}

// unrecorded: a coordinator died when it had granted the first lease. Its record had no holders.
func unrecorded(p *play) {
	p.do(elect<<1, connect<<1, submit<<1, pass<<1)
	p.quick(0)
	p.do(crash << 1)
	p.lead(1)
}

// rejoined: the session of an instance expired and is back. The record without it was written, and the
// answer is late. Then the leader was killed.
func rejoined(p *play) {
	halves(p)
	p.do(pauseInstance << 1)
	for p.err == nil && p.covered() {
		p.do(pass << 1)
		p.quick(1)
	}
	p.do(send<<1, pauseInstance<<1, connect<<1)
	p.quick(0)
	for range 3 {
		p.do(pass << 1)
		p.quick(0)
		p.quick(1)
	}
	p.do(crash << 1)
	p.lead(1)
}

// covered says whether the first process counts the first instance as a holder.
func (p *play) covered() bool {
	return p.fleet.holders[p.fleet.coordinators.factsOf(p.processes[0].machine).holders].Covers(uint64(p.instances[0].session), theLimit)
}

// quick brings the messages of an instance at once.
func (p *play) quick(i int) {
	for m := &p.instances[i]; p.err == nil && len(m.up)+len(m.down) > 0; {
		if len(m.up) > 0 {
			p.do(submit<<1 | Action(i))
		} else {
			p.do(deliver<<1 | Action(i))
		}
	}
}

// forgotten: the register has no record, and processes without memory begin when all leases have ended,
// below the epoch that the instances know.
func forgotten(p *play) {
	halves(p)
	p.latest = 50 // epochs of the next terms begin again far below
	p.do(crash << 1)
	p.until(func() bool { return p.record.epoch > 50 })
	p.until(func() bool { return p.settled(p.World) && p.quiet() && p.now > 3*time.Second })
	p.setBack()
}

// setBack: nobody remembers anything, all leases have ended, and clocks are set back.
func (p *play) setBack() {
	p.do(crash<<1, crash<<1|1, seconds<<1, seconds<<1)
	p.record, p.latest = record{}, 0
	for i := range p.processes {
		p.processes[i].epoch, p.processes[i].write, p.processes[i].folder = 0, 0, 0
		p.see(p.World, i)
	}
}

// settle lets everything go on without faults, and returns after how much time and how many events
// both instances have their fair share. ok is false if that takes longer than most.
func (u *Universe) settle(w World, most time.Duration) (took time.Duration, events int, fault string) {
	begun := w.now
	for events = 0; !u.settled(&w); events++ {
		if w.now-begun > most {
			return w.now - begun, events, fmt.Sprintf("after %v and %d events without a fault, an instance has less than its fair share: %s", w.now-begun, events, u.describe(&w))
		}
		before := w.now
		fault = u.calm(&w)
		for i := range w.instances {
			m := &w.instances[i]
			if w.now > before && m.to != nobody && !u.fleet.instances.factsOf(m.machine).leased && fault == "" {
				fault = u.stepInstance(&w, i, spent, 0) // its application is refused
			}
		}
		if fault == "" {
			fault = u.check(&w)
		}
		if fault != "" {
			return w.now - begun, events, fault
		}
	}
	return w.now - begun, events, ""
}
