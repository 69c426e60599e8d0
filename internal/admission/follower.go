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
// which costs half a percent of throughput, and a server that has become slower or faster is
// measured anew.
type follower struct {
	floor, ceiling int
	current        float64
	reached        bool // somebody waited for the limit in this round

	completions int     // of this round
	seen, calm  float64 // service times of this round, and what they are without queueing
	rounds      int     // since the last probe
	probing     bool
	probes      int // samples that the probe still wants
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
		return f.half()
	default:
		return int(f.current)
	}
}

func (f *follower) half() int { return max(1, int(f.current/2)) }

func (f *follower) probe() { f.probing, f.probes, f.rounds = true, f.half(), 0 }

// begin notes whether a request that starts as one of running has no queue in the server.
func (f *follower) begin(it *Item, running int) {
	it.probe = f.floor > 0 && running <= f.half()
}

// observe learns from a request of route r that has run.
func (f *follower) observe(it *Item, r *routeTime, service int64, routes map[uint64]*routeTime) {
	if it.probe {
		r.calm.add(float64(service))
		if f.probes--; f.probes <= 0 && f.probing {
			f.probing, f.completions, f.seen, f.calm, f.reached = false, 0, 0, 0, false
		}
		return
	}
	if f.probing {
		return
	}
	if n := r.calm.count + r.lastCalm.count; n > 0 {
		f.seen += float64(service)
		f.calm += (r.calm.sum + r.lastCalm.sum) / n
	}
	if f.completions++; f.completions >= int(f.current) {
		f.step(routes)
	}
}

// step ends a round.
func (f *follower) step(routes map[uint64]*routeTime) {
	stretch := 1.0
	if f.calm > 0 {
		stretch = min(max(f.seen/f.calm, 0.5), 2)
	}
	next := f.current/stretch + math.Sqrt(f.current)
	if !f.reached {
		next = min(next, f.current) // a limit that nobody meets does not grow
	}
	known := f.calm > 0
	f.current = min(max(next, float64(f.floor)), float64(f.ceiling))
	f.completions, f.seen, f.calm, f.reached = 0, 0, 0, false
	if f.rounds++; f.rounds >= probeEvery || !known {
		for _, r := range routes {
			r.lastCalm, r.calm = r.calm, sample{}
		}
		f.probe()
	}
}
