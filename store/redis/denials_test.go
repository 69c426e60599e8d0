package redis

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stint-io/stint/internal/redistest"
	"github.com/stint-io/stint/internal/seeding"
	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/store"
)

// quiet are options for a server without a journal that anybody reads.
func quiet(address string) Options {
	return Options{Addrs: []string{address}, Timeout: patient, Logger: new(journal).logger()}
}

// takeOne takes 1 and says whether that was answered from memory.
func takeOne(t *testing.T, s *Store, c store.Counters) (ok, local bool) {
	t.Helper()
	one := []store.Charge{charge(c, "k", 1)}
	before := s.Stats()
	ok, err := s.Take(t.Context(), one)
	if err != nil {
		t.Fatal(err)
	}
	after := s.Stats()
	if after.LocalRefusals > before.LocalRefusals && after.Calls != before.Calls {
		t.Error("a refusal from memory made a call")
	}
	return ok, after.LocalRefusals > before.LocalRefusals
}

// useUp empties the bucket and has its refusal remembered.
func useUp(t *testing.T, s *Store, c store.Counters) {
	t.Helper()
	await(t, "a refusal from memory", func() bool { _, local := takeOne(t, s, c); return local })
	before, began := s.Stats(), time.Now()
	for range 1000 {
		if ok, _ := takeOne(t, s, c); ok {
			t.Fatal("admitted")
		}
	}
	// It is remembered for a second, however long this machine takes for them.
	if calls := s.Stats().Calls - before.Calls; calls > 1+uint64(time.Since(began)/time.Duration(longestDenial)) {
		t.Errorf("1000 refusals made %d calls", calls)
	}
}

// TestDenials has refusals answered from memory for as long as nothing ends them.
func TestDenials(t *testing.T) {
	server := redistest.Start(t)
	proxy := redistest.StartProxy(t, server.Addr())
	s, other := connected(t, quiet(proxy.Addr()), nil), connected(t, quiet(server.Addr()), nil)
	p := tokens(1, time.Hour, 5)
	take := func(c store.Counters) (ok, local bool) { return takeOne(t, s, c) }
	full := func(c store.Counters) { useUp(t, s, c) }
	for _, way := range []struct {
		name string
		do   func(id string) error
	}{
		{"refund elsewhere", func(id string) error {
			return other.Refund(t.Context(), []store.Charge{charge(bind(t, other, id, p), "k", 1)})
		}},
		{"reset elsewhere", func(id string) error {
			return other.Reset(t.Context(), []store.Charge{charge(bind(t, other, id, p), "k", 1)})
		}},
	} {
		t.Run(way.name, func(t *testing.T) {
			c := bind(t, s, way.name, p)
			full(c)
			if err := way.do(way.name); err != nil {
				t.Fatal(err)
			}
			began, machine := time.Now(), machineLate(t)
			await(t, "the end of the refusals", func() bool { ok, _ := take(c); return ok })
			t.Logf("heard of %v after it was answered", time.Since(began).Round(time.Microsecond))
			if took := time.Since(began); took > 500*time.Millisecond+2*machine() {
				t.Errorf("refused for %v after it", took)
			}
		})
	}
	t.Run("own refund and reset", func(t *testing.T) { ownRelease(t, s, p) })
	t.Run("another policy", func(t *testing.T) {
		c := bind(t, s, "rebound", p)
		full(c)
		bind(t, s, "rebound", tokens(1, time.Hour, 50))
		if ok, local := take(c); !ok || local {
			t.Errorf("a larger burst: admitted %v, from memory %v", ok, local)
		}
	})
	t.Run("not heard of", func(t *testing.T) {
		c := bind(t, s, "deaf", p)
		full(c)
		proxy.Refuse(true)
		proxy.Cut()
		await(t, "the subscription to be missed", func() bool { return !s.denials.on.Load() })
		before := s.Stats().LocalRefusals
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		one := []store.Charge{charge(c, "k", 1)}
		if ok, err := s.Take(ctx, one); ok || s.Stats().LocalRefusals != before {
			t.Errorf("refused from memory without a subscription: %v, %v", ok, err)
		}
		if err := other.Reset(t.Context(), []store.Charge{charge(bind(t, other, "deaf", p), "k", 1)}); err != nil {
			t.Fatal(err)
		}
		proxy.Refuse(false)
		began := time.Now()
		// Each connection that was cut may show it only when it is used.
		var ok bool
		answered := func() bool {
			var err error
			ok, err = s.Take(t.Context(), one)
			return err == nil
		}
		await(t, "the store to answer", answered)
		if !ok {
			t.Error("refused after a reset that it could not hear of")
		}
		await(t, "the subscription", func() bool { return s.denials.on.Load() })
		t.Logf("subscribed again %v after the connection was possible", time.Since(began).Round(time.Millisecond))
		// Any of the next calls may be the first on a connection that was cut.
		await(t, "a refusal from memory again", func() bool {
			before := s.Stats().LocalRefusals
			return answered() && !ok && s.Stats().LocalRefusals > before
		})
	})
}

