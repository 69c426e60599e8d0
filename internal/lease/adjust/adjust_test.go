package adjust

import (
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/stint-io/stint/internal/seeding"

	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/limit"
)

func newTestAdjuster(t *testing.T, o AdjusterOptions) *Adjuster {
	t.Helper()
	a, err := NewAdjuster(o)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func TestAdjusterWalkThrough(t *testing.T) {
	a := newTestAdjuster(t, AdjusterOptions{Interval: 30 * time.Second})
	now := limit.Time(1000 * time.Second)
	lease := fixed.Whole(100)
	if a.Mode() != AdjusterNormal || a.Rate(lease) != lease || a.Next() != 0 {
		t.Fatalf("it begins in %v at %v, next %v", a.Mode(), a.Rate(lease), a.Next())
	}
	good, failed := int64(70), int64(90) // of before its time
	if a.Observe(now, good, failed) {
		t.Error("the first observation changed something")
	}
	for i, step := range []struct {
		good, failed int64
		mode         AdjusterMode
		rate         float64
	}{
		{99, 1, AdjusterNormal, 100}, // 1 % is well enough
		{95, 5, AdjusterNormal, 100}, // 5 % holds
		{94, 6, AdjusterNormal, 80},
		{0, 0, AdjusterNormal, 80}, // nothing was learnt
		{50, 50, AdjusterNormal, 64},
		{98, 2, AdjusterNormal, 64},
		{100, 0, AdjusterNormal, 71.2},
		{49, 51, AdjusterSlow, 1},
		{3, 1, AdjusterSlow, 1},
		{1, 1, AdjusterSlow, 1},
		{0, 0, AdjusterSlow, 1},
		{0, 1, AdjusterHeartbeat, 0.016666},
		{0, 1, AdjusterHeartbeat, 0.016666},
		{1, 1, AdjusterHeartbeat, 0.016666},
		{0, 0, AdjusterHeartbeat, 0.016666},
		{1, 0, AdjusterSlow, 1},
		{30, 0, AdjusterNormal, 1},
		{30, 0, AdjusterNormal, 20},
		{600, 0, AdjusterNormal, 36},
		{0, 30, AdjusterSlow, 1},
	} {
		good, failed = good+step.good, failed+step.failed
		before, mode := a.Rate(lease), a.Mode()
		if a.Observe(a.Next()-1, good, failed) || a.Rate(lease) != before {
			t.Errorf("step %d: it changed within the interval", i)
		}
		changed := a.Observe(a.Next(), good, failed)
		rate := a.Rate(lease)
		if a.Mode() != step.mode || rate != fixed.Amount(math.Round(step.rate*1e6)) {
			t.Errorf("step %d: %v at %v, want %v at %v", i, a.Mode(), rate, step.mode, step.rate)
		}
		// From slow to normal changes the mode and not the rate.
		if changed != (rate != before || a.Mode() != mode) {
			t.Errorf("step %d: changed is %v", i, changed)
		}
		if want := step.rate / 100; math.Abs(a.Factor(lease)-want) > 1e-9 {
			t.Errorf("step %d: factor %v, want %v", i, a.Factor(lease), want)
		}
	}
	for mode, want := range map[AdjusterMode]string{AdjusterNormal: "normal", AdjusterHeartbeat: "heartbeat", 9: "unknown"} {
		if mode.String() != want {
			t.Errorf("got %q, want %q", mode, want)
		}
	}
}

// TestAdjusterSmallLease: a lease below the slow rate is not exceeded, in any mode.
func TestAdjusterSmallLease(t *testing.T) {
	a := newTestAdjuster(t, AdjusterOptions{})
	failed := int64(0)
	for _, mode := range []AdjusterMode{AdjusterNormal, AdjusterSlow, AdjusterHeartbeat} {
		if mode != a.Mode() {
			t.Fatalf("%v, want %v", a.Mode(), mode)
		}
		for _, lease := range []fixed.Amount{math.MinInt64, -1, 0, 1, 10_000, fixed.Token / 2, fixed.Token} {
			want := max(lease, 0)
			if mode == AdjusterHeartbeat {
				want = min(want, fixed.Token/60)
			}
			if got := a.Rate(lease); got != want {
				t.Errorf("%v: %v of a lease of %v, want %v", mode, got, lease, want)
			}
		}
		a.Observe(a.Next(), 0, failed)
		failed++
		a.Observe(a.Next(), 0, failed)
	}
	if a.Factor(0) != 1 || a.Factor(-1) != 1 {
		t.Errorf("the factor of nothing is %v", a.Factor(0))
	}
}

// TestAdjusterKeepsItsPart: a lease that changes does not start the way back anew.
func TestAdjusterKeepsItsPart(t *testing.T) {
	a := newTestAdjuster(t, AdjusterOptions{})
	a.Observe(1, 0, 0)
	a.Observe(a.Next(), 90, 10)
	for _, lease := range []fixed.Amount{fixed.Whole(10), fixed.Whole(100), fixed.Whole(5000), fixed.MaxAmount, fixed.Whole(10)} {
		if got, want := a.Rate(lease), lease/10*8; got < want || got > want+8 {
			t.Errorf("of %v: %v, want %v", lease, got, want)
		}
	}
}

// TestAdjusterProperties: whatever is observed, the rate is within 0 and the lease and
// grows with the lease; a receiver that is well again has nearly all after a bounded
// time, and all after some more; more failures in the last interval never give more.
func TestAdjusterProperties(t *testing.T) {
	rng := seeding.Rand(t)
	for range 2000 {
		a := newTestAdjuster(t, AdjusterOptions{
			Interval: time.Duration(1 + rng.Int64N(int64(time.Minute))), Convergence: 0.05 + 0.95*rng.Float64(),
			SpeedUp: 0.02 * rng.Float64(), Hold: 0.02 + 0.4*rng.Float64(),
			SlowRate: fixed.Token/60 + logUniformRate(rng, fixed.Whole(100)),
		})
		now, good, failed := limit.Time(rng.Int64N(1e12)), int64(0), int64(0)
		check := func() {
			small, large := logUniformRate(rng, fixed.MaxAmount), logUniformRate(rng, fixed.MaxAmount)
			small, large = min(small, large), max(small, large)
			if r, s := a.Rate(small), a.Rate(large); r < 0 || r > small || s > large || r > s {
				t.Fatalf("%+v: %v of %v and %v of %v", a, r, small, s, large)
			}
			if f := a.Factor(large); f < 0 || f > 1 {
				t.Fatalf("%+v: factor %v", a, f)
			}
		}
		for range rng.IntN(60) {
			now = now.Add(time.Duration(rng.Int64N(int64(2 * time.Minute))))
			switch rng.IntN(8) {
			case 0:
				good, failed = rng.Int64N(10)-5, rng.Int64N(10)-5 // the caller starts again
			case 1:
				now -= limit.Time(rng.Int64N(int64(time.Second))) // the clock steps back
			default:
				good, failed = max(good, 0)+rng.Int64N(1000), max(failed, 0)+rng.Int64N(1+int64(rng.IntN(3)*300))
			}
			a.Observe(now, good, failed)
			check()
		}
		now = max(now, a.Next())

		few, many := *a, *a
		g, f := max(good, 0)+rng.Int64N(100), max(failed, 0)+rng.Int64N(100)
		few.Observe(now, g, f)
		many.Observe(now, g, f+1+rng.Int64N(100))
		if lease := logUniformRate(rng, fixed.MaxAmount); few.mode != AdjusterHeartbeat && many.Rate(lease) > few.Rate(lease) {
			t.Fatalf("%+v: more failures give %v, less give %v", a, many.Rate(lease), few.Rate(lease))
		}

		well := 0
		for a.Rate(fixed.MaxAmount) < fixed.MaxAmount {
			good, failed = max(good, 0)+10, max(failed, 0)
			a.Observe(a.Next(), good, failed)
			check()
			if well++; well > 600 {
				t.Fatalf("%+v: not back after %d intervals", a, well)
			}
			if steps := math.Log(0.01) / math.Log(1-float64(a.step)/1e6); float64(well) > steps+5 && a.Factor(fixed.MaxAmount) < 0.98 {
				t.Fatalf("%+v: only at %v after %d intervals", a, a.Factor(fixed.MaxAmount), well)
			}
		}
	}
}

func TestAdjusterOptions(t *testing.T) {
	for _, o := range []AdjusterOptions{
		{},
		{Interval: 1, Convergence: 1, SpeedUp: 0.3, Hold: 0.3, SlowRate: fixed.MaxAmount, HeartbeatRate: 1},
	} {
		if err := o.Validate(); err != nil {
			t.Errorf("%+v: %v", o, err)
		}
	}
	bad := AdjusterOptions{
		Interval: -time.Second, Convergence: math.NaN(), SpeedUp: 0.2, Hold: 0.1, SlowRate: 5, HeartbeatRate: 6,
	}
	_, err := NewAdjuster(bad)
	if err == nil {
		t.Fatalf("%+v is valid", bad)
	}
	for _, want := range []string{"the interval is -1s", "the convergence is NaN", "speeds up to 0.2 failures and holds to 0.1", "the heartbeat rate is 6e-06"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q does not say %q", err, want)
		}
	}
	for _, o := range []AdjusterOptions{
		{Convergence: 1.1},
		{Hold: 0.5},
		{SpeedUp: math.NaN()},
		{Hold: math.Inf(1)},
		{SlowRate: -1},
		{SlowRate: math.MaxInt64},
		{SlowRate: 1},
	} {
		if o.Validate() == nil {
			t.Errorf("%+v is valid", o)
		}
	}
}

// logUniformRate returns a number whose logarithm is uniform, up to most.
func logUniformRate(rng *rand.Rand, most fixed.Amount) fixed.Amount {
	return fixed.Amount(math.Exp(rng.Float64() * math.Log(float64(most))))
}
