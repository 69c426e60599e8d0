package partition

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stint-io/stint/limit"
)

func alike(index, instances int64) Part { return Part{First: index, Weight: 1, Of: instances} }

func newSplit(t testing.TB, o Options, terms Terms) *Limiter {
	t.Helper()
	s, err := New(o, terms)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

const ms = limit.Time(time.Millisecond)

// TestSplitWalkThrough follows two of four instances at ten tokens per second, one of
// which is late.
func TestSplitWalkThrough(t *testing.T) {
	terms := Terms{Total: limit.PerSecond(10), Part: alike(1, 4), Burst: 1}
	a := newSplit(t, Options{}, terms)
	terms.Part = alike(2, 4)
	b := newSplit(t, Options{}, terms)
	var log strings.Builder
	take := func(name string, s *Limiter, at limit.Time) {
		v := s.Verdict(at, s.Allow(at, 1), 0, 1)
		fmt.Fprintf(&log, "%s %d ms: %v, retry after %v, reset after %v\n", name, at/ms, v.Allowed, v.RetryAfter, v.ResetAfter)
	}
	take("a", a, 0)
	take("b", b, 0)
	take("a", a, 299*ms) // the stride of 4 is 3: token 3 has unit 1, and 2 unit 2
	take("a", a, 300*ms)
	take("a", a, 310*ms)
	take("b", b, 200*ms)
	take("b", b, 700*ms) // 100 ms late: 6 is good no more
	take("b", b, 1000*ms)
	take("b", b, 999*ms) // time goes back
	take("a", a, 40*1000*ms+399*ms)
	take("a", a, 40*1000*ms+399*ms)
	want := `a 0 ms: false, retry after 300ms, reset after 0s
b 0 ms: false, retry after 200ms, reset after 0s
a 299 ms: false, retry after 1ms, reset after 0s
a 300 ms: true, retry after 0s, reset after 100ms
a 310 ms: false, retry after 390ms, reset after 90ms
b 200 ms: true, retry after 0s, reset after 100ms
b 700 ms: false, retry after 300ms, reset after 0s
b 1000 ms: true, retry after 0s, reset after 100ms
b 999 ms: false, retry after 401ms, reset after 101ms
a 40399 ms: true, retry after 0s, reset after 1ms
a 40399 ms: false, retry after 301ms, reset after 1ms
`
	if log.String() != want {
		t.Errorf("got\n%s\nwant\n%s", log.String(), want)
	}
}

// TestSplitWindowWalkThrough: LINE as it is described, and the same with even spacing:
// 100 per second among 10, in windows of one second.
func TestSplitWindowWalkThrough(t *testing.T) {
	terms := Terms{Total: limit.PerSecond(100), Part: alike(0, 10)}
	s := newSplit(t, Options{Window: time.Second}, terms)
	count := func(s *Limiter, at limit.Time) (n int) {
		for s.Allow(at, 1) {
			n++
		}
		return n
	}
	for _, step := range []struct {
		at   limit.Time
		want int
	}{{0, 10}, {999 * ms, 0}, {1000 * ms, 10}, {2999 * ms, 10}, {3000 * ms, 10}, {2500 * ms, 0}, {3999 * ms, 0}} {
		if got := count(s, step.at); got != step.want {
			t.Errorf("at once: %d at %d ms, want %d", got, step.at/ms, step.want)
		}
	}
	e := newSplit(t, Options{Window: time.Second, Pacing: PaceEven}, terms)
	for _, step := range []struct {
		at   limit.Time
		want int
	}{{0, 1}, {99 * ms, 0}, {100 * ms, 1}, {999 * ms, 8}, {1000 * ms, 1}, {2950 * ms, 10}, {3000 * ms, 1}} {
		if got := count(e, step.at); got != step.want {
			t.Errorf("even: %d at %d ms, want %d", got, step.at/ms, step.want)
		}
	}
	if s.Quota() != 10 || e.Quota() != 10 {
		t.Errorf("quotas %d and %d, want 10: every window has as many", s.Quota(), e.Quota())
	}
	if s.Allow(5*1000*ms, 11) || !s.Allow(5*1000*ms, 10) {
		t.Error("want 11 refused and 10 admitted at once")
	}
}

// TestPartsPartition: whatever the weights, each token has exactly one owner; and an
// instance's tokens lie evenly.
func TestPartsPartition(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 300 {
		weights := make([]int64, 1+rng.IntN(20))
		sum := int64(0)
		for i := range weights {
			weights[i] = rng.Int64N(1 + rng.Int64N(40))
			sum += weights[i]
		}
		if sum == 0 {
			continue
		}
		owners := make([]int, sum)
		first := int64(0)
		for _, w := range weights {
			p := Part{First: first, Weight: w, Of: sum}
			if err := p.Validate(); err != nil {
				t.Fatal(err)
			}
			first += w
			offsets := p.offsets()
			if len(offsets) != int(w) || !slices.IsSorted(offsets) {
				t.Fatalf("%+v owns %v", p, offsets)
			}
			for i, c := range offsets {
				owners[c]++
				// The i-th is where it would be, spaced evenly from the first, to within
				// a few of its own spacings.
				even := float64(i) * float64(sum) / float64(w)
				if off := math.Abs(float64(c) - float64(offsets[0]) - even); off > 3*float64(sum)/float64(w) {
					t.Errorf("%+v: token %d is %.0f from where it would be even", p, c, off)
				}
			}
		}
		for c, n := range owners {
			if n != 1 {
				t.Fatalf("weights %v: token %d has %d owners", weights, c, n)
			}
		}
	}
}

// TestNumbers: due and from, own and rank are each other's inverse, at any rate and time.
func TestNumbers(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	for range 2000 {
		period := 1 + rng.Int64N(math.MaxInt64-1)>>rng.IntN(62)
		terms := Terms{Total: limit.Rate{Count: 1 + rng.Int64N(min(period, limit.MaxCount)), Period: time.Duration(period)}, Burst: 1 + rng.Int64N(1000)}
		terms.Part.Of = 1 + rng.Int64N(200)
		terms.Part.Weight = 1 + rng.Int64N(terms.Part.Of)
		terms.Part.First = rng.Int64N(terms.Part.Of - terms.Part.Weight + 1)
		c, err := newNumbers(terms, 0)
		if err != nil {
			t.Fatal(err)
		}
		at := limit.Time(rng.Int64N(math.MaxInt64) >> rng.IntN(63))
		n := c.from(at)
		if due := c.due(n); due < at {
			t.Fatalf("%+v: the first from %d on, %d, is due at %d", terms, at, n, due)
		}
		if n > 0 && c.due(n-1) >= at {
			t.Fatalf("%+v: %d is not the first from %d on", terms, n, at)
		}
		r := c.rank(n)
		if c.own(r) < n || r > 0 && c.own(r-1) >= n {
			t.Fatalf("%+v: rank %d of number %d, which is %d", terms, r, n, c.own(r))
		}
		if r < math.MaxInt64 && c.rank(c.own(r)) != r {
			t.Fatalf("%+v: rank %d is number %d, whose rank is %d", terms, r, c.own(r), c.rank(c.own(r)))
		}
	}
}

// checkFleet holds admissions, sorted by time, to the bound in every interval: at most
// rate x T + burst + more, rounded up, in intervals closed at both ends.
func checkFleet(t *testing.T, total limit.Rate, burst, more int64, admitted []limit.Time) {
	t.Helper()
	slices.Sort(admitted)
	for i := range admitted {
		for j := i; j < len(admitted); j++ {
			length := float64(admitted[j] - admitted[i])
			bound := math.Ceil(length*float64(total.Count)/float64(total.Period)+float64(burst)-1e-6) + float64(more)
			if got := float64(j - i + 1); got > bound {
				t.Fatalf("%v, burst %d: %v admitted from %d to %d, want at most %v", total, burst, got, admitted[i], admitted[j], bound)
			}
		}
	}
}

// TestSplitFleetNeverOver: with clocks that agree a fleet admits at most rate x T + burst
// in any interval, whatever each of its instances does; with clocks that are off, each
// by any amount, at most one more for each instance.
func TestSplitFleetNeverOver(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	for round := range 300 {
		n := 1 + rng.Int64N(12)
		total := limit.Rate{Count: 1 + rng.Int64N(200), Period: time.Duration(1 + rng.Int64N(int64(time.Second)))}
		total.Period = max(total.Period, time.Duration(total.Count))
		burst := 1 + rng.Int64N(40)
		span := limit.Time(total.Period) * 150 / limit.Time(total.Count)
		skewed, more := round%2 == 1, int64(0)
		if skewed {
			more = n
		}
		var admitted []limit.Time
		for i := range n {
			s := newSplit(t, Options{}, Terms{Total: total, Part: alike(i, n), Burst: burst})
			offset := limit.Time(0)
			if skewed {
				offset = limit.Time(rng.Int64N(int64(span)))
			}
			idle := limit.Time(rng.Int64N(int64(span)))
			for at := limit.Time(0); at < span; at += 1 + limit.Time(rng.Int64N(int64(span)/100+1)) {
				cost := 1 + rng.Int64N(3)
				if rng.IntN(2) == 0 && at < idle {
					continue
				}
				if s.Allow(at+offset, cost) {
					for range cost {
						admitted = append(admitted, at)
					}
				}
			}
		}
		checkFleet(t, total, burst, more, admitted)
	}
}

// TestSplitFleetUsesAll: with demand everywhere and without pause, exactly the limit's
// tokens are admitted, whatever the number of instances: limits below it too.
func TestSplitFleetUsesAll(t *testing.T) {
	for _, n := range []int64{1, 3, 7, 96} {
		for _, count := range []int64{1, 2, 10, 95, 96, 97, 1000} {
			all := 0
			for i := range n {
				s := newSplit(t, Options{}, Terms{Total: limit.PerSecond(count), Part: alike(i, n), Burst: 1 + count/50})
				for at := limit.Time(0); at < 20*1000*ms; {
					next := s.Earliest(at, 0, 1)
					if next >= 20*1000*ms {
						break
					}
					if !s.Allow(next, 1) || next > 0 && s.Allow(next-1, 1) {
						t.Fatalf("%d/s among %d: Earliest says %d", count, n, next)
					}
					at = next
					all++
				}
			}
			if all != int(20*count) {
				t.Errorf("%d/s among %d: %d admitted in 20 s, want %d", count, n, all, 20*count)
			}
		}
	}
}

// TestSplitChanges: terms change while a fleet is at work, and each instance learns of
// it when it does. Nothing is over but what is due, by the lower rate, between the first
// that knows and the last; when all know beforehand, nothing.
func TestSplitChanges(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 8))
	for round := range 400 {
		before, after := 1+rng.Int64N(10), 1+rng.Int64N(10)
		oldRate, newRate := limit.PerSecond(1+rng.Int64N(100)), limit.PerSecond(1+rng.Int64N(100))
		if round%3 == 0 {
			newRate = oldRate
		}
		burst, span := 1+rng.Int64N(5), 3000*ms
		first, last := 1000*ms, 1000*ms+limit.Time(rng.Int64N(int64(500*ms)))
		scheduled := round%2 == 0
		var admitted []limit.Time
		for i := range max(before, after) {
			terms := Terms{Total: oldRate, Part: Part{Of: before}, Burst: burst}
			if i < before {
				terms.Part = alike(i, before)
			}
			s := newSplit(t, Options{}, terms)
			terms = Terms{Total: newRate, Part: Part{Of: after}, Burst: burst}
			if i < after {
				terms.Part = alike(i, after)
			}
			learns := first + limit.Time(rng.Int64N(int64(last-first)+1))
			from, told := limit.Time(0), false
			if scheduled {
				from = last
			}
			for at := limit.Time(0); at < span; at += 1 + limit.Time(rng.Int64N(int64(7*ms))) {
				if !told && at >= learns {
					told = true
					if err := s.Change(learns, terms, from); err != nil {
						t.Fatal(err)
					}
				}
				for rng.IntN(4) > 0 && s.Allow(at, 1) {
					admitted = append(admitted, at)
				}
			}
		}
		// The bound of the higher rate covers both; one more for the rounding of a
		// straddling interval.
		bound, lower := oldRate, newRate
		if lower.Count > bound.Count {
			bound, lower = lower, bound
		}
		more := int64(1)
		if !scheduled {
			more += int64(math.Ceil(float64(lower.Count) * float64(last-first) / 1e9))
		}
		checkFleet(t, bound, burst, more, admitted)
	}
}