// TestNeverEarlyNeverLate asks at and around the times that refusals name. A caller that waits
// for the RetryAfter is admitted, unless another was faster.
func TestNeverEarlyNeverLate(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	server := redistest.Start(t)
	s := connected(t, quiet(server.Addr()), nil)
	for _, p := range []limit.Policy{
		tokens(1000, time.Second, 1),
		{Algorithm: limit.FixedWindow, Rate: limit.Rate{Count: 2, Period: 2 * time.Millisecond}},
		{Algorithm: limit.SlidingWindowCounter, Rate: limit.Rate{Count: 2, Period: 2 * time.Millisecond}, Rounding: limit.RoundDown},
	} {
		c := bind(t, s, fmt.Sprint("l", p.Algorithm), p)
		before := s.Stats()
		var list []bracket
		rounds := 0
		for ; rounds < 200; rounds++ {
			one := []store.Charge{charge(c, "k", 1)}
			var ok bool
			for range 20 {
				asked := time.Now()
				var err error
				if ok, err = s.Take(t.Context(), one); err != nil {
					t.Fatal(err)
				}
				if !ok {
					break
				}
				list = append(list, bracket{asked.UnixNano(), time.Now().UnixNano()})
			}
			if ok {
				continue // it is faster than the limit
			}
			told := time.Now()
			v := one[0].Verdict
			if v.RetryAfter <= 0 {
				t.Fatalf("%v: refused with a wait of %v", p.Algorithm, v.RetryAfter)
			}
			// Again and again, mostly from memory.
			for time.Since(told) < v.RetryAfter {
				if rand.IntN(4) == 0 {
					again := time.Now()
					if ok, err := s.Take(t.Context(), one); err != nil {
						t.Fatal(err)
					} else if ok {
						list = append(list, bracket{again.UnixNano(), time.Now().UnixNano()})
						v.RetryAfter = 0
					}
				}
			}
			if v.RetryAfter == 0 {
				continue
			}
			asked := time.Now()
			if ok, err := s.Take(t.Context(), one); err != nil || !ok {
				t.Fatalf("%v: round %d: told to wait %v, refused after %v with a further wait of %v (%v)", p.Algorithm, rounds, v.RetryAfter, asked.Sub(told), one[0].Verdict.RetryAfter, err)
			}
			list = append(list, bracket{asked.UnixNano(), time.Now().UnixNano()})
		}
		after := s.Stats()
		t.Logf("%v: %d rounds, %d from memory, %d calls, %d admitted", p.Algorithm, rounds, after.LocalRefusals-before.LocalRefusals, after.Calls-before.Calls, len(list))
		if p.Algorithm == limit.TokenBucket {
			if excess, _, _ := worstExcess(list, 1e-6, 1); excess > 0.01 {
				t.Errorf("%.2f more than burst + rate x T", excess)
			}
		}
	}
}

