package lasthour

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stint-io/stint/internal/seeding"
	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/store"
	"github.com/stint-io/stint/store/memory"
)

const begin = limit.Time(1_790_000_000_000_000_000)

// clock is one that a test sets.
type clock struct{ atomic.Int64 }

func newClock() *clock {
	c := new(clock)
	c.Store(int64(begin))
	return c
}

func (c *clock) now() limit.Time { return limit.Time(c.Load()) }

// refusals decides the same requests one by one by a store: the oracle.
func refusals(t *testing.T, p limit.Policy, at []limit.Time, keys []int, cost int64) (n int64) {
	t.Helper()
	now := begin
	st := memory.New(memory.Options{Now: func() limit.Time { return now }})
	defer st.Close()
	c, err := st.Bind(store.Spec{ID: "a", Policy: p})
	if err != nil {
		t.Fatal(err)
	}
	for i := range at {
		now = at[i]
		ok, err := st.Take(context.Background(), []store.Charge{{Counters: c, Key: fmt.Append(nil, keys[i]), Cost: cost}})
		if err != nil {
			t.Fatal(err)
		}
		if !ok {
			n++
		}
	}
	return n
}

// Requests at times that are known exactly are decided as a store decides them one by one, by every algorithm.
func TestAsAStoreDecides(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	for seed := range seeding.Draw(t, 30) {
		r := rand.New(rand.NewPCG(seed, 3))
		rate := limit.Rate{Count: 1 + r.Int64N(40), Period: time.Second * time.Duration(1+r.IntN(30))}
		policies := []limit.Policy{
			{Rate: rate, Burst: 1 + r.Int64N(50)},
			{Rate: rate, Burst: 1 + r.Int64N(50), CountRefused: true},
			{Algorithm: limit.FixedWindow, Rate: rate},
			{Algorithm: limit.SlidingWindowLog, Rate: rate},
			{Algorithm: limit.SlidingWindowCounter, Rate: rate},
			{Algorithm: limit.FixedWindow, Rate: rate, CountRefused: true},
		}
		c, cost := newClock(), 1+r.Int64N(3)
		rec := New(0, c.now)
		l := rec.Open()
		var at []limit.Time
		var keys []int
		for range 3000 {
			c.Add(int64(Slot) * r.Int64N(12))
			k := int(r.ExpFloat64() * 4)
			l.Add(fmt.Append(nil, k), cost, true)
			at, keys = append(at, c.now()), append(keys, k)
		}
		for _, p := range policies {
			a, err := l.WhatIf(t.Context(), policies[0], p, 0)
			if err != nil {
				t.Fatal(err)
			}
			if want := refusals(t, p, at, keys, cost); int64(a.Then) != want || a.Asked != 3000 || a.Refused != 0 || a.Sampling != 0 || a.Part != 1 || a.Slot != Slot {
				t.Errorf("seed %d, %+v: %+v, want %d refused", seed, p, a, want)
			}
		}
	}
}

// In bounded memory fewer keys are kept, and the figures stay right within the error that they state.
func TestFewerKeys(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	c := newClock()
	r := seeding.Rand(t)
	rec := New(1<<20, c.now)
	l := rec.Open()
	var at []limit.Time
	var keys []int
	for i := range 60_000 {
		c.Add(int64(Slot))
		k := r.IntN(4000)
		if r.IntN(2) == 0 {
			k = r.IntN(400) // these are over the limit
		}
		l.Add(fmt.Append(nil, k), 1, i%3 == 0)
		at, keys = append(at, c.now()), append(keys, k)
		if i%100 == 0 {
			rec.Sweep()
		}
		if n := rec.bytes.Load(); n > 1<<20 {
			t.Fatalf("%d bytes", n)
		}
	}
	p := limit.Policy{Rate: limit.PerMinute(5), Burst: 3}
	a, err := l.WhatIf(t.Context(), p, p, 0)
	if err != nil {
		t.Fatal(err)
	}
	want := float64(refusals(t, p, at, keys, 1))
	if a.Part < 2 || a.Sampling == 0 || math.Abs(a.Then-want) > 5*a.Sampling || math.Abs(a.Asked-60_000) > 18_000 || math.Abs(a.Refused-40_000) > 12_000 || a.Now != a.Then || a.Slot != Slot {
		t.Errorf("%+v, want %g refused", a, want)
	}
}

