package proxy

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"
)

// The time for a body of any length that a client names is ahead, and longer for a longer one.
func TestLeast(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 2))
	for range 10_000 {
		f := &forwarder{body: 1 + time.Duration(r.Int64N(1<<(1+r.IntN(62))))}
		length := r.Int64N(1 << (1 + r.IntN(62)))
		if r.IntN(10) == 0 {
			length = math.MaxInt64 - r.Int64N(1<<20)
		}
		now := time.Now()
		until := f.least(length)
		if !until.After(now) || f.least(length/2).After(time.Now().Add(until.Sub(now))) {
			t.Fatalf("%d bytes, %v between two parts: until %v, half of it until %v", length, f.body, until, f.least(length/2))
		}
	}
}
