package rlqs

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/stint-io/stint/internal/seeding"
)

// share is a token bucket with a part of a limit, as the shipped configuration of Envoy falls back to.
func share(rate int64) *typev3.RateLimitStrategy {
	return &typev3.RateLimitStrategy{Strategy: &typev3.RateLimitStrategy_TokenBucket{TokenBucket: &typev3.TokenBucket{
		MaxTokens: uint32(rate), TokensPerFill: wrapperspb.UInt32(uint32(rate)), FillInterval: durationpb.New(time.Second),
	}}}
}

// fleet is a world with some Envoys and a limit whose burst is what the rate brings in a second.
func fleet(t testing.TB, seed uint64, envoys int, rate int64) *world {
	w := newWorld(t, seed, termsOf(rate, rate))
	w.expired, w.expiredFor = share(max(1, rate/int64(envoys))), 15*time.Second
	for range envoys {
		w.addEnvoy(0)
		w.run(time.Duration(w.rand.Int64N(int64(time.Second))))
	}
	return w
}

// admitted runs for a time and returns the part of the limit, or of the demand where that is less, that was admitted.
func (w *world) admitted(d time.Duration) float64 {
	before, asked := 0, 0
	for _, e := range w.envoys {
		before, asked = before-e.allowed, asked-e.allowed-e.denied
	}
	w.run(d)
	for _, e := range w.envoys {
		before, asked = before+e.allowed, asked+e.allowed+e.denied
	}
	return float64(before) / min(w.terms.Rate.Float()*d.Seconds(), max(1, float64(asked)))
}

// eachFleet runs f for fleets of 1, 2 and 4 Envoys and limits of 20, 200 and 2,000 a second. few says that Envoys have
// fewer than 50 requests a second each, so that random arrivals find their parts of the burst empty or full.
func eachFleet(t *testing.T, f func(t *testing.T, r *rand.Rand, w *world, few bool)) {
	for _, envoys := range []int{1, 2, 4} {
		for _, rate := range []int64{20, 200, 2000} {
			t.Run(fmt.Sprintf("%d Envoys, %d a second", envoys, rate), func(t *testing.T) {
				for seed := range seeding.Draw(t, runs(t, 2)) {
					t.Logf("seed %d", seed)
					w := fleet(t, seed, envoys, rate)
					f(t, rand.New(rand.NewPCG(seed, 3)), w, rate < 50*int64(envoys) || rate < 50)
					w.check(seed)
				}
			})
		}
	}
}

// drawShares gives the Envoys loads that differ by up to 20 times, together above the limit.
func (w *world) drawShares(r *rand.Rand) {
	sum, weights := 0.0, make([]float64, len(w.envoys))
	for i := range weights {
		weights[i] = 0.05 + r.Float64()
		sum += weights[i]
	}
	total := w.terms.Rate.Float() * (1.1 + 2*r.Float64())
	for i, e := range w.envoys {
		e.load(total * weights[i] / sum)
	}
}

// within fails the test where a use is below its goal, or more was admitted than by one bucket. Where there are few
// requests the goal is lower by low, and a burst may be above: a change adds up to eight tokens.
func (w *world) within(use, goal, low float64, few bool) {
	w.t.Helper()
	above := 0.0
	if few {
		goal, above = goal-low, w.terms.Burst.Float()
	}
	if use < goal {
		w.t.Errorf("use %.3f, want at least %.3f", use, goal)
	}
	if w.worst > above {
		w.t.Errorf("%.1f tokens above one bucket, want at most %.1f", w.worst, above)
	}
}

// TestSteadyUse: Envoys with loads that differ and stay, together above the limit.
func TestSteadyUse(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	eachFleet(t, func(t *testing.T, r *rand.Rand, w *world, few bool) {
		w.drawShares(r)
		w.run(settled)
		use := w.admitted(60 * time.Second)
		t.Logf("use %.3f, above one bucket %.2f bursts", use, w.worst/w.terms.Burst.Float())
		w.within(use, 0.97, 0.1, few)
	})
}

