package spending_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stint-io/stint/internal/seeding"

	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/rules"
	"github.com/stint-io/stint/server/internal/lending"
	"github.com/stint-io/stint/server/internal/spending"
	"github.com/stint-io/stint/store"
	"github.com/stint-io/stint/store/memory"
	"github.com/stint-io/stint/store/storetest"
)

func limits(t testing.TB, text string) *rules.Set {
	t.Helper()
	set, err := rules.Parse("test", []byte("limits:\n"+text))
	if err != nil {
		t.Fatal(err)
	}
	return set
}

// asking asks a coordinator.
func asking(of *lending.Service) spending.Ask {
	return func(ctx context.Context, _ int, asks []lease.Ask) ([]lease.Answer, error) {
		return of.Answer(ctx, 0, asks)
	}
}

// byLease has each key have a lease.
func byLease(_ context.Context, _ int, asks []lease.Ask) ([]lease.Answer, error) {
	return make([]lease.Answer, len(asks)), nil
}

// fixture is a store over memory, with a coordinator.
type fixture struct {
	*spending.Store
	t           testing.TB
	set         *rules.Set
	coordinator *lending.Service
	counters    map[string]store.Counters
}

// open starts one. The test, or its bubble, ends it with the function returned.
func open(t testing.TB, o spending.Options, text string) (f *fixture, stop func()) {
	t.Helper()
	f = &fixture{t: t, set: limits(t, text), counters: map[string]store.Counters{}}
	service := lending.New(lending.Options{Limits: f.set, State: lending.State{Epoch: 1}, Logger: slog.New(slog.DiscardHandler)}, 1)
	f.coordinator = service
	if o.Limits = f.set; o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Store == nil {
		o.Store = memory.New(memory.Options{})
	}
	if o.Connect == nil {
		o.Connect = func(ctx context.Context) (spending.Stream, error) { return service.Pipe(ctx, 0) }
	}
	if o.Ask == nil {
		o.Ask = asking(service)
	}
	s, err := spending.New(o)
	if err != nil {
		t.Fatal(err)
	}
	f.Store = s
	for _, v := range f.set.Variants() {
		if f.counters[v.ID], err = s.Bind(store.Spec{ID: v.ID, Policy: v.Policy}); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	lends, stopLending := context.WithCancel(context.Background())
	var spender, lender sync.WaitGroup
	lent := false
	lender.Go(func() { lent = !service.Run(lends) })
	spender.Go(func() {
		if err := s.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	return f, func() {
		cancel()
		spender.Wait()
		stopLending()
		lender.Wait()
		if lent {
			t.Error("something is lent after the end")
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
}

func (f *fixture) charge(name, key string, cost int64) store.Charge {
	c := f.counters[name]
	if c == nil {
		f.t.Fatalf("no limit %q", name)
	}
	charge := store.Charge{Counters: c, Cost: cost, OnFailure: store.FailTake}
	if key != "" {
		charge.Key = store.AppendKey(nil, key)
	}
	return charge
}

// take takes and wants to be answered so.
func (f *fixture) take(want bool, charges ...store.Charge) []store.Charge {
	f.t.Helper()
	if got, err := f.Take(context.Background(), charges); err != nil || got != want {
		f.t.Errorf("Take answers %v, %v, want %v; %+v", got, err, want, charges)
	}
	return charges
}

// seeds is how many random histories a test tries: few of them with the race detector, which
// makes each ten times slower.
// some returns few where the race detector watches.
func some(all, few int) int {
	if testing.Short() {
		return few
	}
	return all
}

// Without leased limits it is the store behind.
func TestConformance(t *testing.T) {
	storetest.Run(t, func(t testing.TB, now func() limit.Time) store.Store {
		s, err := spending.New(spending.Options{Store: memory.New(memory.Options{Now: now}), Limits: limits(t, "  []\n")})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}, storetest.Options{Concurrent: testing.Short()}) // the race detector watches what several goroutines use
}

// Requests over leased limits and others are admitted when all of them admit, and
// charge all or none. One instance has all of the limits to itself, so that plain
// numbers are the oracle; a token takes an hour to come.
func TestAllOrNothing(t *testing.T) {
	if testing.Short() {
		t.Skip("TestFleetOfReservations has the same goroutines: nothing for the race detector")
	}
	early, steps := 0, 0
	for seed := range seeding.Draw(t, some(20, 4)) {
		pauses := []time.Duration{0, 100 * time.Millisecond, 5 * time.Second, 20 * time.Second}
		steps += allOrNothing(t, seed, pauses[seed%4], &early)
	}
	if early > steps/200 {
		t.Errorf("%d of %d requests were refused early", early, steps)
	}
}

func allOrNothing(t *testing.T, seed uint64, pause time.Duration, early *int) (steps int) {
	synctest.Test(t, func(t *testing.T) {
		f, stop := open(t, spending.Options{}, `
  - {name: a, key: [k], rate: 12/day, sharing: leased}
  - {name: b, key: [k], rate: 9/day, sharing: leased}
  - {name: x, key: [k], rate: 15/day}
  - {name: y, key: [k], rate: 11/day, algorithm: fixed_window, align: first_hit, count_refused: true}
`)
		defer stop()
		r := rand.New(rand.NewPCG(seed, 1))
		once, err := f.Bind(store.Spec{ID: "once", Policy: limit.Policy{Rate: limit.Rate{Count: 1, Period: 1000 * time.Hour}, Burst: 1}})
		if err != nil {
			t.Fatal(err)
		}
		var admitted [][]store.Charge
		left, quotas := map[string]int64{}, map[string]int64{"a": 12, "b": 9, "x": 15, "y": 11}
		for name, n := range quotas {
			for _, key := range []string{"1", "2"} {
				left[name+key] = n
			}
		}
		for step := range 100 {
			charges, keys := f.random(r)
			want := true
			for i := range charges {
				want = want && (charges[i].Shadow || charges[i].Cost <= left[keys[i]])
			}
			ask, peek := f.Take, r.IntN(4) == 0
			if peek {
				ask = f.Peek
			}
			// A third of the Takes have an idempotency key, and some of those come again.
			keyed := !peek && r.IntN(3) == 0
			if keyed {
				charges = append(charges, store.Charge{Counters: once, Key: fmt.Append(nil, step), Cost: 1, Once: true, OnFailure: store.FailTake})
			}
			got, err := ask(t.Context(), charges)
			if keyed {
				if got {
					admitted = append(admitted, slices.Clone(charges))
				}
				charges = charges[:len(charges)-1]
			}
			if len(admitted) > 0 && r.IntN(3) == 0 {
				again := slices.Clone(admitted[r.IntN(len(admitted))])
				for i := range again[:len(again)-1] {
					again[i].CountRefused = r.IntN(2) == 0
				}
				stands := func() (list []int64) {
					for _, c := range again[:len(again)-1] {
						if c.Counters != f.counters["x"] && c.Counters != f.counters["y"] {
							continue // how much of a lease is here changes whenever it is asked for
						}
						c.Cost, c.CountRefused = 0, false
						one := []store.Charge{c}
						if _, err := f.Peek(t.Context(), one); err != nil {
							t.Fatal(err)
						}
						list = append(list, one[0].Verdict.Remaining)
					}
					return list
				}
				before := stands()
				if ok, err := f.Take(t.Context(), again); ok || err != nil || again[len(again)-1].Verdict.Allowed {
					t.Fatalf("seed %d, step %d: sent again: %v, %v: %+v", seed, step, ok, err, again)
				}
				if after := stands(); !slices.Equal(before, after) {
					t.Fatalf("seed %d, step %d: %v were left, %v after it was sent again: %+v", seed, step, before, after, again)
				}
			}
			steps++
			if err == nil && want && !got {
				// The lease was said to be full, of its rate. What is left
				// of the burst has to be there later.
				*early++
				want = false
				time.Sleep(10 * time.Minute)
				for i, c := range charges {
					if keys[i][0] < 'x' && !c.Shadow && c.Cost > 0 {
						if ok, err := f.Peek(t.Context(), []store.Charge{c}); err != nil || !ok {
							t.Fatalf("seed %d, step %d: not there later: %v, %v: %+v; left %v", seed, step, ok, err, charges[i], left)
						}
					}
				}
			}
			if err != nil || got != want {
				t.Fatalf("seed %d, step %d: %v, %v, want %v: %+v; left %v", seed, step, got, err, want, charges, left)
			}
			for i, c := range charges {
				fits := c.Cost <= left[keys[i]]
				if c.Shadow && keys[i][0] < 'x' {
					// It does not wait, so it may not know that it fits, or
					// what is left.
					known := c.Verdict.Remaining < quotas[keys[i][:1]]
					if c.Verdict.Allowed && known && want && !peek && !fits {
						t.Fatalf("seed %d, step %d: the shadow %d fits: %+v; left %v", seed, step, i, charges, left)
					}
					fits = c.Verdict.Allowed && known
				}
				if !peek && (want && fits || keys[i][0] == 'y') {
					left[keys[i]] = max(0, left[keys[i]]-c.Cost)
				}
			}
			time.Sleep(pause)
		}
	})
	return steps
}

// random draws the charges of a request, and the names of their limits and keys.
func (f *fixture) random(r *rand.Rand) (charges []store.Charge, keys []string) {
	for _, name := range []string{"a", "b", "x", "y"} {
		if r.IntN(2) == 0 {
			continue
		}
		key := fmt.Sprint(1 + r.IntN(2))
		c := f.charge(name, key, r.Int64N(3))
		c.Shadow = r.IntN(5) == 0
		if name == "y" {
			c.Cost = max(1, c.Cost) // over its limit it refuses a peek as well
		}
		charges, keys = append(charges, c), append(keys, name+key)
	}
	return charges, keys
}

// A cost that has been spent is charged in full to the store behind when a lease refuses
// it, and to the lease as far as that has it.
func TestCountedThoughRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, stop := open(t, spending.Options{}, `
  - {name: a, key: [k], rate: 10/day, sharing: leased}
  - {name: x, key: [k], rate: 15/day}
`)
		defer stop()
		counted := func(cost int64) []store.Charge {
			charges := []store.Charge{f.charge("a", "1", cost), f.charge("x", "1", cost)}
			for i := range charges {
				charges[i].CountRefused = true
			}
			return charges
		}
		f.take(true, f.charge("a", "1", 4))
		f.take(false, counted(7)...)
		f.take(false, f.charge("a", "1", 1)) // it had 6
		f.take(false, f.charge("x", "1", 9)) // 8 are left
		f.take(true, f.charge("x", "1", 8))
		f.take(false, counted(100)...)
		// It owes 100, and has one more when 101 have come, 15 in a day.
		if v := f.take(false, f.charge("x", "1", 1))[0].Verdict; v.RetryAfter != 101*24*time.Hour/15 {
			t.Errorf("one more in %v: %+v", v.RetryAfter, v)
		}
	})
}

// What is given back can be taken again, and never is more than the limit.
func TestRefund(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, stop := open(t, spending.Options{}, "  - {name: a, key: [k], rate: 10/day, sharing: leased}\n")
		defer stop()
		refund := func(key string, n int64) {
			t.Helper()
			if err := f.Refund(t.Context(), []store.Charge{f.charge("a", key, n)}); err != nil {
				t.Error(err)
			}
		}
		f.take(true, f.charge("a", "1", 10))
		f.take(false, f.charge("a", "1", 1))
		refund("1", 4)
		f.take(true, f.charge("a", "1", 3))
		f.take(false, f.charge("a", "1", 2))
		refund("1", limit.MaxCount)
		refund("1", limit.MaxCount)
		taken := 0
		for range 40 {
			if ok, err := f.Take(t.Context(), []store.Charge{f.charge("a", "1", 1)}); err == nil && ok {
				taken++
			}
			time.Sleep(time.Second)
		}
		if taken > 10 {
			t.Errorf("%d of 10 after a refund of more", taken)
		}
		refund("never seen", 5)
		f.take(true, f.charge("a", "never seen", 10))
		f.take(false, f.charge("a", "never seen", 1))
	})
}

