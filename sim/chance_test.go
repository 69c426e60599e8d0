package sim

import (
	"fmt"
	"math"
	"testing"
	"time"
)

// chanceBound is what is promised of requests that arrive at random (Poisson) and do not
// wait, in docs/reference/leases.md: the part that is refused although one bucket would
// have admitted it, where the demand is the part rho of the limit, and each of those who
// ask has k tokens of burst, the burst divided by their number.
//
// A bucket of k tokens that is fed as fast as it is asked is a random walk between full
// and empty, at each end for one step in 2k: what comes while it is empty is refused, and
// what it is fed while it is full is lost. With demand below the limit it drifts to full,
// and is empty less often by a power of e. That this is half as much again, by a weaker
// power, is for whole tokens, for demand that is measured, and for rates that move; one in
// a thousand is for requests that find tokens on the way.
func chanceBound(rho, k float64) float64 {
	return 1.5/(2*k)*math.Exp(-(1-rho)*k/4) + 0.001
}

// Of random requests that do not wait no more is refused than is promised, evenly
// spread or by Zipf's law, with few tokens for each instance and with many.
func TestChanceIsAsPromised(t *testing.T) {
	const instances = 20
	for _, kind := range []SplitKind{Equal, Zipf} {
		for _, k := range unlessLong(3, []int64{1, 5, 50, 2, 10}) {
			for _, rho := range []float64{0.5, 0.75, 0.9, 0.999} {
				r := run(t, Scenario{
					Limit: limitOf(1000, k*instances), Instances: instances, Duration: 30 * time.Second, Seed: uint64(k),
					Network: Network{Delay: 50 * ms},
					Loads:   []Load{{Demand: []Step{{0, 1000 * rho}}, Split: Split{Kind: kind}, Arrivals: Poisson}},
					Measure: Measure{From: 5 * time.Second},
				}, &Ours{})
				// What 25 s show varies at random: by three deviations of as many clumps
				// of k refusals.
				bound := chanceBound(rho, float64(k))
				requests := 25 * 1000 * rho
				bound += 3*math.Sqrt(bound*float64(k)/requests) + 3*float64(k)/requests
				name := fmt.Sprintf("%v, %d tokens each, demand %v of the limit", kind, k, rho)
				t.Logf("%s: %.4f, promised %.4f", name, r.BeyondOne, chanceBound(rho, float64(k)))
				within(t, name+": beyond one bucket", r.BeyondOne, -1, bound)
				within(t, name+": over", r.Over, 0, 0)
			}
		}
	}
}

// The theory behind the bound: one bucket by itself, asked as fast as it is fed, refuses
// one part in 2k.
func TestOneInTwiceTheDepth(t *testing.T) {
	for _, k := range []int64{1, 5, 20} {
		r := run(t, Scenario{
			Limit: limitOf(1000, k), Instances: 1, Duration: 200 * time.Second,
			Loads: []Load{{Demand: []Step{{0, 1000}}, Arrivals: Poisson}},
		}, OneBucket{})
		within(t, fmt.Sprintf("refused with %d tokens", k), r.RefusedPart*2*float64(k), 0.9, 1.1)
	}
}
