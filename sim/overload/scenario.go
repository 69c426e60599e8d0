package overload

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"time"
)

// Bounds of a scenario. More would not fit into memory, or take days.
const (
	MaxServers  = 1000
	MaxRoutes   = 1000
	MaxClients  = 100_000
	MaxRate     = 10e6 // requests per second of a load
	MaxDuration = time.Hour
	maxCores    = 10_000
	maxSteps    = 1000 // calls of one request
	maxClass    = 7
	maxRetries  = 100
)

// Scenario is what happens: servers, what requests do in them, and who asks.
type Scenario struct {
	Name, About string
	Seed        uint64
	Duration    time.Duration
	Delay       time.Duration // one way, between any two
	Servers     []Server
	Routes      []Route
	Loads       []Load
	Measure     Measure
	Random      *Random // Servers, Routes and Loads are drawn, for each seed anew; nil = they are as above
}

// Discipline is how a server shares its cores.
type Discipline uint8

// The disciplines.
const (
	FIFO    Discipline = iota // each core runs one request to its end
	Sharing                   // all that run get the same part of the cores, at most a core each
)

// Server is a service with cores. Its requests wait where its policy lets them, then in its run
// queue.
type Server struct {
	Name       string
	Cores      int
	Discipline Discipline
}

// Kind is a distribution of service times.
type Kind uint8

// The distributions.
const (
	Constant Kind = iota
	Exponential
	LogNormal // Sigma is the standard deviation of the logarithm
	Bimodal   // SlowPart of them take SlowFactor times as long as the others
)

// Work is CPU time at one server.
type Work struct {
	Kind       Kind
	Mean       time.Duration
	Sigma      float64
	SlowPart   float64
	SlowFactor float64
}

// draw returns a service time in nanoseconds, at least 1.
func (w *Work) draw(r *rand.Rand) int64 {
	mean := float64(w.Mean)
	switch w.Kind {
	case Exponential:
		mean *= r.ExpFloat64()
	case LogNormal:
		mean *= math.Exp(w.Sigma*r.NormFloat64() - w.Sigma*w.Sigma/2)
	case Bimodal:
		fast := 1 / (1 - w.SlowPart + w.SlowPart*w.SlowFactor)
		if r.Float64() < w.SlowPart {
			fast *= w.SlowFactor
		}
		mean *= fast
	}
	return max(1, int64(min(mean, float64(MaxDuration))))
}

// Step is work at a server, then calls to others; it is answered when all are.
type Step struct {
	Server   int // index
	Work     Work
	Calls    []Step
	Parallel bool // the calls are made at once; otherwise one after the other

	id int // of the step among all, set when a run begins
}

// Route is a kind of request.
type Route struct {
	Name string
	Step Step
	// SLO is how soon an answer is good; 0 = any answer.
	SLO time.Duration
	// Timeout is when its client gives up; 0 = never. What has been begun goes on: servers do
	// not learn of it, but for policies that carry deadlines.
	Timeout time.Duration
}

// RateStep is a rate from a time on.
type RateStep struct {
	At   time.Duration
	Rate float64 // requests per second
}

// Levels says where the level of a request inside its class comes from.
type Levels uint8

// Where levels come from.
const (
	ByUser    Levels = iota // a hash of the user
	ByRequest               // drawn for each request
	Alike                   // all have the same
)

// Load is who asks for a route.
type Load struct {
	Name    string
	Route   int // index
	Rate    []RateStep
	Even    bool // evenly spaced; otherwise at random (Poisson)
	Class   int  // 0 to 7, the higher the more important
	Levels  Levels
	Users   int // each request is of one of them; 0 = 1000
	Clients int // processes that send, each with its own state; 0 = 10
	Retries int // how often a request that failed is tried again
	Backoff time.Duration
}

// Measure says what counts.
type Measure struct {
	From time.Duration // when figures begin to count
	To   time.Duration // when they end; 0 = at the end
	// Step is when the load changes, for the time until the queue delay is stable: the mean of
	// every Window later than that is at most Band.
	Step   time.Duration
	Band   time.Duration
	Window time.Duration // 0 = 10ms
}

// Random says how a scenario is drawn from its seed. See [Draw].
type Random struct {
	Overload float64 // what the busiest server is asked for over what it can do, on average; 0 = drawn from 1.3 to 4
}

