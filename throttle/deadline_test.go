package throttle_test

import (
	"context"
	"math"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stint-io/stint/throttle"
)

// A deadline that is far away is no deadline that has passed: ten requests of which one runs are all
// served, whatever the deadline from a second on to the last year that a time can have.
func TestFarDeadlines(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 2))
	for range 200 {
		synctest.Test(t, func(t *testing.T) {
			th := newThrottle(t, throttle.Options{Concurrency: 1, MaxWait: 5 * time.Second})
			now := time.Now()
			deadline := []time.Time{
				now.Add(time.Second + time.Duration(r.Int64N(math.MaxInt64))),
				now.Add(math.MaxInt64 - time.Duration(r.Int64N(int64(3*time.Second)))),
				time.Unix(now.Unix()+1+r.Int64N(1<<40), r.Int64N(1e9)),
				time.Unix(math.MaxInt64>>r.IntN(10), 0),
			}[r.IntN(4)]
			if deadline.Before(now) {
				return // time.Unix has wrapped
			}
			ctx, cancel := context.WithDeadline(context.Background(), deadline)
			defer cancel()
			var served atomic.Int64
			var all sync.WaitGroup
			for range 10 {
				all.Go(func() {
					if w, _, _ := th.Start(ctx, throttle.Request{}); w != nil {
						time.Sleep(20 * time.Millisecond)
						w.Done()
						served.Add(1)
					}
				})
			}
			all.Wait()
			if served.Load() != 10 {
				t.Errorf("%d of 10 were served by %v", served.Load(), deadline)
			}
		})
	}
}
