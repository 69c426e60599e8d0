package limit

import (
	"math"
	"strings"
	"testing"
	"time"
)

func TestPolicyValidate(t *testing.T) {
	second := PerSecond(1)
	for _, c := range []struct {
		name string
		p    Policy
		want string // "" = valid
	}{
		{"zero value", Policy{}, ""},
		{"bucket", Policy{Rate: second, Burst: 5}, ""},
		{"ban", Policy{Algorithm: FixedWindow, Rate: second, Ban: time.Hour}, ""},
		{"unlimited", Policy{Unlimited: true}, ""},
		{"unlimited concurrency", Policy{Algorithm: Concurrency, Unlimited: true}, ""},
		{"in flight", Policy{Algorithm: Concurrency, MaxInFlight: 5, Timeout: time.Second}, ""},
		{"algorithm", Policy{Algorithm: 99}, "unknown algorithm(99)"},
		{"negative rate", Policy{Rate: PerSecond(-1)}, "negative"},
		{"negative burst", Policy{Rate: second, Burst: -1}, "burst is -1"},
		{"endless queue", Policy{Algorithm: LeakyBucket, Rate: second, Burst: math.MaxInt64}, "burst is 9223372036854775807, above"},
		{"burst above the largest", Policy{Rate: second, Burst: MaxCount + 1}, "above 4611686018427387904"},
		{"no time-out", Policy{Algorithm: Concurrency, MaxInFlight: 5}, "timeout"},
		{"negative places", Policy{Algorithm: Concurrency, MaxInFlight: -5, Timeout: time.Second}, "max_in_flight is -5"},
		{"many places", Policy{Algorithm: Concurrency, MaxInFlight: MaxLogCount + 1, Timeout: time.Second}, "above its bound"},
		{"long log", Policy{Algorithm: SlidingWindowLog, Rate: PerHour(MaxLogCount + 1)}, "use sliding_window_counter"},
		{"bucket that counts refused", Policy{Rate: second, CountRefused: true}, ""},
		{"places that count refused", Policy{Algorithm: Concurrency, MaxInFlight: 5, Timeout: time.Second, CountRefused: true}, "count_refused has no meaning"},
		{"bucket that bans", Policy{Rate: second, Ban: time.Second}, "fixed window"},
		{"negative ban", Policy{Algorithm: FixedWindow, Rate: second, Ban: -1}, "positive duration"},
		{"alignment", Policy{Rate: second, Align: 9}, "unknown alignment"},
		{"rounding", Policy{Rate: second, Rounding: 9}, "unknown alignment or rounding"},
		{"two faults", Policy{Rate: PerSecond(-1), Burst: -7}, "burst is -7"},
	} {
		err := c.p.Validate()
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: got %v, want %q", c.name, err, c.want)
		}
	}
}

// Each bound of a policy admits what is on it, and not what is one beyond.
func TestPolicyBounds(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	window := Policy{Algorithm: FixedWindow, Rate: PerSecond(1)}
	places := Policy{Algorithm: Concurrency, MaxInFlight: 1, Timeout: time.Second}
	for name, tt := range map[string]struct {
		p   Policy
		set func(p *Policy, by int64) // 0 = on the bound, 1 = beyond it
	}{
		"algorithm":     {Policy{Rate: PerSecond(1)}, func(p *Policy, by int64) { p.Algorithm = SlidingWindowCounter + 2*Algorithm(by) }},
		"alignment":     {window, func(p *Policy, by int64) { p.Align = AlignFirstHit + Alignment(by) }},
		"rounding":      {window, func(p *Policy, by int64) { p.Rounding = RoundNearest + Rounding(by) }},
		"least count":   {window, func(p *Policy, by int64) { p.Rate.Count = -by }},
		"largest count": {window, func(p *Policy, by int64) { p.Rate.Count = MaxCount + by }},
		"period":        {window, func(p *Policy, by int64) { p.Rate.Period = time.Duration(1 - by) }},
		"no period":     {Policy{}, func(p *Policy, by int64) { p.Rate.Count = by }},
		"least burst":   {Policy{}, func(p *Policy, by int64) { p.Burst = -by }},
		"largest burst": {Policy{}, func(p *Policy, by int64) { p.Burst = MaxCount + by }},
		"ban":           {window, func(p *Policy, by int64) { p.Ban = time.Duration(-by) }},
		"ban of others": {Policy{Algorithm: SlidingWindowLog, Rate: PerSecond(1)}, func(p *Policy, by int64) { p.Ban = time.Duration(by) }},
		"log":           {Policy{Algorithm: SlidingWindowLog, Rate: PerSecond(1)}, func(p *Policy, by int64) { p.Rate.Count = MaxLogCount + by }},
		"least places":  {places, func(p *Policy, by int64) { p.MaxInFlight = -by }},
		"most places":   {places, func(p *Policy, by int64) { p.MaxInFlight = MaxLogCount + by }},
		"time-out":      {places, func(p *Policy, by int64) { p.Timeout = time.Duration(1 - by) }},
	} {
		for by := range int64(2) {
			p := tt.p
			if tt.set(&p, by); (p.Validate() == nil) != (by == 0) {
				t.Errorf("%s: %+v: %v", name, p, p.Validate())
			}
		}
	}
}

