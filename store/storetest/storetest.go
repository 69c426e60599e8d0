// Package storetest publishes what a [store.Store] must do, as tests that any
// implementation can run:
//
//	func TestStore(t *testing.T) {
//		storetest.Run(t, func(t testing.TB, now func() limit.Time) store.Store {
//			return memory.New(memory.Options{Now: now})
//		}, storetest.Options{})
//	}
//
// The arithmetic of package limit is the oracle: every verdict of a store must
// equal its. The package will not test how a store fails, restarts or expires;
// that is each store's own.
package storetest

import (
	"context"
	"iter"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/store"
)

// Open returns an empty store whose clock is now. The store closes when the test
// ends, or sooner.
type Open func(t testing.TB, now func() limit.Time) store.Store

// Options say how a store differs from one that lives in the process and has its
// clock. The zero value does not.
type Options struct {
	// Resolution is the least step of the store's clock; 0 = a nanosecond. The
	// waits in verdicts are whole multiples of it, rounded up, so that nobody who
	// waits that long is early.
	Resolution time.Duration

	// Shared stores keep state that their counters have been unbound from.
	Shared bool

	// Concurrent leaves out all cases but those in which several goroutines use the store
	// at the same time, which are what the race detector can judge.
	Concurrent bool
}

// Run runs all cases against stores that open returns, one for each case.
func Run(t *testing.T, open Open, o Options) {
	o.Resolution = max(o.Resolution, 1)
	list := concurrent
	if !o.Concurrent {
		list = slices.Concat(cases, concurrent)
	}
	for _, c := range list {
		t.Run(c.name, func(t *testing.T) {
			h := start(t, open, o)
			c.run(h)
			if t.Failed() {
				t.Logf("what is asked: %s", c.explanation)
			}
		})
	}
	if o.Concurrent {
		return
	}
	for name, p := range policies() {
		if p.Algorithm == limit.RisingWindow {
			p.Start = 2 // so that a new key has less than its rate
		}
		t.Run("history/"+name, func(t *testing.T) { history(t, open, o, p) })
	}
	t.Run("history/several", func(t *testing.T) { severalHistories(t, open, o) })
}

// steps is how many Takes one random history has.
const steps = 60

// seeds yields the seeds of the random histories that each algorithm gets: 40, or 20 of a shared store, which is asked
// over a network, or as many as the environment variable STINT_HISTORIES says. They are others in each run; STINT_SEED
// sets them.
func seeds(t testing.TB, o Options) iter.Seq[uint64] {
	n, first := uint64(40), rand.Uint64N(1e9)
	if o.Shared {
		n = 20
	}
	for name, value := range map[string]*uint64{"STINT_HISTORIES": &n, "STINT_SEED": &first} {
		if text, ok := os.LookupEnv(name); ok {
			var err error
			if *value, err = strconv.ParseUint(text, 10, 64); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
		}
	}
	t.Logf("STINT_SEED=%d", first)
	return func(yield func(uint64) bool) {
		for i := range n {
			if !yield(first + i) {
				return
			}
		}
	}
}

// harness is one store under test, with a clock that the test moves.
type harness struct {
	*testing.T
	Options
	store store.Store
	clock *atomic.Int64
}

// noon is where the clock of each test begins. It is not at the edge of any
// window.
const noon = limit.Time(1_700_000_000_123_456_789)

