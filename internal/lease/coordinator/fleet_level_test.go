package coordinator

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/internal/seeding"
)

// levels divides a rate by weighted max-min: each has what it wants or its weight's part of
// what the others leave.
func levels(rate float64, wants []float64, weights []uint32) []float64 {
	order := make([]int, len(wants))
	total := 0.0
	for i := range wants {
		order[i] = i
		total += float64(weights[i])
	}
	slices.SortFunc(order, func(a, b int) int {
		if wants[a]/float64(weights[a]) < wants[b]/float64(weights[b]) {
			return -1
		}
		return 1
	})
	shares := make([]float64, len(wants))
	for _, i := range order {
		shares[i] = min(wants[i], rate*float64(weights[i])/total)
		rate -= shares[i]
		total -= float64(weights[i])
	}
	return shares
}

// TestFleetGetsItsLevels: with steady demands each instance is admitted what weighted max-min
// gives it, and all of what can be used is used, at first and after each change of the
// demands, after a new instance and after one that has gone.
func TestFleetGetsItsLevels(t *testing.T) {
	for seed := range seeding.Draw(t, 12) {
		r := rand.New(rand.NewPCG(seed, 74))
		n := 2 + r.IntN(7)
		rate := 100 + r.Float64()*400
		f := newFleet(t, seed, n, lease.Terms{Rate: fixed.Amount(rate * float64(fixed.Token)), Burst: fixed.Whole(int64(rate / 4))})
		weights := make([]uint32, n)
		for i, in := range f.instances {
			in.agent.Close(f.clock(in), in.handle)
			weights[i] = 1 + r.Uint32N(3)
			in.opts.Weight = weights[i]
			f.start(in)
		}
		for phase := range 4 {
			wants := make([]float64, n)
			sum := 0.0
			for i := range wants {
				wants[i] = r.ExpFloat64()
				sum += wants[i]
			}
			load := rate * (0.4 + 2*r.Float64()) / sum
			for i, in := range f.instances {
				wants[i] *= load
				if phase == 2 && i == 0 {
					wants[i] = 0 // it has gone
					in.down = true
				} else if phase == 3 && i == 0 {
					f.start(in)
				}
				f.load(in, wants[i])
			}
			f.run(8 * time.Second)
			before := make([]int64, n)
			for i, in := range f.instances {
				before[i] = in.took
			}
			f.run(4 * time.Second)
			used, could := 0.0, 0.0
			for i, level := range levels(rate, wants, weights) {
				got := float64(f.instances[i].took-before[i]) / 4
				used, could = used+got, could+level
				if got < 0.95*level-1 {
					t.Errorf("seed %d, phase %d: instance %d of weight %d was admitted %.1f/s of %.1f, wants %.1f; %.1f/s among %d", seed, phase, i, weights[i], got, level, wants[i], rate, n)
				}
			}
			if used < 0.98*could-1 {
				t.Errorf("seed %d, phase %d: %.1f/s of %.1f are used", seed, phase, used, could)
			}
		}
	}
}
