package sim

import (
	"testing"
	"time"
)

// TestDatabricksShapes: a step to k times the limit. Above the limit the bucket's
// debt makes it admit all for a batch or two and then nothing until it is paid.
func TestDatabricksShapes(t *testing.T) {
	const limit, step = 1000, 10 * time.Second
	for _, tt := range unlessLong(2, []struct {
		k                    float64
		worstMin, worstMax   float64 // in one second, of the limit
		swingMin, swingMax   float64 // of 1 s windows in the end, of the limit
		debtMin, debtMax     time.Duration
		steadyMin, steadyMax float64
	}{
		{3, 1.5, 3, 0, 0.8, 100 * time.Millisecond, 700 * time.Millisecond, 0.9, 1.1},
		{30, 3.5, 5, 2, 5, 2 * time.Second, 5 * time.Second, 0.9, 1.1},
		{100, 10, 14, 8, 14, 8 * time.Second, 14 * time.Second, 0.8, 1.2},
	}) {
		l := newLoop(t, Databricks{NoLocalLimit: true}, Setup{Limit: perSecond(limit), Instances: 10, RoundTrip: 20 * time.Millisecond}, 1)
		l.demand = func(_ int, now time.Duration) float64 {
			if now < step {
				return limit / 20
			}
			return limit * tt.k / 10
		}
		l.run(100 * time.Second)
		worst := float64(l.worst(step, 100*time.Second)) / limit
		low, high := 1e9, 0.0
		for at := 50 * time.Second; at < 100*time.Second; at += 50 * time.Millisecond {
			r := l.rate(at-time.Second, at)
			low, high = min(low, r), max(high, r)
		}
		swing := (high - low) / limit
		steady := l.rate(50*time.Second, 100*time.Second) / limit
		debt := time.Duration(0)
		for i, at := range l.admits[1:] {
			debt = max(debt, time.Duration(at-l.admits[i]))
		}
		t.Logf("k = %v: worst second %.2f, swing %.2f, longest silence %v, in the end %.2f of the limit", tt.k, worst, swing, debt, steady)
		if worst < tt.worstMin || worst > tt.worstMax {
			t.Errorf("k = %v: worst second is %.2f of the limit, want %v to %v", tt.k, worst, tt.worstMin, tt.worstMax)
		}
		if swing < tt.swingMin || swing > tt.swingMax {
			t.Errorf("k = %v: 1 s windows swing by %.2f of the limit, want %v to %v", tt.k, swing, tt.swingMin, tt.swingMax)
		}
		if debt < tt.debtMin || debt > tt.debtMax {
			t.Errorf("k = %v: longest silence is %v, want %v to %v", tt.k, debt, tt.debtMin, tt.debtMax)
		}
		if steady < tt.steadyMin || steady > tt.steadyMax {
			t.Errorf("k = %v: %.2f of the limit in the end, want %v to %v", tt.k, steady, tt.steadyMin, tt.steadyMax)
		}
	}
}

// TestDatabricksDebt walks through one batch: burst 10, 10 per second, 30 admitted.
func TestDatabricksDebt(t *testing.T) {
	l := newLoop(t, Databricks{NoLocalLimit: true}, Setup{Limit: perSecond(10), Instances: 1}, 1)
	for range 30 {
		l.arrive(0)
	}
	l.run(150 * time.Millisecond) // one batch and not two
	s := l.nodes[Coordinator].node.(*batchServer)
	c := l.instance(0).(*batchClient)
	if len(l.admits) != 30 {
		t.Fatalf("%d of 30 admitted before the first batch", len(l.admits))
	}
	if want := s.bucket.at.Add(2 * time.Second); c.answer.rejectTil < want-1000 || c.answer.rejectTil > want+1000 {
		t.Errorf("told to reject until %v, want %v: 20 are owed", c.answer.rejectTil, want)
	}
	if c.Share() != 0 || c.Take(1) {
		t.Error("admitted one although told not to")
	}
	l.run(2200 * time.Millisecond)
	if c.Share() != 10 || !c.Take(1) {
		t.Error("refused although the debt is paid")
	}
}

// TestDatabricksCountsOnce: what was lost is in the next report, what is doubled is not
// counted again, and a process that restarts begins at nothing.
func TestDatabricksCountsOnce(t *testing.T) {
	l := newLoop(t, Databricks{}, Setup{Limit: perSecond(100), Instances: 1, RoundTrip: 20 * time.Millisecond}, 1)
	s := l.nodes[Coordinator].node.(*batchServer)
	for _, m := range []struct {
		report batchReport
		level  float64
	}{
		{batchReport{0, 1, 10, 0, 10}, 90},
		{batchReport{0, 3, 10, 0, 30}, 70},
		{batchReport{0, 3, 10, 0, 30}, 70},
		{batchReport{0, 2, 10, 0, 20}, 70},
		{batchReport{1, 1, 5, 0, 5}, 65},
		{batchReport{0, 4, 10, 0, 40}, 65},
	} {
		if s.Receive(0, m.report); s.bucket.level != m.level {
			t.Errorf("after %+v the bucket has %v, want %v", m.report, s.bucket.level, m.level)
		}
	}
}

// TestDatabricksByRate: the earlier form lets the part limit/attempted through.
func TestDatabricksByRate(t *testing.T) {
	const limit = 1000
	l := newLoop(t, Databricks{ByRate: true}, Setup{Limit: perSecond(limit), Instances: 10, RoundTrip: 20 * time.Millisecond}, 1)
	l.demand = func(int, time.Duration) float64 { return limit * 3. / 10 }
	l.run(30 * time.Second)
	if got := l.rate(10*time.Second, 30*time.Second); !near(got, limit, 0.05*limit) {
		t.Errorf("%v per second, want %v within the 5 %% that were aimed at", got, limit)
	}
}

// TestDatabricksLocalLimit: one client alone is held to the whole limit.
func TestDatabricksLocalLimit(t *testing.T) {
	l := newLoop(t, Databricks{}, Setup{Limit: perSecond(100), Instances: 1, RoundTrip: 20 * time.Millisecond}, 1)
	l.demand = func(int, time.Duration) float64 { return 10_000 }
	l.run(10 * time.Second)
	if got := l.worst(0, 10*time.Second); got > 205 {
		t.Errorf("one client admitted %d in a second, want at most burst and rate", got)
	}
	idle := newLoop(t, Databricks{}, l.setup, 1)
	idle.run(10 * time.Second)
	if got := idle.bytes[0]; got != 0 {
		t.Errorf("an idle client sent %d bytes", got)
	}
}
