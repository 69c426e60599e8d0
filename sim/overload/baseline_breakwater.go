package overload

import "time"

// Breakwater is our model of credit-based admission (Cho et al., OSDI 2020). A server has a pool of
// credits that follows its queue delay once each round trip, and gives them to its callers by
// their demand, with some more than are there, since callers may have nothing to send; calls
// beyond the credits wait at the caller for as long as the target and are dropped. A server whose queue
// delay is twice the target refuses what comes. In a graph of services each hop has credits.
type Breakwater struct{ Tuning }

// Name is that of the table.
func (b Breakwater) Name() string { return b.name("breakwater") }

// The published constants. The target was 80 us for service times of 10 us and 500 us for 100 us:
// 5 service times, beyond the 35 us of the machine.
const (
	breakwaterRise    = 0.001 // credits for each caller, in a round trip below the target
	breakwaterFall    = 0.02  // of the pool, times the excess over the target
	breakwaterTarget  = 5.0   // service times
	breakwaterMachine = 30e-6 // seconds
)

// creditPool is the pool of a server.
type creditPool struct {
	total  int
	issued int
	least  int
}

// update follows the queue delay, in seconds, once a round trip.
func (p *creditPool) update(delay, target float64, callers int, rise, fall float64) {
	if delay >= target {
		p.total = int(float64(p.total) * max(0.5, 1-fall*(delay-target)/target))
	} else {
		p.total += max(int(rise*float64(callers)), 1)
	}
	p.total = min(max(p.total, p.least), 64*callers)
}

// grant returns the credits that a caller has next: window are those it has, pending its calls at
// the server, demand those that wait at the caller.
func (p *creditPool) grant(window, pending, demand, callers int) int {
	open := p.total - p.issued
	spare := max(open/callers, 1)
	next := window
	switch {
	case open > 0:
		next = min(pending+demand+spare, window+open)
	case open < 0:
		next--
	}
	next = min(max(next, pending, 0), pending+demand+spare, 64)
	p.issued += next - window
	return next
}

type breakwater struct {
	none
	tuning   Tuning
	pools    []*creditServer
	sessions map[[2]int]*creditSession
}

type creditServer struct {
	creditPool
	target  float64
	callers int
	drained []*creditSession // have no credits and want some
}

// creditSession is a caller's connection to a server: window is the server's view, credits the
// caller's.
type creditSession struct {
	server  int
	window  int
	pending int
	credits int
	flying  int // sent and not answered
	waiting ring
	demand  int // as the server knows it
	drained bool
}

// New begins a run.
func (b Breakwater) New(env *Env) Control {
	c := &breakwater{none: none{env}, tuning: b.Tuning, sessions: map[[2]int]*creditSession{}}
	for i, s := range env.Scenario.Servers {
		p := &creditServer{
			creditPool: creditPool{total: s.Cores, least: s.Cores},
			target:     c.tuning.target(breakwaterTarget*env.meanWork(i) + breakwaterMachine),
			callers:    env.callers(i),
		}
		c.pools = append(c.pools, p)
		env.Every(c.roundTrip(), func() { c.control(i) })
	}
	return c
}

func (b *breakwater) roundTrip() time.Duration {
	return b.tuning.interval(max(10e-6, 2*b.env.Scenario.Delay.Seconds()))
}

// delay is how long the oldest call in the run queue has waited, in seconds.
func (b *breakwater) delay(server int) float64 {
	if head := b.env.Head(server); head != nil {
		return float64(b.env.now-head.arrived) / float64(time.Second)
	}
	return 0
}

// control is a server's control loop.
func (b *breakwater) control(server int) {
	p := b.pools[server]
	p.update(b.delay(server), p.target, p.callers, b.tuning.rise(breakwaterRise), b.tuning.fall(breakwaterFall))
	for p.total > p.issued && len(p.drained) > 0 {
		v := p.drained[0]
		p.drained = p.drained[1:]
		v.drained = false
		if v.window == 0 {
			v.window = 1
			p.issued++
		}
		b.tell(v)
	}
}

// tell sends a caller its credits without an answer.
func (b *breakwater) tell(v *creditSession) {
	window := v.window
	b.env.After(b.env.Scenario.Delay, func() {
		v.credits = window
		b.flush(v)
	})
}

func (b *breakwater) session(c *Call) *creditSession {
	key := [2]int{c.Caller, c.Server}
	v := b.sessions[key]
	if v == nil {
		v = &creditSession{server: c.Server}
		b.sessions[key] = v
	}
	return v
}

func (b *breakwater) Send(c *Call) {
	v := b.session(c)
	v.waiting.push(c)
	b.flush(v)
	if c.Sent() {
		return
	}
	b.env.At(b.env.now+b.patience(c.Server), func() { b.flush(v) })
	if v.flying == 0 && v.credits == 0 {
		b.ask(v)
	}
}

// patience is how long a call waits at its caller.
func (b *breakwater) patience(server int) int64 {
	return int64(b.pools[server].target * float64(time.Second))
}

// ask tells the server that a caller without credits wants some.
func (b *breakwater) ask(v *creditSession) {
	b.env.After(b.env.Scenario.Delay, func() {
		v.demand = v.waiting.len()
		if p := b.pools[v.server]; !v.drained && v.window == 0 {
			v.drained = true
			p.drained = append(p.drained, v)
		}
	})
}

// flush sends what has credits, and drops what has waited for too long.
func (b *breakwater) flush(v *creditSession) {
	for c := v.waiting.first(); c != nil; c = v.waiting.first() {
		switch {
		case v.flying < v.credits:
			v.waiting.pop()
			v.flying++
			b.env.Deliver(c)
		case b.env.now-c.made >= b.patience(v.server):
			v.waiting.pop()
			b.env.Drop(c, Dropped)
		default:
			return
		}
	}
}

func (b *breakwater) Arrive(c *Call) {
	v := b.session(c)
	v.pending++
	v.demand = v.waiting.len()
	if b.delay(c.Server) > 2*b.pools[c.Server].target {
		b.end(c)
		b.env.Refuse(c, Refused)
		return
	}
	b.env.Run(c)
}

func (b *breakwater) Finish(c *Call) { b.end(c) }

// end makes the credits of a caller that is about to be answered.
func (b *breakwater) end(c *Call) {
	v, p := b.session(c), b.pools[c.Server]
	v.pending--
	v.window = p.grant(v.window, v.pending, v.demand, p.callers)
	c.lists = v.window // carried by the answer
	if v.window == 0 && v.demand > 0 && !v.drained {
		v.drained = true
		p.drained = append(p.drained, v)
	}
}

func (b *breakwater) Answer(c *Call, _ Outcome) {
	if !c.Sent() {
		return
	}
	v := b.session(c)
	v.flying--
	v.credits = c.lists
	b.flush(v)
	if v.credits == 0 && v.flying == 0 && v.waiting.len() > 0 {
		b.ask(v)
	}
}
