package redis

import (
	"math"
	"math/big"
	"math/bits"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stint-io/stint/internal/seeding"

	"github.com/stint-io/stint/internal/redistest"
	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/store"
)

// drawPolicy draws a policy within the exact range, and often at its edge.
func drawPolicy(r *rand.Rand, a limit.Algorithm) limit.Policy {
	for {
		p := limit.Policy{Algorithm: a}
		switch a {
		case limit.Concurrency:
			p.MaxInFlight, p.Timeout = r.Int64N(8), drawPeriod(r)
			if r.IntN(8) == 0 {
				p.MaxInFlight = limit.MaxLogCount
			}
		case limit.TokenBucket, limit.LeakyBucket:
			p.Rate = drawRate(r)
			p.Burst = drawBurst(r, p)
			p.CountRefused = r.IntN(4) == 0
		default:
			p.Rate = limit.Rate{Count: drawCount(r), Period: drawPeriod(r)}
			p.CountRefused, p.Rounding = r.IntN(3) == 0, limit.Rounding(r.IntN(3))
			if a == limit.RisingWindow {
				p.CountRefused, p.Rise, p.Start = false, 1+r.Int64N(1+p.Rate.Count), r.Int64N(1+p.Rate.Count)
			}
			if a == limit.SlidingWindowLog {
				p.Rate.Count %= []int64{8, 64, limit.MaxLogCount + 1}[r.IntN(3)]
			}
			if a == limit.FixedWindow {
				p.Align = limit.Alignment(r.IntN(2))
				if r.IntN(3) == 0 {
					p.Ban = drawPeriod(r)
				} else if r.IntN(3) == 0 {
					p.Align = limit.AlignCalendar
					p.Rate.Period = []time.Duration{time.Hour, 24 * time.Hour, 7 * 24 * time.Hour, 30 * 24 * time.Hour, 365 * 24 * time.Hour}[r.IntN(5)]
					p.Zone = []string{"", "Europe/Berlin", "Australia/Lord_Howe", "America/St_Johns", "Pacific/Apia"}[r.IntN(5)]
				}
			}
			if p.Rate.Count == 0 && p.Align != limit.AlignCalendar && r.IntN(2) == 0 {
				p.Rate.Period = 0
			}
		}
		if p.Validate() != nil {
			continue
		}
		if _, err := newRule(p); err == nil {
			return p
		}
	}
}

func drawRate(r *rand.Rand) limit.Rate {
	switch r.IntN(10) {
	case 0:
		return limit.Rate{Count: 999_983, Period: 86_400 * time.Second}
	case 1:
		return limit.Rate{Count: 1, Period: 3 * time.Second}
	case 2:
		return limit.Rate{Count: 7, Period: 10 * time.Second}
	case 3:
		return limit.Rate{Period: time.Second * time.Duration(r.IntN(2))}
	case 4: // n at the edge, in lowest terms
		return limit.Rate{Count: maxNumerator - 1, Period: time.Duration(1 + r.Int64N(1e12))}
	case 5:
		return limit.Rate{Count: 1 + r.Int64N(maxNumerator), Period: time.Duration(1 + r.Int64N(1e18))}
	case 6:
		return limit.Rate{Count: 1, Period: drawPeriod(r)}
	case 7:
		return limit.Rate{Count: 1 + r.Int64N(1e7), Period: drawPeriod(r)}
	default:
		return limit.Rate{Count: 1 + r.Int64N(1000), Period: time.Second}
	}
}

// drawBurst draws a burst, up to what fills in the longest time.
func drawBurst(r *rand.Rand, p limit.Policy) int64 {
	most := int64(maxSpan)
	if p.Rate.Count > 0 {
		most = longestBurst(p)
	}
	switch r.IntN(5) {
	case 0:
		return max(0, most-r.Int64N(2))
	case 1:
		return r.Int64N(most + 1)
	case 2:
		return min(r.Int64N(3), most)
	}
	return min(r.Int64N(30), most)
}

// longestBurst is the largest burst whose bucket fills within 2^51 microseconds, the
// begun one included.
func longestBurst(p limit.Policy) int64 {
	b := limit.NewBucket(p)
	n, per := b.Terms()
	hi, lo := bits.Mul64(maxSpan+1, 1000*n)
	lo, borrow := bits.Sub64(lo, 1, 0)
	if hi -= borrow; hi >= per {
		return limit.MaxCount
	}
	most, _ := bits.Div64(hi, lo, per)
	if most = min(most, limit.MaxCount); p.Algorithm == limit.LeakyBucket && most > 0 {
		most--
	}
	return int64(most)
}