// TestHotKey has one key asked for by many, far from its server.
func TestHotKey(t *testing.T) {
	server := redistest.Start(t)
	proxy := redistest.StartProxy(t, server.Addr())
	s := connected(t, quiet(proxy.Addr()), nil)
	c := bind(t, s, "l", still(1<<40))
	const far = 5 * time.Millisecond
	proxy.Delay(far)
	before := s.Stats()
	began := time.Now()
	var wg sync.WaitGroup
	for n := range 64 {
		wg.Go(func() {
			for time.Since(began) < time.Second {
				if ok, err := s.Take(context.Background(), []store.Charge{charge(c, "k", 1+int64(n)%7)}); !ok || err != nil {
					t.Errorf("Take: %v, %v", ok, err)
					return
				}
			}
		})
	}
	wg.Wait()
	took := time.Since(began)
	after := s.Stats()
	calls, requests := after.Calls-before.Calls, after.Operations-before.Operations
	most := uint64(took/far) + 4
	t.Logf("%d requests in %d calls in %v, at most %d at one per round trip", requests, calls, took.Round(time.Millisecond), most)
	if calls > most {
		t.Errorf("%d calls, want at most %d", calls, most)
	}
	if requests < 20*calls {
		t.Errorf("%d requests in %d calls", requests, calls)
	}
}

// TestArrivalOrder has requests of different costs wait for one call, and compares
// the decisions with those of package limit in the order of arrival.
func TestArrivalOrder(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	server := redistest.Start(t)
	proxy := redistest.StartProxy(t, server.Addr())
	s := connected(t, quiet(proxy.Addr()), nil)
	for round := range 10 {
		const burst = 100
		c := bind(t, s, fmt.Sprint("l", round), still(burst))
		if ok, err := s.Take(t.Context(), []store.Charge{charge(c, "k", 1)}); !ok || err != nil {
			t.Fatal(ok, err)
		}
		proxy.Delay(5 * time.Millisecond)
		costs := make([]int64, 40)
		ops := make([]*operation, len(costs))
		for i := range costs {
			costs[i] = 1 + rand.Int64N(12)
			o := newOperation(verbTake, s.clock())
			o.fill([]store.Charge{charge(c, "k", costs[i])}, true)
			ops[i] = o
			l := s.laneOf(o.parts[0].key)
			l.enqueue(o)
		}
		left := int64(burst - 1)
		var got, want []bool
		for i, o := range ops {
			<-o.done
			if o.err != nil {
				t.Fatal(o.err)
			}
			got, want = append(got, o.allowed), append(want, costs[i] <= left)
			if costs[i] <= left {
				left -= costs[i]
			}
			if o.parts[0].verdict.Remaining != left {
				t.Errorf("round %d, request %d: %d remain, want %d", round, i, o.parts[0].verdict.Remaining, left)
			}
			o.release()
		}
		proxy.Delay(0)
		if !slices.Equal(got, want) {
			t.Errorf("round %d: costs %v were decided\n%v, want\n%v", round, costs, got, want)
		}
	}
}

// ownRelease has a store refund and reset what it remembers as refused.
func ownRelease(t *testing.T, s *Store, p limit.Policy) {
	c := bind(t, s, "own", p)
	late := 0
	for i := range 300 {
		await(t, "a refusal from memory", func() bool { _, local := takeOne(t, s, c); return local })
		one, err := []store.Charge{charge(c, "k", 1)}, error(nil)
		if i%2 == 0 {
			err = s.Refund(t.Context(), one)
		} else {
			err = s.Reset(t.Context(), one)
		}
		if err != nil {
			t.Fatal(err)
		}
		if ok, _ := takeOne(t, s, c); !ok {
			late++
		}
	}
	if late > 0 {
		t.Errorf("after %d of 300 refunds and resets that had been answered the same store refused from memory", late)
	}
}

// asker asks a store whose clock the test moves.
type asker struct {
	*testing.T
	store *Store
	clock atomic.Int64
	v     limit.Verdict // of what was asked last
}

func newAsker(t *testing.T) *asker {
	a := &asker{T: t}
	a.clock.Store(1_700_000_000_000_000_000)
	a.store = connected(t, quiet(redistest.Start(t).Addr()), func() limit.Time { return limit.Time(a.clock.Load()) })
	return a
}