func TestSplitBadInput(t *testing.T) {
	good := Terms{Total: limit.PerSecond(10), Part: alike(0, 2), Burst: 1}
	s := newSplit(t, Options{}, good)
	for _, tt := range []struct {
		edit func(*Terms)
		want string
	}{
		{func(t *Terms) { t.Part.Of = 0 }, "0 units"},
		{func(t *Terms) { t.Part.Of = MaxUnits + 1 }, "65537 units"},
		{func(t *Terms) { t.Part.First = 2 }, "not within the 2 units"},
		{func(t *Terms) { t.Part.First = -1 }, "not within"},
		{func(t *Terms) { t.Part.Weight = -1 }, "not within"},
		{func(t *Terms) { t.Part = Part{math.MaxInt64, math.MaxInt64, 5} }, "not within"},
		{func(t *Terms) { t.Burst = 0 }, "burst is 0"},
		{func(t *Terms) { t.Burst = -1 }, "burst is -1"},
		{func(t *Terms) { t.Burst = math.MaxInt64 }, "burst is"},
		{func(t *Terms) { t.Total.Count = -1 }, "negative"},
		{func(t *Terms) { t.Total.Period = 0 }, "period"},
		{func(t *Terms) { t.Total = limit.Rate{Count: 3, Period: 2} }, "one per nanosecond"},
	} {
		bad := good
		tt.edit(&bad)
		if _, err := New(Options{}, bad); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("New(%+v): %v, want %q", bad, err, tt.want)
		}
		if err := s.Change(0, bad, 0); err == nil {
			t.Errorf("Change(%+v) succeeds", bad)
		}
	}
	for _, o := range []Options{{Window: -1}, {Window: 1}, {Window: 48 * time.Hour}, {Pacing: 9}, {Pacing: PacePID}} {
		if _, err := New(o, good); err == nil {
			t.Errorf("New(%+v) succeeds", o)
		}
	}
	if s.Allow(1e9, -1) || s.Allow(1e9, math.MinInt64) || s.Allow(1e9, math.MaxInt64) || s.Allow(-5, 2) {
		t.Error("a cost that is negative or above the quota is admitted")
	}
	if got, _ := s.Terms(); got != good || s.Skipped() != 0 {
		t.Errorf("bad input changed the terms to %+v", got)
	}
	if !s.Allow(1e9, 0) || !s.Allow(1e9, 1) {
		t.Error("want 0 and 1 admitted at one second")
	}
	var zero Limiter
	if zero.Allow(5, 1) || zero.Earliest(5, 0, 1) != math.MaxInt64 || zero.Remaining(5) != 0 || zero.Quota() != 0 {
		t.Error("the zero value admits something")
	}
	if v := zero.Verdict(5, false, 0, 1); v.RetryAfter != limit.Never {
		t.Errorf("the zero value says retry after %v", v.RetryAfter)
	}
}

