package redis

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stint-io/stint/internal/redistest"
	"github.com/stint-io/stint/internal/seeding"
	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/store"
	"github.com/stint-io/stint/store/storetest"
)

// fleet is some instances at one Redis, each with a configuration of its own.
type fleet struct {
	testing.TB
	clock  atomic.Int64
	stores []*Store
	bound  []store.Counters
	id     string
}

func newFleet(t testing.TB, n int) *fleet {
	f := &fleet{TB: t}
	f.clock.Store(1_700_000_000_000_000_000)
	server := redistest.Start(t)
	for range n {
		s := connected(t, Options{Addrs: []string{server.Addr()}, Timeout: patient}, f.now)
		s.hold = 1e12 // the server's clock is not ours
		f.stores, f.bound = append(f.stores, s), append(f.bound, nil)
	}
	return f
}

func (f *fleet) now() limit.Time { return limit.Time(f.clock.Load()) }

// begin begins with new counters.
func (f *fleet) begin(id string) {
	f.Helper()
	for i, c := range f.bound {
		if c != nil {
			if err := f.stores[i].Unbind(c); err != nil {
				f.Fatal(err)
			}
		}
		f.bound[i] = nil
	}
	f.id = id
}

func (f *fleet) bind(i int, p limit.Policy) {
	f.Helper()
	c, err := f.stores[i].Bind(store.Spec{ID: f.id, Policy: p})
	if err != nil {
		f.Fatal(err)
	}
	f.bound[i] = c
}

func (f *fleet) take(i int, cost int64) bool {
	f.Helper()
	ok, err := f.stores[i].Take(f.Context(), []store.Charge{{Counters: f.bound[i], Key: keyNumber(1), Cost: cost}})
	if err != nil {
		f.Fatal(err)
	}
	return ok
}

// Instances with different bursts and rates alternate at one Redis, while some get a new
// configuration. Together they admit in no interval more than the largest burst and the largest
// rate in it allow.
//
//	STINT_HISTORIES=100000 go test ./store/redis -run 'TestHistoriesChanges$' -timeout 2h
func TestHistoriesChanges(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	histories, f, admitted := environment(t, "STINT_HISTORIES", 60), newFleet(t, 3), 0
	for seed := range seeding.Draw(t, histories) {
		r := rand.New(rand.NewPCG(uint64(seed), 36))
		f.clock.Add(int64(time.Second))
		f.begin(fmt.Sprint("changes", seed))
		var key storetest.Changes
		policies := make([]limit.Policy, 2+r.IntN(2))
		for i := range policies {
			policies[i] = storetest.RandomBucket(r)
			f.bind(i, policies[i])
		}
		key.Set(f.now(), slices.Clone(policies)...)
		for range 30 {
			f.clock.Add(r.Int64N(1<<r.IntN(38)) / 1000 * 1000)
			i := r.IntN(len(policies))
			if r.IntN(16) == 0 {
				policies[i] = storetest.RandomBucket(r)
				f.bind(i, policies[i])
				key.Set(f.now(), slices.Clone(policies)...)
			}
			if cost := 1 + r.Int64N(1+policies[i].Burst/2); f.take(i, cost) {
				key.Admit(f.now(), cost)
			}
		}
		admitted += key.Admitted()
		if err := key.Over(); err != nil {
			t.Fatalf("history %d: %v", seed, err)
		}
	}
	if admitted < 3*histories {
		t.Errorf("%d were admitted in %d histories: they show little", admitted, histories)
	}
}

// After a step back of the server's clock two instances with bursts of 100 and 10 admit
// each burst once more at most, and not at each call for the length of the step.
func TestStepBackAmongBursts(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	f := newFleet(t, 0)
	server := redistest.Start(t)
	var step atomic.Int64
	for range 2 {
		s := connected(t, quiet(server.Addr()), nil)
		s.serverNow, s.hold = func() limit.Time { return f.now() + limit.Time(step.Load()) }, 1e12
		s.denials.deaf() // it goes by the clock of this process
		f.stores, f.bound = append(f.stores, s), append(f.bound, nil)
	}
	f.begin("back")
	f.bind(0, limit.Policy{Rate: limit.PerSecond(10), Burst: 100})
	f.bind(1, limit.Policy{Rate: limit.PerSecond(10), Burst: 10})
	admitted := 0
	for i := range 4000 {
		f.clock.Add(int64(time.Millisecond))
		if i == 1000 {
			step.Add(-int64(time.Hour))
		}
		for j := range 2 {
			if f.take(j, 1) {
				admitted++
			}
		}
	}
	if admitted < 130 || admitted > 140+2*100 {
		t.Errorf("%d were admitted in 4 s by a burst of 100 and 10/s, want at least 130 and at most twice the burst more", admitted)
	}
}