func drawCount(r *rand.Rand) int64 {
	switch r.IntN(8) {
	case 0:
		return maxCount - r.Int64N(2)
	case 1:
		return r.Int64N(maxCount + 1)
	case 2:
		return r.Int64N(3)
	case 3:
		return 999_983
	}
	return r.Int64N(30)
}

// TestExactRange: what is at the edge of the exact range is bound and counted as
// package limit counts it; one step beyond, it is refused in one clear line.
func TestExactRange(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	h := newHistory(t, nil)
	const longest = maxSpan * time.Microsecond
	bucketAt := func(a limit.Algorithm, r limit.Rate) limit.Policy {
		p := limit.Policy{Algorithm: a, Rate: r}
		p.Burst = longestBurst(p)
		return p
	}
	for _, tt := range []struct {
		name string
		at   limit.Policy
		step func(p *limit.Policy) // beyond the edge
		want string
	}{
		{"numerator", limit.Policy{Rate: limit.Rate{Count: maxNumerator, Period: 1}, Burst: 1 << 60}, func(p *limit.Policy) { p.Rate.Count++ }, "2^42"},
		{"numerator-prime", limit.Policy{Rate: limit.Rate{Count: maxNumerator - 1, Period: 1_000_000_007}, Burst: 1 << 50}, func(p *limit.Policy) { p.Rate.Count += 2 }, "2^42"},
		{"fill", bucketAt(limit.TokenBucket, limit.PerSecond(1)), func(p *limit.Policy) { p.Burst++ }, "71 years"},
		{"fill-fraction", bucketAt(limit.TokenBucket, limit.Rate{Count: 999_983, Period: 86_400 * time.Second}), func(p *limit.Policy) { p.Burst++ }, "71 years"},
		{"fill-queue", bucketAt(limit.LeakyBucket, limit.Rate{Count: 7, Period: 10 * time.Second}), func(p *limit.Policy) { p.Burst++ }, "71 years"},
		{"fill-single", limit.Policy{Rate: limit.Every(longest), Burst: 1}, func(p *limit.Policy) { p.Burst++ }, "71 years"},
		{"still", limit.Policy{Burst: maxSpan}, func(p *limit.Policy) { p.Burst++ }, "2^51"},
		{"period", limit.Policy{Algorithm: limit.FixedWindow, Rate: limit.Rate{Count: 3, Period: longest}}, func(p *limit.Policy) { p.Rate.Period += time.Microsecond }, "71 years"},
		{"count", limit.Policy{Algorithm: limit.FixedWindow, Rate: limit.Rate{Count: maxCount, Period: time.Second}}, func(p *limit.Policy) { p.Rate.Count++ }, "2^50"},
		{"ban", limit.Policy{Algorithm: limit.FixedWindow, Rate: limit.PerSecond(3), Ban: longest}, func(p *limit.Policy) { p.Ban += time.Microsecond }, "71 years"},
		{"ban-step", limit.Policy{Algorithm: limit.FixedWindow, Rate: limit.PerSecond(3), Ban: time.Microsecond}, func(p *limit.Policy) { p.Ban++ }, "microseconds"},
		{"estimate", limit.Policy{Algorithm: limit.SlidingWindowCounter, Rate: limit.Rate{Count: maxCount, Period: longest}}, func(p *limit.Policy) { p.Rate.Count++ }, "2^50"},
		{"estimate-nearest", limit.Policy{Algorithm: limit.SlidingWindowCounter, Rate: limit.Rate{Count: maxCount, Period: longest}, Rounding: limit.RoundNearest}, func(p *limit.Policy) { p.Rate.Period += time.Microsecond }, "71 years"},
		{"estimate-step", limit.Policy{Algorithm: limit.SlidingWindowCounter, Rate: limit.Rate{Count: 3, Period: time.Microsecond}}, func(p *limit.Policy) { p.Rate.Period++ }, "microseconds"},
		{"log", limit.Policy{Algorithm: limit.SlidingWindowLog, Rate: limit.Rate{Count: 3, Period: longest}}, func(p *limit.Policy) { p.Rate.Period += time.Microsecond }, "71 years"},
		{"places", limit.Policy{Algorithm: limit.Concurrency, MaxInFlight: 3, Timeout: longest}, func(p *limit.Policy) { p.Timeout += time.Microsecond }, "71 years"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			beyond := tt.at
			tt.step(&beyond)
			_, err := h.store.Bind(store.Spec{ID: tt.name, Policy: beyond})
			if err == nil || !strings.Contains(err.Error(), tt.want) || !strings.Contains(err.Error(), tt.name) || strings.Contains(err.Error(), "\n") {
				t.Errorf("Bind(%+v): %v, want one line that names the counters and %q", beyond, err, tt.want)
			}
			h.T = t
			h.begin(tt.name, tt.at)
			h.exhaust()
		})
	}
}

