package throttle_test

import (
	"context"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stint-io/stint/internal/seeding"

	"github.com/stint-io/stint/throttle"
)

// mixed is a server of two cores with routes of 1, 10 and 500 ms of CPU time, whose costs drift by
// a factor of two up and down, with more demand than its share of the cores.
type mixed struct {
	perSecond [3]float64
	cost      [3]time.Duration
}

var workload = mixed{
	perSecond: [3]float64{150, 15, 6}, // 0.15, 0.15 and 3 CPU-seconds in a second
	cost:      [3]time.Duration{time.Millisecond, 10 * time.Millisecond, 500 * time.Millisecond},
}

// draw returns a request's cost at a time: within a fifth of the route's, which drifts to
// 0.7 and 1.4 times of it in 20 s.
func (m *mixed) draw(r *rand.Rand, route int, at time.Duration) time.Duration {
	drift := math.Exp2(0.5 * math.Sin(2*math.Pi*at.Seconds()/20+float64(route)))
	if route == 0 {
		drift = 1 // its latency is what is compared
	}
	return time.Duration(float64(m.cost[route]) * drift * (0.8 + 0.4*r.Float64()))
}

// served is what a run of the workload gave.
type served struct {
	share   float64 // CPU-seconds per second
	cheap   []time.Duration
	refused [3]int
	done    [3]int
}

func (s *served) p99() time.Duration { return s.cheap[len(s.cheap)*99/100] }

// run runs the workload for a minute of virtual time, after ten seconds to warm up. admit returns
// nil where a request is refused, and otherwise what ends it.
func (m *mixed) run(server *cores, admit func(route int) (context.Context, func())) (out served) {
	const warm, length = 10 * time.Second, 60 * time.Second
	var mu sync.Mutex
	var wg sync.WaitGroup
	begin := time.Now()
	for route, rate := range m.perSecond {
		if rate == 0 {
			continue
		}
		wg.Go(func() {
			r := rand.New(rand.NewPCG(uint64(route), 42))
			for {
				time.Sleep(time.Duration(r.ExpFloat64() / rate * float64(time.Second)))
				at := time.Since(begin)
				if at > warm+length {
					return
				}
				cost := m.draw(r, route, at)
				wg.Go(func() {
					arrived := time.Now()
					ctx, done := admit(route)
					if done != nil {
						_ = server.compute(ctx, cost)
						done()
					}
					mu.Lock()
					defer mu.Unlock()
					switch {
					case at < warm:
					case done == nil:
						out.refused[route]++
					default:
						out.done[route]++
						if route == 0 {
							out.cheap = append(out.cheap, time.Since(arrived))
						}
					}
				})
			}
		})
	}
	time.Sleep(warm - time.Since(begin))
	before := server.cpu()
	time.Sleep(length)
	out.share = (server.cpu() - before).Seconds() / length.Seconds()
	wg.Wait()
	slices.Sort(out.cheap)
	return out
}

// throttled returns an admit by a throttle whose requests are keyed by their route.
func throttled(ctx context.Context, th *throttle.Throttle) func(int) (context.Context, func()) {
	names := [...]string{"GET /cheap", "GET /middle", "GET /dear"}
	return func(route int) (context.Context, func()) {
		w, d, err := th.Start(ctx, throttle.Request{Route: names[route], Key: names[route]})
		if err != nil || !d.Allowed {
			return nil, nil
		}
		return w.Context(), w.Done
	}
}