// TestMovesToIdle: all load moves to an Envoy that was idle for at least 20 s, then to a new one. From the first second
// on it has half of the limit, and after its second report nearly all.
func TestMovesToIdle(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	eachFleet(t, func(t *testing.T, r *rand.Rand, w *world, few bool) {
		load := w.terms.Rate.Float() * (1.2 + 2*r.Float64())
		for from := range 3 {
			w.envoys[from%len(w.envoys)].load(load)
			w.run(time.Duration(20+r.IntN(10))*time.Second + time.Duration(r.Int64N(int64(5*time.Second))))
			w.envoys[from%len(w.envoys)].load(0)
			to := w.envoys[(from+1)%len(w.envoys)]
			if from == 2 || len(w.envoys) == 1 {
				to = w.addEnvoy(0)
			}
			to.load(load)
			first := w.admitted(time.Second)
			next := w.admitted(4 * time.Second)
			w.run(settled - 5*time.Second)
			after := w.admitted(10 * time.Second)
			to.load(0)
			t.Logf("use %.2f in the first second, %.2f in the next four, then %.3f; above one bucket %.2f bursts", first, next, after, w.worst/w.terms.Burst.Float())
			w.within(next, 0.49, 0.05, few)
			w.within(after, 0.95, 0.05, few)
		}
	})
}

// TestRiseOfOne: the load of the only Envoy rises from little to more than the limit. What nobody demanded it had been
// lent before.
func TestRiseOfOne(t *testing.T) {
	w := fleet(t, 1, 1, 1000)
	w.envoys[0].load(110)
	w.run(30 * time.Second)
	w.envoys[0].load(1500)
	if use := w.admitted(4 * time.Second); use < 0.9 {
		t.Errorf("use %.3f in the first seconds", use)
	}
	w.within(w.admitted(20*time.Second), 0.97, 0, false)
}

// TestUseAfterFaults: the server is killed, or stopped, and is back after a second; an Envoy is killed, or stands still for
// ten seconds, or loses its stream. Outside the fallback of Envoys no more is admitted than by one bucket, no Envoy that
// runs refuses everything for more than two seconds, and a report after the return the limit is used again.
func TestUseAfterFaults(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	faults := []struct {
		name string
		do   func(w *world, e *envoy)
		// above is what may be admitted above one bucket, in bursts, which are what the rate brings in a second: where
		// Envoys lose their assignments, their shares until they have others, and the burst of them.
		above float64
		// refuses is the longest time without an admission. What an Envoy had that is killed can be used until its
		// time to live is over, by all that is known.
		refuses time.Duration
	}{
		{"the server is killed", func(w *world, _ *envoy) { w.kill(); w.run(time.Second); w.start() }, 6, 2 * time.Second},
		{"the server is stopped", func(w *world, _ *envoy) { w.drain(); w.run(time.Second); w.startClean() }, 6, 2 * time.Second},
		{"an Envoy is killed", func(_ *world, e *envoy) { e.restart() }, 0, TTL + 2*Delivery},
		{"an Envoy stands still", func(w *world, e *envoy) { e.halt(); w.run(10 * time.Second); e.resume() }, 1.0 / 8, 2 * time.Second},
		{"a stream is lost", func(_ *world, e *envoy) { e.lose() }, 6, 2 * time.Second},
	}
	for _, fault := range faults {
		for _, envoys := range []int{1, 2, 4} {
			for _, rate := range []int64{200, 2000} {
				t.Run(fmt.Sprintf("%s, %d Envoys, %d a second", fault.name, envoys, rate), func(t *testing.T) {
					for seed := range seeding.Draw(t, runs(t, 1)) {
						r := rand.New(rand.NewPCG(seed, 5))
						w := fleet(t, seed, envoys, rate)
						w.drawShares(r)
						w.run(settled + time.Duration(r.Int64N(int64(5*time.Second))))
						fault.do(w, w.envoys[r.IntN(envoys)])
						longest := w.refusals(5*time.Second + 750*time.Millisecond)
						use := w.admitted(10 * time.Second)
						t.Logf("seed %d: longest refusal %v, then use %.3f, above one bucket %.2f bursts", seed, longest, use, w.worst/w.terms.Burst.Float())
						if longest > fault.refuses {
							t.Errorf("seed %d: an Envoy refuses everything for %v", seed, longest)
						}
						if use < 0.9 {
							t.Errorf("seed %d: use %.3f", seed, use)
						}
						if above := fault.above * w.terms.Burst.Float(); w.worst > above {
							t.Errorf("seed %d: %.1f tokens above one bucket, want at most %.1f", seed, w.worst, above)
						}
					}
				})
			}
		}
	}
}

// refusals runs for a time and returns the longest for which an Envoy with requests refused all of them.
func (w *world) refusals(d time.Duration) (longest time.Duration) {
	since := make([]time.Duration, len(w.envoys))
	allowed := make([]int, len(w.envoys))
	for i, e := range w.envoys {
		since[i], allowed[i] = w.now, e.allowed
	}
	for end := w.now + d; w.now < end; {
		w.run(50 * time.Millisecond)
		for i, e := range w.envoys {
			if e.allowed > allowed[i] {
				since[i], allowed[i] = w.now, e.allowed
			}
			longest = max(longest, w.now-since[i])
		}
	}
	return longest
}
