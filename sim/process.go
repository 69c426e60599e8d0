package sim

import (
	"math"
	"math/rand/v2"
	"time"

	"github.com/stint-io/stint/internal/traffic"
	"github.com/stint-io/stint/limit"
)

// origin is what a right clock shows at the start of a run. It is far enough from
// zero for clocks that are set back.
const origin = limit.Time(1_000_000 * time.Second)

// maxCoordinators bounds the search for coordinators of a system.
const maxCoordinators = 1024

type processState uint8

const (
	stateDown processState = iota
	stateUp
	statePaused
)

// process is a place of the fleet: an instance, or a coordinator. The node that runs
// there changes with each restart.
type process struct {
	address Address
	index   int   // instances from 0, the coordinators behind them
	offset  int64 // of Now
	wall    int64 // of Wall
	state   processState
	pauses  int   // how many pauses hold it
	resume  int64 // when the longest of them ends; math.MaxInt64 = never
	backlog int64 // the longest of them
	starts  int   // how many nodes have run here

	env      *env // of the node that runs
	node     Node
	enforcer Enforcer // nil for a coordinator
	waiter   Waiter   // nil unless the enforcer is one

	inbox    []int32   // slots of messages that came while paused
	waiting  []request // requests that came while paused
	setLimit bool      // the limit has changed: send it when it resumes

	held, heldCost int64 // requests that the node holds back

	alarm struct {
		wanted     int64 // when the node wants to be woken; math.MaxInt64 = not
		pending    int64 // when the event of this generation is; math.MaxInt64 = none
		generation uint32
	}
}

// request is one that arrived at a paused process.
type request struct {
	at   int64
	load int32
	loop int32 // the generator of a Loop, from 1; 0 = none
	fits bool
}

// env is what one node knows of the world. It outlives its node by nothing: what a
// node that is gone still does has no effect.
type env struct {
	engine  *engine
	process *process
	random  *rand.Rand
	gone    bool
}

var _ Env = (*env)(nil)

func (e *env) Now() limit.Time {
	return origin + limit.Time(e.engine.now+e.process.offset)
}

func (e *env) Wall() limit.Time {
	return origin + limit.Time(e.engine.now+e.process.wall)
}

func (e *env) Rand() *rand.Rand { return e.random }

func (e *env) Send(to Address, message any, bytes int) {
	if e.gone {
		return
	}
	e.engine.send(e.process, to, message, bytes)
}

// WakeAt keeps at most one event that matters in the heap: a later alarm moves the
// one that is there when it comes up, so that a node may move its alarm with every
// request.
func (e *env) WakeAt(t limit.Time) {
	if e.gone {
		return
	}
	alarm := &e.process.alarm
	if t == math.MaxInt64 {
		alarm.wanted = math.MaxInt64
		return
	}
	alarm.wanted = max(int64(t-origin)-e.process.offset, e.engine.now)
	if alarm.wanted < alarm.pending {
		e.engine.setAlarm(e.process)
	}
}

func (g *engine) setAlarm(p *process) {
	p.alarm.generation++
	p.alarm.pending = p.alarm.wanted
	g.push(event{At: p.alarm.wanted, Of: what{kind: eventWake, ref: int32(p.index), generation: p.alarm.generation}})
}

// wake is the event of an alarm.
func (g *engine) wake(p *process, generation uint32) {
	if generation != p.alarm.generation || p.alarm.pending == math.MaxInt64 {
		return
	}
	p.alarm.pending = math.MaxInt64
	switch {
	case p.alarm.wanted == math.MaxInt64 || p.state == stateDown:
	case p.alarm.wanted > g.now:
		g.setAlarm(p)
	case p.state == statePaused: // when it resumes
	default:
		g.ring(p)
	}
}

// ring calls Wake of a node whose alarm is due.
func (g *engine) ring(p *process) {
	p.alarm.wanted = math.MaxInt64
	g.wakes++
	p.node.Wake()
}

// start makes a node run at p.
func (g *engine) start(p *process) {
	if p.state != stateDown {
		return
	}
	restart := p.starts
	p.starts++
	p.env = &env{engine: g, process: p, random: source(g.scenario.Seed, chanceNode, uint64(p.index), uint64(restart))}
	p.alarm.generation++
	p.alarm.wanted, p.alarm.pending = math.MaxInt64, math.MaxInt64
	p.state = stateUp
	if p.address <= Coordinator {
		p.node = g.system.Coordinator(p.env, g.setup, p.address, restart)
		if p.node == nil {
			p.state = stateDown
			p.env.gone = true
			return
		}
	} else {
		p.enforcer = g.system.Instance(p.env, g.setup, int(p.address), restart)
		p.node = p.enforcer
		p.waiter, _ = p.enforcer.(Waiter)
	}
	if p.pauses > 0 {
		p.state = statePaused
	}
}

// stop ends the node at p. Requests that wait in it are lost.
func (g *engine) stop(p *process, orderly bool) {
	if p.state == stateDown {
		return
	}
	if leaver, ok := p.node.(Leaver); ok && orderly && p.state == stateUp {
		leaver.Leave()
	}
	p.env.gone = true
	p.state = stateDown
	if p.enforcer != nil {
		g.recorder.lose(int(p.address), p.held, p.heldCost)
		for _, r := range p.waiting {
			g.recorder.lose(int(p.address), 1, g.loads[r.load].cost)
		}
	}
	for _, slot := range p.inbox {
		g.network.free(slot)
	}
	p.held, p.heldCost = 0, 0
	p.inbox, p.waiting = p.inbox[:0], p.waiting[:0]
	p.setLimit = false
	p.node, p.enforcer, p.waiter = nil, nil, nil
	for i := range g.generators {
		if g.generators[i].asking == p {
			g.again(int32(i) + 1)
		}
	}
}

// pause holds the process until end, or until all pauses that hold it have ended.
func (g *engine) pause(p *process, end int64, backlog time.Duration) {
	p.pauses++
	p.resume = max(p.resume, end)
	p.backlog = max(p.backlog, int64(backlog))
	if p.state == stateUp {
		p.state = statePaused
	}
}

// unpause ends one pause. Requests go first, then messages, then the alarm.
func (g *engine) unpause(p *process) {
	if p.pauses--; p.pauses > 0 {
		return
	}
	p.resume, p.backlog = 0, 0
	if p.state != statePaused {
		return
	}
	p.state = stateUp
	waiting := p.waiting
	p.waiting = nil
	for _, r := range waiting {
		g.decide(p, r)
	}
	if p.setLimit {
		p.setLimit = false
		g.sendLimit(p)
	}
	inbox := p.inbox
	p.inbox = nil
	for _, slot := range inbox {
		g.receive(p, slot)
	}
	if p.alarm.wanted <= g.now {
		g.ring(p)
	}
}

// sendLimit gives a node the limit in force, if it is a [LimitSetter].
func (g *engine) sendLimit(p *process) {
	switch p.state {
	case stateUp:
		if s, ok := p.node.(LimitSetter); ok {
			s.SetLimit(g.setup.Limit)
		}
	case statePaused:
		p.setLimit = true
	case stateDown: // it starts with the new one
	}
}

// chance names the independent sources of chance of a run, so that the arrivals are
// the same whatever the system does with them.
type chance uint64

const (
	chanceNode chance = iota
	chanceNetwork
	chanceArrivals
	chanceSplit
	chanceMishaps
)

// source returns a source of chance of its own for each combination of arguments.
func source(seed uint64, of chance, index, restart uint64) *rand.Rand {
	return traffic.Seeded(seed, uint64(of), index, restart)
}
