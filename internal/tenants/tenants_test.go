package tenants

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stint-io/stint/internal/seeding"
	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/store"
)

func perSecond(n int64) limit.Rate { return limit.Rate{Count: n, Period: time.Second} }

// A bucket of 8 tokens that refills 10 per second: what three tenants are answered, step by step.
func TestWalkThrough(t *testing.T) {
	w := newWorld(t, 10, 8)
	var b strings.Builder
	step := func(after time.Duration, tenant string, times int) {
		w.now = w.now.Add(after)
		fmt.Fprintf(&b, "+%v %s:", after, tenant)
		for range times {
			s := w.share(tenant, 1)
			switch {
			case s.Verdict.Allowed:
				fmt.Fprintf(&b, " %d", s.Verdict.Remaining)
			default:
				fmt.Fprintf(&b, " %v %v", s.Verdict.Reason, s.Verdict.RetryAfter)
			}
		}
		s := store.Share{Terms: w.terms, Tenant: []byte(tenant)}
		if err := w.table.PeekShare(context.Background(), &s); err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&b, "; %v/s, %d tenants have %v\n", s.Rate, s.Tenants, math.Round(s.Taken*100)/100)
	}
	step(0, "a", 9)                    // alone: all of the burst
	step(100*time.Millisecond, "b", 2) // the token of a tenth of a second is the newcomer's
	step(0, "a", 1)                    // who has more than is left has to wait
	step(200*time.Millisecond, "b", 2) // its share of the next is half
	step(300*time.Millisecond, "c", 2)
	step(100*time.Millisecond, "a", 1)
	step(time.Second, "a", 4)    // nobody else wants anything, and half of the burst stays for them
	step(11*time.Second, "a", 9) // nobody else has asked for a while
	const want = `+0s a: 7 6 5 4 3 2 1 0 rate_exceeded 100.001ms; 10/s, 1 tenants have 8
+100ms b: 0 rate_exceeded 200.001ms; 5/s, 2 tenants have 8
+0s a: rate_exceeded 600.001ms; 5/s, 2 tenants have 8
+200ms b: 0 share_exceeded 133.334ms; 5/s, 2 tenants have 7
+300ms c: 1 0; 5/s, 2 tenants have 6
+100ms a: share_exceeded 166.667ms; 5/s, 2 tenants have 5
+1s a: 3 2 1 0; 10/s, 1 tenants have 4
+11s a: 7 6 5 4 3 2 1 0 rate_exceeded 100.001ms; 10/s, 1 tenants have 8
`
	if got := b.String(); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// While another has asked lately, a tenant leaves as much as it takes.
func TestHalfIsLeft(t *testing.T) {
	w := newWorld(t, 1, 9)
	w.take("other", 1)
	w.now = w.now.Add(5 * time.Second) // all is refilled, and the other still counts
	for i := range 5 {
		if got := w.take("a", 1); got != (i < 4) {
			t.Errorf("request %d of a burst of 9: %v", i+1, got)
		}
	}
	w.now = w.now.Add(6 * time.Second) // the other is forgotten
	for i := range 10 {
		if got := w.take("a", 1); got != (i < 9) {
			t.Errorf("alone, request %d of a burst of 9: %v", i+1, got)
		}
	}
}

