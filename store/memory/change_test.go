package memory

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/stint-io/stint/internal/seeding"

	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/store"
	"github.com/stint-io/stint/store/storetest"
)

// changeHistories is how many random histories the property below is tried on;
// STINT_HISTORIES says another number.
func changeHistories(t *testing.T) int {
	text, ok := os.LookupEnv("STINT_HISTORIES")
	if !ok {
		return 300
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		t.Fatalf("STINT_HISTORIES is %q, want a positive number", text)
	}
	return n
}

// What a key is admitted while burst and rate change at random, to and fro and between
// the two kinds of table, is in no interval more than the largest burst and the largest
// rate in it allow; with the keys in tables of their own, and on the overflow bucket.
func TestHistoriesChanges(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	words, locked, admitted := 0, 0, 0
	for seed := range seeding.Draw(t, changeHistories(t)) {
		r := rand.New(rand.NewPCG(uint64(seed), 36))
		clock := newManual()
		turns := []limit.Policy{storetest.RandomBucket(r), storetest.RandomBucket(r), storetest.RandomBucket(r)}
		if r.IntN(8) == 0 {
			turns[0] = limit.Policy{Rate: limit.PerSecond(1e6), Burst: 1e6} // what it used no word of 1/day holds
		}
		o := Options{Now: clock.now}
		over := r.IntN(4) == 0
		if over {
			o.MaxBytes = 1 // all keys share the overflow bucket
		}
		k := mustKeyed(t, turns[0], o)
		var keys [2]storetest.Changes
		set := func(p limit.Policy) {
			for i := range keys {
				keys[i].Set(clock.now(), p)
			}
		}
		set(turns[0])
		p := turns[0]
		for range 50 {
			clock.advance(time.Duration(r.Int64N(1 << r.IntN(38))))
			switch r.IntN(4) {
			case 0:
				p = turns[r.IntN(3)]
				if err := k.SetPolicy(p); err != nil {
					t.Fatal(err)
				}
				set(p)
				switch k.counters.current().(type) {
				case *wordTable:
					words++
				default:
					locked++
				}
			default:
				i, cost := r.IntN(2), 1+r.Int64N(1+p.Burst/2)
				if over {
					i = 0
				}
				if k.AllowN(fmt.Sprint("key", i), cost) {
					keys[i].Admit(clock.now(), cost)
				}
			}
		}
		for i := range keys {
			admitted += keys[i].Admitted()
			if err := keys[i].Over(); err != nil {
				t.Fatalf("history %d, key %d: %v", seed, i, err)
			}
		}
	}
	if n := changeHistories(t); words < n || locked < n || admitted < 5*n {
		t.Errorf("%d changes to words, %d to locked tables, %d admitted in %d histories show little", words, locked, admitted, n)
	}
}

// The same of fixed windows whose length and count change: what the policies allow by
// themselves, together.
func TestHistoriesWindowChanges(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	admitted := 0
	for seed := range seeding.Draw(t, changeHistories(t)) {
		r := rand.New(rand.NewPCG(uint64(seed), 37))
		clock := newManual()
		turns := []limit.Policy{storetest.RandomWindow(r), storetest.RandomWindow(r), storetest.RandomWindow(r)}
		o := Options{Now: clock.now}
		if r.IntN(4) == 0 {
			o.MaxBytes = 1 // the overflow bucket
		}
		k := mustKeyed(t, turns[0], o)
		var key storetest.Changes
		key.Set(clock.now(), turns...)
		p := turns[0]
		for range 60 {
			clock.advance(time.Duration(r.Int64N(int64(turns[r.IntN(3)].Rate.Period) / 4)))
			if r.IntN(3) == 0 {
				p = turns[r.IntN(3)]
				if err := k.SetPolicy(p); err != nil {
					t.Fatal(err)
				}
			}
			if cost := 1 + r.Int64N(1+p.Rate.Count); k.AllowN("key", cost) {
				key.Admit(clock.now(), cost)
			}
		}
		admitted += key.Admitted()
		if err := key.OverWindows(); err != nil {
			t.Fatalf("history %d: %v", seed, err)
		}
	}
	if n := changeHistories(t); admitted < 5*n {
		t.Errorf("%d were admitted in %d histories: they show little", admitted, n)
	}
}

// A reload to a smaller limit and back gives nothing, in either kind of table.
func TestChangeAndBackGivesNothing(t *testing.T) {
	day := func(n int64) limit.Policy {
		return limit.Policy{Rate: limit.Rate{Count: n, Period: 24 * time.Hour}, Burst: n}
	}
	for _, c := range []struct {
		name     string
		one, two limit.Policy
	}{
		{"words", day(100), day(1)},
		{"no words", limit.Policy{Rate: limit.PerSecond(999_983), Burst: 500}, limit.Policy{Rate: limit.PerSecond(999_979), Burst: 5}},
		{"words, no words", day(100), limit.Policy{Rate: limit.PerSecond(1), Burst: 0}},
		{"debt that no word holds", limit.Policy{Rate: limit.PerSecond(1e6), Burst: 1e6}, day(1)},
		{"never refills", day(100), limit.Policy{Burst: 7}},
		{"a day, a minute", limit.Policy{Algorithm: limit.FixedWindow, Rate: limit.Rate{Count: 100, Period: 24 * time.Hour}}, limit.Policy{Algorithm: limit.FixedWindow, Rate: limit.PerMinute(1)}},
		{"queue", limit.Policy{Algorithm: limit.LeakyBucket, Rate: limit.PerHour(9), Burst: 9}, limit.Policy{Algorithm: limit.LeakyBucket, Rate: limit.PerHour(1)}},
	} {
		t.Run(c.name, func(t *testing.T) {
			clock := newManual()
			k := mustKeyed(t, c.one, Options{Now: clock.now})
			if !k.AllowN("a", c.one.Quota()) {
				t.Fatal("the whole quota does not fit")
			}
			for _, p := range []limit.Policy{c.two, c.one, c.two, c.one} {
				if err := k.SetPolicy(p); err != nil {
					t.Fatal(err)
				}
				if v, err := k.Take("a", 1); err != nil || v.Allowed || v.Remaining != 0 {
					t.Errorf("%+v: %+v, %v, want it refused", p, v, err)
				}
				if p.Quota() > 0 && !k.Allow("fresh"+fmt.Sprint(clock.now())) {
					t.Errorf("%+v: refuses another key", p)
				}
				clock.advance(1)
			}
		})
	}
}

