package memory

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/store"
)

// What is used of each limit is what was taken and not given back, whatever the order
// in which requests name their limits, and while tables grow, shrink and move.
func TestTakesAndRefundsConserve(t *testing.T) {
	const quota = 400
	policies := []limit.Policy{
		{Rate: limit.PerHour(1), Burst: quota},
		{Algorithm: limit.FixedWindow, Rate: limit.PerHour(quota)},
		{Algorithm: limit.SlidingWindowLog, Rate: limit.PerHour(quota)},
		{Algorithm: limit.SlidingWindowCounter, Rate: limit.PerHour(quota)},
		{Rate: limit.Rate{Count: 999_983, Period: 999_983 * time.Hour}, Burst: quota},
		{Algorithm: limit.LeakyBucket, Rate: limit.PerHour(1), Burst: quota - 1},
	}
	s := New(Options{Now: newManual().now})
	all := make([]*Counters, len(policies))
	for i, p := range policies {
		all[i] = mustBind(t, s, fmt.Sprint(i), p)
	}
	used := make([]atomic.Int64, len(all))
	var refused atomic.Int64
	var done atomic.Bool
	var motion, takes sync.WaitGroup
	motion.Go(func() {
		kinds := []limit.Policy{policies[0], {Rate: limit.PerHour(7), Burst: quota}, policies[4]}
		for i := 0; !done.Load(); i++ {
			mustBind(t, s, "0", kinds[i%len(kinds)])
			for j := range 50 {
				mustTake(t, s, one(all[j%len(all)], fmt.Sprint("other", i, j)))
			}
		}
		mustBind(t, s, "0", policies[0])
	})
	for g := range uint64(4) {
		takes.Go(func() {
			r := rand.New(rand.NewPCG(g, 0))
			for range 1500 {
				chosen := r.Perm(len(all))[:1+r.IntN(len(all))]
				charges := make([]store.Charge, len(chosen))
				for i, j := range chosen {
					charges[i] = store.Charge{Counters: all[j], Key: []byte("k"), Cost: r.Int64N(4)}
				}
				if !mustTake(t, s, charges...) {
					refused.Add(1)
					continue
				}
				if r.IntN(8) != 0 {
					if err := s.Refund(t.Context(), charges); err != nil {
						t.Error(err)
					}
					continue
				}
				for i, j := range chosen {
					used[j].Add(charges[i].Cost)
				}
			}
		})
	}
	takes.Wait()
	done.Store(true)
	motion.Wait()
	if refused.Load() == 0 {
		t.Error("nothing was refused: the quotas are too large to test refusals")
	}
	for i, c := range all {
		charge := []store.Charge{{Counters: c, Key: []byte("k")}}
		if _, err := s.Peek(t.Context(), charge); err != nil {
			t.Fatal(err)
		}
		if got, want := quota-charge[0].Verdict.Remaining, used[i].Load(); got != want {
			t.Errorf("%v: %d are used, %d were taken and not given back", c.Spec().Policy.Algorithm, got, want)
		}
	}
}

// On the real clock, from many goroutines, with random costs, in tables that grow, shrink,
// change their policy and are flooded: never more than burst + rate x T. (All policies of a
// bucket have the same burst: a smaller one in between would lose tokens.)
func TestNeverOverInRealTime(t *testing.T) {
	odd := limit.Rate{Count: 19_993, Period: 9_997 * time.Millisecond} // not packed
	fast, slow := limit.Policy{Rate: limit.PerSecond(2000), Burst: 50}, limit.Policy{Rate: limit.PerSecond(100), Burst: 50}
	leaky := limit.Policy{Algorithm: limit.LeakyBucket, Rate: limit.PerSecond(1500), Burst: 49}
	for name, turns := range map[string][]limit.Policy{
		"still":              {fast},
		"packed":             {fast, slow, leaky},
		"packed to unpacked": {fast, {Rate: odd, Burst: 50}, slow},
		"windows":            {{Algorithm: limit.FixedWindow, Rate: limit.PerHour(50), Align: limit.AlignFirstHit}, {Algorithm: limit.FixedWindow, Rate: limit.PerHour(40), Align: limit.AlignFirstHit}},
		"logs":               {{Algorithm: limit.SlidingWindowLog, Rate: limit.PerHour(50)}, {Algorithm: limit.SlidingWindowLog, Rate: limit.PerHour(40)}},
	} {
		for _, flood := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, flooded %v", name, flood), func(t *testing.T) { neverOver(t, turns, flood) })
		}
	}
}