// A tenant that is alone is answered as by a bucket of its own, whatever it asks.
func TestALoneTenantHasAll(t *testing.T) {
	for seed := range seeding.Draw(t, 20) {
		rng := rand.New(rand.NewPCG(seed, 1))
		w := newWorld(t, 1+rng.Int64N(1000), 1+rng.Int64N(500))
		w.terms.Weights = map[string]int64{"a": 1 + rng.Int64N(9)}
		if rng.IntN(2) == 0 && w.terms.Policy.Burst > 4 {
			w.terms.Guaranteed = []store.Guaranteed{{Tenant: "a", Rate: perSecond(1)}, {Tenant: "b", Rate: limit.Rate{Count: 1, Period: time.Hour}}}
		}
		for range 3000 {
			w.now = w.now.Add(time.Duration(rng.ExpFloat64()*1e3) * time.Microsecond)
			cost := 1 + rng.Int64N(1+w.terms.Policy.Burst/4)
			want := w.bucket.Take(&w.state, w.now, cost)
			got := w.share("a", cost).Verdict
			if got.Allowed != want.Allowed || got.Reason != want.Reason || got.Remaining != want.Remaining {
				t.Fatalf("seed %d: got %+v, a bucket %+v", seed, got, want)
			}
			if d := got.RetryAfter - want.RetryAfter; d < 0 || d > 2*time.Microsecond {
				t.Fatalf("seed %d: waits %v, a bucket %v", seed, got.RetryAfter, want.RetryAfter)
			}
		}
	}
}

// While the demand of all together fits a bucket with the rate and half of the burst, nobody is refused.
func TestNeverEarly(t *testing.T) {
	for seed := range seeding.Draw(t, 20) {
		rng := rand.New(rand.NewPCG(seed, 2))
		w := newWorld(t, 10+rng.Int64N(1000), 10+rng.Int64N(1000))
		half := limit.NewBucket(limit.Policy{Rate: w.terms.Policy.Rate, Burst: w.terms.Policy.Burst / 2})
		var all limit.BucketState
		n, asked := 1+rng.IntN(50), 0
		for range 5000 {
			w.now = w.now.Add(time.Duration(rng.ExpFloat64()*1e6/float64(w.terms.Policy.Rate.Count)) * time.Microsecond)
			tenant, cost := name(rng.IntN(n)*rng.IntN(2)), 1+rng.Int64N(3)
			if !half.Take(&all, w.now, cost).Allowed {
				continue // it would not fit
			}
			asked++
			if !w.take(tenant, cost) {
				t.Fatalf("seed %d: request %d of %s, which fits, is refused", seed, asked, tenant)
			}
		}
		if asked < 1000 {
			t.Fatalf("seed %d asked %d times only", seed, asked)
		}
	}
}

// Random tenants, weights, guarantees and demands: over 20 seconds each has its weighted max-min share, to
// within 5 %, what the burst is worth, and what random arrivals at the rate of a share lose to its part of the burst;
// and the bucket behind never had to refuse, so the table's sum is never over.
func TestSharesAreMaxMin(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	for seed := range seeding.Draw(t, 12) {
		rng := rand.New(rand.NewPCG(seed, 3))
		n := 2 + rng.IntN(30)
		w := newWorld(t, 500, int64(4*n+rng.IntN(200)))
		w.terms.Weights = map[string]int64{}
		demand := make([]float64, n)
		promised := int64(0)
		for i := range demand {
			if rng.IntN(3) == 0 {
				w.terms.Weights[name(i)] = 1 + rng.Int64N(5)
			}
			if g := 1 + rng.Int64N(100); rng.IntN(4) == 0 && promised+g <= 500 {
				promised += g
				w.terms.Guaranteed = append(w.terms.Guaranteed, store.Guaranteed{Tenant: name(i), Rate: perSecond(g)})
			}
			demand[i] = 500 / float64(n) * rng.ExpFloat64() * 3
		}
		w.run(rng, demand, 2*time.Second)
		const lasts = 20
		w.run(rng, demand, lasts*time.Second)
		for i, d := range w.asked {
			demand[i] = float64(d) / lasts // what it was, drawn at random
		}
		fair := w.fair(demand)
		// A queue of k places with Poisson arrivals at the rate of its service (M/D/1/k) loses about 1/(2k) of them.
		// The part of the burst is in proportion to the share, so that is the same rate for each tenant. Twice that
		// is allowed, and three times as much to a tenant that gains what others lose.
		burst := float64(w.terms.Policy.Burst)
		slack := burst/2/lasts + 500/burst
		for i := range demand {
			got := float64(w.got[i]) / lasts
			if off := got - fair[i]; -off > 0.05*fair[i]+slack || off > 0.05*fair[i]+3*slack {
				t.Errorf("seed %d, %d tenants: %s wants %.1f/s and has %.1f/s, fair are %.1f/s", seed, n, name(i), demand[i], got, fair[i])
			}
		}
		if w.behind > 0 {
			t.Errorf("seed %d: the bucket refused %d requests that the table let pass", seed, w.behind)
		}
	}
}