// A table full of keys in use takes no other; keys that nobody asks for give their
// lease back.
func TestTableOfKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, stop := open(t, spending.Options{MaxKeys: 3, Ask: byLease}, "  - {name: a, key: [k], rate: 10/day, sharing: leased}\n")
		defer stop()
		for _, key := range []string{"1", "2", "3"} {
			f.take(true, f.charge("a", key, 6))
		}
		if v := f.take(false, f.charge("a", "4", 1))[0].Verdict; v.Reason != limit.ReasonTableFull || v.RetryAfter <= 0 {
			t.Errorf("the table is full: %+v", v)
		}
		time.Sleep(2 * time.Second)
		f.take(true, f.charge("a", "4", 1))
		if f.Keys() != 3 {
			t.Errorf("%d keys", f.Keys())
		}
		time.Sleep(2 * time.Second)
		for _, key := range []string{"1", "2", "3"} {
			f.take(false, f.charge("a", key, 6)) // what was used stays used
			time.Sleep(2 * time.Second)
		}
		time.Sleep(3 * time.Minute)
		if f.Keys() != 0 {
			t.Errorf("%d keys after minutes", f.Keys())
		}
	})
}

// A shadow evaluates, charges when it fits, and refuses nothing.
func TestShadow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, stop := open(t, spending.Options{Ask: byLease}, "  - {name: a, key: [k], rate: 4/day, sharing: leased}\n  - {name: x, rate: 100/day}\n")
		defer stop()
		shadow := f.charge("a", "1", 3)
		shadow.Shadow = true
		f.take(true, f.charge("a", "1", 1)) // it has a lease
		time.Sleep(time.Second)
		f.take(true, shadow)
		if v := f.take(true, shadow, f.charge("x", "", 1))[0].Verdict; v.Allowed {
			t.Errorf("%+v", v)
		}
	})
}

