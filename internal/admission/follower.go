package admission

import "math"

// follower makes the limit of running requests follow the server, by the gradient of latency: in
// a round, which is as many completions as the limit, service times together are stretch times
// what they are without queueing in the server. Then
//
//	limit = limit/stretch + sqrt(limit)
//
// It is at rest where sqrt(limit) requests queue inside the server. That is how far the number of
// busy workers wanders at random, so a shorter queue leaves workers idle and a longer one only
// adds latency. The random error of a round is of the same size, so one step never more than
// doubles it.
//
// The gradient is taken against each route's own time, so that a change of the mix is not
// mistaken for load. That time is the mean, not the least, of service times that began with half
// the limit running or less: a route whose times vary by nature is not mistaken for load either.
// Under lasting load there are none such. So one round in probeEvery runs at half the limit,
// which costs half a percent of throughput, and one after each fall of the limit to half: then
// a server that has become slower is told from one that is overloaded.
type follower struct {
	floor, ceiling int
	current        float64
	reached        bool // somebody waited for the limit in this round

	completions int     // of this round
	seen, calm  float64 // service times of this round, and what they are without queueing

	probing  bool
	rounds   int     // since the last probe
	probed   float64 // the limit at the last probe
	probes   int     // completions that the probe still wants
	sampling int     // requests that run and are samples
	samples  int     // gathered since they were last taken in
}

const probeEvery = 100

func (f *follower) init(floor, ceiling int) {
	f.floor, f.ceiling, f.current = floor, ceiling, float64(floor)
	if floor > 0 {
		f.probe()
	}
}

// limit is how many may run now.
func (f *follower) limit() int {
	switch {
	case f.floor == 0:
		return f.ceiling
	case f.probing:
		return f.few()
	default:
		return int(f.current)
	}
}

// few is how many run without queueing in the server: the square root of the limit.
func (f *follower) few() int { return max(1, int(math.Sqrt(f.current))) }

func (f *follower) probe() {
	f.probing, f.probes, f.rounds, f.probed = true, f.few(), 0, f.current
}

// begin notes whether a request that starts as one of running has no queue in the server.
func (f *follower) begin(it *Item, running int) {
	if it.probe = f.floor > 0 && running <= f.few(); it.probe {
		f.sampling++
	}
}

// observe learns from a request of route r that has run; r is nil if it teaches nothing.
func (f *follower) observe(it *Item, r *routeTime, service int64, routes map[uint64]*routeTime) {
	if f.floor == 0 {
		return
	}
	if it.probe {
		f.sample(r, service, routes)
	}
	if f.probing {
		if f.probes <= 0 {
			f.probing = false
			f.begins()
		}
		return
	}
	if r != nil && r.calm.count > 0 {
		f.seen += float64(service)
		f.calm += r.calm.mean
	}
	if f.completions++; f.completions >= int(f.current) {
		f.step()
	}
}

// sample takes in what requests take without queueing.
func (f *follower) sample(r *routeTime, service int64, routes map[uint64]*routeTime) {
	f.sampling--
	f.probes--
	if r != nil {
		r.calm.gathered.add(float64(service))
		f.samples++
	}
	if f.sampling == 0 || f.samples >= recent {
		for _, r := range routes {
			r.calm.learn()
		}
		f.samples = 0
	}
}

func (f *follower) begins() { f.completions, f.seen, f.calm, f.reached = 0, 0, 0, false }

// step ends a round.
func (f *follower) step() {
	stretch := 1.0
	if f.calm > 0 {
		stretch = min(max(f.seen/f.calm, 0.5), 2)
	}
	next := f.current/stretch + math.Sqrt(f.current)
	if !f.reached {
		next = min(next, f.current) // a limit that nobody meets does not grow
	}
	known := f.calm > 0
	f.current = min(max(f.current+(next-f.current)/4, float64(f.floor)), float64(f.ceiling))
	f.begins()
	f.rounds++
	if f.rounds >= probeEvery || f.current < f.probed/2 || !known {
		f.probe()
	}
}
