package estimate_test

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stint-io/stint/internal/estimate"
)

func TestWalk(t *testing.T) {
	e, err := estimate.New(estimate.Options{Quantile: 0.5})
	if err != nil {
		t.Fatal(err)
	}
	if n := e.Estimate(0, "a", "acme", 4096); n != 4096 {
		t.Errorf("nothing is known, and %d is estimated of a declared 4096", n)
	}
	for range 50 {
		e.Settle(0, "a", "acme", 4096, 4096, 200)
	}
	for declared, want := range map[int64]int64{4096: 200, 4100: 200, 100: 100, 0: 1} {
		if n := e.Estimate(0, "a", "acme", declared); math.Abs(float64(n-want)) > 0.05*float64(want) {
			t.Errorf("declared %d: %d, want %d", declared, n, want)
		}
	}
	if n := e.Estimate(0, "b", "acme", 4096); n != 4096 {
		t.Errorf("another model: %d", n)
	}
	if e.Error() < 19 || e.Error() > 20 {
		t.Errorf("50 estimates of 4096 for 200: an error of %v", e.Error())
	}
	if _, err := estimate.New(estimate.Options{Quantile: 2}); err == nil {
		t.Error("a quantile of 2")
	}
	if _, err := estimate.New(estimate.Options{Start: -1}); err == nil {
		t.Error("a start of -1")
	}
	if s, _ := estimate.New(estimate.Options{Start: 500}); s.Estimate(0, "a", "b", 4096) != 500 {
		t.Error("the start is not used")
	}
}

// While much is left the estimate is reserved, near the end of a budget what is declared; and before anything is
// known of what is owed.
func TestPrudent(t *testing.T) {
	e, err := estimate.New(estimate.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if n := e.Prudent(100, 1000, 1_000_000, 0); n != 100 {
		t.Errorf("%d of a budget that does for all", n)
	}
	if n := e.Prudent(100, 1000, 10_000, 20_000); n != 1000 {
		t.Errorf("nothing is known, and %d is reserved", n)
	}
	// One in two costs 300 for which 100 were estimated: by their lengths three quarters of those in flight, each
	// with 200 of the 900 that it declares above.
	for range 2000 {
		e.Settle(0, "m", "t", 1000, 100, 300)
		e.Settle(0, "m", "t", 1000, 100, 100)
	}
	const open = 90_000 // 100 requests
	for left, want := range map[int64]int64{15_000: 1000, 15_000 + 1000: 100, 14_000: 1000} {
		if n := e.Prudent(100, 1000, left, open); n != want {
			t.Errorf("%d left: %d, want %d", left, n, want)
		}
	}
	if n := e.Prudent(1000, 1000, 0, open); n != 1000 {
		t.Error(n)
	}
}

// Of whatever lengths, that share of requests costs no more than was estimated which the quantile says.
func TestQuantile(t *testing.T) {
	r := rand.New(rand.NewPCG(14, 9))
	for range 20 {
		q, sigma, mean := 0.3+0.65*r.Float64(), 0.3+r.Float64(), 100+2000*r.Float64()
		e, err := estimate.New(estimate.Options{Quantile: q})
		if err != nil {
			t.Fatal(err)
		}
		within, n := 0, 0
		var last []int64
		for i := range 3000 {
			actual := int64(mean * math.Exp(sigma*r.NormFloat64()))
			got := e.Estimate(time.Duration(i), "m", "t", 1<<20)
			if i >= 500 {
				n++
				if actual <= got {
					within++
				}
			}
			e.Settle(time.Duration(i), "m", "t", 1<<20, got, actual)
			last = append(last, actual)
		}
		slices.Sort(last)
		if share := float64(within) / float64(n); math.Abs(share-q) > 0.08 {
			t.Errorf("quantile %.2f of lognormal(%.2f): %.3f were within", q, sigma, share)
		}
	}
}