// Steps of the server's clock, forward and back, among changes of bursts and rates: in no
// interval more than the largest burst and the largest rate allow, and that burst once more
// for each step, and once for each instance that takes a step back out of what it finds.
func TestHistoriesChangesAndClockSteps(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	histories, f := environment(t, "STINT_HISTORIES", 50), newFleet(t, 0)
	server := redistest.Start(t)
	var step atomic.Int64
	for range 2 {
		s := connected(t, quiet(server.Addr()), nil)
		s.serverNow, s.hold = func() limit.Time { return f.now() + limit.Time(step.Load()) }, 1e12
		s.denials.deaf() // it goes by the clock of this process
		f.stores, f.bound = append(f.stores, s), append(f.bound, nil)
	}
	type event struct {
		at    limit.Time
		cost  int64
		steps int
	}
	admitted, again := 0, 0
	for seed := range uint64(histories) { // fixed: of drawn ones some show little
		r := rand.New(rand.NewPCG(uint64(seed), 39))
		f.clock.Add(int64(time.Hour))
		step.Store(0)
		f.begin(fmt.Sprint("steps", seed))
		var burst int64
		var rate float64 // per nanosecond
		policies := make([]limit.Policy, 2)
		set := func(i int) {
			policies[i] = storetest.RandomBucket(r)
			f.bind(i, policies[i])
			burst = max(burst, policies[i].Quota())
			if p := policies[i].Rate; p.Period > 0 {
				rate = max(rate, float64(p.Count)/float64(p.Period))
			}
		}
		set(0)
		set(1)
		var events []event
		steps := 1 // back to where the clock was, or one of before that is still being taken out
		for range 40 {
			f.clock.Add(r.Int64N(1<<r.IntN(36)) / 1000 * 1000)
			switch r.IntN(8) {
			case 0:
				step.Add((r.Int64N(2<<r.IntN(42)) - r.Int64N(2<<r.IntN(42))) / 1000 * 1000)
				steps++
			case 1:
				set(r.IntN(2))
			}
			i := r.IntN(2)
			if cost := 1 + r.Int64N(1+policies[i].Burst/2); f.take(i, cost) {
				events = append(events, event{f.now(), cost, steps})
			}
		}
		admitted += len(events)
		for i, first := range events {
			sum := int64(0)
			for _, e := range events[i:] {
				sum += e.cost
				plain := float64(burst) + rate*float64(e.at-first.at) + 1e-3
				if float64(sum) > plain {
					again++
				}
				if float64(sum) > plain+float64(burst)*float64(3*e.steps) {
					t.Fatalf("history %d: %d were admitted in %v after %d steps, of a burst of %d and %g/s", seed, sum, time.Duration(e.at-first.at), e.steps, burst, rate*1e9)
				}
			}
		}
	}
	if admitted < 5*histories || again == 0 {
		t.Errorf("%d were admitted in %d histories, %d times more than without a step: they show little", admitted, histories, again)
	}
}

// The same of fixed windows of different lengths and counts: what the policies allow by
// themselves, together.
//
//	STINT_HISTORIES=100000 go test ./store/redis -run 'TestHistoriesWindowChanges$' -timeout 2h
func TestHistoriesWindowChanges(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	histories, f, admitted := environment(t, "STINT_HISTORIES", 60), newFleet(t, 3), 0
	for seed := range seeding.Draw(t, histories) {
		r := rand.New(rand.NewPCG(uint64(seed), 38))
		f.clock.Add(int64(time.Second))
		f.begin(fmt.Sprint("windows", seed))
		var key storetest.Changes
		policies := make([]limit.Policy, 2+r.IntN(2))
		for i := range policies {
			policies[i] = storetest.RandomWindow(r)
			f.bind(i, policies[i])
		}
		key.Set(f.now(), slices.Clone(policies)...)
		for range 40 {
			f.clock.Add(r.Int64N(int64(policies[r.IntN(len(policies))].Rate.Period)/4) / 1000 * 1000)
			i := r.IntN(len(policies))
			if r.IntN(16) == 0 {
				policies[i] = storetest.RandomWindow(r)
				f.bind(i, policies[i])
				key.Set(f.now(), slices.Clone(policies)...)
			}
			if cost := 1 + r.Int64N(1+policies[i].Rate.Count); f.take(i, cost) {
				key.Admit(f.now(), cost)
			}
		}
		admitted += key.Admitted()
		if err := key.OverWindows(); err != nil {
			t.Fatalf("history %d: %v", seed, err)
		}
	}
	if admitted < 3*histories {
		t.Errorf("%d were admitted in %d histories: they show little", admitted, histories)
	}
}

// A roll-out of a smaller burst under load: two instances with bursts of 100 and 10 admit
// what a burst of 100 allows.
func TestRollOutOfASmallerBurst(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	f := newFleet(t, 2)
	f.begin("rollout")
	f.bind(0, limit.Policy{Rate: limit.PerSecond(10), Burst: 100})
	f.bind(1, limit.Policy{Rate: limit.PerSecond(10), Burst: 10})
	admitted := 0
	for range 10_000 {
		f.clock.Add(int64(time.Millisecond))
		for i := range 2 {
			if f.take(i, 1) {
				admitted++
			}
		}
	}
	if admitted > 200 || admitted < 190 {
		t.Errorf("%d were admitted in 10 s, want 200: a burst of 100 and 10/s", admitted)
	}
}

