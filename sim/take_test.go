package sim

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"
)

var takeFleets = flag.Int("take-fleets", 8, "how many random fleets TestTakeIsServed plays, as 200")

// TestTakeIsServed: who waits 250 ms is refused nothing while the demand is at most half the
// limit, comes evenly, and the burst has a token for each instance, once the first second has
// shown who wants what: equal parts or by Zipf's law, with as many tokens as instances up to
// twice as many. With -poisson requests come
// at random; two may come within the time that a token takes, and where the burst has no
// more than one for each that is refused still: evidence.yaml has how much.
func TestTakeIsServed(t *testing.T) {
	arrivals := Even
	if *atRandom {
		arrivals = Poisson
	}
	refused, all := 0.0, 0.0
	play := func(instances int, burst, rate int64, part float64, split SplitKind, seed uint64) {
		r := run(t, Scenario{
			Limit: limitOf(rate, burst), Instances: instances, Duration: 15 * time.Second, Seed: seed,
			Network: Network{Delay: 50 * ms},
			Loads:   []Load{{Demand: []Step{{0, float64(rate) * part}}, Split: Split{Kind: split}, Arrivals: arrivals, Wait: 250 * ms}},
			Measure: Measure{From: time.Second},
		}, &Ours{})
		requests := float64(rate) * part * 14
		refused, all = refused+r.RefusedPart*requests, all+requests
		fleet := fmt.Sprintf("%d instances, burst %d, %.4g/s of %d/s, split %v, seed %d", instances, burst, float64(rate)*part, rate, split, seed)
		t.Logf("%s: %.4f refused, %.3g messages for each request", fleet, r.RefusedPart, float64(r.Messages)/float64(r.Admitted.Requests))
		if r.Over > 0 || r.RefusedPart > 0 && !*atRandom {
			t.Errorf("%s: %.5f refused, %v over", fleet, r.RefusedPart, r.Over)
		}
	}
	play(200, 200, 1000, 0.5, Equal, 1)
	r := rand.New(rand.NewPCG(35, 250)) // of other fleets one in 50 with a burst of one for each instance refuses 0.1 %
	for i := range *takeFleets {
		n := 2 + r.IntN(249)
		burst := int64(n) + r.Int64N(int64(n))
		rate := 20 + r.Int64N(20*int64(n))
		play(n, burst, rate, 0.05+0.45*r.Float64(), []SplitKind{Equal, Zipf}[r.IntN(2)], uint64(i))
	}
	t.Logf("%.5f of %.0f requests refused", refused/all, all)
}