// Under an unlimited policy of any algorithm everything is admitted, and nothing counted.
func TestUnlimitedCountsNothing(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	for a := FixedWindow; a <= SlidingWindowCounter; a++ {
		for _, refused := range []bool{false, true} {
			p := Policy{Algorithm: a, Unlimited: true, CountRefused: refused}
			fixed, log, sliding := NewFixedCounter(p), NewSlidingLog(p), NewSlidingCounter(p)
			switch a {
			case FixedWindow:
				countsNothing(t, &fixed, FixedState{})
			case SlidingWindowLog:
				countsNothing(t, &log, LogState{})
			default:
				countsNothing(t, &sliding, SlidingState{})
			}
		}
	}
	f, s := NewInFlight(Policy{Algorithm: Concurrency, Unlimited: true}), InFlightState{}
	for permit := range uint64(3) {
		if v, peeked := f.Take(&s, 5, MaxCount, permit), f.Peek(s, 5, MaxCount); v != unlimitedVerdict() || peeked != v || !f.Fresh(s, 5) {
			t.Errorf("places: %+v, %+v, then %+v", v, peeked, s)
		}
	}
}

func countsNothing[S any, A counting[S, A]](t *testing.T, a A, s S) {
	t.Helper()
	for now := range Time(3) {
		v := a.Take(&s, now, MaxCount)
		a.Refuse(&s, now, MaxCount)
		if peeked := a.Peek(s, now, MaxCount); v != unlimitedVerdict() || peeked != v || !a.Fresh(s, now) {
			t.Errorf("%T: %+v, %+v, then %+v", a, v, peeked, s)
		}
	}
}

func TestPolicyQuotaAndWindow(t *testing.T) {
	for _, c := range []struct {
		p      Policy
		quota  int64
		window time.Duration
	}{
		{Policy{Rate: PerSecond(10), Burst: 25}, 25, 2500 * time.Millisecond},
		{Policy{Rate: PerSecond(3), Burst: 1}, 1, 333333334},
		{Policy{Burst: 5}, 5, 0},
		{Policy{Rate: Every(math.MaxInt64), Burst: MaxCount}, MaxCount, Never},
		{Policy{Algorithm: LeakyBucket, Rate: PerSecond(10), Burst: 4}, 5, 500 * time.Millisecond},
		{Policy{Algorithm: LeakyBucket, Burst: 4}, 0, 0},
		{Policy{Algorithm: FixedWindow, Rate: PerHour(7), Burst: 99}, 7, time.Hour},
		{Policy{Algorithm: SlidingWindowLog, Rate: PerHour(7)}, 7, time.Hour},
		{Policy{Algorithm: SlidingWindowCounter, Rate: PerHour(7)}, 7, time.Hour},
		{Policy{Algorithm: Concurrency, MaxInFlight: 3, Timeout: time.Hour}, 3, 0},
		{Policy{Unlimited: true}, math.MaxInt64, 0},
	} {
		if q, w := c.p.Quota(), c.p.Window(); q != c.quota || w != c.window {
			t.Errorf("%+v: quota %d in %v, want %d in %v", c.p, q, w, c.quota, c.window)
		}
	}
}

func TestAlgorithmNames(t *testing.T) {
	names := AlgorithmNames()
	if len(names) != int(RisingWindow)+1 {
		t.Fatalf("%d names", len(names))
	}
	for i, name := range names {
		if a, err := ParseAlgorithm(name); err != nil || a != Algorithm(i) || a.String() != name {
			t.Errorf("%q is read %v, %v", name, a, err)
		}
	}
	if _, err := ParseAlgorithm("tokenbucket"); err == nil || !strings.Contains(err.Error(), "token_bucket") {
		t.Errorf("got %v, want the names that there are", err)
	}
}
