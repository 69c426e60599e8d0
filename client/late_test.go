package client

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stint-io/stint/internal/seeding"
)

// TestWaitWhereNothingIsLent: an instance that begins to wait for a limit that others use up
// holds nothing yet. Its part comes when the coordinator knows of it, so that it is not
// too late for any deadline that leaves the time for that.
func TestWaitWhereNothingIsLent(t *testing.T) {
	if testing.Short() {
		t.Skip("TestMessagesLost has the same goroutines: nothing for the race detector")
	}
	for seed := range seeding.Draw(t, 20) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := rand.New(rand.NewPCG(seed, 1))
				h := newHub(t, time.Duration(1+r.IntN(50))*time.Millisecond)
				h.terms["m"] = rateOf(int64(50+r.IntN(500)), int64(20+r.IntN(100)))
				hog := openLimit(t, h.run(t, "hog"), "m", LimitOptions{})
				l := openLimit(t, h.run(t, "late"), "m", LimitOptions{})
				done := make(chan struct{})
				defer func() { <-done }()
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				go func() {
					defer close(done)
					for ctx.Err() == nil {
						hog.Allow()
						time.Sleep(time.Millisecond)
					}
				}()
				time.Sleep(time.Duration(2000+r.IntN(8000)) * time.Millisecond)
				if lease := l.Lease(); !lease.Known || lease.Rate > 0 || !hog.Lease().Full {
					t.Fatalf("the lease of one who wants nothing of a full limit: %+v", lease)
				}
				for i := range 5 {
					wait, stop := context.WithTimeout(ctx, time.Duration(1000+r.IntN(9000))*time.Millisecond)
					begin := time.Now()
					if err := l.Wait(wait); err != nil {
						t.Errorf("wait %d: %v after %v", i, err, time.Since(begin))
					}
					stop()
				}
			})
		})
	}
}