// want takes, and fails unless it is decided so, and there.
func (a *asker) want(what string, c store.Counters, cost int64, ok, local bool) {
	a.Helper()
	one := []store.Charge{charge(c, "k", cost)}
	before := a.store.Stats().LocalRefusals
	gotOK, err := a.store.Take(a.Context(), one)
	if err != nil {
		a.Fatal(err)
	}
	a.v = one[0].Verdict
	if gotLocal := a.store.Stats().LocalRefusals > before; gotOK != ok || gotLocal != local {
		a.Errorf("%s: admitted %v, from memory %v, want %v, %v: %+v", what, gotOK, gotLocal, ok, local, a.v)
	}
}

// TestDenialByTheClock: a refusal is remembered for a second and has the remaining wait; it
// refuses nothing that Redis would admit, and the requests that it refuses are not charged.
func TestDenialByTheClock(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	a := newAsker(t)
	slow := bind(t, a.store, "slow", tokens(1, time.Minute, 5))
	a.want("all of it", slow, 5, true, false)
	a.want("the first refusal", slow, 1, false, false)
	for passed := time.Duration(0); passed <= time.Second; passed += 100 * time.Millisecond {
		if a.want("within a second", slow, 1, false, true); a.v.RetryAfter != time.Minute-passed || a.v.Reason != limit.ReasonRate || a.v.Remaining != 0 {
			t.Errorf("%v later: told %+v", passed, a.v)
		}
		a.clock.Add(int64(100 * time.Millisecond))
	}
	a.want("after a second", slow, 1, false, false)
	a.want("one that can never be", slow, 6, false, false)
	a.clock.Add(int64(59 * time.Second))
	a.want("when the token is there", slow, 1, true, false)

	fast := bind(t, a.store, "fast", tokens(10, time.Second, 5))
	a.want("all of it", fast, 5, true, false)
	a.want("three", fast, 3, false, false)
	a.clock.Add(int64(100 * time.Millisecond))
	a.want("three of one", fast, 3, false, true)
	a.want("one of one", fast, 1, true, false) // what memory cannot refuse is asked
	a.want("another", fast, 1, false, false)
	a.clock.Add(int64(99_999 * time.Microsecond))
	a.want("a moment before it is there", fast, 1, false, true)
	a.clock.Add(int64(time.Microsecond))
	a.want("when it is there", fast, 1, true, false)
}

// TestDenialOfSeveral: what is refused beside another limit is remembered like what is
// refused alone, and forgotten when it is admitted.
func TestDenialOfSeveral(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	a := newAsker(t)
	wide, narrow := bind(t, a.store, "wide", still(100)), bind(t, a.store, "narrow", tokens(1, time.Second, 2))
	both := func(want bool) {
		t.Helper()
		if ok, err := a.store.Take(t.Context(), []store.Charge{charge(wide, "k", 1), charge(narrow, "k", 1)}); err != nil || ok != want {
			t.Fatalf("both: admitted %v, %v, want %v", ok, err, want)
		}
	}
	both(true)
	both(true)
	both(false)
	a.want("what was refused beside another", narrow, 1, false, true)
	a.want("what admitted it", wide, 1, true, false)
	a.clock.Add(int64(time.Second))
	both(true)
	a.want("what was admitted meanwhile", narrow, 1, false, false)
	a.want("what was refused again", narrow, 1, false, true)
}

