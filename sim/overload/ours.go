package overload

import (
	"cmp"
	"math/rand/v2"
	"time"

	"github.com/stint-io/stint/internal/accepts"
	"github.com/stint-io/stint/internal/admission"
	"github.com/stint-io/stint/internal/waitline"
	"github.com/stint-io/stint/limit"
)

// origin is what the machine's clock shows at the start: its times are above 0.
const origin = int64(time.Second)

// Ours is stint's policy: at each server the machine of package internal/admission, which package
// throttle drives in a server. Costs are known when a call has run (as ORCA or throttle.SetCost
// tell them) and are predicted by the mean of recent ones of the same step.
type Ours struct {
	Label string // "" = stint

	// Rate is the CPU time that is started, in parts of all cores; 0 = not bounded by it.
	Rate float64
	// Burst is the time in which the CPU time that may start at once comes in; 0 = 10ms.
	Burst time.Duration
	// Concurrency is how many run at most; 0 = as many as there are cores, where Rate is 0.
	Concurrency int
	// Adaptive makes that bound follow the server, from 1 to Concurrency.
	Adaptive bool
	// MaxWait is how long a call waits at most; 0 = 1s.
	MaxWait time.Duration
	// MaxQueue is how much work waits at most, in time of all cores; 0 = not bounded.
	MaxQueue time.Duration
	// MaxWaiting is how many wait at most; 0 = 1024.
	MaxWaiting int
	// NewestFirst serves the newest first under overload.
	NewestFirst bool
	// Blind ignores deadlines; otherwise calls carry them, as gRPC does.
	Blind bool
	// PerRoute gives each step of a server that calls others a machine of its own, as a program
	// has that makes a Throttle for each handler.
	PerRoute bool
	// Throttle is K of the client throttle (package internal/accepts) with which each server
	// and client spares those it calls; 0 = none.
	Throttle float64
}

// Name is that of the table.
func (o *Ours) Name() string { return cmp.Or(o.Label, ownName) }

// New begins a run.
func (o *Ours) New(env *Env) Control {
	c := &ours{none: none{env}, options: o, random: env.Rand()}
	for i := range env.Scenario.Servers {
		guards := make([]*guard, len(env.Steps()))
		var one *guard
		for k, p := range env.Steps() {
			if p.Server != i {
				continue
			}
			if one == nil || o.PerRoute && env.calls(i) {
				one = c.newGuard(i)
			}
			guards[k] = one
		}
		c.guards = append(c.guards, guards)
	}
	if o.Throttle > 0 {
		c.config, c.fault = accepts.Config{K: o.Throttle, Window: time.Second, Probe: 10 * time.Millisecond}.WithDefaults()
		c.throttles = make([]*accepts.Throttle, len(env.Scenario.Servers)*(len(env.Scenario.Servers)+env.Clients()))
	}
	return c
}

// ours is a run of it.
type ours struct {
	none
	options   *Ours
	random    *rand.Rand
	guards    [][]*guard // by server, and by step where each has its own
	config    accepts.Config
	fault     error
	throttles []*accepts.Throttle // by caller and server, made when needed
}

// guard is one server's machine and its alarm.
type guard struct {
	machine *admission.Machine
	alarm   int64 // when it will be stepped; waitline.Never = not at all
	server  int
	means   map[int]*mean // CPU time of recent calls, by step
}

func (c *ours) newGuard(i int) *guard {
	o, cores := c.options, c.env.Scenario.Servers[i].Cores
	config := admission.Config{
		Rate: o.Rate * float64(cores), Concurrency: o.Concurrency, MaxWaiting: cmp.Or(o.MaxWaiting, 1024),
		MaxWait: int64(cmp.Or(o.MaxWait, time.Second)), MaxCost: int64(o.MaxQueue) * int64(cores), NewestFirst: o.NewestFirst,
	}
	if o.Rate > 0 {
		config.Burst = max(1, int64(config.Rate*float64(cmp.Or(o.Burst, 10*time.Millisecond))))
	} else if o.Concurrency == 0 {
		config.Concurrency = cores
	}
	if o.Adaptive {
		config.Floor, config.Concurrency = 1, cmp.Or(o.Concurrency, 1000*cores)
	}
	return &guard{machine: admission.New(config), alarm: waitline.Never, server: i, means: map[int]*mean{}}
}

