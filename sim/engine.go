package sim

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/stint-io/stint/sim/internal/agenda"
)

// never is a time after every run.
const never = math.MaxInt64

const (
	// checkEvery is how many events pass between looks at the context: some
	// milliseconds of work.
	checkEvery = 1 << 14
	// stuckAfter is how many calls of Wake at one moment mean that a node asks for
	// the next one always at once, so that time would stand still.
	stuckAfter = 1_000_000
)

// engine is a run: the one loop that calls all nodes, in the order of time.
type engine struct {
	scenario Scenario
	system   System
	setup    Setup

	now    int64 // ns since the start
	seq    uint64
	events agenda.Heap[what]
	wakes  int // since time moved

	actions    []action
	processes  []*process
	network    *network
	loads      []*load
	generators []generator
	demand     float64 // tokens per second, of all loads at this moment
	recorder   *recorder
	fault      error // of the system
}

// action is an entry of the scenario's timetable.
type action struct {
	at int64
	do func()
}

func newEngine(s Scenario, system System) *engine {
	g := &engine{scenario: s, system: system}
	g.setup = Setup{
		Limit: s.Limit, Instances: s.Instances, Weights: s.Weights, Old: slices.Clone(s.Old),
		RoundTrip: 2*s.Network.Delay + s.Network.Jitter, common: &commonBucket{},
	}
	g.recorder = newRecorder(&g.scenario)
	for i := range s.Instances {
		p := &process{address: Address(i), index: i}
		if s.Clocks != nil {
			p.offset = int64(s.Clocks[i])
			p.wall = p.offset
		}
		g.processes = append(g.processes, p)
	}
	return g
}

// at returns the process at an address, or nil.
func (g *engine) at(a Address) *process {
	index := int(a)
	if a <= Coordinator {
		index = g.scenario.Instances + int(Coordinator-a)
	}
	if index < 0 || index >= len(g.processes) {
		return nil
	}
	return g.processes[index]
}

func (g *engine) push(e event) {
	g.seq++
	e.Seq = g.seq
	g.events.Push(e)
}

// run lets the scenario's time pass.
func (g *engine) run(ctx context.Context) error {
	g.begin()
	for n := 0; len(g.events) > 0 && g.fault == nil; n++ {
		if n%checkEvery == 0 && ctx.Err() != nil {
			return fmt.Errorf("sim: %s of %s ended at %v of %v: %w", g.system.Name(), g.scenario.Name,
				time.Duration(g.now), g.scenario.Duration, context.Cause(ctx))
		}
		e := g.events[0]
		if e.At >= int64(g.scenario.Duration) {
			break
		}
		if e.At != g.now {
			g.now, g.wakes = e.At, 0
		}
		g.handle(e)
		if g.wakes > stuckAfter {
			return fmt.Errorf("sim: %s of %s: time stands still at %v: a node asks to be woken always at once",
				g.system.Name(), g.scenario.Name, time.Duration(g.now))
		}
	}
	g.now = int64(g.scenario.Duration)
	return g.fault
}

// begin starts the fleet and puts all that is to come in the heap. The timetable goes
// first among the events of a moment.
func (g *engine) begin() {
	s := &g.scenario
	g.seq = 1 << 32 // leaves room for the timetable below
	g.network = newNetwork(s.Network, s.Seed, s.Instances+maxCoordinators)
	for a := Coordinator; a > Coordinator-maxCoordinators; a-- {
		p := &process{address: a, index: len(g.processes), offset: int64(s.CoordinatorClock), wall: int64(s.CoordinatorClock)}
		g.processes = append(g.processes, p)
		if g.start(p); p.node == nil {
			g.processes = g.processes[:p.index]
			break
		}
	}
	g.plan()
	g.newLoads()
	for i, p := range g.processes[:s.Instances] {
		if s.Starts == nil || s.Starts[i] == 0 {
			g.start(p)
		}
	}
	g.push(event{At: 0, Of: what{kind: eventSample}})
	g.push(event{At: 0, Of: what{kind: eventLook}})
}

func (g *engine) handle(e event) {
	if e.Of.kind == eventArrival {
		g.arrive(e)
		return
	}
	g.events.Pop()
	switch e.Of.kind {
	case eventAction:
		g.actions[e.Of.ref].do()
	case eventMessage:
		g.deliver(e.Of.ref)
	case eventWake:
		g.wake(g.processes[e.Of.ref], e.Of.generation)
	case eventMove:
		g.move(e.Of.ref)
	case eventMishap:
		g.strike(e.Of.ref)
	case eventMishapEnd:
		g.endMishap(e.Of.ref, e.Of.generation)
	case eventLook:
		g.recorder.look(g.now, g.processes[:g.scenario.Instances], g.demand)
		g.push(event{At: g.now + g.recorder.lookEvery, Of: what{kind: eventLook}})
	case eventSample:
		g.recorder.sample(g.now, g.processes[:g.scenario.Instances])
		g.push(event{At: g.now + g.recorder.sampleEvery, Of: what{kind: eventSample}})
	}
}