// TestSplitManyChanges: the number of changes ahead is bounded; those that are over make
// room, and a change at once always has it.
func TestSplitManyChanges(t *testing.T) {
	terms := Terms{Total: limit.PerSecond(1), Part: alike(0, 1), Burst: 100}
	s := newSplit(t, Options{}, terms)
	var err error
	ahead := 0
	for i := int64(1); err == nil; i++ {
		terms.Total.Count = 1 + i
		if err = s.Change(0, terms, limit.Time(i)*1000*ms); err == nil {
			ahead++
		}
	}
	if !errors.Is(err, ErrManyChanges) || ahead != maxEras-1 {
		t.Errorf("%v after %d changes, want %v after %d", err, ahead, ErrManyChanges, maxEras-1)
	}
	if got, from := s.Terms(); got.Total.Count != int64(maxEras) || from != (maxEras-1)*1000*ms {
		t.Errorf("the refused change is in: %+v from %d", got, from)
	}
	for i := range int64(1000) {
		terms.Total.Count = 1 + i%7
		if err := s.Change(20*1000*ms+limit.Time(i), terms, 0); err != nil {
			t.Fatal(err)
		}
	}
	if len(s.eras) > maxEras {
		t.Errorf("%d eras", len(s.eras))
	}
}

func TestSplitAllocatesNothing(t *testing.T) {
	for _, o := range []Options{{}, {Window: time.Second}, {Window: time.Second, Pacing: PacePID}} {
		s := newSplit(t, o, Terms{Total: limit.PerSecond(1e6), Part: Part{3, 5, 11}, Burst: 1e4})
		at, admitted := limit.Time(1e18), 0
		n := testing.AllocsPerRun(10000, func() {
			at += 2500
			if s.Allow(at, 1) {
				admitted++
			}
			s.Earliest(at, 3, 2)
		})
		if n != 0 || admitted < 100 {
			t.Errorf("%+v: %v allocations, %d admitted", o, n, admitted)
		}
	}
}

