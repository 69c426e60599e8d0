package memory

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/store"
)

// manual is a clock that the test moves.
type manual struct{ at atomic.Int64 }

func newManual() *manual {
	m := new(manual)
	m.at.Store(1_700_000_000_000_000_000)
	return m
}

func (m *manual) now() limit.Time         { return limit.Time(m.at.Load()) }
func (m *manual) advance(d time.Duration) { m.at.Add(int64(d)) }

func mustKeyed(t testing.TB, p limit.Policy, o Options) *Keyed {
	t.Helper()
	c, err := New(o).bind(store.Spec{ID: "keyed", Policy: p})
	if err != nil {
		t.Fatal(err)
	}
	return &Keyed{c}
}

// floods are the policies that a flood of keys is tried on: each kind of table, and
// a ban.
func floods() map[string]limit.Policy {
	hour := limit.PerHour(3)
	return map[string]limit.Policy{
		"packed":      {Rate: hour, Burst: 3},
		"unpacked":    {Rate: limit.Rate{Count: 999_983, Period: 999_979 * time.Hour}, Burst: 3},
		"log":         {Algorithm: limit.SlidingWindowLog, Rate: hour},
		"counter":     {Algorithm: limit.SlidingWindowCounter, Rate: hour},
		"ban":         {Algorithm: limit.FixedWindow, Rate: hour, Align: limit.AlignFirstHit, CountRefused: true, Ban: time.Hour},
		"concurrency": {Algorithm: limit.Concurrency, MaxInFlight: 3, Timeout: time.Hour},
	}
}

// A flood of new keys worth ten times the budget stays within the budget and frees
// none of the keys that were limited before; when the flood's keys have drained,
// new keys get places of their own again.
func TestFloodFreesNobody(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	for name, p := range floods() {
		t.Run(name, func(t *testing.T) {
			const limited = 200
			clock := newManual()
			budget := int64(128 << 10)
			k := mustKeyed(t, p, Options{MaxBytes: budget, Now: clock.now})
			for i := range limited {
				key := fmt.Sprint("limited", i)
				for range 4 {
					k.Allow(key)
				}
			}
			for i := range 10 * budget / slotBytes {
				k.Allow(fmt.Sprint("flood", i))
				if used := k.Stats().Bytes; i%4096 == 0 && used > budget {
					t.Fatalf("%d bytes after %d keys, over the budget of %d", used, i, budget)
				}
			}
			if k.Stats().Overflowed == 0 {
				t.Error("the flood never met the overflow bucket: it was no flood")
			}
			for i := range limited {
				if k.Allow(fmt.Sprint("limited", i)) {
					t.Fatalf("limited key %d was let through", i)
				}
			}
			if used := k.Stats().Bytes; used > budget {
				t.Errorf("%d bytes, over the budget of %d", used, budget)
			}
			clock.advance(20 * time.Hour)
			over := k.Stats().Overflowed
			for i := range 100 {
				if !k.AllowN(fmt.Sprint("after", i), 2) {
					t.Fatalf("new key %d was refused after the flood had drained", i)
				}
			}
			if k.Stats().Overflowed != over {
				t.Error("new keys had no place after the flood had drained")
			}
		})
	}
}

// While the budget is full, new keys share one bucket; one that gets a place later
// does not get a second burst with it, but a place of its own it is.
func TestOverflowGivesNoSecondBurst(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	for name, p := range floods() {
		t.Run(name, func(t *testing.T) {
			clock := newManual()
			k := mustKeyed(t, p, Options{MaxBytes: 64 << 10, Now: clock.now})
			taken := 0 // of the shared bucket
			for i := 0; k.Stats().Overflowed == 0; i++ {
				if admitted := k.Allow(fmt.Sprint("filler", i)); !admitted {
					t.Fatal("the first of all that share a bucket was refused")
				}
			}
			taken++
			// Three keys without a place; others may have one still, in another shard.
			var newcomers []string
			for i := 0; len(newcomers) < 3; i++ {
				key := fmt.Sprint("newcomer", i)
				over := k.Stats().Overflowed
				v, err := k.Take(key, 1)
				if err != nil {
					t.Fatal(err)
				}
				if k.Stats().Overflowed == over {
					continue
				}
				newcomers = append(newcomers, key)
				if want := taken < 3; v.Allowed != want || !want && v.Reason != limit.ReasonTableFull {
					t.Errorf("%d taken of the shared bucket: %+v", taken, v)
				}
				taken++
			}
			// Room comes free: most of the fillers are reset, and swept.
			for i := range 3000 {
				if i%8 != 0 {
					k.Reset(fmt.Sprint("filler", i))
				}
			}
			clock.advance(time.Second)
			over := k.Stats().Overflowed
			for _, key := range newcomers {
				if k.Allow(key) {
					t.Errorf("%q has a second burst", key)
				}
			}
			clock.advance(20 * time.Hour)
			for _, key := range newcomers {
				if !k.AllowN(key, 3) {
					t.Errorf("%q does not have a quota of its own", key)
				}
			}
			if got := k.Stats().Overflowed; got != over {
				t.Errorf("%d Takes on the shared bucket when there was room", got-over)
			}
		})
	}
}

