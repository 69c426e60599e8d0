package overload

import (
	"math/rand/v2"
	"time"

	"github.com/stint-io/stint/internal/admission"
	"github.com/stint-io/stint/internal/traffic"
	"github.com/stint-io/stint/sim/internal/agenda"
)

// happening is an event of a run.
type happening struct {
	kind happeningKind
	load int32
	call *Call
	do   func()
}

type happeningKind uint8

const (
	requestComes  happeningKind = iota // load
	callArrives                        // call
	workEnds                           // call; of a server that shares: load is the server
	answerArrives                      // call
	timerRings                         // do
	clientGivesUp                      // call, of the client
	clientRetries                      // call, the one that failed
)

// The independent sources of chance of a run.
const (
	chanceArrivals uint64 = iota
	chanceControl
	chanceJitter
	chanceDraw
)

// Env is what a policy sees of a run, and how it acts.
type Env struct {
	Scenario *Scenario

	now      int64 // ns since the start
	seq      uint64
	events   agenda.Heap[happening]
	servers  []*server
	loads    []*load
	steps    []*Step // by id
	control  Control
	recorder *recorder
	work     *rand.Rand // seeded for each call anew, so that work is the same whatever policies do
	pcg      rand.PCG
	chance   *rand.Rand
	requests uint64
	clients  int
}

// Now is the time in nanoseconds since the start.
func (e *Env) Now() int64 { return e.now }

// Rand is the policy's own source of chance.
func (e *Env) Rand() *rand.Rand { return e.chance }

// Clients is how many processes send, all loads together. [Call.Caller] of a client is the number
// of servers and above.
func (e *Env) Clients() int { return e.clients }

// Steps are all steps of all routes, by what [Step.ID] returns.
func (e *Env) Steps() []*Step { return e.steps }

// ID is the place of a step among [Env.Steps].
func (p *Step) ID() int { return p.id }

// After calls f once, d from now.
func (e *Env) After(d time.Duration, f func()) { e.At(e.now+max(int64(d), 0), f) }

// At calls f at a time that is not before now.
func (e *Env) At(at int64, f func()) {
	e.push(at, happening{kind: timerRings, do: f})
}

// Every calls f again and again.
func (e *Env) Every(d time.Duration, f func()) {
	e.After(d, func() {
		f()
		e.Every(d, f)
	})
}

func (e *Env) push(at int64, h happening) {
	e.seq++
	e.events.Push(agenda.Event[happening]{At: at, Seq: e.seq, Of: h})
}

// Deliver sends a call to its server.
func (e *Env) Deliver(c *Call) {
	c.sentAt = e.now
	e.push(e.now+int64(e.Scenario.Delay), happening{kind: callArrives, call: c})
}

// Drop ends a call that is not sent.
func (e *Env) Drop(c *Call, o Outcome) {
	c.outcome = o
	e.push(e.now, happening{kind: answerArrives, call: c})
}

// Run puts a call in the run queue of its server.
func (e *Env) Run(c *Call) { e.servers[c.Server].run(e, c) }

// Refuse answers a call that was delivered without running it.
func (e *Env) Refuse(c *Call, o Outcome) {
	s := e.servers[c.Server]
	s.leave(c)
	e.recorder.refuse(c, o, s.lowest())
	c.outcome = o
	e.push(e.now+int64(e.Scenario.Delay), happening{kind: answerArrives, call: c})
}

// Head is the oldest call in the run queue of a server, or nil.
func (e *Env) Head(server int) *Call { return e.servers[server].queue.first() }

// Used is the CPU time that a server has spent since the start, in nanoseconds.
func (e *Env) Used(server int) int64 { return e.servers[server].used }

// Observer is a Control that is told how requests ended, as a gateway's metrics would tell it.
type Observer interface {
	Ended(r *Request, good bool, latency int64)
}

func newEnv(s *Scenario, system System) *Env {
	e := &Env{Scenario: s, chance: traffic.Seeded(s.Seed, chanceControl, 0, 0)}
	e.work = rand.New(&e.pcg)
	for i := range s.Servers {
		e.servers = append(e.servers, &server{Server: &s.Servers[i], index: i, lowestWaiting: newRanks()})
	}
	for i := range s.Routes {
		e.number(&s.Routes[i].Step)
	}
	e.recorder = newRecorder(s)
	for i := range s.Loads {
		l := newLoad(s, i, len(s.Servers)+e.clients)
		e.clients += l.clients
		e.loads = append(e.loads, l)
	}
	e.control = system.New(e)
	return e
}

// number gives a step and those below it their places.
func (e *Env) number(p *Step) {
	p.id = len(e.steps)
	e.steps = append(e.steps, p)
	for i := range p.Calls {
		e.number(&p.Calls[i])
	}
}

// ranks counts what waits by importance.
type ranks struct {
	counts [(maxClass + 1) * admission.Levels]int32
	words  [(maxClass + 1) * admission.Levels / 64]uint64
}

func newRanks() *ranks { return &ranks{} }

func (r *ranks) add(rank int) {
	r.counts[rank]++
	r.words[rank/64] |= 1 << (rank % 64)
}

func (r *ranks) remove(rank int) {
	if r.counts[rank]--; r.counts[rank] == 0 {
		r.words[rank/64] &^= 1 << (rank % 64)
	}
}
