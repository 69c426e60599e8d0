package partition

import (
	"fmt"
	"math"

	"github.com/stint-io/stint/limit"
)

// MaxUnits is the largest number of units that a split limit is divided into: 65,536.
// Not fewer: a thousand instances need room for weights. Not more: an instance of some
// weight has a table of 4 bytes for each unit that it owns.
const MaxUnits = 1 << 16

// Part is an instance's part of a split limit: units First to First+Weight-1 of Of. Of 96 equal
// instances the third has Part{First: 2, Weight: 1, Of: 96}. All instances must have the same
// Of, and parts that do not overlap. A part of weight 0 owns nothing. The zero value is invalid.
type Part struct {
	First, Weight, Of int64
}

// Validate reports a part that is not within 0 to Of, or an Of that is not between 1 and
// [MaxUnits].
func (p Part) Validate() error {
	switch {
	case p.Of < 1 || p.Of > MaxUnits:
		return fmt.Errorf("partition: a limit is split into %d units, want 1 to %d", p.Of, MaxUnits)
	case p.First < 0 || p.Weight < 0 || p.First > p.Of || p.Weight > p.Of-p.First:
		return fmt.Errorf("partition: units %d to %d are not within the %d units of the limit, which are 0 to %d",
			p.First, p.First+p.Weight-1, p.Of, p.Of-1)
	}
	return nil
}

// stride is the step from the unit of one token to the unit of the next, modulo units. It is
// coprime to units, so that each unit owns one of units consecutive tokens; and of the numbers
// near units/phi it is the one whose ratio to the units has the smallest sum of partial
// quotients, as a continued fraction, so that the tokens of neighbouring units, which one
// instance owns, lie as evenly as they can (Niederreiter, Random Number Generation and
// Quasi-Monte Carlo Methods, 1992, theorem 3.4: that sum bounds how far any run of tokens is
// from an even one).
func stride(units uint64) uint64 {
	// 610/987 is 1/phi to six digits.
	middle := (units*610 + 493) / 987
	best, least := uint64(1), uint64(math.MaxUint64)
	for d := range min(units, strideReach) {
		for _, g := range [...]uint64{middle + d, middle - d} {
			if g == 0 || g >= units {
				continue // or below zero, which wraps
			}
			if sum, prime := quotients(g, units); prime && sum < least {
				best, least = g, sum
			}
		}
	}
	return best // 1 for one unit or two
}

// strideReach is how far from units/phi a stride is searched. Not nearer: units with many
// divisors have few coprime numbers. Not farther: each candidate costs a run of Euclid's
// algorithm, at every change of the terms.
const strideReach = 128

// quotients returns the sum of the partial quotients of a/b, and whether a is prime to b.
func quotients(a, b uint64) (sum uint64, prime bool) {
	for a != 0 {
		sum += b / a
		a, b = b%a, a
	}
	return sum, b == 1
}

// offsets returns which of the tokens 0 to Of-1 belong to p, ascending. The pattern repeats
// every Of tokens.
func (p Part) offsets() []uint32 {
	units, found := uint64(p.Of), make([]uint32, 0, p.Weight)
	g, unit := stride(units), uint64(0)
	for c := range units {
		if int64(unit) >= p.First && int64(unit)-p.First < p.Weight {
			found = append(found, uint32(c))
		}
		unit = (unit + g) % units
	}
	return found
}

// gap returns the most that the number of a token grows by from one own token to the
// n-th own one after it.
func gap(units uint64, offsets []uint32, n uint64) uint64 {
	w := uint64(len(offsets))
	whole, rest := n/w, n%w
	widest := uint64(0)
	for r := range w {
		at := r + rest
		d := uint64(offsets[at%w]) - uint64(offsets[r]) // wraps below zero
		if at >= w {
			d += units
		}
		widest = max(widest, d)
	}
	return numbered(whole, units, widest)
}

// Terms is what one instance knows of a split limit.
type Terms struct {
	// Total is the rate of the whole limit, all instances together: at most one per
	// nanosecond, the grain of time. A rate of 0 admits nothing.
	Total limit.Rate

	// Part is what this instance owns of it.
	Part Part

	// Burst is what may be admitted on top of the rate within any interval, in tokens of the
	// whole limit: an unused token expires once Burst further tokens are due. With windows, 0
	// means that a token expires at the end of its window; without windows it must be at least
	// 1.
	Burst int64
}

// Validate returns the first thing that is wrong with t, given the length of windows.
func (t Terms) Validate(window limit.Time) error {
	if err := t.Total.Validate(); err != nil {
		return fmt.Errorf("partition: total: %w", err)
	}
	switch {
	case t.Total.Count > int64(t.Total.Period):
		return fmt.Errorf("partition: total %v is above one per nanosecond", t.Total)
	case t.Burst < 0 || t.Burst > limit.MaxCount:
		return fmt.Errorf("partition: burst is %d, want 0 to %d", t.Burst, int64(limit.MaxCount))
	case t.Burst == 0 && window == 0:
		return fmt.Errorf("partition: burst is 0, which admits nothing without windows: want at least 1")
	}
	return t.Part.Validate()
}
