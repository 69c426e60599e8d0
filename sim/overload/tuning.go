package overload

import (
	"cmp"
	"time"
)

// Tuning are the parameters of a baseline, each of which has its own sense for them. What is zero
// is as published, or derived from the service time as its authors did.
type Tuning struct {
	Label    string
	Target   time.Duration // of queue delay, or of response time
	Interval time.Duration // of its control loop
	Rise     float64       // how much it admits more in a step
	Fall     float64       // how much it admits less in a step
	Queues   int           // of fair queueing
	Hand     int           // how many of them a flow may join
}

func (t *Tuning) name(model string) string { return cmp.Or(t.Label, model) }

// target is in seconds.
func (t *Tuning) target(otherwise float64) float64 {
	if t.Target > 0 {
		return t.Target.Seconds()
	}
	return otherwise
}

func (t *Tuning) interval(otherwise float64) time.Duration {
	if t.Interval > 0 {
		return t.Interval
	}
	return max(time.Microsecond, time.Duration(otherwise*float64(time.Second)))
}

func (t *Tuning) rise(otherwise float64) float64 { return cmp.Or(t.Rise, otherwise) }
func (t *Tuning) fall(otherwise float64) float64 { return cmp.Or(t.Fall, otherwise) }

// meanWork is the mean CPU time of a call at a server in seconds, each step counted once.
func (e *Env) meanWork(server int) float64 {
	sum, n := 0.0, 0
	for _, p := range e.steps {
		if p.Server == server {
			sum += p.Work.Mean.Seconds()
			n++
		}
	}
	if n == 0 || sum == 0 {
		return 1e-3
	}
	return sum / float64(n)
}

// capacity is how many calls per second a server can serve, about.
func (e *Env) capacity(server int) float64 {
	return float64(e.Scenario.Servers[server].Cores) / e.meanWork(server)
}

// callers is how many processes call a server.
func (e *Env) callers(server int) int {
	n := 0
	for i, l := range e.Scenario.Loads {
		if e.Scenario.Routes[l.Route].Step.Server == server {
			n += e.loads[i].clients
		}
	}
	from := map[int]bool{}
	for _, p := range e.steps {
		for i := range p.Calls {
			if p.Calls[i].Server == server {
				from[p.Server] = true
			}
		}
	}
	return max(1, n+len(from))
}