// TestWholeWindowIsThere: of a token each nanosecond all that are due in a window, its first and its
// last nanosecond included, remain at its beginning; spread evenly, as many as were due by then.
func TestWholeWindowIsThere(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	terms := Terms{Total: limit.Rate{Count: int64(ms), Period: time.Duration(ms)}, Part: Part{0, 1, 1}}
	at := []limit.Time{0, 1, ms / 2, ms - 2, ms - 1, ms, ms + 1, 2*ms - 1, 7 * ms}
	for _, now := range at {
		whole := newSplit(t, Options{Window: time.Duration(ms)}, terms)
		even := newSplit(t, Options{Window: time.Duration(ms), Pacing: PaceEven}, terms)
		if got := whole.Remaining(now); got != int64(ms) {
			t.Errorf("%d remain at %d, want %d", got, now, ms)
		}
		if got := even.Remaining(now); got != int64(now%ms)+1 {
			t.Errorf("%d remain at %d, evenly spread, want %d", got, now, now%ms+1)
		}
		if !whole.Allow(now, int64(ms)) || whole.Allow(now, 1) || whole.Remaining(now) != 0 || whole.Earliest(now, 0, 1) != now-now%ms+ms {
			t.Errorf("at %d the whole window is not taken, or more", now)
		}
		if n := int64(now%ms) + 1; !even.Allow(now, n) || even.Allow(now, 1) || even.Earliest(now, 0, 1) != now+1 {
			t.Errorf("at %d not just %d are taken", now, n)
		}
	}
}

