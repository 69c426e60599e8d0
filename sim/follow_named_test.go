package sim

import (
	"math"
	"testing"
	"time"

	"github.com/stint-io/stint/limit"
)

// Demands that leases once followed late or not at all.
func TestFollowsNamedDemands(t *testing.T) {
	for _, tt := range []struct {
		name   string
		rate   int64
		before []float64
		after  []float64
		kinds  []Arrivals
	}{
		{"a small one beside a large one", 100, []float64{0, 300}, []float64{1, 300}, []Arrivals{Even, Even}},
		{"20/s beside 300/s", 100, []float64{0, 300}, []float64{20, 300}, []Arrivals{Even, Even}},
		{"a partial shift", 5000, []float64{4000, 0}, []float64{2000, 2750}, []Arrivals{Even, Even}},
		{"a half that moves", 1000, []float64{800, 400}, []float64{400, 800}, []Arrivals{Even, Even}},
		{"a loop of Wait", 1000, []float64{0, 5000, 5000}, []float64{10_000, 5000, 5000}, []Arrivals{Loop, Even, Even}},
		{"three, of which one wants little", 120, []float64{60, 60, 60}, []float64{60, 75, 10}, []Arrivals{Even, Even, Even}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			v := vector{seed: 1, limit: Limit{limit.PerSecond(tt.rate), tt.rate / 10}, kinds: tt.kinds}
			for range tt.kinds {
				v.weights = append(v.weights, 1)
			}
			v.moves = []move{{0, tt.before}, {10 * time.Second, tt.after}}
			v.end = 20 * time.Second
			p := v.play(t)
			if m := p.moves[0]; m.whole > 0.03 {
				t.Errorf("off by %.3f from 1 s on: %s", m.whole, m.about)
			}
			if p.over > 0 || p.peak > 1 {
				t.Errorf("%v tokens over, and shares of %v of the limit", p.over, p.peak)
			}
		})
	}
}

// A loop of Wait has its whole share again soon after its coordinator was away: what it
// asked for meanwhile was what it was given, nothing.
func TestLoopOfWaitAfterPause(t *testing.T) {
	s := Scenario{
		Name: "pause", Limit: Limit{limit.PerSecond(1000), 100}, Instances: 3, Duration: 30 * time.Second, Seed: 1,
		Network: Network{Delay: 50 * time.Millisecond}, Measure: Measure{Sample: 50 * time.Millisecond},
		Pauses: []Pause{{At: 5 * time.Second, For: 12 * time.Second, Node: Coordinator}},
		Loads: []Load{
			{Instances: []int{0}, Arrivals: Loop, Wait: time.Minute, Demand: []Step{{0, 10_000}}},
			{Instances: []int{1, 2}, Demand: []Step{{0, 10_000}}},
		},
	}
	r := run(t, s, &Ours{})
	for _, x := range r.Samples {
		if share := float64(x.Shares[0]); x.At > 18500*time.Millisecond && math.Abs(share-1000.0/3) > 10 {
			t.Fatalf("the loop has %.4g of 1000/s at %v, where a third is fair", share, x.At)
		}
	}
}
