// Package seeding has the seeds of tests that draw what they try.
package seeding

import (
	"iter"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
)

// Draw yields n seeds, others at each run, and logs the first of them. Where STINT_SEED is set it is the first, so that a
// failure can be seen again.
func Draw(t testing.TB, n int) iter.Seq[uint64] {
	t.Helper()
	first := rand.Uint64N(1e9) // short enough to be typed
	if text, ok := os.LookupEnv("STINT_SEED"); ok {
		var err error
		if first, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatalf("STINT_SEED: %v", err)
		}
	}
	t.Logf("STINT_SEED=%d", first)
	return func(yield func(uint64) bool) {
		for i := range uint64(n) {
			if !yield(first + i) {
				return
			}
		}
	}
}