func neverOver(t *testing.T, turns []limit.Policy, flood bool) {
	const keys, lasting = 4, 150 * time.Millisecond
	o := Options{}
	if flood {
		o.MaxBytes = 64 << 10
	}
	k := mustKeyed(t, turns[0], o)
	var admitted [keys]atomic.Int64
	var takes, motion sync.WaitGroup
	var done atomic.Bool
	began := time.Now()
	for g := range uint64(4) {
		takes.Go(func() {
			r := rand.New(rand.NewPCG(g, 0))
			// On a machine with other work the time alone may be over before a key was asked for.
			for asked := 0; asked < 200 || time.Since(began) < lasting; asked++ {
				i, n := r.IntN(keys), int64(1)
				key := fmt.Sprint("key", i)
				ok := false
				if r.IntN(2) == 0 {
					ok = k.Allow(key)
				} else {
					n = 1 + r.Int64N(5)
					ok = k.AllowN(key, n)
				}
				if ok {
					admitted[i].Add(n)
				}
			}
		})
	}
	motion.Go(func() {
		for i := 0; !done.Load(); i++ {
			k.Allow(fmt.Sprint("flood", i%30_000))
			if i%500 == 499 {
				if err := k.SetPolicy(turns[i/500%len(turns)]); err != nil {
					t.Error(err)
				}
				k.counters.table.Load().get().sweep()
			}
		}
	})
	takes.Wait()
	took := time.Since(began)
	done.Store(true)
	motion.Wait()
	var bound int64
	for _, p := range turns {
		refill := int64(0)
		if p.Algorithm == limit.TokenBucket || p.Algorithm == limit.LeakyBucket {
			refill = 1 + p.Rate.Count*int64(took)/int64(p.Rate.Period)
		}
		bound = max(bound, p.Quota()+refill)
	}
	for i := range admitted {
		if n := admitted[i].Load(); n > bound {
			t.Errorf("key %d: %d admitted in %v, want at most %d", i, n, took, bound)
		} else if n == 0 && !flood {
			t.Errorf("key %d: nothing was admitted", i)
		}
	}
}

// Nothing is refused while what is asked for fits, from however many goroutines and
// in whatever motion the tables are.
func TestNeverEarly(t *testing.T) {
	const keys, takers, rounds = 5, 4, 60
	second := limit.Policy{Rate: limit.PerSecond(takers * 3), Burst: takers * 3}
	more := limit.Policy{Rate: limit.Rate{Count: 999_983, Period: time.Second}, Burst: 999_983}
	window := limit.Policy{Algorithm: limit.FixedWindow, Rate: second.Rate}
	log := limit.Policy{Algorithm: limit.SlidingWindowLog, Rate: second.Rate}
	for name, turns := range map[string][]limit.Policy{
		"still": {second}, "packed": {second, {Rate: limit.PerSecond(240), Burst: 240}}, "unpacked": {second, more},
		"window": {window}, "log": {log},
	} {
		t.Run(name, func(t *testing.T) {
			clock := newManual()
			k := mustKeyed(t, turns[0], Options{Now: clock.now})
			for round := range rounds {
				var wg sync.WaitGroup
				wg.Go(func() {
					if err := k.SetPolicy(turns[round%len(turns)]); err != nil {
						t.Error(err)
					}
					for i := range 200 {
						k.Allow(fmt.Sprint("other", round%10, i))
					}
					k.counters.table.Load().get().sweep()
				})
				for range takers {
					wg.Go(func() {
						for i := range keys {
							for _, n := range []int64{1, 2} {
								if !k.AllowN(fmt.Sprint(i), n) {
									t.Errorf("round %d: %d of key %d were refused", round, n, i)
								}
							}
						}
					})
				}
				wg.Wait()
				if t.Failed() {
					return
				}
				clock.advance(time.Second)
			}
		})
	}
}