// One key that is asked about all the time is kept with times that are less exact, and the answer is off by what the
// bucket refills in a slot at most, for each slot.
func TestWiderSlots(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	c := newClock()
	rec := New(16<<10, c.now)
	l := rec.Open()
	var at []limit.Time
	for i := range 50_000 {
		c.Add(int64(Slot))
		l.Add([]byte("k"), 1, true)
		at = append(at, c.now())
		if i%100 == 0 {
			rec.Sweep()
		}
	}
	p := limit.Policy{Rate: limit.PerSecond(80), Burst: 1000}
	a, err := l.WhatIf(t.Context(), p, p, 0)
	if err != nil {
		t.Fatal(err)
	}
	want := float64(refusals(t, p, at, make([]int, len(at)), 1))
	if a.Part != 1 || a.Slot < 8*Slot || math.Abs(a.Then-want) > 80*a.Slot.Seconds()+1 || a.Asked != 50_000 {
		t.Errorf("%+v, want %g refused", a, want)
	}
}

// Requests of clients that know nothing of each other, of a key whose times are known to seconds, and a bucket that holds
// less than it refills in that time: as many are refused as in truth, within what chance does to either.
func TestSmallBursts(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	seed := rand.Uint64()
	t.Log("seed", seed)
	r := rand.New(rand.NewPCG(seed, 5))
	for range 10 {
		c := newClock()
		rec := New(12<<10, c.now)
		l := rec.Open()
		var at []limit.Time
		often := math.Exp2(2 * r.Float64()) // in a second
		p := limit.Policy{Rate: limit.Rate{Count: max(1, int64(often*60*(0.3+0.6*r.Float64()))), Period: time.Minute}, Burst: 1 + r.Int64N(4)}
		for range int(50 * time.Minute / Slot) {
			if r.Float64() < often*Slot.Seconds() {
				l.Add([]byte("k"), 1, true)
				at = append(at, c.now())
			}
			if c.Add(int64(Slot)); c.Load()%int64(100*time.Millisecond) == 0 {
				rec.Sweep()
			}
		}
		a, err := l.WhatIf(t.Context(), p, p, 0)
		if err != nil {
			t.Fatal(err)
		}
		want := float64(refusals(t, p, at, make([]int, len(at)), 1))
		if a.Slot < time.Second || math.Abs(a.Then-want) > 4*math.Sqrt(want) || a.Now != a.Then {
			t.Errorf("%.1f/s, %v, burst %d, slots of %v: %.0f refused, %.0f in truth", often, p.Rate, p.Burst, a.Slot, a.Then, want)
		}
	}
}

// What is older than an hour is gone, and its memory with it; of a shorter time less is played.
func TestAnHour(t *testing.T) {
	c := newClock()
	rec := New(0, c.now)
	l := rec.Open()
	p := limit.Policy{Rate: limit.PerHour(1), Burst: 1}
	for range 120 {
		l.Add([]byte("old"), 1, true)
		c.Add(int64(time.Minute))
	}
	for range shards {
		rec.Sweep()
	}
	l.Add([]byte("new"), 0, true)
	for latest, want := range map[time.Duration]float64{0: 61, time.Hour: 61, 9*time.Minute + time.Second: 10, 99 * time.Hour: 61} {
		a, err := l.WhatIf(t.Context(), p, p, latest)
		if err != nil || a.Asked != want || a.Keys != 2 {
			t.Errorf("%v: %+v, %v", latest, a, err)
		}
		if latest == 0 || latest > Hour {
			latest = Hour
		}
		if to := time.Unix(0, int64(c.now())); !a.To.Equal(to) || !a.From.Equal(to.Add(-latest)) {
			t.Errorf("of %v: %v to %v, now is %v", latest, a.From, a.To, to)
		}
	}
	gone := rec.Open()
	gone.Add([]byte("x"), 1, true)
	rec.Close(gone)
	gone.Add([]byte("y"), 1, true)
	if n := gone.bytes.Load(); n != 0 {
		t.Errorf("%d bytes of a limit that is gone", n)
	}
	c.Add(int64(2 * time.Hour))
	for range shards {
		rec.Sweep()
	}
	if n := rec.bytes.Load(); n != 0 || l.bytes.Load() != 0 {
		t.Errorf("%d bytes are left", n)
	}
	if a, err := l.WhatIf(t.Context(), p, p, 0); err != nil || a.Asked != 0 || a.To.Sub(a.From) > Hour+Slot {
		t.Errorf("%+v, %v", a, err)
	}
}

