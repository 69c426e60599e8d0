package demand

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stint-io/stint/internal/seeding"

	"github.com/stint-io/stint/internal/fixed"
)

func TestWantedByUse(t *testing.T) {
	for _, tt := range []struct {
		name              string
		held, admitted    fixed.Amount
		tolerance, growth float64
		want              fixed.Amount
	}{
		{"it uses all", fixed.Whole(100), fixed.Whole(100), 0.1, 1.5, fixed.Whole(150)},
		{"it is busy", fixed.Whole(100), fixed.Whole(90) + 1, 0.1, 1.5, fixed.Whole(150)},
		{"at the tolerance it is not", fixed.Whole(100), fixed.Whole(90), 0.1, 1.5, fixed.Whole(100)},
		{"it uses half", fixed.Whole(100), fixed.Whole(45), 0.1, 1.5, fixed.Whole(50)},
		{"it uses nothing", fixed.Whole(100), 0, 0.1, 1.5, 0},
		{"it spent a burst", fixed.Whole(100), fixed.Whole(500), 0.1, 1.5, fixed.Whole(500)},
		{"it holds nothing", 0, 0, 0.1, 1.5, 0},
		{"it held something", 0, fixed.Whole(3), 0.1, 1.5, fixed.Whole(3)},
		{"usual settings", fixed.Whole(100), fixed.Whole(100), 0, 0, fixed.Whole(150)},
		{"no settings", fixed.Whole(100), fixed.Whole(45), math.NaN(), math.NaN(), fixed.Whole(50)},
		{"endless growth", fixed.Whole(1), fixed.Whole(1), 0.1, math.Inf(1), fixed.Whole(1000)},
		{"the largest", fixed.MaxAmount, math.MaxInt64, 0.1, 2, fixed.MaxAmount},
		{"below 0", -5, -5, 0.1, 2, 0},
		{"whole tolerance", fixed.Whole(100), fixed.Whole(1), 1, 2, fixed.Whole(200)},
	} {
		if got := WantedByUse(tt.held, tt.admitted, tt.tolerance, tt.growth); got != tt.want {
			t.Errorf("%s: got %v, want %v", tt.name, got, tt.want)
		}
	}
}

// TestWantedByUseSettles: who gets what it wants and goes on as before wants the same
// from then on, and no more than 1/(1 - tolerance) and one step of growth above it.
func TestWantedByUseSettles(t *testing.T) {
	rng := seeding.Rand(t)
	for range 5000 {
		demand, held := logUniformAmount(rng, 1e12), logUniformAmount(rng, 1e12)
		tolerance, growth := 0.01+0.4*rng.Float64(), 1.1+rng.Float64()
		last := fixed.Amount(-1)
		for range 1000 {
			held = WantedByUse(held, min(held, demand), tolerance, growth)
			if held == last {
				break
			}
			last = held
			if held < 10 { // growth of a few units rounds to none
				held = 10
			}
		}
		if used := float64(demand) / (1 - tolerance); last != held || float64(held) > used*growth+10 || held < min(demand, 10) {
			t.Fatalf("demand %v, tolerance %v, growth %v: ends at %v, before %v", demand, tolerance, growth, held, last)
		}
	}
}

// logUniformAmount returns a number whose logarithm is uniform, up to most.
func logUniformAmount(rng *rand.Rand, most fixed.Amount) fixed.Amount {
	return fixed.Amount(math.Exp(rng.Float64() * math.Log(float64(most))))
}
