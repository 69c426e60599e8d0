package sim

import (
	"fmt"
	"testing"
	"time"

	"github.com/stint-io/stint/internal/seeding"
)

// One bucket that all reach refuses what the arithmetic of one bucket refuses, however
// many instances there are, whatever the network does: it is the reference, so that
// nothing is refused beyond it, and nothing early.
func TestOneBucketIsTheReference(t *testing.T) {
	for seed := range seeding.Draw(t, 4) {
		for _, wait := range []time.Duration{0, 50 * ms, 250 * ms} {
			for _, instances := range []int{1, 20} {
				s := Scenario{
					Limit: limitOf(1000, 100), Instances: instances, Duration: 20 * time.Second, Seed: seed,
					Network: Network{Delay: 50 * ms, Loss: 0.5},
					Loads: []Load{
						{Demand: []Step{{0, 900}, {5 * time.Second, 1500}, {10 * time.Second, 400}}, Split: Split{Kind: Zipf}, Arrivals: Poisson, Wait: wait},
						{Demand: []Step{{0, 50}}, Arrivals: Bursts, Size: 30},
					},
				}
				r := run(t, s, OneBucket{})
				name := fmt.Sprintf("seed %d, wait %v, %d instances", seed, wait, instances)
				if r.Over > 0 || r.BeyondOne != 0 || r.Refused != r.OneRefused {
					t.Errorf("%s: over %v, refused %v and %v by the reference", name, r.Over, r.Refused, r.OneRefused)
				}
				if r.Refused.Requests == 0 {
					t.Errorf("%s: nothing was refused: the test shows nothing", name)
				}
				if wait == 0 && r.Early.Requests > 0 {
					t.Errorf("%s: %d early", name, r.Early.Requests)
				}
				if r.WaitMost > wait {
					t.Errorf("%s: a request waited %v", name, r.WaitMost)
				}
			}
		}
	}
}

// A limit that changes is that of the reference too.
func TestOneBucketFollowsTheLimit(t *testing.T) {
	s := Scenario{
		Limit: limitOf(1000, 10), Instances: 3, Duration: 10 * time.Second,
		Changes: []Change{{At: 5 * time.Second, Limit: limitOf(100, 10)}},
		Loads:   []Load{{Demand: []Step{{0, 2000}}, Wait: 20 * ms}},
	}
	r := run(t, s, OneBucket{})
	within(t, "use", r.Use, 0.999, 1.005)
	within(t, "beyond one bucket", r.BeyondOne, 0, 0)
}
