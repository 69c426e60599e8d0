package redis

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stint-io/stint/internal/redistest"
	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/store"
)

// TestPairAmongBusyKeys: a request for two keys is decided although there are always requests
// for each of them alone, in batches that are out of step.
func TestPairAmongBusyKeys(t *testing.T) {
	server := redistest.Start(t)
	proxy := redistest.StartProxy(t, server.Addr())
	proxy.Delay(5 * time.Millisecond)
	o := quiet(proxy.Addr())
	o.Timeout = patient
	s, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	awaitReady(t, s)
	a, b := bind(t, s, "a", still(1<<40)), bind(t, s, "b", still(1<<40))
	take := func(charges ...store.Charge) (store.Charge, bool, error) {
		ok, err := s.Take(context.Background(), charges)
		return charges[0], ok, err
	}
	l := startLoad(t, 16, time.Microsecond, func(int) (store.Charge, bool, error) { return take(charge(a, "k", 1)) })
	defer l.end()
	l.each(t, 3)
	pass(5 * time.Millisecond) // half a round trip out of step
	other := startLoad(t, 16, time.Microsecond, func(int) (store.Charge, bool, error) { return take(charge(b, "k", 1)) })
	defer other.end()
	other.each(t, 10)
	l.cut()
	var slowest time.Duration
	for range 20 {
		began := time.Now()
		if _, ok, err := take(charge(a, "k", 1), charge(b, "k", 1)); err != nil || !ok {
			t.Fatalf("a request for both keys: allowed %v, error %v after %v", ok, err, time.Since(began))
		}
		slowest = max(slowest, time.Since(began))
	}
	single, late := l.cut()
	t.Logf("slowest request for both %v; for one: %v", slowest, single)
	if most := 4*single.at(0.99) + 20*time.Millisecond + 2*late; slowest > most {
		t.Errorf("a request for both keys took %v, want at most %v", slowest, most)
	}
}

// quietLanes waits until nothing is under way and says what is left otherwise.
func quietLanes(t *testing.T, s *Store) {
	t.Helper()
	deadline := time.After(5 * time.Second)
	for {
		var left string
		for i := range s.lanes {
			l := &s.lanes[i]
			l.mu.Lock()
			if len(l.ready)+len(l.busy)+len(l.working) > 0 {
				left = fmt.Sprintf("lane %d has %d ready, %d keys busy, %d senders", i, len(l.ready), len(l.busy), len(l.working))
			}
			l.mu.Unlock()
		}
		if left == "" {
			return
		}
		select {
		case <-deadline:
			t.Error(left)
			return
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// TestCostlyRefusals: many refused requests for a long list, or for many permits in flight,
// share a run of the script without holding up the server.
func TestCostlyRefusals(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	server := redistest.Start(t)
	o := quiet(server.Addr())
	o.Timeout = 10 * time.Second
	s, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	awaitReady(t, s)
	// What it used of a processor: what else the machine does takes none of that.
	used := func() (d time.Duration) {
		for _, of := range []string{"used_cpu_user_main_thread", "used_cpu_sys_main_thread"} {
			seconds, err := time.ParseDuration(server.Info(of) + "s")
			if err != nil {
				t.Fatalf("%s: %v", of, err)
			}
			d += seconds
		}
		return d
	}
	const most = 3000
	for name, p := range map[string]limit.Policy{
		"log":    {Algorithm: limit.SlidingWindowLog, Rate: limit.Rate{Count: most, Period: time.Hour}},
		"places": {Algorithm: limit.Concurrency, MaxInFlight: most, Timeout: time.Hour},
	} {
		c := bind(t, s, name, p)
		var ops []*operation
		add := func(cost int64) {
			for n := range 1000 {
				o := newOperation(verbTake, s.clock())
				one := charge(c, "k", cost)
				one.Permit = most + uint64(n)
				o.fill([]store.Charge{one}, true)
				ops = append(ops, o)
			}
		}
		for n := range most {
			one := []store.Charge{charge(c, "k", 1)}
			one[0].Permit = uint64(n)
			if ok, err := s.Take(t.Context(), one); err != nil || !ok {
				t.Fatal(ok, err)
			}
		}
		for _, cost := range []int64{1, most} {
			ops = ops[:0]
			add(cost)
			server.Do("CONFIG", "RESETSTAT")
			before := used()
			together(laneBeside(s), ops)
			if o := ops[0]; o.err != nil || o.allowed {
				t.Errorf("%s: allowed %v, error %v", name, o.allowed, o.err)
			}
			took := used() - before
			t.Logf("%s, 1000 refusals of cost %d: %v in %s", name, cost, took, server.Info("cmdstat_evalsha"))
			if took > 200*time.Millisecond {
				t.Errorf("%s: 1000 refusals of cost %d held up the server for %v", name, cost, took)
			}
		}
	}
}

// TestTumult: whatever the connection and the callers do, every Take returns in
// time, no bucket gives more than it has, and nothing stays in the lanes.
func TestTumult(t *testing.T) {
	lasts := time.Duration(environment(t, "STINT_TUMULT_SECONDS", 3)) * time.Second
	server := redistest.Start(t)
	proxy := redistest.StartProxy(t, server.Addr())
	o := quiet(proxy.Addr())
	s, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	awaitReady(t, s)
	const rate, burst, keys = 40, 20, 4
	counters := tumultuous(t, s, rate, burst)
	var admitted [keys]atomic.Int64 // of the token buckets
	var answers, errs, gone, late atomic.Int64
	began := time.Now()
	var wg sync.WaitGroup
	for n := range 48 {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(uint64(n), 7))
			for time.Since(began) < lasts {
				ctx, cancel := context.Background(), context.CancelFunc(func() {})
				if r.IntN(3) == 0 {
					ctx, cancel = context.WithTimeout(ctx, time.Duration(r.IntN(20_000))*time.Microsecond)
				}
				charges := anyCharges(r, counters, keys)
				if len(charges) == 0 {
					cancel()
					continue
				}
				asked := time.Now()
				ok, err := s.Take(ctx, charges)
				if took := time.Since(asked); took > s.opts.Timeout+s.opts.Timeout/16+50*time.Millisecond {
					late.Add(1)
					t.Logf("a Take took %v", took)
				}
				ended := ctx.Err() != nil
				cancel()
				switch {
				case err == nil && ok:
					answers.Add(1)
					for _, c := range charges {
						if c.Counters == counters[0] {
							admitted[c.Key[len(c.Key)-1]-'0'].Add(c.Cost)
						}
					}
				case err == nil:
					answers.Add(1)
				case ended:
					gone.Add(1)
				case errors.Is(err, store.ErrUnavailable):
					errs.Add(1)
				default:
					t.Error(err)
				}
			}
		})
	}
	disturb(server, proxy, began.Add(lasts))
	wg.Wait()
	took := time.Since(began).Seconds()
	t.Logf("%d answers, %d unavailable, %d given up, %d late in %.1f s", answers.Load(), errs.Load(), gone.Load(), late.Load(), took)
	if answers.Load() == 0 {
		t.Error("nothing was answered")
	}
	for k := range admitted {
		if n, most := admitted[k].Load(), int64(burst+rate*took)+1; n > most {
			t.Errorf("key %d admitted %d, at most %d are right", k, n, most)
		} else if n == 0 {
			t.Errorf("key %d admitted nothing", k)
		} else {
			t.Logf("key %d admitted %d of %d", k, n, most)
		}
	}
	quietLanes(t, s)
}