// Under one rate a state means the same to all, so that nobody asks twice.
func TestAnotherBurstCostsNoCall(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	f := newFleet(t, 2)
	f.begin("calls")
	f.bind(0, limit.Policy{Rate: limit.PerHour(1), Burst: 100})
	f.bind(1, limit.Policy{Algorithm: limit.LeakyBucket, Rate: limit.PerHour(1), Burst: 10})
	before := f.stores[0].Stats().Calls + f.stores[1].Stats().Calls
	for i := range 10 {
		if !f.take(i%2, 1) {
			t.Fatalf("the %d. of a burst of 10 is refused", i+1)
		}
	}
	if n := f.stores[0].Stats().Calls + f.stores[1].Stats().Calls - before; n != 10 {
		t.Errorf("%d calls for 10 requests", n)
	}
}

// What Redis can hold of the time at which a bucket is full is never earlier, and is the
// same when it is read and written again.
func TestStatesAreRoundedUp(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	far := 0
	for seed := range seeding.Draw(t, 20_000) {
		r := rand.New(rand.NewPCG(seed, 37))
		rule, err := newRule(drawPolicy(r, limit.TokenBucket))
		if err != nil {
			t.Fatal(err)
		}
		s := state{bucket: limit.BucketState{Hi: r.Uint64N(1 << r.IntN(63)), Lo: r.Uint64()}}
		raw := rule.encode(s)
		back := rule.decode(raw)
		if rule.outside(&back) {
			far++
		}
		if back.bucket.Hi < s.bucket.Hi || back.bucket.Hi == s.bucket.Hi && back.bucket.Lo < s.bucket.Lo {
			whole, _ := rule.split(s.bucket)
			if whole < latest/2 {
				t.Fatalf("seed %d: %+v became %+v, which is earlier", seed, s.bucket, back.bucket)
			}
		}
		if again := rule.encode(back); again != raw && back.bucket.Hi < 1<<63 {
			t.Fatalf("seed %d: %q is read as %+v and written as %q", seed, raw, back.bucket, again)
		}
	}
	if far < 1000 {
		t.Errorf("%d of 20,000 were outside of the exact range: they show little", far)
	}
}

// What was used is remembered however long the rate of another instance takes to pay it:
// beyond what the script counts exactly, beyond an expiry that Redis can hold.
func TestDebtOfCenturies(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	f := newFleet(t, 2)
	for _, c := range []struct {
		name     string
		one, two limit.Policy
	}{
		{"273 years", limit.Policy{Rate: limit.PerSecond(1000), Burst: 100_000}, limit.Policy{Rate: limit.Rate{Count: 1, Period: 24 * time.Hour}, Burst: 1}},
		{"27 million years", limit.Policy{Rate: limit.PerSecond(1e6), Burst: 1e10}, limit.Policy{Rate: limit.Rate{Count: 1, Period: 24 * time.Hour}, Burst: 1}},
		{"71 million million years", limit.Policy{Rate: limit.PerSecond(1e6), Burst: 1e12}, limit.Policy{Rate: limit.Every(maxSpan * time.Microsecond), Burst: 1}},
		{"for ever", limit.Policy{Rate: limit.PerSecond(1e6), Burst: 1e12}, limit.Policy{Burst: 1}},
	} {
		f.begin(c.name)
		f.bind(0, c.one)
		f.bind(1, c.two)
		if !f.take(0, c.one.Burst) {
			t.Fatalf("%s: the whole burst does not fit", c.name)
		}
		for range 20 {
			if f.take(1, 1) || f.take(0, 1) {
				t.Fatalf("%s: something fits after the whole burst was used", c.name)
			}
		}
		// What is refused and counted does not make the debt less; nor is it given back.
		if ok, err := f.stores[1].Take(t.Context(), []store.Charge{{Counters: f.bound[1], Key: keyNumber(1), Cost: 500, CountRefused: true}}); ok || err != nil {
			t.Fatal(ok, err)
		}
		if err := f.stores[1].Refund(t.Context(), []store.Charge{{Counters: f.bound[1], Key: keyNumber(1), Cost: 500}}); err != nil {
			t.Fatal(err)
		}
		f.clock.Add(2 * longestDenial) // or the refusal that is remembered answers
		if f.take(0, 2) {
			t.Errorf("%s: something fits though nothing more was given back than counted", c.name)
		}
		f.clock.Add(int64(time.Millisecond))
		// One may be lost in the rounding, one was given back.
		// One may be lost in the rounding, one was given back.
		if cost := int64(c.one.Rate.Count / 1000); cost > 1 && !f.take(0, cost-1) {
			t.Errorf("%s: %d do not fit of the %d that come in a millisecond", c.name, cost-1, cost)
		}
		if f.take(0, 3) {
			t.Errorf("%s: 3 more fit than come in a millisecond", c.name)
		}
	}
}