// A debt that no word holds is remembered over a change in between whose words hold it.
func TestDebtOverTwoChanges(t *testing.T) {
	clock := newManual()
	policies := []limit.Policy{
		{Rate: limit.PerSecond(1e6), Burst: 1e6}, {Rate: limit.PerSecond(1), Burst: 1}, {Rate: limit.Rate{Count: 1, Period: 24 * time.Hour}, Burst: 1},
	}
	k := mustKeyed(t, policies[0], Options{Now: clock.now})
	k.Allow("b")
	clock.advance(30 * 24 * time.Hour)
	if !k.AllowN("a", 1e6) {
		t.Fatal("the burst does not fit")
	}
	for _, p := range append(policies[1:], policies[0]) {
		if err := k.SetPolicy(p); err != nil {
			t.Fatal(err)
		}
		if v, err := k.Take("a", 1); err != nil || v.Allowed || v.Remaining != 0 {
			t.Errorf("%+v: %+v, %v, want it refused", p, v, err)
		}
	}
}

// A debt lasts while its table moves to a later beginning, and no longer than it takes to
// pay; then the words that could not hold it are used again.
func TestDebtMoves(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	clock := newManual()
	big := limit.Policy{Rate: limit.PerSecond(1e6), Burst: 1e6}
	small := limit.Policy{Rate: limit.PerHour(1), Burst: 1}
	s := New(Options{Now: clock.now})
	c, err := s.bind(store.Spec{ID: "a", Policy: big})
	if err != nil {
		t.Fatal(err)
	}
	bind := func(p limit.Policy) {
		t.Helper()
		if _, err := s.bind(store.Spec{ID: "a", Policy: p}); err != nil {
			t.Fatal(err)
		}
	}
	h := c.hash([]byte("k"))
	c.take(h, ask{cost: 1e6})
	bind(small)
	if _, ok := c.current().(*wordTable); ok {
		t.Error("1e6 hours of debt are in words")
	}
	clock.advance(10 * time.Hour)
	bind(big)
	if v := c.peek(h, ask{}); v.Remaining != 10 {
		t.Errorf("after ten hours at 1/hour %d remain of 1e6 that were used, want 10", v.Remaining)
	}
	clock.advance(time.Second)
	if v := c.peek(h, ask{}); v.Remaining != 1e6 {
		t.Errorf("after a second at 1e6/s %d remain, want all", v.Remaining)
	}
	// A debt of 100 days outlives the beginning of its table.
	day := limit.Policy{Rate: limit.Rate{Count: 1, Period: 24 * time.Hour}, Burst: 1}
	clock.advance(time.Hour)
	bind(limit.Policy{Rate: limit.PerSecond(100), Burst: 100})
	c.take(h, ask{cost: 100})
	bind(day)
	for range 100 {
		clock.advance(24*time.Hour - 1)
		if v := c.take(h, ask{cost: 1}); v.Allowed {
			t.Fatalf("admits after %v of 100 days", clock.now())
		}
		clock.advance(1)
	}
	if v := c.take(h, ask{cost: 1}); !v.Allowed || v.Remaining != 0 {
		t.Errorf("after 100 days: %+v, want one admitted", v)
	}
}

// A change from any algorithm to any other starts afresh, and a change within one keeps what was used.
func TestEveryAlgorithmToEveryOther(t *testing.T) {
	policies := []limit.Policy{
		{Rate: limit.PerHour(7), Burst: 7},
		{Algorithm: limit.FixedWindow, Rate: limit.PerHour(7)},
		{Algorithm: limit.SlidingWindowLog, Rate: limit.PerHour(7)},
		{Algorithm: limit.SlidingWindowCounter, Rate: limit.PerHour(7)},
		{Algorithm: limit.Concurrency, MaxInFlight: 7, Timeout: time.Hour},
		{Algorithm: limit.RisingWindow, Rate: limit.PerHour(7), Rise: 1, Start: 7},
	}
	for i, from := range policies {
		for j, to := range policies {
			s := New(Options{})
			var left int64
			for _, p := range []limit.Policy{from, to} {
				c, err := s.Bind(store.Spec{ID: "a", Policy: p})
				if err != nil {
					t.Fatal(err)
				}
				charges := []store.Charge{{Counters: c, Key: []byte("k"), Cost: 2, Permit: 1}}
				if ok, err := s.Take(t.Context(), charges); !ok || err != nil {
					t.Fatal(ok, err)
				}
				left = charges[0].Verdict.Remaining
			}
			// A permit is held once, however often its number asks.
			if want := int64(5); i == j && from.Algorithm != limit.Concurrency {
				want = 3
				if left != want {
					t.Errorf("%v stays: %d left, want %d", from.Algorithm, left, want)
				}
			} else if i != j && left != want {
				t.Errorf("%v to %v: %d left, want %d", from.Algorithm, to.Algorithm, left, want)
			}
		}
	}
}