// TestMixedRoutes is the row "routes of 1, 10 and 500 ms, mixed and drifting" in virtual time,
// next to a limit of requests per second that was right for the mix before the dear route came.
// In it nobody says what a request costs: it is measured by the clock of the process alone.
func TestMixedRoutes(t *testing.T) {
	if testing.Short() {
		t.Skip("TestStormInRealTime has the same goroutines: nothing for the race detector")
	}
	const share = 1.0 // half of two cores
	var idle, held, byRate served
	synctest.Test(t, func(t *testing.T) {
		alone := mixed{perSecond: [3]float64{workload.perSecond[0], 0, 0}, cost: workload.cost}
		idle = alone.run(newCores(2), func(int) (context.Context, func()) { return t.Context(), func() {} })
	})
	synctest.Test(t, func(t *testing.T) {
		server := newCores(2)
		th := newThrottle(t, throttle.Options{
			Rate: share, Burst: time.Second, MaxWait: 2 * time.Second, MaxWaitingCost: 5 * time.Second,
			Meter: server.meter(), Culprits: throttle.Culprits{Log: discard},
		})
		held = workload.run(server, throttled(t.Context(), th))
		s := th.Stats()
		t.Logf("charged %v of %v; relative error of predictions %.2f, %d of %d culprits", s.Actual, server.cpu(), s.Error.Seconds()/s.Actual.Seconds(), s.Culprits, held.done)
	})
	synctest.Test(t, func(t *testing.T) {
		// One CPU-second of the cheap and the middle route in their proportion is 550 requests.
		var mu sync.Mutex
		next := time.Now()
		byRate = workload.run(newCores(2), func(int) (context.Context, func()) {
			mu.Lock()
			defer mu.Unlock()
			if next.After(time.Now().Add(100 * time.Millisecond)) {
				return nil, nil
			}
			next = later(next, time.Now()).Add(time.Second / 550)
			return t.Context(), func() {}
		})
	})
	for _, run := range []struct {
		name string
		served
	}{{"idle", idle}, {"throttle", held}, {"550 requests a second", byRate}} {
		t.Logf("%-22s %.3f CPU-s/s, cheap p99 %v, done %v, refused %v", run.name, run.share, run.p99(), run.done, run.refused)
	}
	if math.Abs(held.share-share) > 0.05*share {
		t.Errorf("%.3f CPU-seconds a second, want %v within 5 %%", held.share, share)
	}
	if held.p99() > 2*idle.p99() {
		t.Errorf("the cheap route's p99 is %v, idle %v", held.p99(), idle.p99())
	}
	if byRate.share < 1.95 || byRate.p99() < 10*idle.p99() {
		t.Error("the limit of requests held the server: the test shows nothing")
	}
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// TestCPUIsHeldWhateverIsPredicted: for random predictors, which are wrong by up to ten times, a
// saturated server uses its share of CPU: what was charged too little is a debt, what was charged
// too much comes back.
func TestCPUIsHeldWhateverIsPredicted(t *testing.T) {
	seeds := 10
	if testing.Short() {
		seeds = 2
	}
	for seed := range seeding.Draw(t, seeds) {
		synctest.Test(t, func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 11))
			rate := 0.5 + 3*r.Float64()
			server := newCores(4)
			th := newThrottle(t, throttle.Options{
				Rate: rate, Burst: time.Second, MaxWait: time.Hour, Meter: server.meter(),
				Predict: &liar{r: r}, Culprits: throttle.Culprits{Log: discard},
			})
			ctx, stop := context.WithTimeout(t.Context(), 30*time.Second)
			defer stop()
			var wg sync.WaitGroup
			for i := range 16 {
				wg.Go(func() {
					r := rand.New(rand.NewPCG(seed, uint64(i)))
					for {
						w, d, err := th.Start(context.WithoutCancel(ctx), throttle.Request{Key: string(rune('a' + i))})
						if err != nil || !d.Allowed {
							t.Errorf("refused: %+v, %v", d, err)
							return
						}
						err = server.compute(ctx, time.Duration(r.ExpFloat64()*float64(20*time.Millisecond)))
						w.Done()
						if err != nil {
							return
						}
					}
				})
			}
			<-ctx.Done()
			used := server.cpu().Seconds() / 30
			wg.Wait()
			if math.Abs(used-rate) > 0.03*rate+1.0/30 {
				t.Errorf("seed %d: %.3f CPU-seconds a second, want %.3f", seed, used, rate)
			}
			s := th.Stats()
			if (s.Actual - server.cpu()).Abs() > 200*time.Millisecond {
				t.Errorf("seed %d: all requests were charged %v, the process used %v", seed, s.Actual, server.cpu())
			}
		})
	}
}

// liar predicts anything.
type liar struct {
	mu sync.Mutex
	r  *rand.Rand
}

func (l *liar) Predict(string) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return time.Duration(float64(20*time.Millisecond) * math.Pow(10, 2*l.r.Float64()-1))
}

func (*liar) Observe(string, time.Duration, time.Duration) {}

// TestSetUsage: what a handler says comes before what is measured, and the dominant share of
// several resources is the cost.
func TestSetUsage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var actual time.Duration
		th := newThrottle(t, throttle.Options{
			Concurrency: 1, Meter: throttle.ServiceTime(), Capacity: throttle.Capacity{"cpu": 2000, "disk": 100},
			Hooks: throttle.Hooks{OnDone: func(_ throttle.Criticality, _, a, _ time.Duration) { actual = a }},
		})
		for _, tt := range []struct {
			name string
			say  func(ctx context.Context) bool
			want time.Duration
		}{
			{"nothing is said", func(context.Context) bool { return true }, time.Second},
			{"CPU time", func(ctx context.Context) bool { return throttle.SetCost(ctx, 3*time.Millisecond) }, 3 * time.Millisecond},
			{"a tenth of the disk", func(ctx context.Context) bool {
				return throttle.SetUsage(ctx, throttle.Usage{"cpu": 5, "disk": 10})
			}, 200 * time.Millisecond},
			{"nothing that counts", func(ctx context.Context) bool {
				return !throttle.SetUsage(ctx, throttle.Usage{"gpu": 5})
			}, time.Second},
		} {
			w, _, _ := th.Start(t.Context(), throttle.Request{})
			time.Sleep(time.Second)
			ok := tt.say(w.Context())
			w.Done()
			if !ok || actual != tt.want {
				t.Errorf("%s: it cost %v, want %v", tt.name, actual, tt.want)
			}
		}
		if throttle.SetUsage(t.Context(), throttle.Usage{"cpu": 1}) {
			t.Error("a context without a request takes a usage")
		}
	})
}
