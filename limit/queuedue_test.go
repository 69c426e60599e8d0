package limit

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// A Queue serves a crowd that is due at the same time in order as well, whatever the limit.
func TestQueueCrowdIsDueAtOnce(t *testing.T) {
	for _, p := range dueAtOnce(crowd) {
		if p.Algorithm == LeakyBucket {
			// With a late timer, a request that is not held back overtakes one that is.
			p.Rate = PerSecond(1e9)
		}
		synctest.Test(t, func(t *testing.T) {
			l := newLimiter(t, p)
			fill(t, l, p)
			queue := newQueue(t, l, QueueOptions{})
			defer queue.Close()
			q := told{start: time.Now()}
			after := make([]time.Duration, crowd)
			var wg sync.WaitGroup
			for i := range after {
				wg.Go(func() {
					if d, err := queue.Wait(t.Context(), Request{}); err != nil || !d.Allowed {
						t.Error(d, err)
					}
					after[i] = time.Since(q.start)
				})
				synctest.Wait() // it stands in line
			}
			for i := range crowd {
				q.joinQueue(queue, i, Request{}, Never)
			}
			wg.Wait()
			for i := 1; i < len(after); i++ {
				if after[i] < after[i-1] {
					t.Fatalf("%v: %d of those who block were let go after %v, %d after %v", p.Algorithm, i-1, after[i-1], i, after[i])
				}
			}
			<-time.After(5 * time.Second)
			got := q.all()
			if len(got) != crowd {
				t.Fatalf("%v: %d of %d were called", p.Algorithm, len(got), crowd)
			}
			for i, f := range got {
				if f.who != i || f.err != nil || f.after < after[len(after)-1] {
					t.Fatalf("%v: %d-th call: %+v", p.Algorithm, i, f)
				}
			}
		})
	}
}
