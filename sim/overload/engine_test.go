package overload

import (
	"math"
	"reflect"
	"testing"
	"time"

	"github.com/stint-io/stint/internal/seeding"
	"github.com/stint-io/stint/internal/traffic"
)

const ms = time.Millisecond

// one is a scenario with one server, and calls at random of exponential work.
func one(cores int, discipline Discipline, load float64, length time.Duration) Scenario {
	return Scenario{
		Name: "one", Duration: length, Servers: []Server{{Name: "a", Cores: cores, Discipline: discipline}},
		Routes:  []Route{{Name: "get", Step: Step{Work: Work{Kind: Exponential, Mean: ms}}}},
		Loads:   []Load{{Rate: []RateStep{{0, load * float64(cores) * 1000}}}},
		Measure: Measure{From: length / 10},
	}
}

func play(t testing.TB, s Scenario, system System) *Result {
	t.Helper()
	r, err := Run(t.Context(), s, system)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func within(t *testing.T, what string, got, low, high float64) {
	t.Helper()
	if !(got >= low && got <= high) {
		t.Errorf("%s is %v, want from %v to %v", what, got, low, high)
	}
}

// A server's queue is that of theory: M/M/c by Erlang's formula, and processor sharing with the
// same time in the server as M/M/1.
func TestQueuesAreThoseOfTheory(t *testing.T) {
	for _, cores := range []int{1, 4} {
		const load = 0.8
		r := play(t, one(cores, FIFO, load, 200*time.Second/time.Duration(cores)), none{})
		want := erlangWait(cores, load) * 1e-3
		within(t, "mean wait", r.Delay.Mean(), want*0.92, want*1.08)
	}
	r := play(t, one(1, Sharing, 0.7, 200*time.Second), none{})
	within(t, "mean time at a server that shares", r.All.Latency.Mean(), 0.92e-3/0.3, 1.08e-3/0.3)
	// With four cores a request alone has one of them.
	r = play(t, one(4, Sharing, 0.05, 20*time.Second), none{})
	within(t, "mean time at four that are idle", r.All.Latency.Mean(), 0.95e-3, 1.05e-3)
}

// erlangWait is the mean wait of M/M/c in service times.
func erlangWait(cores int, load float64) float64 {
	a := load * float64(cores)
	term, sum := 1.0, 0.0
	for k := range cores {
		sum += term
		term *= a / float64(k+1)
	}
	term /= 1 - load
	return term / (sum + term) / (float64(cores) * (1 - load))
}

// Means of all distributions are what they are called.
func TestWorkHasItsMean(t *testing.T) {
	r := traffic.Seeded(1, 0, 0, 0)
	for _, w := range []Work{
		{Mean: ms},
		{Kind: Exponential, Mean: ms},
		{Kind: LogNormal, Mean: ms, Sigma: 1},
		{Kind: Bimodal, Mean: ms, SlowPart: 0.1, SlowFactor: 10},
	} {
		sum := 0.0
		for range 200_000 {
			sum += float64(w.draw(r))
		}
		within(t, "mean", sum/200_000, 0.98e6, 1.02e6)
	}
}

// all returns every system.
func all(t *testing.T) []System {
	t.Helper()
	systems, err := (&File{}).Choose(SystemNames()...)
	if err != nil {
		t.Fatal(err)
	}
	return append(systems, &Ours{Label: "adaptive", Adaptive: true, MaxWait: 50 * ms}, &Ours{Label: "throttled", Rate: 1, Throttle: 1.2, MaxQueue: 10 * ms, PerRoute: true})
}

// drawn is a scenario drawn from a seed, with retries and time-outs.
func drawn(seed uint64, length time.Duration) Scenario {
	s := Draw(Scenario{Name: "drawn", Seed: seed, Duration: length, Delay: ms / 10, Random: &Random{}, Measure: Measure{Step: length / 4, Band: 50 * ms}})
	for i := range s.Loads {
		s.Loads[i].Retries, s.Loads[i].Backoff = int(seed%3), 10*ms
		s.Loads[i].Class = (i + int(seed)) % (maxClass + 1)
	}
	if seed%2 == 1 {
		s.Servers[0].Discipline = Sharing
	}
	return s
}

// Whatever the policy: each request ends once or is under way, no server spends more CPU time than
// it has, what is useful was spent, and no call keeps a place that has ended.
func TestConservation(t *testing.T) {
	for seed := range seeding.Draw(t, 3) {
		s := drawn(seed, 3*time.Second)
		quiet := s
		quiet.Loads = append([]Load(nil), s.Loads...)
		for i := range quiet.Loads {
			quiet.Loads[i].Rate = append(quiet.Loads[i].Rate, RateStep{At: time.Second})
		}
		quiet.Duration = 40 * time.Second // all that was begun has ended
		for _, system := range all(t) {
			r := play(t, quiet, system)
			ended := int64(0)
			for _, n := range r.All.Ended {
				ended += n
			}
			if ended != r.All.Offered || r.All.Offered == 0 {
				t.Errorf("seed %d, %s: %d ended of %d", seed, system.Name(), ended, r.All.Offered)
			}
			if r.All.Good > r.All.Ended[Answered] || r.Useful > 1 || r.Wasted < 0 || r.Wasted > 1 {
				t.Errorf("seed %d, %s: %d good of %d answered, useful %v, wasted %v", seed, system.Name(), r.All.Good, r.All.Ended[Answered], r.Useful, r.Wasted)
			}
		}
	}
}

// When all is quiet, no policy holds anything for a call that has ended: places, credits, attempts.
func TestNothingIsLeft(t *testing.T) {
	for seed := range seeding.Draw(t, 3) {
		s := drawn(seed, 40*time.Second)
		for i := range s.Loads {
			s.Loads[i].Rate = append(s.Loads[i].Rate[:1:1], RateStep{At: ms, Rate: 4 * s.Loads[i].Rate[0].Rate}, RateStep{At: 600 * ms}) // longer than any time-out
		}
		for _, system := range all(t) {
			e := newEnv(&s, system)
			e.play(t.Context(), system.Name())
			for i, v := range e.servers {
				if v.busy != 0 || v.queue.len() != 0 || v.lowest() != math.MaxInt {
					t.Errorf("seed %d, %s: server %d has %d running and %d queued", seed, system.Name(), i, v.busy, v.queue.len())
				}
			}
			held := 0
			switch c := e.control.(type) {
			case *breakwater:
				for _, v := range c.sessions {
					held += v.flying + v.pending + v.waiting.len()
				}
			case *cinnamon:
				for _, v := range c.servers {
					held += v.running
				}
			case *wisp:
				for _, v := range c.servers {
					held += v.running + len(v.queue)
				}
			case *apf:
				for _, levels := range c.levels {
					for _, f := range levels {
						if f != nil {
							held += f.running
						}
					}
				}
			case *ours:
				for _, guards := range c.guards {
					for _, g := range guards {
						if g != nil {
							held += g.machine.Running() + g.machine.Waiting()
						}
					}
				}
			}
			if held != 0 {
				t.Errorf("seed %d, %s: %d places are held", seed, system.Name(), held)
			}
		}
	}
}

// The same scenario and seed give the same result; arrivals are the same for all systems.
func TestDeterministic(t *testing.T) {
	s := drawn(3, 2*time.Second)
	offered := int64(0)
	for i, system := range all(t) {
		a, b := play(t, s, system), play(t, s, system)
		a.Scenario, b.Scenario = nil, nil
		if !reflect.DeepEqual(a, b) {
			t.Errorf("%s: two runs differ", system.Name())
		}
		if i > 0 && a.All.Offered != offered {
			t.Errorf("%s: %d requests, others have %d", system.Name(), a.All.Offered, offered)
		}
		offered = a.All.Offered
	}
}

// A walk of one request through three services: network, work and answers in order, in time.
func TestWalkOfARequest(t *testing.T) {
	s := Scenario{
		Name: "walk", Duration: time.Second, Delay: ms,
		Servers: []Server{{Name: "a", Cores: 1}, {Name: "b", Cores: 1}, {Name: "c", Cores: 1}},
		Routes: []Route{{Step: Step{Work: Work{Mean: 10 * ms}, Calls: []Step{
			{Server: 1, Work: Work{Mean: 5 * ms}}, {Server: 2, Work: Work{Mean: 20 * ms}},
		}}}},
		Loads: []Load{{Rate: []RateStep{{0, 1.25}}, Even: true}},
	}
	// Eight ways of 1 ms, but for the two of the client counted in the six others: 2 + 2 + 2.
	for parallel, want := range map[bool]float64{false: 0.041, true: 0.034} {
		s.Routes[0].Step.Parallel = parallel
		r := play(t, s, none{})
		if got := r.All.Latency.Mean(); r.All.Good != 1 || math.Abs(got-want) > 1e-9 {
			t.Errorf("parallel %v: %d good after %v, want 1 after %v", parallel, r.All.Good, got, want)
		}
	}
	// A client that gives up after 30 ms tries again once, and gives up.
	s.Routes[0].Timeout, s.Loads[0].Retries, s.Routes[0].Step.Parallel = 30*ms, 1, false
	if r := play(t, s, none{}); r.All.Ended[TimedOut] != 1 || r.Attempts != 2 || r.Wasted != 1 {
		t.Errorf("%v, %d attempts, wasted %v", r.All.Ended, r.Attempts, r.Wasted)
	}
	// An answer to what it has given up does not count, though it comes before the next attempt.
	s.Loads[0].Backoff = 50 * ms
	if r := play(t, s, none{}); r.All.Ended[TimedOut] != 1 || r.Attempts != 2 {
		t.Errorf("%v, %d attempts", r.All.Ended, r.Attempts)
	}
}

func TestHistogram(t *testing.T) {
	var h Histogram
	if h.Quantile(0.5) != 0 || h.Mean() != 0 {
		t.Error("an empty one has values")
	}
	for ns := range int64(1_000_000) {
		h.Add(ns)
	}
	for _, q := range []float64{0.01, 0.5, 0.99, 1} {
		within(t, "quantile", h.Quantile(q), q*1e-3*0.985, q*1e-3*1.015)
	}
}

// Delays that rise, settle and have a bad window now and then.
func TestUntil(t *testing.T) {
	r := &recorder{window: int64(10 * ms)}
	bad := func(d float64) bool { return d > 1 }
	delays := make([]float64, 200)
	for k, want := range map[int]float64{0: 0, 7: 0.07, 100: 1, 170: 1.7, 185: math.Inf(1), 200: math.Inf(1)} {
		clear(delays)
		for i := range k {
			delays[i] = 2
		}
		if got := r.until(delays, bad); got != want {
			t.Errorf("bad until %d: %v, want %v", k, got, want)
		}
	}
	clear(delays)
	delays[0], delays[60], delays[90] = 2, 2, 2
	if got := r.until(delays, bad); got != 0.01 {
		t.Errorf("single bad windows: %v", got)
	}
}
