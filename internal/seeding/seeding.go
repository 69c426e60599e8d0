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
// failure can be seen again. STINT_TIMES is how many times as many it yields.
func Draw(t testing.TB, n int) iter.Seq[uint64] {
	t.Helper()
	first := rand.Uint64N(1e9) // short enough to be typed
	if text, ok := os.LookupEnv("STINT_SEED"); ok {
		var err error
		if first, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatalf("STINT_SEED: %v", err)
		}
	}
	if text, ok := os.LookupEnv("STINT_TIMES"); ok {
		times, err := strconv.Atoi(text)
		if err != nil {
			t.Fatalf("STINT_TIMES: %v", err)
		}
		n *= times
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
