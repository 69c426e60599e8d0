package client

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stint-io/stint/internal/lease/coordinator"
	"github.com/stint-io/stint/limit"
)

// Many who wait for a lease and are due at once are served in order, those that block and
// those with a call-back.
func TestCrowdIsDueAtOnce(t *testing.T) {
	const crowd, blocking = 100_000, 5000 // the race detector follows no more goroutines
	synctest.Test(t, func(t *testing.T) {
		h := newHub(t, link20)
		h.terms["m"] = rateOf(1, 1)
		c := h.run(t, "one")
		l := openLimit(t, c, "m", LimitOptions{})
		a := answers{begin: time.Now()}
		after := make([]time.Duration, blocking)
		var wg sync.WaitGroup
		for i := range after {
			wg.Go(func() {
				if err := l.Wait(t.Context()); err != nil {
					t.Error(err)
				}
				after[i] = time.Since(a.begin)
			})
			synctest.Wait() // it stands in line
		}
		for i := range crowd {
			l.WaitFunc(1, limit.Never, a.of(i))
		}
		time.Sleep(10 * time.Second) // the lease is there, and serves one a second
		h.set(func() {
			h.terms["m"] = rateOf(1e9, crowd)
			h.step(coordinator.Reconfigure{})
		})
		wg.Wait()
		time.Sleep(10 * time.Second)
		for i := 1; i < len(after); i++ {
			if after[i] < after[i-1] {
				t.Fatalf("%d of those who block were let go after %v, %d after %v", i-1, after[i-1], i, after[i])
			}
		}
		got := a.all()
		if len(got) != crowd {
			t.Fatalf("%d of %d were called", len(got), crowd)
		}
		for i, f := range got {
			if f.who != i || f.err != nil || f.after < after[len(after)-1] {
				t.Fatalf("%d-th call: %+v", i, f)
			}
		}
	})
}