// Validate returns all that is wrong with the scenario, joined, or nil. Run calls it.
func (s *Scenario) Validate() error {
	var errs []error
	fault := func(wrong bool, format string, args ...any) {
		if wrong {
			errs = append(errs, fmt.Errorf("overload: "+format, args...))
		}
	}
	fault(s.Duration <= 0 || s.Duration > MaxDuration, "duration is %v, want above 0 and at most %v", s.Duration, MaxDuration)
	fault(s.Delay < 0 || s.Delay > time.Minute, "network.delay is %v, want from 0 to a minute", s.Delay)
	m := s.Measure
	fault(m.From < 0 || m.From >= s.Duration || m.Step < 0 || m.Step >= s.Duration, "measure.from and measure.step have to be within the duration of %v", s.Duration)
	fault(m.To < 0 || m.To > s.Duration || m.To > 0 && m.To <= max(m.From, m.Step), "measure.to is %v, want after from and step and at most the duration", m.To)
	fault(m.Band < 0 || m.Window < 0, "measure.band and measure.window must not be negative")
	if s.Random != nil {
		fault(len(s.Servers)+len(s.Routes)+len(s.Loads) > 0, "servers that are drawn come with routes and loads")
		fault(!(s.Random.Overload == 0 || s.Random.Overload > 0.1 && s.Random.Overload <= 100), "servers.overload is %v, want from 0.1 to 100", s.Random.Overload)
		return errors.Join(errs...)
	}
	fault(len(s.Servers) == 0 || len(s.Servers) > MaxServers, "%d servers, want from 1 to %d", len(s.Servers), MaxServers)
	fault(len(s.Routes) == 0 || len(s.Routes) > MaxRoutes, "%d routes, want from 1 to %d", len(s.Routes), MaxRoutes)
	fault(len(s.Loads) == 0 || len(s.Loads) > MaxRoutes, "%d loads, want from 1 to %d", len(s.Loads), MaxRoutes)
	for i, v := range s.Servers {
		fault(v.Cores < 1 || v.Cores > maxCores, "servers[%d]: %d cores, want from 1 to %d", i, v.Cores, maxCores)
	}
	for i := range s.Routes {
		r := &s.Routes[i]
		steps := 0
		if err := r.Step.validate(len(s.Servers), &steps); err != nil {
			errs = append(errs, fmt.Errorf("overload: routes[%d]: %w", i, err))
		}
		fault(r.SLO < 0 || r.Timeout < 0, "routes[%d]: slo and timeout must not be negative", i)
	}
	for i := range s.Loads {
		if err := s.Loads[i].validate(len(s.Routes)); err != nil {
			errs = append(errs, fmt.Errorf("overload: loads[%d]: %w", i, err))
		}
	}
	return errors.Join(errs...)
}

func (p *Step) validate(servers int, steps *int) error {
	*steps++
	w := &p.Work
	switch {
	case *steps > maxSteps:
		return fmt.Errorf("more than %d calls of one request", maxSteps)
	case p.Server < 0 || p.Server >= servers:
		return fmt.Errorf("server %d, want from 0 to %d", p.Server, servers-1)
	case w.Mean < 0 || w.Mean > time.Minute:
		return fmt.Errorf("work of %v, want from 0 to a minute", w.Mean)
	case w.Kind == LogNormal && !(w.Sigma >= 0 && w.Sigma <= 4):
		return fmt.Errorf("sigma is %v, want from 0 to 4", w.Sigma)
	case w.Kind == Bimodal && !(w.SlowPart >= 0 && w.SlowPart <= 1 && w.SlowFactor >= 1 && w.SlowFactor <= 1e6):
		return fmt.Errorf("slow: %v of them and %v times as long, want a part from 0 to 1 and a factor from 1 to 1e6", w.SlowPart, w.SlowFactor)
	}
	for i := range p.Calls {
		if err := p.Calls[i].validate(servers, steps); err != nil {
			return err
		}
	}
	return nil
}

func (l *Load) validate(routes int) error {
	if len(l.Rate) == 0 {
		return errors.New("it has no rate")
	}
	for i, step := range l.Rate {
		if !(step.Rate >= 0 && step.Rate <= MaxRate) || i > 0 && step.At < l.Rate[i-1].At || step.At < 0 {
			return fmt.Errorf("a rate of %v/s from %v on, want from 0 to %v/s, in order of time", step.Rate, step.At, float64(MaxRate))
		}
	}
	switch {
	case l.Route < 0 || l.Route >= routes:
		return fmt.Errorf("route %d, want from 0 to %d", l.Route, routes-1)
	case l.Class < 0 || l.Class > maxClass:
		return fmt.Errorf("class %d, want from 0 to %d", l.Class, maxClass)
	case l.Users < 0 || l.Users > 100e6:
		return fmt.Errorf("%d users, want from 0 to 100,000,000", l.Users)
	case l.Clients < 0 || l.Clients > MaxClients:
		return fmt.Errorf("%d clients, want from 0 to %d", l.Clients, MaxClients)
	case l.Retries < 0 || l.Retries > maxRetries || l.Backoff < 0 || l.Backoff > time.Minute:
		return fmt.Errorf("%d retries after %v, want at most %d after at most a minute", l.Retries, l.Backoff, maxRetries)
	}
	return nil
}
