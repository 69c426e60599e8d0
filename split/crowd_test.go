package split_test

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/split"
)

// Many waiters that are due at the same time, at the edge of a window, are served in order,
// blocking ones and call-backs; also without windows, and by a change of the total.
func TestCrowdIsDueAtOnce(t *testing.T) {
	const crowd, blocking = 100_000, 5000 // the race detector follows no more goroutines
	one := split.Instance(0, 1)
	for name, set := range map[string]struct {
		before, after limit.Rate
		o             split.Options
	}{
		"windows":     {limit.PerSecond(crowd), limit.PerSecond(crowd), split.Options{Window: time.Second}},
		"a change":    {limit.PerHour(1), limit.PerSecond(1e9), split.Options{}},
		"no windows":  {limit.PerSecond(crowd), limit.PerSecond(crowd), split.Options{}},
		"even pacing": {limit.PerSecond(crowd), limit.PerSecond(crowd), split.Options{Window: time.Second, Pacing: split.Even}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := newLimiter(t, split.Terms{Total: set.before, Part: one}, set.o)
				for l.Allow() {
				}
				begin := time.Now()
				after := make([]time.Duration, blocking)
				var wg sync.WaitGroup
				for i := range after {
					wg.Go(func() {
						if err := l.Wait(t.Context()); err != nil {
							t.Error(err)
						}
						after[i] = time.Since(begin)
					})
					synctest.Wait() // it stands in line
				}
				called := 0 // one after the other
				for i := range crowd {
					l.WaitFunc(1, limit.Never, func(err error) {
						if err != nil || i != called {
							t.Errorf("%d was called %d-th: %v", i, called, err)
						}
						called++
					})
				}
				time.Sleep(time.Millisecond)
				if err := l.SetTotal(set.after); err != nil {
					t.Fatal(err)
				}
				wg.Wait()
				for i := 1; i < len(after); i++ {
					if after[i] < after[i-1] {
						t.Fatalf("%d was let go after %v, %d after %v", i-1, after[i-1], i, after[i])
					}
				}
				time.Sleep(3 * time.Second)
				synctest.Wait()
				if called != crowd {
					t.Errorf("%d of %d were called", called, crowd)
				}
			})
		})
	}
}