// offer is a request that comes to an instance, or to another in its place. loop is as
// in request.
func (g *engine) offer(instance int, i, loop int32) {
	n := g.scenario.Instances
	p := g.processes[instance]
	if p.state == stateDown && g.scenario.Failover {
		for k := 1; k < n && p.state == stateDown; k++ {
			p = g.processes[(instance+k)%n]
		}
	}
	l := g.loads[i]
	if loop > 0 {
		g.generators[loop-1].asking = p
	}
	r := request{at: g.now, load: i, loop: loop}
	switch {
	case p.state == stateUp:
		r.fits = g.recorder.offer(g.now, int(p.address), l.cost, l.Wait)
		g.decide(p, r)
	case p.state == statePaused && p.resume != never && g.now >= p.resume-p.backlog:
		r.fits = g.recorder.offer(g.now, int(p.address), l.cost, l.Wait)
		p.waiting = append(p.waiting, r)
	default:
		g.recorder.miss(g.now, int(p.address), l.cost)
		g.again(loop)
	}
}

// decide asks the node at p about a request that was recorded as offered.
func (g *engine) decide(p *process, r request) {
	l := g.loads[r.load]
	if p.waiter == nil || l.Wait == 0 {
		g.recorder.decided(g.now, r, int(p.address), l.cost, p.enforcer.Take(l.cost))
		g.again(r.loop)
		return
	}
	node, done := p.env, false
	p.held++
	p.heldCost += l.cost
	p.waiter.TakeWithin(l.cost, l.Wait, func(admitted bool) {
		switch {
		case done:
			g.fault = fmt.Errorf("sim: %s of %s: instance %d decided twice about a request of %v",
				g.system.Name(), g.scenario.Name, p.address, time.Duration(r.at))
		case !node.gone:
			p.held--
			p.heldCost -= l.cost
			g.recorder.decided(g.now, r, int(p.address), l.cost, admitted)
			g.again(r.loop)
		}
		done = true
	})
}

// plan makes the timetable.
func (g *engine) plan() {
	s := &g.scenario
	plan := func(at int64, do func()) {
		if at < int64(s.Duration) {
			g.actions = append(g.actions, action{at, do})
		}
	}
	for _, c := range s.Changes {
		plan(int64(c.At), func() { g.change(c.Limit) })
	}
	for i, at := range s.Starts {
		if at > 0 {
			plan(int64(at), func() { g.start(g.processes[i]) })
		}
	}
	for _, c := range s.ClockSteps {
		if p := g.at(c.Node); p != nil {
			plan(int64(c.At), func() { p.wall += int64(c.By) })
		}
	}
	for i := range s.Partitions {
		p := &s.Partitions[i]
		var c *cut
		plan(int64(p.At), func() { c = g.part(p) })
		plan(end(p.At, p.For), func() { g.heal(c) })
	}
	for _, p := range s.Pauses {
		if q := g.at(p.Node); q != nil {
			plan(int64(p.At), func() { g.pause(q, end(p.At, p.For), p.Backlog) })
			plan(end(p.At, p.For), func() { g.unpause(q) })
		}
	}
	for _, x := range slices.Concat(s.Stops, s.rolled()) {
		if q := g.at(x.Node); q != nil {
			plan(int64(x.At), func() { g.stop(q, x.Orderly) })
			plan(end(x.At, x.For), func() { g.restart(q, x.Upgrade) })
		}
	}
	for i, l := range s.Loads {
		for _, step := range l.Demand {
			plan(int64(step.At), func() {
				g.loads[i].total = step.Rate
				g.setRates(int32(i))
			})
		}
	}
	slices.SortStableFunc(g.actions, func(a, b action) int { return cmp.Compare(a.at, b.at) })
	for i, a := range g.actions {
		g.events.Push(event{At: a.at, Seq: uint64(i), Of: what{kind: eventAction, ref: int32(i)}})
	}
}

// rolled returns the stops of rolling restarts.
func (s *Scenario) rolled() []Stop {
	var stops []Stop
	for _, r := range s.Rolling {
		n := len(r.Instances)
		if r.Instances == nil {
			n = s.Instances
		}
		for k := range n {
			instance := k
			if r.Instances != nil {
				instance = r.Instances[k]
			}
			stops = append(stops, Stop{
				At: r.At + time.Duration(k)*r.Every, For: r.Down, Node: Address(instance), Orderly: !r.Crash, Upgrade: r.Upgrade,
			})
		}
	}
	return stops
}

func (g *engine) change(l Limit) {
	g.setup.Limit = l
	for _, p := range g.processes {
		g.sendLimit(p)
	}
}

func (g *engine) restart(p *process, upgrade bool) {
	if upgrade && p.state == stateDown && g.setup.Old != nil && p.address >= 0 {
		g.setup.Old = slices.Clone(g.setup.Old) // nodes keep what they started with
		g.setup.Old[p.address] = false
	}
	g.start(p)
}