// What a tenant has is its own again with its next request, while another asks for a hundred times the limit:
// after the token that is refilled first, it has all until it has its share.
func TestClawBack(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	w := newWorld(t, 1000, 250)
	rng := rand.New(rand.NewPCG(4, 4))
	w.run(rng, []float64{100_000}, 2*time.Second) // alone, the burst is used up
	const tick = 100 * time.Microsecond           // a tenth of a token
	got, first := 0, time.Duration(-1)
	for i := range 500 {
		w.now = w.now.Add(tick)
		for range 10 {
			w.take(name(0), 1)
		}
		if w.take("back", 1) {
			if got++; first < 0 {
				first = time.Duration(i+1) * tick
			}
		}
	}
	if first > 1100*time.Microsecond {
		t.Errorf("the first token after %v", first)
	}
	if got < 25 { // 50 ms of half of the rate
		t.Errorf("%d tokens within 50 ms, want the share, 25", got)
	}
}

// A tenant with a guarantee that others borrowed has it from its first request on, and keeps it.
func TestGuarantee(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	w := newWorld(t, 1000, 200)
	w.terms.Guaranteed = []store.Guaranteed{{Tenant: name(0), Rate: perSecond(400)}}
	rng := rand.New(rand.NewPCG(5, 5))
	demand := make([]float64, 20)
	for i := 1; i < len(demand); i++ {
		demand[i] = 2000
	}
	w.run(rng, demand, 2*time.Second)
	demand[0] = 390
	w.run(rng, demand, 10*time.Second)
	if w.got[0] < w.asked[0]-2 {
		t.Errorf("%d of %d requests within the guarantee", w.got[0], w.asked[0])
	}
	demand[0] = 5000
	w.run(rng, demand, 10*time.Second)
	if w.got[0] < 3980 || w.got[0] > 4150 {
		t.Errorf("%d requests in 10 s, guaranteed are 4000", w.got[0])
	}
}

// A tenant that invents names takes the shares of names, and no more: the limit holds, memory is bounded, a
// guarantee is kept.
func TestInventedNames(t *testing.T) {
	w := newWorld(t, 1000, 100)
	w.terms.Guaranteed = []store.Guaranteed{{Tenant: "acme", Rate: perSecond(200)}}
	admitted, acme, asked := int64(0), 0, 0
	w.take("acme", 1)
	from := w.now
	for i := range 100_000 {
		w.now = w.now.Add(20 * time.Microsecond) // 50,000 names per second
		if w.take(fmt.Sprintf("invented %d", i), 1) {
			admitted++
		}
		if i%300 == 0 { // 166 per second
			if asked++; w.take("acme", 1) {
				acme++
				admitted++
			}
		}
		if n := len(w.table.limits["x"].buckets[""].debtors); n > 3*100 {
			t.Fatalf("%d tenants are told apart with a burst of 100", n)
		}
	}
	if most := 100 + int64(w.now-from)/1e6; admitted > most {
		t.Errorf("%d requests, want at most %d", admitted, most)
	}
	if acme < asked-1 {
		t.Errorf("%d of %d requests within the guarantee", acme, asked)
	}
	// A burst that would tell more apart than there may be.
	w = newWorld(t, 1, 1<<30)
	for i := range 2 * store.MaxShareTenants {
		w.take(fmt.Sprint(i), 1)
	}
	if n := len(w.table.limits["x"].buckets[""].debtors); n != store.MaxShareTenants+1 {
		t.Errorf("%d tenants, want %d and one for the others", n, store.MaxShareTenants)
	}
	w.now = w.now.Add(40_000 * time.Second)
	if s := w.share("new", 1); s.Tenants != 1 {
		t.Errorf("%d tenants when all is refilled", s.Tenants)
	}
}