// exhaust uses a limit up, in large and in small steps, and comes back a step before
// it may and when it may.
func (h *history) exhaust() {
	h.Helper()
	l := h.limits[0]
	quota := l.counters.Spec().Policy.Quota()
	for round := range 6 {
		for k, costs := range [][]int64{
			{quota, 1, quota, quota + 1},
			{quota - 1, 1, 1},
			{quota / 3, quota / 3, quota / 3, quota % 3, 1, quota / 3, quota / 7},
		} {
			for i, cost := range costs {
				q := &request{verb: verbTake, charges: []store.Charge{h.charge(l, k, min(cost, limit.MaxCount))}}
				q.charges[0].Permit = uint64(i)
				q.models = h.modelsOf(q.charges)
				h.round([]*request{q})
				if wait := h.last.RetryAfter; wait > 0 && wait < limit.Never && wait < maxSpan*time.Microsecond/8 {
					for _, step := range []int64{int64(wait) - 1000, 1000} {
						h.clock.Add(step)
						h.round([]*request{q.clone()})
					}
				}
			}
		}
		h.clock.Add(int64(round) * int64(maxSpan/16) * 1000)
	}
	h.clock.Store(1_700_000_000_123_456_000)
}

// TestOver: the script compares products exactly up to 2^104, also where doubles
// cannot tell them apart.
func TestOver(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	server := redistest.Start(t)
	_, text, found := strings.Cut(luaLoad, "local function over")
	if !found {
		t.Fatal("the script has no function over")
	}
	text = "local floor = math.floor\nlocal function over" + text + `
local said = {}
for i = 1, #ARGV, 4 do
	said[#said + 1] = over(tonumber(ARGV[i]), tonumber(ARGV[i + 1]), tonumber(ARGV[i + 2]), tonumber(ARGV[i + 3])) and 1 or 0
end
return table.concat(said)`
	r := seeding.Rand(t)
	const top = 1 << 52
	list := [][4]uint64{{top - 1, top - 1, top, top - 2}, {top, top - 2, top - 1, top - 1}, {top, top, top, top}, {top, top, top, top - 1}, {0, top, 0, 1}, {0, 1, 1, 1}, {1, 1, 0, top}}
	for range 3000 {
		// a*d = b*c + 1, for coprime a and c.
		a, c := top/2+r.Uint64N(top/2), top/2+r.Uint64N(top/2)
		inverse := new(big.Int).ModInverse(new(big.Int).SetUint64(a), new(big.Int).SetUint64(c))
		if inverse == nil {
			continue
		}
		d := inverse.Uint64()
		hi, lo := bits.Mul64(a, d)
		lo, borrow := bits.Sub64(lo, 1, 0)
		b, rest := bits.Div64(hi-borrow, lo, c)
		if rest != 0 {
			t.Fatalf("%d x %d is not 1 modulo %d", a, d, c)
		}
		list = append(list, [4]uint64{a, d, b, c}, [4]uint64{b, c, a, d}, [4]uint64{c, b, b, c},
			[4]uint64{a, b, c, d}, [4]uint64{r.Uint64N(top), r.Uint64N(1 << r.IntN(53)), r.Uint64N(top), r.Uint64N(1 << r.IntN(53))})
	}
	args := []string{"EVAL", text, "0"}
	for _, q := range list {
		for _, n := range q {
			args = append(args, strconv.FormatUint(n, 10))
		}
	}
	said := server.Text(args...)
	if len(said) != len(list) {
		t.Fatalf("%d answers to %d questions", len(said), len(list))
	}
	for i, q := range list {
		h1, l1 := bits.Mul64(q[0], q[1])
		h2, l2 := bits.Mul64(q[2], q[3])
		if want := h1 > h2 || h1 == h2 && l1 > l2; (said[i] == '1') != want {
			t.Errorf("over(%d, %d, %d, %d) says %c, want %v", q[0], q[1], q[2], q[3], said[i], want)
		}
	}
}