// Takes while tables grow, shrink and change their policy never admit more than
// the quota, and lose no key's state.
func TestMovingTablesLoseNothing(t *testing.T) {
	other := map[string]limit.Policy{
		"packed to packed":   {Rate: limit.PerHour(7), Burst: 100},
		"packed to unpacked": {Rate: limit.Rate{Count: 999_983, Period: 999_983 * time.Hour}, Burst: 100},
	}
	for name, second := range other {
		t.Run(name, func(t *testing.T) {
			const keys, takers = 300, 8
			clock := newManual()
			first := limit.Policy{Rate: limit.PerHour(1), Burst: 100}
			k := mustKeyed(t, first, Options{Now: clock.now})
			var admitted [keys]atomic.Int64
			var done atomic.Bool
			var wg sync.WaitGroup
			wg.Go(func() {
				for p := first; !done.Load(); {
					if p == first {
						p = second
					} else {
						p = first
					}
					if err := k.SetPolicy(p); err != nil {
						t.Error(err)
					}
				}
			})
			wg.Go(func() {
				for i := 0; !done.Load(); i++ { // makes the shards grow
					k.Allow(fmt.Sprint("other", i%20_000))
				}
			})
			var takes sync.WaitGroup
			for g := range takers {
				takes.Go(func() {
					r := rand.New(rand.NewPCG(uint64(g), 0))
					for range 6000 {
						if i := r.IntN(keys); k.Allow(fmt.Sprint(i)) {
							admitted[i].Add(1)
						}
					}
				})
			}
			takes.Wait()
			done.Store(true)
			wg.Wait()
			for i := range admitted {
				if n := admitted[i].Load(); n != 100 {
					t.Fatalf("key %d was admitted %d times, want its quota of 100", i, n)
				}
			}
		})
	}
}