// Other terms keep what was taken; idle buckets go; wrong costs and ended contexts take nothing.
func TestTable(t *testing.T) {
	w := newWorld(t, 10, 100)
	for i := range 10 {
		w.share(name(i), 4)
	}
	taken := func(tenant string) float64 {
		d := w.table.limits["x"]
		b := d.buckets[""]
		return b.takenBy(d.terms.claimant(w.terms, []byte(tenant)))
	}
	next := *w.terms
	next.Weights = map[string]int64{name(1): 3}
	next.Guaranteed = []store.Guaranteed{{Tenant: name(1), Rate: perSecond(2)}, {Tenant: name(2), Rate: perSecond(3)}}
	former := w.terms
	for _, w.terms = range []*store.ShareTerms{&next, former, &next, former} {
		s := store.Share{Terms: w.terms, Tenant: []byte("other")}
		if err := w.table.PeekShare(context.Background(), &s); err != nil {
			t.Fatal(err)
		}
		if s.Tenants != 10 || math.Abs(s.Taken-40) > slack {
			t.Errorf("%d tenants have taken %v", s.Tenants, s.Taken)
		}
		for i := range 10 {
			if got := taken(name(i)); math.Abs(got-4) > slack {
				t.Errorf("%s has taken %v", name(i), got)
			}
		}
	}
	for _, cost := range []int64{-1, limit.MaxCount + 1} {
		if err := w.table.TakeShare(context.Background(), &store.Share{Terms: w.terms, Cost: cost}); err == nil {
			t.Errorf("cost %d is taken", cost)
		}
	}
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	if err := w.table.TakeShare(ended, &store.Share{Terms: w.terms, Cost: 1}); err == nil {
		t.Error("an ended context takes")
	}
	if s := w.share("x", 101); s.Verdict.Reason != limit.ReasonCost || s.Verdict.RetryAfter != limit.Never {
		t.Errorf("a cost above the burst: %+v", s.Verdict)
	}
	for i := range 1000 {
		w.now = w.now.Add(time.Minute)
		s := store.Share{Terms: w.terms, Key: fmt.Append(nil, i), Cost: 1}
		if err := w.table.TakeShare(context.Background(), &s); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(w.table.limits["x"].buckets); n > 10 {
		t.Errorf("%d buckets, of which one is in use", n)
	}
	w.table.Keep(func(string) bool { return false })
	if len(w.table.limits) > 0 {
		t.Error("a limit that is gone is kept")
	}
}

// Many at once: the sum is what the table says.
func TestConcurrent(t *testing.T) {
	table := New(Options{Now: func() limit.Time { return 1e18 }})
	terms := &store.ShareTerms{ID: "x", Policy: limit.Policy{Rate: perSecond(1), Burst: 1000}}
	var wg sync.WaitGroup
	var mu sync.Mutex
	admitted := 0
	for i := range 8 {
		wg.Go(func() {
			for range 500 {
				s := store.Share{Terms: terms, Tenant: []byte{byte(i)}, Cost: 1}
				if err := table.TakeShare(context.Background(), &s); err != nil {
					t.Error(err)
				}
				if s.Verdict.Allowed {
					mu.Lock()
					admitted++
					mu.Unlock()
				}
			}
		})
	}
	wg.Wait()
	s := store.Share{Terms: terms, Tenant: []byte("x")}
	if err := table.PeekShare(context.Background(), &s); err != nil {
		t.Fatal(err)
	}
	if int(s.Taken) != admitted || admitted > 1000 || admitted < 800 {
		t.Errorf("%d admitted, the table says %v", admitted, s.Taken)
	}
}
