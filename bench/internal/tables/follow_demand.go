package tables

import (
	"cmp"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/stint-io/stint/internal/traffic"
)

// demands is what the processes of a fleet want, and how that changes.
type demands struct {
	seed    uint64
	rate    int64 // of the limit
	burst   int64
	weights []uint32
	loops   []bool // who asks by a loop of Wait
	changes []change
	end     time.Duration
}

// change is what each process wants from a time on, in requests per second.
type change struct {
	at    time.Duration
	wants []float64
}

// drawDemands draws n processes whose demands change so often, of the kinds that the
// simulator follows in sim.TestFollowsDemand: a part of what one wants moves to another,
// some change by a factor, some begin and end; small ones stand beside large ones, loops
// of Wait beside those who ask whatever they get. The limit is small enough for two
// processors that have other work: some hundred requests per second.
func drawDemands(seed uint64, n, changes int) *demands {
	r := rand.New(rand.NewPCG(seed, 34))
	draw := traffic.Source{Rand: r}
	draw.Each = draw.Between(20, 80)
	rate := int64(math.Ceil(draw.Each * float64(n)))
	d := &demands{seed: seed, rate: rate, burst: max(int64(float64(rate)*draw.Between(0.1, 1)), int64(4*n))}
	weigh := r.IntN(3) == 0
	for range n {
		weight := uint32(1)
		if weigh {
			weight = 1 + r.Uint32N(4)
		}
		d.weights, d.loops = append(d.weights, weight), append(d.loops, r.IntN(4) == 0)
	}
	wants, at := draw.First(n), warmUp
	d.changes = []change{{0, wants}}
	for range changes {
		wants = draw.Next(wants)
		d.changes = append(d.changes, change{at, wants})
		at += time.Duration(draw.Between(2, 10) * float64(time.Second))
	}
	d.end = at
	return d
}

// until is when the k-th change makes way for the next.
func (d *demands) until(k int) time.Duration {
	if k+1 < len(d.changes) {
		return d.changes[k+1].at
	}
	return d.end
}

// exact is the weighted max-min division of the limit under the k-th change: nobody gets
// more than wanted, and all who get less have the same per weight. It stands here by
// itself, so that nothing is measured by its own arithmetic.
func (d *demands) exact(k int) []float64 {
	wants := d.changes[k].wants
	order := make([]int, len(wants))
	left, weight := float64(d.rate), 0.0
	for i := range order {
		order[i] = i
		weight += float64(d.weights[i])
	}
	slices.SortFunc(order, func(a, b int) int {
		return cmp.Compare(wants[a]*float64(d.weights[b]), wants[b]*float64(d.weights[a]))
	})
	got := make([]float64, len(wants))
	for _, i := range order {
		got[i] = min(wants[i], left*float64(d.weights[i])/weight)
		left -= got[i]
		weight -= float64(d.weights[i])
	}
	return got
}
