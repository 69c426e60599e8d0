// Package seeding has the seeds of tests that draw what they try. Each run has other seeds and logs the first one, which
// the environment variable STINT_SEED sets to see a failure again. STINT_TIMES multiplies how much is drawn.
package seeding

import (
	"iter"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
)

// Draw yields n x STINT_TIMES seeds, which follow one another.
func Draw(t testing.TB, n int) iter.Seq[uint64] {
	t.Helper()
	first := seed(t)
	if text, ok := os.LookupEnv("STINT_TIMES"); ok {
		times, err := strconv.Atoi(text)
		if err != nil {
			t.Fatalf("STINT_TIMES: %v", err)
		}
		n *= times
	}
	return func(yield func(uint64) bool) {
		for i := range uint64(n) {
			if !yield(first + i) {
				return
			}
		}
	}
}

// Rand returns a source of random numbers.
func Rand(t testing.TB) *rand.Rand {
	t.Helper()
	return rand.New(rand.NewPCG(seed(t), 0))
}

func seed(t testing.TB) uint64 {
	t.Helper()
	seed := rand.Uint64N(1e9) // short enough to be typed
	if text, ok := os.LookupEnv("STINT_SEED"); ok {
		var err error
		if seed, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatalf("STINT_SEED: %v", err)
		}
	}
	t.Logf("STINT_SEED=%d", seed)
	return seed
}