// TestZeroSplit admits nothing, knows nothing that could change, and takes terms as any other.
func TestZeroSplit(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	var s Limiter
	if terms, from := s.Terms(); s.Allow(5, 1) || s.Remaining(5) != 0 || s.Quota() != 0 || s.Earliest(5, 0, 1) != math.MaxInt64 || from != 0 || terms != (Terms{}) {
		t.Errorf("%+v admits something", s)
	}
	if v := s.Verdict(5, false, 0, 1); v.Reason != limit.ReasonRate || v.RetryAfter != limit.Never || v.ResetAfter != 0 || s.Result().Quota != 0 {
		t.Errorf("%+v", v)
	}
	terms := Terms{Total: limit.PerSecond(1000), Part: Part{0, 1, 1}, Burst: 10}
	if err := s.Change(second, terms, 0); err != nil || !s.Allow(second, 1) {
		t.Errorf("%v: terms are not in force", err)
	}
}

// TestKnownUntil: what is said of the future holds for ever where nothing paces, and to the end of
// the window where a controller does.
func TestKnownUntil(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	terms := Terms{Total: limit.PerSecond(1000), Part: Part{0, 1, 1}, Burst: 10}
	for _, tt := range []struct {
		o         Options
		now, want limit.Time
	}{
		{Options{}, second, math.MaxInt64},
		{Options{Window: time.Second, Pacing: PaceEven}, second, math.MaxInt64},
		{Options{Window: time.Second, Pacing: PacePID}, second, 2 * second},
		{Options{Window: time.Second, Pacing: PacePID}, 2*second - 1, 2 * second},
		{Options{Window: time.Second, Pacing: PacePID}, math.MaxInt64 - 1, math.MaxInt64},
	} {
		if got := newSplit(t, tt.o, terms).Known(tt.now); got != tt.want {
			t.Errorf("%+v at %d: known until %d, want %d", tt.o, tt.now, got, tt.want)
		}
	}
}

const second = limit.Time(time.Second)
