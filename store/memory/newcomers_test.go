package memory

import (
	"fmt"
	"testing"

	"github.com/stint-io/stint/limit"
)

// keysPerMiB is how many keys of one limit that came once have a place of their own in each MiB of the budget, before
// new keys share a bucket: docs/how-to/size.md states them.
var keysPerMiB = map[limit.Algorithm]int{
	limit.TokenBucket: 20_000, limit.LeakyBucket: 20_000,
	limit.FixedWindow: 14_000, limit.SlidingWindowCounter: 10_000, limit.SlidingWindowLog: 4_000, limit.Concurrency: 4_000,
}

// TestKeysBeforeTheyShare: so many new keys are admitted on their own, whatever they are called.
func TestKeysBeforeTheyShare(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	for algorithm, least := range keysPerMiB {
		for _, mib := range []int64{1, 3} {
			s := New(Options{MaxBytes: mib << 20, Now: newManual().now})
			p := limit.Policy{Algorithm: algorithm, Rate: limit.PerHour(5), Burst: 5}
			if algorithm == limit.Concurrency {
				p = limit.Policy{Algorithm: algorithm, MaxInFlight: 5, Timeout: 3600e9}
			}
			c := mustBind(t, s, "l", p)
			n := 0
			for ; s.Stats().Overflowed == 0; n++ {
				charge := one(c, fmt.Sprint("made up ", n))
				charge.Permit = uint64(1 + n)
				if !mustTake(t, s, charge) {
					break
				}
			}
			t.Logf("%v, %d MiB: %d keys, %d in each MiB", algorithm, mib, n, n/int(mib))
			if n < least*int(mib) {
				t.Errorf("%v: %d keys have a place in %d MiB, want %d", algorithm, n, mib, least*int(mib))
			}
		}
	}
}
