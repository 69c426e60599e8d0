package throttle_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stint-io/stint/internal/seeding"
	"github.com/stint-io/stint/throttle"
)

// discard is a log for tests of something else.
var discard = slog.New(slog.DiscardHandler)

// culprit is one run of evaluation E37 in virtual time: a server of two cores, requests of 2 ms at
// 80 % of them, and, if it is asked for, one of 10 s after a second.
type culprit struct {
	named     time.Duration // from its start; 0 = never
	cancelled time.Duration
	outcome   error
	served    int // cheap requests in ten seconds from its start
	latencies []time.Duration
}

func runCulprit(t *testing.T, one bool, cancel func(throttle.Running) bool) (out culprit) {
	synctest.Test(t, func(t *testing.T) {
		server := newCores(2)
		var mu sync.Mutex
		var began time.Time
		th := newThrottle(t, throttle.Options{
			Concurrency: 4, MaxWaiting: 100, MaxWait: 500 * time.Millisecond, Meter: server.meter(),
			Culprits: throttle.Culprits{Cancel: cancel, Log: discard},
			Hooks: throttle.Hooks{OnCulprit: func(r throttle.Running) {
				mu.Lock()
				defer mu.Unlock()
				if r.User != "analyst" {
					t.Errorf("named %+v", r)
				}
				out.named = time.Since(began)
			}},
		})
		var wg sync.WaitGroup
		request := func(r throttle.Request, cost time.Duration) error {
			w, d, err := th.Start(t.Context(), r)
			if err != nil || !d.Allowed {
				return errors.Join(err, fmt.Errorf("refused: %v", d.Allowed))
			}
			defer w.Done()
			return server.compute(w.Context(), cost)
		}
		const load = 0.8 * 2 / 0.002 // requests per second
		arrivals := seeding.Rand(t)
		for begin := time.Now(); time.Since(begin) < 11*time.Second; {
			time.Sleep(time.Duration(arrivals.ExpFloat64() / load * float64(time.Second)))
			at := time.Since(begin)
			if one && began.IsZero() && at >= time.Second {
				began = time.Now()
				wg.Go(func() {
					out.outcome = request(throttle.Request{Route: "query", User: "analyst"}, 10*time.Second)
					out.cancelled = time.Since(began)
				})
			}
			wg.Go(func() {
				arrived := time.Now()
				if request(throttle.Request{Route: "query", User: "web"}, 2*time.Millisecond) == nil && at >= time.Second {
					mu.Lock()
					out.served++
					out.latencies = append(out.latencies, time.Since(arrived))
					mu.Unlock()
				}
			})
		}
		wg.Wait()
	})
	slices.Sort(out.latencies)
	return out
}

// TestCulprit is E37 in virtual time: the culprit is named within 100 ms, and with cancelling on
// the others have at least 96 % of the throughput that they have without it.
func TestCulprit(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	without := runCulprit(t, false, nil)
	named := runCulprit(t, true, nil)
	cancelled := runCulprit(t, true, throttle.CancelAbove(25*time.Millisecond))
	for _, run := range []struct {
		name string
		culprit
	}{{"without a culprit", without}, {"with one", named}, {"with one, cancelled", cancelled}} {
		t.Logf("%-20s named after %v, ended after %v (%v), %d cheap ones served in 10 s, p99 %v", run.name,
			run.named, run.cancelled, run.outcome, run.served, run.latencies[len(run.latencies)*99/100])
	}
	if named.named == 0 || named.named > 100*time.Millisecond || named.outcome != nil {
		t.Errorf("named after %v, ended by %v", named.named, named.outcome)
	}
	if !errors.Is(cancelled.outcome, throttle.ErrCancelled) || cancelled.cancelled > 150*time.Millisecond {
		t.Errorf("cancelled after %v, %v", cancelled.cancelled, cancelled.outcome)
	}
	if float64(cancelled.served) < 0.96*float64(without.served) {
		t.Errorf("%d served, %d without a culprit", cancelled.served, without.served)
	}
	if named.served > cancelled.served {
		t.Error("the culprit cost nothing: the test shows nothing")
	}
}

// TestNobodyWaits: a dear request that holds nobody up is no culprit, and nobody is one only
// because others wait.
func TestNobodyWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var asked atomic.Int64
		th := newThrottle(t, throttle.Options{
			Concurrency: 1, Meter: throttle.ServiceTime(), MaxWait: time.Hour,
			Culprits: throttle.Culprits{Log: discard, Cancel: func(throttle.Running) bool { asked.Add(1); return false }},
		})
		dear, _, _ := th.Start(t.Context(), throttle.Request{Route: "a", Cost: time.Millisecond})
		time.Sleep(10 * time.Second)
		if s := th.Stats(); s.Culprits != 0 || asked.Load() != 0 || th.Running(1)[0].Culprit {
			t.Errorf("named although nobody waited: %+v", s)
		}
		go func() {
			w, _, _ := th.Start(t.Context(), throttle.Request{Cost: time.Second})
			time.Sleep(4 * time.Second)
			w.Done()
		}()
		time.Sleep(2 * lookEvery)
		if s := th.Stats(); s.Culprits != 1 || asked.Load() == 0 || !th.Running(1)[0].Culprit {
			t.Errorf("not named although somebody waits: %+v", s)
		}
		dear.Done()
		other, _, _ := th.Start(t.Context(), throttle.Request{Cost: time.Second})
		if s := th.Stats(); s.Culprits != 1 || s.Cancelled != 0 {
			t.Errorf("one of 1 s was named after 4 s, which is less than five times: %+v", s)
		}
		other.Done()
	})
}