// A shadow counts as a limit that refuses does, from the first request of a key on: with a tag, one
// that is not counted would pass unmarked on top of the limit.
func TestShadowCountsFromTheFirstRequest(t *testing.T) {
	for name, o := range map[string]spending.Options{"asked": {}, "by lease": {Ask: byLease}} {
		for of, key := range map[string]string{"a": "1", "b": ""} {
			left := func(shadow bool) (list []int64) {
				synctest.Test(t, func(t *testing.T) {
					f, stop := open(t, o, "  - {name: a, key: [k], rate: 9/day, sharing: leased}\n  - {name: b, rate: 9/day, sharing: leased}\n")
					defer stop()
					synctest.Wait() // until it asks
					for range 12 {
						c := f.charge(of, key, 1)
						c.Shadow = shadow
						charges := []store.Charge{c}
						if _, err := f.Take(t.Context(), charges); err != nil {
							t.Fatal(err)
						}
						switch v := charges[0].Verdict; {
						case !v.Allowed:
							list = append(list, -1)
						case len(list) == 0 && (key == "" || name == "by lease"): // what the first answer lends beyond the request may come a moment later
							list = append(list, 0)
						default:
							list = append(list, v.Remaining)
						}
						time.Sleep(time.Second)
					}
				})
				return list
			}
			if got, want := left(true), left(false); !slices.Equal(got, want) {
				t.Errorf("%s, %s: a shadow has left %v, a limit that refuses %v", name, of, got, want)
			}
		}
	}
}

