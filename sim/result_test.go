package sim

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stint-io/stint/internal/seeding"
	"github.com/stint-io/stint/limit"
)

// switched admits what the test says, by the time of the request.
func switched(admit func(at time.Duration, i Address) bool) *probe {
	return &probe{quiet: true, take: func(n *probeNode, _ int64) bool {
		return admit(time.Duration(n.env.(*env).engine.now), n.address)
	}}
}

func closeTo(t *testing.T, name string, got, want, off float64) {
	t.Helper()
	if math.Abs(got-want) > off {
		t.Errorf("%s is %v, want %v", name, got, want)
	}
}

// After a step at 5 s the system admits half for 400 ms, then all that fits.
func TestUseAndT95(t *testing.T) {
	k := 0
	p := switched(func(at time.Duration, _ Address) bool {
		k++
		late := at >= 5*time.Second && at < 5400*ms
		return !late || k%2 == 0
	})
	s := Scenario{
		Limit: limitOf(1000, 100), Instances: 1, Duration: 20 * time.Second,
		Measure: Measure{Step: 5 * time.Second, From: 4 * time.Second},
		Loads:   []Load{{Demand: []Step{{0, 100}, {5 * time.Second, 1000}}}},
	}
	r := run(t, s, p)
	// The last window of 1 s that lacks 50 of 1,000 begins when 100 ms of it are left.
	closeTo(t, "t95", r.T95.Seconds(), 0.3, 0.011)
	// That of 100 ms which lacks 5 of 100 begins when 10 ms are left.
	closeTo(t, "t95 fine", r.T95Fine.Seconds(), 0.39, 0.011)
	closeTo(t, "use", r.Use, (15_100-200)/15_100.0, 0.0005)
	closeTo(t, "use in windows", r.UseWindows, (15_100-200)/15_100.0, 0.0005)
	if want := int64(200); r.Below < want-2 || r.Below > want+2 || r.Early.Tokens != r.Below || r.Refused.Tokens != r.Below {
		t.Errorf("refused below %d, early %+v, refused %+v, want %d", r.Below, r.Early, r.Refused, want)
	}
	closeTo(t, "peak", r.Peak1, 1000.0/1100, 0.002)
	closeTo(t, "swing", r.Swing, 0, 0.0011)
	if r.T110 != 0 || r.Excess60 > 0.0011 {
		t.Errorf("t110 %v, excess %v", r.T110, r.Excess60)
	}
	s.Measure.Step = 15 * time.Second
	if r := run(t, s, switched(func(at time.Duration, _ Address) bool { return at < 16*time.Second })); r.T95 != limit.Never {
		t.Errorf("t95 is %v where use ends, want never", r.T95)
	}
}

// A fleet that admits three times its limit for two seconds.
func TestExcess(t *testing.T) {
	over := func(at time.Duration) bool { return at >= 5*time.Second && at < 7*time.Second }
	k := 0
	p := switched(func(at time.Duration, _ Address) bool {
		k++
		return over(at) || k%3 == 0
	})
	r := run(t, Scenario{
		Limit: limitOf(100, 10), Instances: 1, Duration: 40 * time.Second, Measure: Measure{Step: 5 * time.Second},
		Loads: []Load{{Demand: steady(300)}},
	}, p)
	closeTo(t, "excess", r.Excess60, 4, 0.02)
	closeTo(t, "t110", r.T110.Seconds(), 1.95, 0.03)
	closeTo(t, "peak 1 s", r.Peak1, 300.0/110, 0.02)
	closeTo(t, "peak 10 s", r.Peak10, (600+800)/1010.0, 0.01)
	closeTo(t, "over", r.Over, 390, 2)
	closeTo(t, "swing", r.Swing, 0.01, 0.011)
	// One central limiter admits 15 in the first 50 ms, before it refuses for the first
	// time; of these the fleet refused two thirds.
	if r.Early.Requests != 10 || r.Below != 0 {
		t.Errorf("early %+v, below %d, want 10 and 0: the demand was above the limit", r.Early, r.Below)
	}
}

// A fleet that admits too much, and from 60 s on nine tenths of the limit: the last minute,
// or the last half of a run that is shorter than two.
func TestSteady(t *testing.T) {
	k := 0
	p := switched(func(at time.Duration, _ Address) bool {
		k++
		return at < 60*time.Second || k%10 != 0
	})
	s := Scenario{Limit: limitOf(100, 10), Instances: 1, Duration: 3 * time.Minute, Loads: []Load{{Demand: steady(100)}}}
	s.Changes = []Change{{70 * time.Second, limitOf(90, 9)}, {2 * time.Minute, limitOf(100, 10)}}
	closeTo(t, "steady", run(t, s, p).Steady, 0.9, 0.001)
	s.Duration = 2 * time.Minute // half of it, which happens to be the last minute
	closeTo(t, "steady under another limit", run(t, s, p).Steady, 60*90/(10*100+50*90.0), 0.001)
	s.Changes, s.Duration = nil, 80*time.Second
	closeTo(t, "steady of a short run", run(t, s, p).Steady, (20+20*0.9)/40, 0.001)
	if got := run(t, s, switched(func(time.Duration, Address) bool { return false })).Steady; got != 0 {
		t.Errorf("of nothing: %v", got)
	}
}

