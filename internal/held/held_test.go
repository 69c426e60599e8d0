package held_test

import (
	"context"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stint-io/stint"
	"github.com/stint-io/stint/internal/held"
	"github.com/stint-io/stint/limit"
)

// Whatever the time-outs and however long requests take: never more are in progress than the limit says while their
// holders live, the place of one that has ended is free at once, and that of a holder that is gone after the time-out.
func TestHeldForAsLongAsItTakes(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 1))
	for range 50 {
		most := 1 + r.IntN(4)
		timeout := time.Duration(1+r.IntN(60)) * time.Second
		synctest.Test(t, func(t *testing.T) {
			limiter, err := stint.Parse("limits: [{name: places, algorithm: concurrency, max_in_flight: " + string(rune('0'+most)) + ", timeout: " + timeout.String() + "}]\n")
			if err != nil {
				t.Fatal(err)
			}
			defer limiter.Close()
			take := func() limit.Decision {
				d, err := limiter.Take(context.Background(), limit.Request{})
				if err != nil {
					t.Fatal(err)
				}
				if d.Allowed && d.PermitFor != timeout {
					t.Fatalf("a permit is said to be held for %v, want %v", d.PermitFor, timeout)
				}
				return d
			}
			var open []*held.Permit
			gone := 0
			for range 60 {
				switch d := take(); {
				case d.Allowed != (len(open)+gone < most):
					t.Fatalf("%d of %d are in progress, %d of them without a holder, and one more is allowed: %v", len(open)+gone, most, gone, d.Allowed)
				case d.Allowed && r.IntN(4) == 0:
					gone++ // its process dies
				case d.Allowed:
					open = append(open, held.Hold(context.Background(), limiter, limit.Request{}, d.Permit, d.PermitFor))
				}
				time.Sleep(time.Duration(r.Int64N(int64(timeout) * 3 / 2)))
				if gone > 0 {
					time.Sleep(timeout)
					gone = 0
				}
				if len(open) > 0 && r.IntN(3) == 0 {
					open[0].Release()
					open = open[1:]
				}
			}
			for _, p := range open {
				p.Release()
			}
			if d := take(); !d.Allowed || d.Results[0].Remaining != int64(most-1) {
				t.Fatalf("at the end: %+v", d)
			}
		})
	}
}
