package adjust

import (
	"testing"
	"time"

	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/limit"
)

// TestDefaultAdjuster: intervals of 5 s; it slows down above 5 % of failures, a fifth each time, speeds up from
// 1 % down, a fifth of the way; 1/s when slow, 1/min as a heartbeat. Totals below 0 count as 0.
func TestDefaultAdjuster(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	a, err := NewAdjuster(AdjusterOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if a.Next() != 0 {
		t.Errorf("the first interval ends at %v before it began", a.Next())
	}
	now, good, failed := limit.Time(1000*time.Second), int64(0), int64(0)
	a.Observe(now, -7, -9)
	const lease = 1000 * fixed.Token
	for i, step := range []struct {
		good, failed int64
		changed      bool
		rate         fixed.Amount
	}{
		{95, 5, false, 1000 * fixed.Token},
		{949, 51, true, 800 * fixed.Token},
		{980, 20, false, 800 * fixed.Token},
		{989, 11, false, 800 * fixed.Token},
		{990, 10, true, 840 * fixed.Token},
		{0, 0, false, 840 * fixed.Token},
		{10, 10, true, 672 * fixed.Token},
		{10, 11, true, fixed.Token},
		{11, 10, false, fixed.Token},
		{10, 11, true, fixed.Token / 60},
		{5, 1, false, fixed.Token / 60},
		{5, 0, true, fixed.Token},
		{1, 1, false, fixed.Token},
		{1, 0, true, fixed.Token},
		{1, 0, true, 200 * fixed.Token},
	} {
		now, good, failed = now.Add(5*time.Second), good+step.good, failed+step.failed
		if a.Next() != now || a.Observe(now-1, good, failed) {
			t.Fatalf("step %d: the interval ends at %v, want 5 s", i, time.Duration(a.Next()-now))
		}
		if changed := a.Observe(now, good, failed); changed != step.changed || a.Rate(lease) != step.rate {
			t.Errorf("step %d: %d of %d failed: changed %v to %v/s, want %v to %v/s", i, step.failed, step.good+step.failed, changed, a.Rate(lease), step.changed, step.rate)
		}
		if want := step.rate.Float() / lease.Float(); a.Factor(lease) != want {
			t.Errorf("step %d: factor %v, want %v", i, a.Factor(lease), want)
		}
	}
}
