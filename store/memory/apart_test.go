package memory

import (
	"bytes"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stint-io/stint/internal/seeding"
	"github.com/stint-io/stint/limit"
)

// Floods of keys on some limits, of whatever kinds and in whatever order, leave each other
// limit the room for the keys of its part, and free nobody.
func TestFloodLeavesOtherLimitsTheirPart(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	kinds := floods()
	names := make([]string, 0, len(kinds))
	for name := range kinds {
		names = append(names, name)
	}
	slices.Sort(names)
	for seed := range seeding.Draw(t, 12) {
		r := rand.New(rand.NewPCG(seed, 47))
		clock := newManual()
		s := New(Options{MaxBytes: 2 << 20, Now: clock.now})
		limits := make([]*Keyed, 2+r.IntN(7))
		var what []string
		for i := range limits {
			kind := names[r.IntN(len(names))]
			limits[i] = &Keyed{mustBind(t, s, fmt.Sprint(i), kinds[kind])}
			what = append(what, kind)
		}
		for i, k := range limits { // each has somebody who is limited
			for range 4 {
				k.Allow(fmt.Sprint("limited", i))
			}
		}
		flooded := 1 + r.IntN(len(limits)-1)
		const flood = 120_000
		for n := range flood {
			k := limits[r.IntN(flooded)]
			if seed%2 == 0 { // one after the other
				k = limits[n*flooded/flood]
			}
			k.Allow(fmt.Sprint("flood", n))
		}
		if s.Stats().Overflowed == 0 {
			t.Errorf("seed %d: no flood", seed)
		}
		if used := s.Stats().Bytes; used > 2<<20 {
			t.Errorf("seed %d: %d bytes, over the budget", seed, used)
		}
		part := limits[0].counters.account.part.Load()
		if part < 2<<20/2/16 {
			t.Fatalf("%d limits have %d bytes each", len(limits), part)
		}
		for i, k := range limits {
			if i >= flooded {
				for n := range part / 1024 { // a log of three takes some 500 bytes, with its share of free room
					for range 3 {
						if !k.Allow(fmt.Sprint("new", n)) {
							t.Fatalf("seed %d: %v: %d of them flooded: a new key of limit %d was refused, after %d others", seed, what, flooded, i, n)
						}
					}
				}
				if n := s.Stats().Overflows[fmt.Sprint(i)]; n > 0 {
					t.Errorf("seed %d: %v: %d of them flooded: limit %d was decided on its overflow bucket %d times", seed, what, flooded, i, n)
				}
			}
			if k.Allow(fmt.Sprint("limited", i)) {
				t.Errorf("seed %d: limit %d freed somebody", seed, i)
			}
		}
		if used := s.Stats().Bytes; used > 2<<20 {
			t.Errorf("seed %d: %d bytes, over the budget", seed, used)
		}
	}
}

// One limit alone, or whichever comes first, has what is in nobody's part as well.
func TestOneLimitHasWhatIsLeft(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	for _, others := range []int{0, 1, 7, 100} {
		clock := newManual()
		s := New(Options{MaxBytes: 1 << 20, Now: clock.now})
		for i := range others {
			mustBind(t, s, fmt.Sprint(i), limit.Policy{Rate: limit.PerHour(1), Burst: 1})
		}
		k := &Keyed{mustBind(t, s, "k", limit.Policy{Rate: limit.PerHour(1), Burst: 1})}
		for i := 0; k.Stats().Overflowed < 1000; i++ {
			k.Allow(fmt.Sprint(i))
		}
		if used := s.Stats().Bytes; used < 3<<20/10 {
			t.Errorf("%d limits besides: it has %d bytes", others, used)
		}
		for i := range others {
			s.mu.Lock()
			c := s.counters[fmt.Sprint(i)]
			s.mu.Unlock()
			if err := s.Unbind(c); err != nil {
				t.Fatal(err)
			}
		}
		if got, want := s.budget.claimed.Load(), max(s.budget.used.Load(), 1<<19); got != want {
			t.Errorf("%d limits unbound: %d bytes are claimed, want %d", others, got, want)
		}
	}
}

// What accounts claim is the sum of what each has, or of its part, whatever they do.
func TestClaims(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	for seed := range seeding.Draw(t, 50) {
		r := rand.New(rand.NewPCG(seed, 53))
		b := &budget{max: 1 << 20}
		var accounts []*account
		for range 500 {
			switch i := r.IntN(len(accounts) + 1); {
			case i == len(accounts):
				accounts = append(accounts, b.open())
			case r.IntN(20) == 0:
				accounts[i].charge(-accounts[i].used.Load())
				accounts[i].close()
				accounts = slices.Delete(accounts, i, i+1)
			default:
				a, n, spare := accounts[i], 1+r.Int64N(1<<17), b.max/8*r.Int64N(2) // 0 bytes always fit
				within, used := a.used.Load()+n <= a.part.Load(), b.used.Load()
				if got := a.reserve(n, spare); !got && within && used+n <= b.max {
					t.Fatalf("seed %d: %d refused within the part of %d", seed, n, a.part.Load())
				} else if got && b.used.Load() > b.max {
					t.Fatalf("seed %d: %d bytes", seed, b.used.Load())
				} else if got && !within && b.claimed.Load()+spare > b.max {
					t.Fatalf("seed %d: %d bytes of others' parts are taken", seed, b.claimed.Load()-b.max)
				}
				if r.IntN(3) == 0 {
					a.charge(-r.Int64N(a.used.Load() + 1))
				}
			}
			used, claimed := int64(0), int64(0)
			for _, a := range accounts {
				used += a.used.Load()
				claimed += max(a.used.Load(), b.part)
			}
			if used != b.used.Load() || claimed != b.claimed.Load() {
				t.Fatalf("seed %d: %d used and %d claimed, want %d and %d", seed, b.used.Load(), b.claimed.Load(), used, claimed)
			}
			if n := int64(len(accounts)); n > 0 && (n*b.part > b.max/2 || 2*n*b.part < b.max/2-n) {
				t.Fatalf("%d accounts with %d of %d each", n, b.part, b.max)
			}
		}
	}
}

// A flood is one line in the log, which names the limit and no key; the next one, after a
// quiet minute, another.
func TestFloodIsLoggedOnce(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	var out bytes.Buffer
	clock := newManual()
	s := New(Options{MaxBytes: MinMaxBytes, Now: clock.now, Logger: slog.New(slog.NewTextHandler(&out, nil))})
	p := limit.Policy{Rate: limit.PerHour(1), Burst: 1}
	a, b := &Keyed{mustBind(t, s, "first", p)}, &Keyed{mustBind(t, s, "second", p)}
	want := 0
	for flood := range 3 {
		for i := range 6000 {
			a.Allow(fmt.Sprint("key-", i))
			if i%100 == 0 {
				clock.advance(time.Second) // a minute all together
			}
		}
		if want++; strings.Count(out.String(), "limit=first") != want || strings.Count(out.String(), "\n") != want {
			t.Fatalf("after flood %d:\n%s", flood, out.String())
		}
		clock.advance(2 * time.Minute)
	}
	for i := range 6000 {
		b.Allow(fmt.Sprint("key-", i))
	}
	if strings.Count(out.String(), "limit=second") != 1 || strings.Contains(out.String(), "key-") {
		t.Errorf("after a flood of the other one:\n%s", out.String())
	}
	if st := s.Stats(); st.Overflows["first"] == 0 || st.Overflows["second"] == 0 || st.Overflowed != st.Overflows["first"]+st.Overflows["second"] {
		t.Errorf("%+v", st)
	}
}
