package client

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"
)

// A time of the caller's that is far ahead counts as the present, and one far back as the first.
func TestFarTimes(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 2))
	c := &Client{origin: time.Now().Add(-time.Hour)}
	for range 10_000 {
		far := time.Duration(r.Int64N(1 << (1 + r.IntN(62))))
		if r.IntN(10) == 0 {
			far = math.MaxInt64 - time.Duration(r.Int64N(int64(3*time.Second)))
		}
		before := c.now()
		if at := c.at(time.Now().Add(far)); at < before {
			t.Fatalf("%v ahead: %d, and now it is %d", far, at, before)
		}
		if on := c.on(time.Now().Add(far)); on < before.Add(far) {
			t.Fatalf("%v ahead: %d, and now it is %d", far, on, before)
		}
		if at := c.at(time.Now().Add(-far)); at < 1 || at > c.now() {
			t.Fatalf("%v back: %d", far, at)
		}
	}
}