// TestDenialsOfABatch: what is refused in one call with other requests is remembered as well: the next request of each key
// whose last one was refused makes no call, and that of each other key makes one.
func TestDenialsOfABatch(t *testing.T) {
	a := newAsker(t)
	l := laneBeside(a.store)
	for seed := range seeding.Draw(t, 30) {
		r := rand.New(rand.NewPCG(seed, 17))
		c := bind(t, a.store, fmt.Sprint("batch", seed), tokens(1, time.Hour, 3))
		left, refused := map[string]int64{}, map[string]bool{}
		ops := make([]*operation, 2+r.IntN(30))
		want := make([]bool, len(ops))
		for i := range ops {
			key, cost := fmt.Sprint("k", r.IntN(6)), 1+r.Int64N(2)
			if _, known := left[key]; !known {
				left[key] = 3
			}
			if want[i] = left[key] >= cost; want[i] {
				left[key] -= cost
			}
			refused[key] = !want[i]
			ops[i] = (&request{verb: verbTake, charges: []store.Charge{charge(c, key, cost)}}).operation(a.store)
		}
		before := a.store.Stats()
		together(l, slices.Clone(ops))
		for i, o := range ops {
			if o.err != nil || o.allowed != want[i] {
				t.Fatalf("seed %d: request %d: admitted %v, %v, want %v", seed, i, o.allowed, o.err, want[i])
			}
			o.release()
		}
		if calls := a.store.Stats().Calls - before.Calls; calls != 1 {
			t.Fatalf("seed %d: %d requests in %d calls: they were not decided together", seed, len(ops), calls)
		}
		for key := range left {
			before := a.store.Stats()
			ok, err := a.store.Take(t.Context(), []store.Charge{charge(c, key, 2)})
			if err != nil || ok != (left[key] >= 2) {
				t.Fatalf("seed %d: %s: admitted %v, %v, with %d left", seed, key, ok, err, left[key])
			}
			after := a.store.Stats()
			calls, local := after.Calls-before.Calls, after.LocalRefusals-before.LocalRefusals
			if known := refused[key] && left[key] < 2; known && (calls != 0 || local != 1) || !known && (calls != 1 || local != 0) {
				t.Errorf("seed %d: %s, of %d left, last refused %v: %d calls and %d refusals from memory", seed, key, left[key], refused[key], calls, local)
			}
		}
	}
}

// TestInstancesAreSeen: each instance learns within two heartbeats how many there are at
// its prefix, and of none at another.
func TestInstancesAreSeen(t *testing.T) {
	server := redistest.Start(t)
	one, two := connected(t, quiet(server.Addr()), nil), connected(t, quiet(server.Addr()), nil)
	o := quiet(server.Addr())
	o.Prefix = "other:"
	alone := connected(t, o, nil)
	await(t, "two instances to see each other", func() bool {
		return one.Stats().Instances == 2 && two.Stats().Instances == 2 && alone.Stats().Instances == 1
	})
}

// TestWhatMemoryDoesNotRefuse: what a refusal changes, and what is asked otherwise than
// what was refused, is asked for.
func TestWhatMemoryDoesNotRefuse(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	a := newAsker(t)
	for name, p := range map[string]limit.Policy{
		"counts":    {Algorithm: limit.FixedWindow, Rate: limit.PerHour(1), CountRefused: true},
		"bans":      {Algorithm: limit.FixedWindow, Rate: limit.PerHour(1), CountRefused: true, Ban: time.Hour},
		"log":       {Algorithm: limit.SlidingWindowLog, Rate: limit.PerHour(1), CountRefused: true},
		"in flight": {Algorithm: limit.Concurrency, MaxInFlight: 1, Timeout: time.Hour},
	} {
		c := bind(t, a.store, name, p)
		a.want(name, c, 1, true, false)
		for range 3 {
			a.want(name, c, 1, false, false)
		}
	}
	other := bind(t, a.store, "other", still(10))
	for what, change := range map[string]func(*store.Charge){
		"a shadow":                    func(c *store.Charge) { c.Shadow = true },
		"a charge that counts":        func(c *store.Charge) { c.CountRefused = true },
		"a question":                  func(c *store.Charge) { c.Cost = 0 },
		"a quota of its own":          func(c *store.Charge) { c.Quota, c.HasQuota = 50, true },
		"one of a limit beside it":    nil,
		"Peek, which is not answered": nil,
	} {
		c := bind(t, a.store, what, limit.Policy{Algorithm: limit.FixedWindow, Rate: limit.PerHour(1)})
		a.want(what, c, 1, true, false)
		a.want(what, c, 1, false, false)
		a.want(what, c, 1, false, true)
		charges, ask := []store.Charge{charge(c, "k", 1)}, a.store.Take
		switch {
		case change != nil:
			change(&charges[0])
		case what[0] == 'P':
			ask = a.store.Peek
		default:
			charges = append(charges, charge(other, "k", 1))
		}
		before := a.store.Stats()
		if _, err := ask(t.Context(), charges); err != nil {
			t.Fatal(err)
		}
		if after := a.store.Stats(); after.LocalRefusals != before.LocalRefusals || after.Calls == before.Calls {
			t.Errorf("%s is answered from memory", what)
		}
	}
}
