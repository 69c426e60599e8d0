package sim

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stint-io/stint/internal/seeding"
	"github.com/stint-io/stint/limit"
)

// demands is a limit and what each instance wants of it all the time.
type demands struct {
	limit Limit
	wants []float64
	all   float64
}

// randomDemands draws 2 to 20 instances that want 0.2 to 3 times the limit together: some little, some much.
func randomDemands(r *rand.Rand) demands {
	n := 2 + r.IntN(19)
	d := demands{limit: Limit{limit.PerSecond(int64(20*n) + r.Int64N(500)), int64(4*n) + r.Int64N(50)}, wants: make([]float64, n)}
	sum := 0.0
	for i := range d.wants {
		if d.wants[i] = r.Float64() * r.Float64(); r.IntN(4) == 0 {
			d.wants[i] *= 10
		}
		sum += d.wants[i]
	}
	d.all = d.limit.PerSecond() * (0.2 + 2.8*r.Float64())
	for i := range d.wants {
		d.wants[i] *= d.all / sum
	}
	return d
}

// TestBusyUsesTheLimit: with allocation: busy a fleet uses at least 0.98 of what exact max-min fairness does from 10 s
// on, whatever its instances want, and refuses nothing where they want less than the limit.
func TestBusyUsesTheLimit(t *testing.T) {
	f, err := ParseScenario([]byte(goodScenario+"systems: [stint]\nstint: {allocation: busy}\n"), "s.yaml")
	if err != nil {
		t.Fatal(err)
	}
	systems, err := f.Choose("stint")
	if err != nil {
		t.Fatal(err)
	}
	busy := systems[0].(*Ours)
	least, refused := 1.0, int64(0)
	for seed := range seeding.Draw(t, 50) {
		draw := rand.New(rand.NewPCG(seed, 0))
		d := randomDemands(draw)
		s := Scenario{
			Name: "busy", Limit: d.limit, Instances: len(d.wants), Duration: 20 * time.Second, Seed: draw.Uint64() >> 1, Network: Network{Delay: 5 * time.Millisecond},
			Loads: []Load{{Demand: []Step{{0, d.all}}, Split: Split{Kind: Shares, Shares: d.wants}}}, Measure: Measure{From: 10 * time.Second},
		}
		r, err := Run(context.Background(), s, busy)
		if err != nil {
			t.Fatal(err)
		}
		about := fmt.Sprintf("seed %d, limit %v, burst %d, wants %.4v", seed, d.limit.PerSecond(), d.limit.Burst, d.wants)
		if r.Over > 0 {
			t.Errorf("%s: %v over", about, r.Over)
		}
		if use := r.Use / min(1, d.all/d.limit.PerSecond()); use < 0.98 {
			t.Errorf("%s: uses %.4f", about, use)
		} else {
			least = min(least, use)
		}
		// An instance that asks seldom has no lease in between, and these callers do not wait for one.
		cold := 0.0
		for _, x := range d.wants {
			if x < 2 {
				cold += 10*x + 1
			}
		}
		if float64(r.Below) > cold {
			t.Errorf("%s: %d refused below the limit", about, r.Below)
		}
		refused += r.Below
	}
	t.Logf("at least %.4f of max-min, %d refused below the limit", least, refused)
}

// TestHermesLeavesAPartUnused is why there is no division by use alone. The published rule sees which part of its
// max-rate a consumer uses, and takes more than nine tenths for busy. So each of those that are not leaves up to a fifth,
// and what these want together is unused by as much. Rounds are played in the best case: each sees the exact use.
func TestHermesLeavesAPartUnused(t *testing.T) {
	seed := rand.Uint64()
	t.Log("seed", seed)
	draw := rand.New(rand.NewPCG(seed, 0))
	use := func(d demands) float64 {
		n := len(d.wants)
		shares, weights := make([]hermesShare, n), make([]float64, n)
		for i := range weights {
			weights[i] = 1
		}
		hermesBalance(d.limit.PerSecond(), shares)
		got, exact := 0.0, 0.0
		const rounds, last = 200, 100
		for round := range rounds {
			for i := range shares {
				used := min(d.wants[i], shares[i].max)
				shares[i].used = []float64{used / max(shares[i].max, 1)}
				if round >= rounds-last {
					got += used / last
				}
			}
			hermesBalance(d.limit.PerSecond(), shares)
		}
		for _, x := range waterfill(d.limit.PerSecond(), d.wants, weights) {
			exact += x
		}
		return got / exact
	}
	below, least, all := 0, 1.0, 0
	for range 200 {
		d := randomDemands(draw)
		if d.all < d.limit.PerSecond() {
			continue
		}
		u := use(d)
		all++
		if least = min(least, u); u < 0.98 {
			below++
		}
	}
	nine := demands{limit: perSecond(100), wants: []float64{8.5, 8.5, 8.5, 8.5, 8.5, 8.5, 8.5, 8.5, 8.5, 1000}}
	u := use(nine)
	t.Logf("%d of %d fleets above the limit use less than 0.98 of max-min, at least %.3f; nine that want 8.5/s beside one that wants 1000/s use %.3f of 100/s", below, all, least, u)
	if 2*below < all || u > 0.95 {
		t.Error("the rule does as well as max-min: divide by it again")
	}
}