// An even load of which the fleet admits 20 in the first tenth of a second of the clock,
// 10 in the others, none in the last: and twice all of that in the fourth second.
func TestSecondsOfTheClock(t *testing.T) {
	in := map[time.Duration]int{}
	p := switched(func(at time.Duration, _ Address) bool {
		all := at / (100 * ms)
		tenth := all % 10
		most := []int{0: 20, 1: 10, 2: 10, 3: 10, 4: 10, 5: 10, 6: 10, 7: 10, 8: 10, 9: 0}[tenth]
		if at/time.Second == 3 {
			most *= 2
		}
		in[all]++
		return in[all] <= most
	})
	s := Scenario{
		Limit: limitOf(100, 25), Instances: 1, Duration: 10 * time.Second, Measure: Measure{From: 5 * time.Second},
		Loads: []Load{{Demand: steady(1000)}},
	}
	r := run(t, s, p)
	closeTo(t, "first tenth", r.Tenths[0], 0.2, 1e-9)
	closeTo(t, "eighth tenth", r.Tenths[8], 0.1, 1e-9)
	closeTo(t, "last tenth", r.Tenths[9], 0, 1e-9)
	closeTo(t, "mean", r.Mean, 1, 1e-9)
	closeTo(t, "aligned second", r.Aligned1, 2, 0.02)
	// From 100 ms before the fifth second: 40 to 180 of the fourth, none, and 20 of it.
	closeTo(t, "peak rate", r.Rate1, 2, 0.02)
	closeTo(t, "peak 1 s", r.Peak1, 200.0/125, 0.02)
	s.Changes = []Change{{3 * time.Second, limitOf(200, 25)}, {4 * time.Second, limitOf(100, 25)}}
	clear(in)
	closeTo(t, "aligned second under twice the limit", run(t, s, p).Aligned1, 1, 0.02)
	if r := run(t, s, switched(func(time.Duration, Address) bool { return false })); r.Tenths != [10]float64{} || r.Rate1 != 0 || r.Mean != 0 {
		t.Errorf("of nothing: %+v", r)
	}
}

func TestJain(t *testing.T) {
	s := Scenario{
		Limit: limitOf(100, 1), Instances: 4, Duration: 100 * time.Second, Weights: []uint32{3, 1, 1, 1},
		Loads: []Load{{Demand: steady(310), Split: Split{Kind: Shares, Shares: []float64{200, 100, 10, 0}}}},
	}
	// Due: 67.5, 22.5, 10 and nothing. Each gets a part of that.
	play := func(parts [3]float64) float64 {
		due, got := [3]float64{67.5, 22.5, 10}, [4]float64{}
		return run(t, s, switched(func(at time.Duration, i Address) bool {
			if got[i] >= due[i]*parts[i]*at.Seconds() {
				return false
			}
			got[i]++
			return true
		})).Jain
	}
	closeTo(t, "Jain of a fair one", play([3]float64{1, 1, 1}), 1, 1e-4)
	closeTo(t, "Jain of half for one", play([3]float64{1, 0.5, 1}), 2.5*2.5/(3*2.25), 1e-3)
}

func TestWaterfill(t *testing.T) {
	for seed := range seeding.Draw(t, 2000) {
		r := rand.New(rand.NewPCG(seed, 5))
		n := 1 + r.IntN(10)
		wants, weights, total := make([]float64, n), make([]float64, n), 0.0
		for i := range wants {
			wants[i], weights[i] = float64(r.IntN(20)), float64(1+r.IntN(3))
			total += wants[i]
		}
		capacity := r.Float64() * 100
		got, sum, level := waterfill(capacity, wants, weights), 0.0, 0.0
		for i := range got {
			sum += got[i]
			level = max(level, got[i]/weights[i])
		}
		if math.Abs(sum-min(capacity, total)) > 1e-9 {
			t.Fatalf("seed %d: %v handed out of %v to wants of %v", seed, sum, capacity, total)
		}
		// Who gets less than wanted has the highest level.
		for i := range got {
			if got[i] > wants[i] || got[i] < wants[i]-1e-9 && got[i]/weights[i] < level-1e-9 {
				t.Fatalf("seed %d: %v of wants %v and weights %v in %v", seed, got, wants, weights, capacity)
			}
		}
	}
}

// Shares are added up over those who run, and bad ones are counted.
func TestSumOfShares(t *testing.T) {
	p := &probe{instance: func(n *probeNode) {
		n.share = []float64{60, 60, -1, math.NaN(), math.Inf(1)}[n.address]
	}}
	s := Scenario{
		Limit: limitOf(100, 1), Instances: 5, Duration: time.Second,
		Pauses: []Pause{{At: 500 * ms, Node: 1}}, Stops: []Stop{{At: 250 * ms, Node: 0, For: 100 * ms}},
		Loads: []Load{{Demand: steady(50)}},
	}
	r := run(t, s, p)
	if r.SharePeak != 1.2 || r.BadShares != 300 || r.Lent != 1 {
		t.Errorf("sum of shares %v, %d bad, lent %v", r.SharePeak, r.BadShares, r.Lent)
	}
	if len(r.Samples) != 10 || r.Samples[4].Shares[0] != 60 || r.Samples[3].Shares[0] != 0 || r.Samples[6].Shares[1] != 0 {
		t.Errorf("%d samples: %+v", len(r.Samples), r.Samples)
	}
	if x := r.Samples[7]; x.Limit != 100 || math.Abs(x.Demand-50) > 11 {
		t.Errorf("sample %+v", x)
	}
	s.Limit = Limit{}
	if r := run(t, s, &probe{}); r.SharePeak != 0 || r.Peak1 != math.Inf(1) || r.Over != float64(r.Admitted.Tokens) {
		t.Errorf("without a limit: sum of shares %v, peak %v, over %v", r.SharePeak, r.Peak1, r.Over)
	}
}
