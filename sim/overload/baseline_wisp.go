package overload

import (
	"math"
	"slices"
	"time"

	"github.com/stint-io/stint/sim/internal/agenda"
)

// Wisp is our model of rate limits that are propagated (Suresh et al., SoCC 2017): each server
// adapts the rate that it accepts by its queue delay, divides it among the workflows by max-min
// fairness, and tells its callers, which limit a workflow to the least that any server after them
// leaves it; requests are refused where the workflow enters. Calls are served in the order of
// their deadlines. The paper leaves the rule to operators: here it is a rise by a part and a fall
// by a factor, each interval.
type Wisp struct{ Tuning }

// Name is that of the table.
func (w Wisp) Name() string { return w.name("wisp") }

const (
	wispInterval = 100 * time.Millisecond
	wispRise     = 0.01
	wispFall     = 0.1
	wispTarget   = 10.0 // service times
)

type wisp struct {
	none
	tuning  Tuning
	servers []*wispServer
	visits  [][]float64 // calls of a request at a server, by route and server
	limits  [][]float64 // requests per second that a server leaves to a workflow, by route and server
	paths   [][]int     // servers of a route, callers first
	asked   []float64   // requests of each route in this interval
	entry   []tokens
}

type wispServer struct {
	queue   agenda.Heap[*Call] // by deadline
	running int
	places  int
	rate    float64 // calls per second; infinite before the first overload
	begun   int
	delay   mean
}

// New begins a run.
func (w Wisp) New(env *Env) Control {
	n := len(env.Scenario.Routes)
	v := &wisp{none: none{env}, tuning: w.Tuning, asked: make([]float64, n), entry: make([]tokens, n)}
	for i, s := range env.Scenario.Servers {
		places := s.Cores
		if env.calls(i) {
			places *= 100
		}
		v.servers = append(v.servers, &wispServer{places: places, rate: math.Inf(1)})
	}
	for i := range env.Scenario.Routes {
		visits, limits := make([]float64, len(v.servers)), make([]float64, len(v.servers))
		var path []int
		var walk func(*Step)
		walk = func(p *Step) {
			if visits[p.Server]++; visits[p.Server] == 1 {
				path = append(path, p.Server)
			}
			for k := range p.Calls {
				walk(&p.Calls[k])
			}
		}
		walk(&env.Scenario.Routes[i].Step)
		for k := range limits {
			limits[k] = math.Inf(1)
		}
		v.visits, v.limits, v.paths = append(v.visits, visits), append(v.limits, limits), append(v.paths, path)
	}
	env.Every(v.interval(), v.adapt)
	return v
}

func (v *wisp) interval() time.Duration { return v.tuning.interval(wispInterval.Seconds()) }

// adapt moves all rates, and the limits one hop towards the entries.
func (v *wisp) adapt() {
	seconds := v.interval().Seconds()
	for i, s := range v.servers {
		target := v.tuning.target(wispTarget*v.env.meanWork(i)) * float64(time.Second)
		overloaded := s.delay.n > 0 && s.delay.sum/float64(s.delay.n) > target
		served := float64(s.begun) / seconds
		switch {
		case overloaded && math.IsInf(s.rate, 1):
			s.rate = served
		case overloaded:
			s.rate = max(s.rate*(1-v.tuning.fall(wispFall)), 1)
		default:
			s.rate *= 1 + v.tuning.rise(wispRise)
			if s.rate > 4*max(served, 1) {
				s.rate = math.Inf(1) // nobody meets it
			}
		}
		s.begun, s.delay = 0, mean{}
		v.divide(i, s.rate, seconds)
	}
	clear(v.asked)
}

// divide gives each workflow its max-min share of a server's rate.
func (v *wisp) divide(server int, rate, seconds float64) {
	var calls []float64
	for route, visits := range v.visits {
		if visits[server] > 0 {
			calls = append(calls, v.asked[route]/seconds*visits[server])
		}
	}
	level := maxMin(rate, calls)
	for route, visits := range v.visits {
		if visits[server] == 0 {
			continue
		}
		limit, after := level/visits[server], false
		for _, s := range v.paths[route] {
			if after { // what those after it leave, as it was told in the interval before
				limit = min(limit, v.limits[route][s])
			}
			after = after || s == server
		}
		v.limits[route][server] = limit
	}
}

// maxMin is the level up to which each gets what it asks for.
func maxMin(rate float64, asked []float64) float64 {
	slices.Sort(asked)
	for i, calls := range asked {
		level := rate / float64(len(asked)-i)
		if calls >= level {
			return level
		}
		rate -= calls
		if i == len(asked)-1 {
			return calls + rate
		}
	}
	return rate
}

func (v *wisp) Arrive(c *Call) {
	route := c.Load.Route
	if c.parent == nil {
		v.asked[route]++
		if limit := v.limits[route][c.Server]; !math.IsInf(limit, 1) {
			t := &v.entry[route]
			t.depth = max(1, limit*0.01)
			if _, ok := t.take(v.env.now, limit, 0); !ok {
				v.env.Refuse(c, Refused)
				return
			}
		}
	}
	s := v.servers[c.Server]
	deadline := c.born + int64(c.Route.SLO)
	v.env.seq++
	s.queue.Push(agenda.Event[*Call]{At: deadline, Seq: v.env.seq, Of: c})
	v.serve(s)
}

func (v *wisp) serve(s *wispServer) {
	for s.running < s.places && len(s.queue) > 0 {
		c := s.queue.Pop().Of
		s.running++
		v.env.Run(c)
	}
}

func (v *wisp) Begin(c *Call) {
	s := v.servers[c.Server]
	s.begun++
	s.delay.sum += float64(c.QueueDelay())
	s.delay.n++
}

func (v *wisp) Finish(c *Call) {
	s := v.servers[c.Server]
	s.running--
	v.serve(s)
}