// Several limits taken at once, in any order, from many goroutines, over tables of
// all kinds in motion: each admitted request is in every limit, each refused one in
// none.
func TestSeveralLimitsInMotion(t *testing.T) {
	s := New(Options{Now: newManual().now})
	bind := func(id string, p limit.Policy) store.Counters {
		c, err := s.Bind(store.Spec{ID: id, Policy: p})
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	const quota = 1000
	all := []store.Counters{
		bind("packed", limit.Policy{Rate: limit.PerHour(1), Burst: quota}),
		bind("window", limit.Policy{Algorithm: limit.FixedWindow, Rate: limit.PerHour(2 * quota)}),
		bind("unpacked", limit.Policy{Rate: limit.Rate{Count: 999_983, Period: 999_983 * time.Hour}, Burst: 3 * quota}),
		bind("packed too", limit.Policy{Rate: limit.PerHour(1), Burst: 4 * quota}),
	}
	var admitted atomic.Int64
	var done atomic.Bool
	var wg, takes sync.WaitGroup
	wg.Go(func() {
		for i := int64(0); !done.Load(); i++ {
			if _, err := s.Bind(store.Spec{ID: "packed too", Policy: limit.Policy{Rate: limit.PerHour(1 + i%5), Burst: 4 * quota}}); err != nil {
				t.Error(err)
			}
		}
	})
	for g := range 8 {
		takes.Go(func() {
			r := rand.New(rand.NewPCG(uint64(g), 0))
			charges := make([]store.Charge, len(all))
			for range 2000 {
				for i, j := range r.Perm(len(all)) {
					charges[i] = store.Charge{Counters: all[j], Key: []byte("k"), Cost: 1}
				}
				ok, err := s.Take(context.Background(), charges)
				if err != nil {
					t.Error(err)
				}
				if ok {
					admitted.Add(1)
				}
			}
		})
	}
	takes.Wait()
	done.Store(true)
	wg.Wait()
	if n := admitted.Load(); n != quota {
		t.Errorf("%d admitted, want the smallest quota, %d", n, quota)
	}
	for i, want := range []int64{0, quota, 2 * quota, 3 * quota} {
		charge := []store.Charge{{Counters: all[i], Key: []byte("k")}}
		if _, err := s.Peek(context.Background(), charge); err != nil || charge[0].Verdict.Remaining != want {
			t.Errorf("%s: %d remaining, want %d (%v)", all[i].Spec().ID, charge[0].Verdict.Remaining, want, err)
		}
	}
}

// A table outlives its ticks: after years, limits hold as on the first day.
func TestFarFromTheBeginning(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	clock := newManual()
	p := limit.Policy{Rate: limit.Rate{Count: 251, Period: time.Second}, Burst: 10}
	if b := limit.NewBucket(p); !func() bool { _, ok := b.Pack(); return ok }() {
		t.Fatal("the policy is not packed: the test tests nothing")
	}
	k := mustKeyed(t, p, Options{Now: clock.now})
	for day := range 3000 {
		for range 12 {
			k.Allow("k")
		}
		if v, _ := k.Peek("k", 1); v.Allowed {
			t.Fatalf("day %d: not limited", day)
		}
		clock.advance(24*time.Hour - time.Millisecond)
		if v, _ := k.Peek("k", 10); !v.Allowed {
			t.Fatalf("day %d: not refilled: %+v", day, v)
		}
	}
}

// Allow never allocates, admitted or refused; nor does Take over several limits.
func TestTakesDoNotAllocate(t *testing.T) {
	admits := mustKeyed(t, limit.Policy{Rate: limit.PerSecond(1e9), Burst: 1e9}, Options{})
	refuses := mustKeyed(t, limit.Policy{}, Options{})
	s := New(Options{})
	charges := make([]store.Charge, 0, 8)
	for name, p := range floods() {
		if p.Algorithm == limit.SlidingWindowLog || p.Algorithm == limit.Concurrency {
			continue // they remember each request
		}
		c, err := s.Bind(store.Spec{ID: name, Policy: p})
		if err != nil {
			t.Fatal(err)
		}
		charges = append(charges, store.Charge{Counters: c, Key: []byte("key"), Cost: 1})
	}
	for name, f := range map[string]func(){
		"admitted": func() { admits.Allow("key") },
		"refused":  func() { refuses.Allow("key") },
		"several":  func() { _, _ = s.Take(context.Background(), charges) },
	} {
		if n := testing.AllocsPerRun(1000, f); n != 0 && !raceEnabled {
			t.Errorf("%s: %v allocations per Take, want 0", name, n)
		}
	}
}

// A million live keys of 16 bytes take at most 48 bytes of heap each.
func TestBytesPerKey(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	if raceEnabled {
		t.Log("the race detector changes what memory costs; measured without it")
	}
	const keys = 1_000_000
	heap := func() uint64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := heap()
	k := mustKeyed(t, limit.Policy{Rate: limit.PerHour(1), Burst: 10}, Options{})
	key := make([]byte, 16)
	for i := range uint64(keys) {
		binary.BigEndian.PutUint64(key[8:], i)
		if !k.Allow(string(key)) {
			t.Fatalf("key %d was refused", i)
		}
	}
	after, st := heap(), k.Stats()
	if st.Keys != keys {
		t.Errorf("%d keys have a state, want %d", st.Keys, keys)
	}
	if per := float64(after-before) / keys; per > 48 {
		t.Errorf("%.1f bytes per key, want at most 48", per)
	} else {
		t.Logf("%.1f bytes per key", per)
	}
	runtime.KeepAlive(k)
}