// Without a coordinator each charge answers as it asks for.
func TestWithoutCoordinator(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, stop := open(t, spending.Options{Connect: func(context.Context) (spending.Stream, error) { return nil, errors.New("no") }},
			"  - {name: a, key: [k], rate: 4/day, sharing: leased}\n  - {name: p, algorithm: concurrency, max_in_flight: 3, sharing: leased}\n")
		defer stop()
		for _, name := range []string{"a", "p"} {
			c := f.charge(name, "", 1)
			if _, err := f.Take(t.Context(), []store.Charge{c}); !errors.Is(err, store.ErrUnavailable) {
				t.Errorf("%v", err)
			}
			for how, want := range map[store.OnFailure]bool{store.FailAllow: true, store.FailReject: false, store.FailLocal: false} {
				c.OnFailure = how
				got := f.take(want, c)[0]
				if !got.Failed || !want && got.Verdict.Reason != limit.ReasonStoreFailure {
					t.Errorf("%v: %+v", how, got)
				}
			}
		}
	})
}

// Permits end once, and by themselves when their time is over.
func TestPermits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, stop := open(t, spending.Options{}, "  - {name: p, algorithm: concurrency, max_in_flight: 3, timeout: 10s, sharing: leased}\n  - {name: q, algorithm: concurrency, max_in_flight: 1, sharing: leased}\n  - {name: x, rate: 1/day}\n")
		defer stop()
		place := func(permit uint64, n int64) store.Charge {
			c := f.charge("p", "", n)
			c.Permit = permit
			return c
		}
		f.take(true, f.charge("x", "", 1))
		for range 5 {
			f.take(false, place(9, 3), f.charge("x", "", 1)) // all are given back
		}
		f.take(true, place(1, 1))
		f.take(true, place(2, 2))
		f.take(false, place(3, 1))
		for range 2 {
			if err := f.Finish(t.Context(), []store.Charge{place(2, 0)}); err != nil {
				t.Error(err)
			}
		}
		time.Sleep(6 * time.Second)
		f.take(true, place(4, 2))
		f.take(false, place(5, 1))
		time.Sleep(5 * time.Second) // the first is over, the others are not
		f.take(true, place(6, 1))
		f.take(false, place(7, 1))
		if err := f.Reset(t.Context(), []store.Charge{place(0, 0)}); err != nil {
			t.Error(err)
		}
		time.Sleep(time.Second)
		f.take(true, place(8, 3))

		// Two limits at once take both or none.
		other := f.charge("q", "", 1)
		other.Permit = 20
		f.take(false, place(20, 1), other)
		if err := f.Finish(t.Context(), []store.Charge{place(8, 0)}); err != nil {
			t.Error(err)
		}
		f.take(true, place(20, 1), other)
		other.Permit = 21
		for range 5 {
			f.take(false, place(21, 1), other)
		}
		f.take(true, place(22, 2))
	})
}