// recentCalls is how many calls a predicted cost is about.
const recentCalls = 100

func (g *guard) predict(step int) int64 {
	if m := g.means[step]; m != nil {
		return int64(m.sum)
	}
	return int64(time.Millisecond)
}

func (g *guard) learn(step int, cost int64) {
	m := g.means[step]
	if m == nil {
		m = &mean{}
		g.means[step] = m
	}
	m.n = min(m.n+1, recentCalls)
	m.sum += (float64(cost) - m.sum) / float64(m.n)
}

func (c *ours) now() int64 { return c.env.now + origin }

func (c *ours) Arrive(call *Call) {
	g := c.guards[call.Server][call.Step.id]
	it := &call.item
	*it = admission.Item{
		Class: call.Class, Level: call.Level, Key: call.User, Route: uint64(call.Step.id),
		Cost: g.predict(call.Step.id), Deadline: waitline.Never, Of: call,
	}
	if call.Deadline > 0 && !c.options.Blind {
		it.Deadline = call.Deadline + origin
	}
	g.machine.Offer(c.now(), it)
	c.settle(g, it) // what started or ended before it was decided about
	switch it.State() {
	case admission.Running:
		c.env.Run(call)
	case admission.Refused, admission.Expired:
		c.env.Refuse(call, outcomeOf(it))
	}
}

func outcomeOf(it *admission.Item) Outcome {
	switch {
	case it.State() == admission.Evicted:
		return Evicted
	case it.State() == admission.Expired || it.Reason() == limit.ReasonDeadline:
		return Expired
	default:
		return Refused
	}
}

// settle passes on what the machine has decided, but for one call that was passed on, and sets its
// alarm.
func (c *ours) settle(g *guard, passed *admission.Item) {
	for _, it := range g.machine.Ended() {
		if it == passed {
			continue
		}
		call := it.Of.(*Call)
		if it.State() == admission.Running {
			c.env.Run(call)
		} else {
			c.env.Refuse(call, outcomeOf(it))
		}
	}
	next := g.machine.Next()
	if next >= g.alarm || next == waitline.Never {
		return
	}
	g.alarm = next
	c.env.At(max(next-origin, c.env.now), func() {
		if g.alarm != next {
			return
		}
		g.alarm = waitline.Never
		g.machine.Step(c.now())
		c.settle(g, nil)
	})
}

func (c *ours) Finish(call *Call) {
	g := c.guards[call.Server][call.Step.id]
	g.learn(call.Step.id, call.work)
	g.machine.Finish(c.now(), &call.item, call.work, call.outcome == Answered)
	c.settle(g, nil)
}

// Send asks the throttle of the caller for the server, if there is one.
func (c *ours) Send(call *Call) {
	if c.options.Throttle == 0 {
		c.env.Deliver(call)
		return
	}
	t := c.throttle(call)
	a, _, ok := t.Send(limit.Time(c.now()), classOf(call), c.random.Float64())
	if !ok {
		c.env.Drop(call, Dropped)
		return
	}
	call.note = a
	c.env.Deliver(call)
}

func (c *ours) Answer(call *Call, o Outcome) {
	a, ok := call.note.(accepts.Attempt)
	if !ok {
		return
	}
	t, now := c.throttle(call), limit.Time(c.now())
	if o == Answered {
		t.Accepted(now, a)
	} else {
		t.Refused(now, a)
	}
}

func (c *ours) throttle(call *Call) *accepts.Throttle {
	place := &c.throttles[call.Caller*len(c.guards)+call.Server]
	if *place == nil {
		*place = accepts.New(c.config)
	}
	return *place
}

// classOf is the class that the throttle counts a call in, 0 the most important.
func classOf(call *Call) int { return max(0, accepts.Classes-1-int(call.Class)) }