// FuzzDecode: whatever a key holds, reading it, carrying it over to another policy
// and deciding by it ends without a panic, and what is written is read back the
// same.
func FuzzDecode(f *testing.F) {
	now := limit.Time(1_700_000_000_123_456_000)
	for algorithm := range uint8(5) {
		for _, n := range []float64{0, 1, 1.7e15, -1, -1 << 63, 0.5, 1 << 51, 1 << 53, 1 << 62, 1e300, math.Inf(1), math.Inf(-1), math.NaN()} {
			bits := math.Float64bits(n)
			f.Add(algorithm, uint64(1), bits, bits, bits, uint8(0), []byte(nil))
			f.Add(algorithm, uint64(2), math.Float64bits(1e6), bits, bits, uint8(1), []byte("x"))
			f.Add(algorithm, uint64(3), bits, math.Float64bits(3), bits, uint8(2), words(1, 1, 1))
			f.Add(algorithm, uint64(4), bits, bits, math.Float64bits(3), uint8(3), words(bits, bits, bits))
		}
	}
	f.Fuzz(func(t *testing.T, algorithm uint8, seed, a, b, c uint64, tail uint8, rest []byte) {
		r := rand.New(rand.NewPCG(seed, 6))
		of := limit.Algorithm(algorithm % 5)
		one, err1 := newRule(drawPolicy(r, of))
		two, err2 := newRule(drawPolicy(r, heir(r, of)))
		if err1 != nil || err2 != nil {
			t.Fatal(err1, err2)
		}
		raw := string(words(a, b, c))
		if one.kind != kindSliding {
			raw = raw[:16]
		}
		switch tail % 4 {
		case 0:
			raw += one.tag
		case 1:
			raw += two.tag
		case 2:
			raw += string(rest)
		case 3:
			raw = string(rest)
		}
		defer func() {
			if p := recover(); p != nil {
				t.Fatalf("panic over %q under %+v: %v", raw, one.policy, p)
			}
		}()
		for _, text := range []string{raw, one.convert(raw, now), two.convert(raw, now)} {
			s := one.decode(text)
			for _, cost := range []int64{0, 1, one.policy.Quota(), limit.MaxCount} {
				one.peek(s, now, cost, terms{})
				after := s
				one.take(&after, now, cost, terms{counts: true})
				one.refuse(&after, now, cost, terms{counts: true})
				one.refund(&after, now, cost)
				if one.kind.scalar() {
					one.encode(after)
				}
			}
		}
		if text := one.convert(raw, now); text != "" {
			if again := one.encode(one.decode(text)); again != text {
				t.Errorf("%q under %+v is %q, and read and written again %q", raw, one.policy, text, again)
			}
		}
	})
}

// drawPeriod draws the length of a window, of a ban or of a time-out.
func drawPeriod(r *rand.Rand) time.Duration {
	switch r.IntN(10) {
	case 0:
		return time.Microsecond
	case 1:
		return 7 * time.Microsecond
	case 2:
		return maxSpan * time.Microsecond
	case 3:
		return time.Duration(1+r.Int64N(maxSpan)) * time.Microsecond
	case 4:
		return 365 * 24 * time.Hour
	case 5:
		return 24 * time.Hour
	case 6:
		return time.Duration(1+r.Int64N(1e6)) * time.Microsecond
	default:
		return time.Duration(1+r.IntN(10)) * time.Second
	}
}

// TestCalendarWindowThatEnded checks that a count of a calendar window is not carried over to another policy once the
// window has ended, though the longest window of its period would not have.
func TestCalendarWindowThatEnded(t *testing.T) {
	for _, zone := range []string{"", "Europe/Berlin", "Pacific/Apia"} {
		day := limit.Policy{Algorithm: limit.FixedWindow, Align: limit.AlignCalendar, Zone: zone, Rate: limit.Rate{Count: 10, Period: 24 * time.Hour}}
		from, err := newRule(day)
		if err != nil {
			t.Fatal(err)
		}
		day.Rate.Period = 365 * 24 * time.Hour
		to, err := newRule(day)
		if err != nil {
			t.Fatal(err)
		}
		location, err := limit.LoadZone(zone)
		if err != nil {
			t.Fatal(err)
		}
		begin, end := time.Date(2026, 3, 10, 0, 0, 0, 0, location), time.Date(2026, 3, 11, 0, 0, 0, 0, location)
		raw := from.encode(state{fixed: limit.FixedState{Start: limit.At(begin), Count: 7}})
		if got := to.convert(raw, limit.At(end)-1); to.decode(got).fixed.Count != 7 {
			t.Errorf("%q: within the day: %+v", zone, to.decode(got).fixed)
		}
		if got := to.convert(raw, limit.At(end)+1000); got != "" && to.decode(got).fixed.Count != 0 {
			t.Errorf("%q: after the day: %+v", zone, to.decode(got).fixed)
		}
	}
}