type stranger struct{}

func (stranger) Spec() store.Spec { return store.Spec{} }

func TestCountersOfAnotherStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, stop := open(t, spending.Options{}, "  - {name: a, rate: 4/day, sharing: leased}\n")
		defer stop()
		charges := []store.Charge{{Counters: stranger{}}}
		_, err := f.Take(t.Context(), charges)
		_, err2 := f.Peek(t.Context(), charges)
		for i, err := range []error{err, err2, f.Refund(t.Context(), charges), f.Finish(t.Context(), charges), f.Reset(t.Context(), charges), f.Unbind(stranger{})} {
			if err == nil {
				t.Errorf("call %d takes counters of another store", i)
			}
		}
	})
}

func BenchmarkTake(b *testing.B) {
	f, stop := open(b, spending.Options{}, "  - {name: lent, key: [k], rate: 100000000/s, sharing: leased}\n  - {name: exact, key: [k], rate: 100000000/s}\n")
	defer stop()
	for _, c := range []struct {
		name   string
		limits []string
	}{{"exact", []string{"exact"}}, {"leased", []string{"lent"}}, {"both", []string{"exact", "lent"}}} {
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) {
				var charges []store.Charge
				for _, name := range c.limits {
					charges = append(charges, f.charge(name, "key", 1))
				}
				for pb.Next() {
					if _, err := f.Take(context.Background(), charges); err != nil {
						b.Error(err)
					}
				}
			})
		})
	}
}