const lookEvery = 20 * time.Millisecond

// TestCulpritLog: one line in a second, without what a client could write between the lines.
func TestCulpritLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var text bytes.Buffer
		th := newThrottle(t, throttle.Options{
			Name: "api", Concurrency: 5, Meter: throttle.ServiceTime(), MaxWait: time.Hour,
			Culprits: throttle.Culprits{
				Log: slog.New(slog.NewTextHandler(&text, nil)), Cancel: throttle.CancelAbove(3 * time.Second),
			},
		})
		for range 5 {
			w, _, _ := th.Start(t.Context(), throttle.Request{Route: "GET /\n\u0085" + strings.Repeat("x", 999), User: "eve\x1b[2J", Cost: time.Millisecond})
			defer w.Done()
		}
		ctx, stop := context.WithTimeout(t.Context(), 2*time.Second)
		defer stop()
		_, _, _ = th.Start(ctx, throttle.Request{})
		synctest.Wait()
		lines := strings.Split(strings.TrimSpace(text.String()), "\n")
		if len(lines) != 1 || !strings.Contains(lines[0], "throttle=api") || !strings.Contains(lines[0], "others=4") {
			t.Errorf("log:\n%s", text.String())
		}
		if strings.ContainsAny(text.String(), "\x1b\u0085") || len(text.String()) > 1000 {
			t.Errorf("log: %q", text.String())
		}
	})
}

// TestCulpritsWithoutALine: each culprit has a line of its own or is one of the others of the next line, whenever and with
// however many it is named, and there is one line in a second at most.
func TestCulpritsWithoutALine(t *testing.T) {
	others := regexp.MustCompile(`others=(\d+)`)
	for seed := range seeding.Draw(t, 50) {
		synctest.Test(t, func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 22))
			var text bytes.Buffer
			const slots = 4
			th := newThrottle(t, throttle.Options{
				Concurrency: slots, Meter: throttle.ServiceTime(), MaxWait: time.Hour,
				Culprits: throttle.Culprits{Log: slog.New(slog.NewTextHandler(&text, nil))},
			})
			start := func(cost time.Duration) *throttle.Work {
				w, d, err := th.Start(t.Context(), throttle.Request{Cost: cost})
				if err != nil || !d.Allowed {
					t.Errorf("seed %d: %+v, %v", seed, d, err)
				}
				return w
			}
			// round has dear requests take all slots, with others that are as dear as predicted, while one waits.
			round := func(dear int, lasts time.Duration) {
				var running []*throttle.Work
				for i := range slots {
					cost := time.Hour
					if i < dear {
						cost = time.Millisecond
					}
					running = append(running, start(cost))
				}
				var waiting sync.WaitGroup
				waiting.Go(func() { start(time.Millisecond).Done() })
				time.Sleep(lasts)
				for _, w := range running {
					w.Done()
				}
				waiting.Wait()
			}
			began := time.Now()
			for range 20 {
				lasts := time.Duration(r.Int64N(int64(200 * time.Millisecond)))
				if r.IntN(5) == 0 {
					lasts += time.Second
				}
				round(r.IntN(slots+1), lasts)
			}
			time.Sleep(time.Second)
			round(1, 100*time.Millisecond) // its line has all others
			synctest.Wait()
			lines := uint64(strings.Count(text.String(), "costs far more"))
			told := lines
			for _, m := range others.FindAllStringSubmatch(text.String(), -1) {
				n, _ := strconv.ParseUint(m[1], 10, 64)
				told += n
			}
			if named := th.Stats().Culprits; told != named || named == 0 {
				t.Errorf("seed %d: the log tells of %d culprits in %d lines, and %d were named", seed, told, lines, named)
			}
			if most := 1 + uint64(time.Since(began)/time.Second); lines > most {
				t.Errorf("seed %d: %d lines, want at most %d", seed, lines, most)
			}
		})
	}
}

func TestCulpritOptionsAreChecked(t *testing.T) {
	for _, o := range []throttle.Options{
		{Concurrency: 1, Culprits: throttle.Culprits{Factor: 0.5}},
		{Concurrency: 1, Culprits: throttle.Culprits{Factor: -1}},
		{Concurrency: 1, Culprits: throttle.Culprits{AtLeast: -1}},
		{Concurrency: 1, Capacity: throttle.Capacity{"disk": -1}},
	} {
		if _, err := throttle.New(o); err == nil {
			t.Errorf("accepted: %+v", o)
		}
	}
}