// Without room nothing is kept, and the answer says from when on all is known.
func TestNoRoom(t *testing.T) {
	c := newClock()
	rec := New(1000, c.now)
	l := rec.Open()
	for i := range 100 {
		c.Add(int64(time.Second))
		l.Add(fmt.Append(nil, i), 1, true)
	}
	p := limit.Policy{Rate: limit.PerHour(1), Burst: 1}
	a, err := l.WhatIf(t.Context(), p, p, 0)
	if err != nil || a.Asked != 0 || a.To.Sub(a.From) > Slot {
		t.Errorf("%+v, %v", a, err)
	}
	if _, err := l.WhatIf(t.Context(), p, limit.Policy{Algorithm: limit.Concurrency, MaxInFlight: 3}, 0); !errors.Is(err, ErrConcurrency) {
		t.Error(err)
	}
	if _, err := l.WhatIf(t.Context(), p, limit.Policy{Rate: limit.Rate{Count: -1}}, 0); err == nil {
		t.Error("a wrong policy is played")
	}
}

// Many at once, while it is swept and asked.
func TestConcurrentCallers(t *testing.T) {
	c := newClock()
	rec := New(64<<10, c.now)
	var all sync.WaitGroup
	for range 3 {
		l := rec.Open()
		all.Go(func() {
			for i := range 20_000 {
				c.Add(int64(time.Millisecond))
				l.Add(fmt.Append(nil, i%5000), 1, true)
				if i%500 == 0 {
					rec.Sweep()
				}
			}
			p := limit.Policy{Rate: limit.PerHour(1), Burst: 1}
			if _, err := l.WhatIf(context.Background(), p, p, 0); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if n := rec.bytes.Load(); n > 64<<10 || n < 0 {
		t.Errorf("%d bytes", n)
	}
}

// Traffic of an hour with some keys that ask much, beside very many that ask seldom, in little memory: totals are exact,
// the keys that ask most are kept, and what another rate refuses is known within the error that is stated.
func TestTopKeysAreKept(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 20))
	for range 8 {
		c := newClock()
		rec := New(300_000, c.now)
		l := rec.Open()
		heavy := 1 + r.IntN(4)
		share := 0.2 + 0.6*r.Float64()
		policy := limit.Policy{Rate: limit.Rate{Count: 1 + r.Int64N(60), Period: time.Minute}, Burst: 1 + r.Int64N(60)}
		var at []limit.Time
		var keys []int
		asked, refused := 0.0, 0.0
		for now := begin; now < begin+limit.Time(50*time.Minute); now += limit.Time(25 * time.Millisecond) { // 40 in a second
			c.Store(int64(now))
			key := heavy + r.IntN(100_000)
			if r.Float64() < share {
				key = r.IntN(heavy)
			}
			admitted := r.IntN(3) > 0
			l.Add(fmt.Append(nil, key), 1, admitted)
			asked++
			if !admitted {
				refused++
			}
			at, keys = append(at, now), append(keys, key)
			if len(at)%4 == 0 {
				rec.Sweep()
			}
		}
		a, err := l.WhatIf(context.Background(), policy, policy, 0)
		if err != nil {
			t.Fatal(err)
		}
		want := float64(refusals(t, policy, at, keys, 1))
		t.Logf("%d keys with %.0f %% of all, %v: %.0f refused, %.0f in truth, sampling error %.0f; %d keys played, one in %d, slots of %v",
			heavy, 100*share, policy.Rate, a.Then, want, a.Sampling, a.Keys, a.Part, a.Slot)
		if a.Part == 1 {
			t.Error("all keys were kept: the test shows nothing")
		}
		if a.Asked != asked || a.Refused != refused {
			t.Errorf("asked %v, refused %v, and in truth %v and %v", a.Asked, a.Refused, asked, refused)
		}
		if math.Abs(a.Then-want) > 0.02*want+5*a.Sampling {
			t.Errorf("%.0f refused, %.0f in truth, with an error of %.0f", a.Then, want, a.Sampling)
		}
	}
}