func start(t *testing.T, open Open, o Options) *harness {
	h := &harness{T: t, Options: o, clock: new(atomic.Int64)}
	h.clock.Store(int64(noon))
	h.advance(0)
	h.store = open(t, h.now)
	t.Cleanup(func() {
		if err := h.store.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return h
}

func (h *harness) now() limit.Time { return limit.Time(h.clock.Load()) }

// advance moves the clock by d, rounded down to a moment that the store's clock can
// show.
func (h *harness) advance(d time.Duration) {
	h.clock.Store((h.clock.Load() + int64(d)) / int64(h.Resolution) * int64(h.Resolution))
}

// shown is v as a store with the harness's resolution returns it.
func (h *harness) shown(v limit.Verdict) limit.Verdict {
	for _, d := range []*time.Duration{&v.RetryAfter, &v.ResetAfter, &v.Delay} {
		if *d != limit.Never {
			*d = (*d + h.Resolution - 1) / h.Resolution * h.Resolution
		}
	}
	return v
}

func (h *harness) bind(id string, p limit.Policy) store.Counters {
	h.Helper()
	c, err := h.store.Bind(store.Spec{ID: id, Policy: p})
	if err != nil {
		h.Fatalf("Bind(%q): %v", id, err)
	}
	return c
}

func charge(c store.Counters, key string, cost int64) store.Charge {
	return store.Charge{Counters: c, Key: store.AppendKey(nil, key), Cost: cost}
}

// take takes and returns whether the request was admitted.
func (h *harness) take(charges ...store.Charge) bool {
	h.Helper()
	ok, err := h.store.Take(context.Background(), charges)
	if err != nil {
		h.Fatalf("Take: %v", err)
	}
	return ok
}

// verdict takes one charge and returns its verdict.
func (h *harness) verdict(c store.Charge) limit.Verdict {
	h.Helper()
	one := []store.Charge{c}
	ok, err := h.store.Take(context.Background(), one)
	if err != nil {
		h.Fatalf("Take: %v", err)
	}
	if v := one[0].Verdict; ok != v.Allowed {
		h.Fatalf("Take answered %v, its only charge %v", ok, v.Allowed)
	}
	return one[0].Verdict
}

func (h *harness) remaining(c store.Counters, key string) int64 {
	h.Helper()
	one := []store.Charge{charge(c, key, 0)}
	if _, err := h.store.Peek(context.Background(), one); err != nil {
		h.Fatalf("Peek: %v", err)
	}
	return one[0].Verdict.Remaining
}

func (h *harness) wantRemaining(c store.Counters, key string, want int64) {
	h.Helper()
	if got := h.remaining(c, key); got != want {
		h.Errorf("key %q has %d remaining, want %d", key, got, want)
	}
}

func (h *harness) admitted(n int, c store.Charge) int {
	h.Helper()
	count := 0
	for range n {
		if h.take(c) {
			count++
		}
	}
	return count
}

// policies are the algorithms and options that histories run over. Their quotas
// and periods are small, so that random costs and times meet every edge.
func policies() map[string]limit.Policy {
	rate := limit.Rate{Count: 7, Period: 10 * time.Second}
	return map[string]limit.Policy{
		"token_bucket":            {Rate: rate, Burst: 9},
		"token_bucket_unpacked":   {Rate: limit.Rate{Count: 999_983, Period: 86_400 * time.Second}, Burst: 9},
		"token_bucket_no_refill":  {Burst: 9},
		"leaky_bucket":            {Algorithm: limit.LeakyBucket, Rate: rate, Burst: 5},
		"fixed_window":            {Algorithm: limit.FixedWindow, Rate: rate},
		"fixed_window_first_hit":  {Algorithm: limit.FixedWindow, Rate: rate, Align: limit.AlignFirstHit},
		"fixed_window_calendar":   {Algorithm: limit.FixedWindow, Rate: limit.Rate{Count: 7, Period: time.Hour}, Align: limit.AlignCalendar, Zone: "Asia/Kolkata"},
		"fixed_window_refused":    {Algorithm: limit.FixedWindow, Rate: rate, CountRefused: true},
		"fixed_window_ban":        {Algorithm: limit.FixedWindow, Rate: rate, Align: limit.AlignFirstHit, CountRefused: true, Ban: 25 * time.Second},
		"fixed_window_ban_now":    {Algorithm: limit.FixedWindow, Rate: rate, Align: limit.AlignFirstHit, CountRefused: true, Ban: 25 * time.Second, BanFromNow: true},
		"sliding_log":             {Algorithm: limit.SlidingWindowLog, Rate: rate},
		"sliding_log_refused":     {Algorithm: limit.SlidingWindowLog, Rate: rate, CountRefused: true},
		"sliding_counter_up":      {Algorithm: limit.SlidingWindowCounter, Rate: rate},
		"sliding_counter_down":    {Algorithm: limit.SlidingWindowCounter, Rate: rate, Rounding: limit.RoundDown},
		"sliding_counter_nearest": {Algorithm: limit.SlidingWindowCounter, Rate: rate, Rounding: limit.RoundNearest, CountRefused: true},
		"rising_window":           {Algorithm: limit.RisingWindow, Rate: rate, Start: 7, Rise: 1},
		"token_bucket_refused":    {Rate: rate, Burst: 9, CountRefused: true},
		"leaky_bucket_refused":    {Algorithm: limit.LeakyBucket, Rate: rate, Burst: 5, CountRefused: true},
		"concurrency":             {Algorithm: limit.Concurrency, MaxInFlight: 4, Timeout: 12 * time.Second},
	}
}

// random draws costs and pauses that favour edges.
type random struct{ *rand.Rand }

func (r random) cost() int64 {
	switch r.IntN(8) {
	case 0:
		return 0
	case 1:
		return r.Int64N(12)
	case 2:
		return 1 << r.IntN(63)
	}
	return 1
}

// options draws whether a charge counts though it is refused, and whether it brings a
// quota of its own.
func (r random) options(c *store.Charge, p limit.Policy) {
	c.CountRefused = r.IntN(4) == 0
	if bucket := p.Algorithm == limit.TokenBucket || p.Algorithm == limit.LeakyBucket; bucket && (c.CountRefused || p.CountRefused) {
		// Debts are exact as far as stores have room, which is for years at least.
		c.Cost = min(c.Cost, 1<<10)
	}
	if p.Algorithm == limit.FixedWindow && p.Ban == 0 && r.IntN(4) == 0 {
		c.Quota, c.HasQuota = r.Int64N(12), true
	}
}

func (r random) pause() time.Duration {
	switch r.IntN(6) {
	case 0:
		return 0
	case 1:
		return time.Duration(r.Int64N(int64(40 * time.Second)))
	case 2:
		return 10 * time.Second
	}
	return time.Duration(r.Int64N(int64(2 * time.Second)))
}
