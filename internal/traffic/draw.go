// Package traffic draws fleets whose demands change, for the simulator and the benchmarks.
package traffic

import (
	"math"
	"math/rand/v2"
	"slices"
)

// Source draws what the instances of a fleet want. It is not safe for concurrent use.
type Source struct {
	Rand *rand.Rand
	Each float64 // requests per second of an instance of middle size, above 0
}

// Between draws a number from a to b, both above 0, such that each factor is as likely as any
// other of its size.
func (s Source) Between(a, b float64) float64 {
	return a * math.Pow(b/a, s.Rand.Float64())
}

// First draws what n instances want at first, in requests per second: some nothing, small
// ones beside large ones.
func (s Source) First(n int) []float64 {
	wants := make([]float64, n)
	for i := range wants {
		wants[i] = s.one()
	}
	return wants
}

func (s Source) one() float64 {
	switch p := s.Rand.Float64(); {
	case p < 0.15:
		return 0
	case p < 0.4:
		return s.Each * s.Between(0.01, 0.1)
	case p < 0.75:
		return s.Each * s.Between(0.2, 1)
	default:
		return s.Each * s.Between(1, 8)
	}
}

// Next draws a change and returns what the instances want after it; wants, not empty, stays
// as it is.
func (s Source) Next(wants []float64) []float64 {
	wants = slices.Clone(wants)
	r, n := s.Rand, len(wants)
	switch r.IntN(4) {
	case 0: // a part of one's demand moves to another
		from, to := r.IntN(n), r.IntN(n)
		part := wants[from] * (0.1 + 0.9*r.Float64())
		wants[from] -= part
		wants[to] += part
	case 1: // some change by a factor
		for range 1 + r.IntN(n) {
			wants[r.IntN(n)] *= s.Between(0.4, 2.5)
		}
	case 2: // one begins, ends or is another
		wants[r.IntN(n)] = s.one()
	default: // many do
		for range 1 + r.IntN(n) {
			wants[r.IntN(n)] = s.one()
		}
	}
	return wants
}

// Seeded returns a source of chance of its own for each combination of arguments, so that what one
// draws does not change what another one does.
func Seeded(seed, of, index, again uint64) *rand.Rand {
	return rand.New(rand.NewPCG(Mix(seed, of<<56|index), Mix(seed+1, again)))
}

// Mix spreads two words over one: the finish of SplitMix64.
func Mix(a, b uint64) uint64 {
	z := a*0x9e3779b97f4a7c15 + b
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}
