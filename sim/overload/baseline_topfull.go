package overload

import (
	"math"
	"time"
)

// TopFull is our model of control at the entry (Park et al., SIGCOMM 2024): a gateway limits the
// rate of each API. A server that uses more than 0.8 of its cores is overloaded; the APIs that
// share overloaded servers are a cluster, and each cluster has a controller that multiplies the
// rates of its APIs once a second, by what its admitted rates bring in goodput and by the latency
// at the entry. The learned policy is not published in closed form: this one moves as it does, by
// the excess over the goodput and at most by half when latency is above the objective, and up by
// Rise otherwise. Rates begin at what comes when the overload is found.
type TopFull struct{ Tuning }

// Name is that of the table.
func (t TopFull) Name() string { return t.name("topfull") }

const (
	topfullInterval = time.Second
	topfullUsed     = 0.8
	topfullRise     = 0.2
	topfullFall     = 0.05 // the least step down, that of the paper's fixed steps
	topfullMost     = 0.5
)

type topfull struct {
	none
	tuning Tuning
	apis   []*topfullAPI
	uses   [][]bool // by route and server
	used   []int64
}

type topfullAPI struct {
	limit   float64 // infinite = none
	tokens  tokens
	came    int
	good    int
	latency Histogram
	slo     float64
}

// topfullAction is by which part the rates of a cluster move.
func topfullAction(goodput, limit, latency float64, rise, fall float64) float64 {
	if latency <= 1 {
		return max(0.01, rise*(1-latency))
	}
	if limit <= 0 {
		return 0
	}
	return -min(topfullMost, max(fall, 1-goodput/limit))
}

// New begins a run.
func (t TopFull) New(env *Env) Control {
	v := &topfull{none: none{env}, tuning: t.Tuning, used: make([]int64, len(env.Scenario.Servers))}
	for i := range env.Scenario.Routes {
		r := &env.Scenario.Routes[i]
		slo := r.SLO.Seconds()
		if slo == 0 {
			slo = math.Inf(1)
		}
		v.apis = append(v.apis, &topfullAPI{limit: math.Inf(1), slo: slo})
		uses := make([]bool, len(env.Scenario.Servers))
		var walk func(*Step)
		walk = func(p *Step) {
			uses[p.Server] = true
			for k := range p.Calls {
				walk(&p.Calls[k])
			}
		}
		walk(&r.Step)
		v.uses = append(v.uses, uses)
	}
	env.Every(v.tuning.interval(topfullInterval.Seconds()), v.control)
	return v
}

// control is the controllers of all clusters.
func (v *topfull) control() {
	seconds := v.tuning.interval(topfullInterval.Seconds()).Seconds()
	over := make([]bool, len(v.used))
	for i := range v.used {
		used := v.env.Used(i)
		over[i] = float64(used-v.used[i]) > topfullUsed*seconds*1e9*float64(v.env.Scenario.Servers[i].Cores)
		v.used[i] = used
	}
	for _, cluster := range v.clusters(over) {
		goodput, limit, late, clean := 0.0, 0.0, 0.0, true
		for _, i := range cluster {
			a := v.apis[i]
			rate := float64(a.came) / seconds
			if math.IsInf(a.limit, 1) {
				a.limit = max(rate, 1)
				a.tokens = tokens{depth: max(1, a.limit*0.01), at: v.env.now}
			}
			goodput += float64(a.good) / seconds
			limit += min(a.limit, rate)
			late = max(late, a.latency.Quantile(0.95)/a.slo)
			clean = clean && a.limit >= rate && float64(a.good) >= 0.9*float64(a.came)
		}
		action := topfullAction(goodput, limit, late, v.tuning.rise(topfullRise), v.tuning.fall(topfullFall))
		for _, i := range cluster {
			a := v.apis[i]
			if a.limit = max(1, a.limit*(1+action)); clean {
				a.limit = math.Inf(1)
			}
			a.tokens.depth = max(1, a.limit*0.01)
		}
	}
	for _, a := range v.apis {
		a.came, a.good, a.latency = 0, 0, Histogram{}
	}
}

// clusters are the APIs that share overloaded servers, and those that are limited still.
func (v *topfull) clusters(over []bool) [][]int {
	of := make([]int, len(v.apis)) // the first of its cluster
	for i := range of {
		of[i] = -1
		limited := !math.IsInf(v.apis[i].limit, 1)
		for s := range over {
			limited = limited || over[s] && v.uses[i][s]
		}
		if limited {
			of[i] = i
		}
	}
	for s := range over {
		first := -1
		for i := range of {
			switch {
			case of[i] < 0 || !over[s] || !v.uses[i][s]:
			case first < 0:
				first = of[i]
			default:
				old := of[i]
				for k := range of {
					if of[k] == old {
						of[k] = first
					}
				}
			}
		}
	}
	groups := map[int][]int{}
	var clusters [][]int
	for i, g := range of {
		if g >= 0 {
			groups[g] = append(groups[g], i)
		}
	}
	for i := range of {
		if groups[i] != nil {
			clusters = append(clusters, groups[i])
		}
	}
	return clusters
}

// Send is the gateway, for what clients send.
func (v *topfull) Send(c *Call) {
	if c.parent == nil {
		a := v.apis[c.Load.Route]
		a.came++
		if !math.IsInf(a.limit, 1) {
			if _, ok := a.tokens.take(v.env.now, a.limit, 0); !ok {
				v.env.Drop(c, Dropped)
				return
			}
		}
	}
	v.env.Deliver(c)
}

// Ended is what the gateway observes.
func (v *topfull) Ended(r *Request, good bool, latency int64) {
	a := v.apis[r.Load.Route]
	if good {
		a.good++
	}
	if r.last == Answered || r.last == TimedOut {
		a.latency.Add(latency)
	}
}