// anyCharges draws charges on some of the keys of some of the counters.
func anyCharges(r *rand.Rand, counters []store.Counters, keys int) (charges []store.Charge) {
	for i := range counters {
		for k := range keys {
			if r.IntN(6) == 0 {
				c := charge(counters[i], fmt.Sprint("k", k), 1+r.Int64N(3))
				c.Permit = r.Uint64()
				charges = append(charges, c)
			}
		}
	}
	r.Shuffle(len(charges), func(i, j int) { charges[i], charges[j] = charges[j], charges[i] })
	return charges
}

// disturb cuts, freezes and delays until then, for times that are drawn, and leaves all well.
func disturb(server *redistest.Server, proxy *redistest.Proxy, until time.Time) {
	r := rand.New(rand.NewPCG(1, 1))
	for time.Now().Before(until) {
		pass(time.Duration(20+r.IntN(200)) * time.Millisecond)
		switch r.IntN(12) {
		case 0:
			proxy.Cut()
		case 1, 2:
			proxy.Freeze()
			pass(time.Duration(r.IntN(120)) * time.Millisecond)
			proxy.Thaw()
		case 3, 4:
			server.Freeze()
			pass(time.Duration(r.IntN(120)) * time.Millisecond)
			server.Thaw()
		default:
			proxy.Delay(time.Duration(r.IntN(15)) * time.Millisecond)
		}
	}
}

// tumultuous binds a limit of each of four algorithms, the first a token bucket.
func tumultuous(t *testing.T, s *Store, rate, burst int64) (counters []store.Counters) {
	for i, p := range []limit.Policy{
		tokens(rate, time.Second, burst),
		{Algorithm: limit.FixedWindow, Rate: limit.Rate{Count: 4 * rate, Period: time.Second}},
		{Algorithm: limit.SlidingWindowLog, Rate: limit.Rate{Count: 4 * rate, Period: time.Second}},
		{Algorithm: limit.Concurrency, MaxInFlight: 50, Timeout: 300 * time.Millisecond},
	} {
		counters = append(counters, bind(t, s, fmt.Sprint("l", i), p))
	}
	return counters
}
