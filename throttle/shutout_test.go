package throttle_test

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stint-io/stint/throttle"
)

// besideAFlood has 10 requests of a route in each second come beside 500 of others, 2.5 times what the server
// can, after the route has cost before for a time. It returns how many of the route are served of 600 in
// the second minute, when each costs now.
func besideAFlood(t *testing.T, before, now time.Duration) (served int64) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		th := newThrottle(t, throttle.Options{Rate: 1, MaxWaitingCost: 100 * time.Millisecond, Meter: throttle.ServiceTime()})
		var count atomic.Int64
		one := func(route string, cost time.Duration) {
			w, _, _ := th.Start(context.Background(), throttle.Request{Route: route})
			if w == nil {
				return
			}
			w.SetCost(cost)
			w.Done()
			if route == "kind" {
				count.Add(1)
			}
		}
		for range 200 {
			one("kind", before)
			time.Sleep(2 * before)
		}
		var all sync.WaitGroup
		for i := range 120 * 500 {
			all.Go(func() { one("flood", 5*time.Millisecond) })
			if i == 60*500 {
				count.Store(0)
			}
			if i%50 == 25 {
				all.Go(func() { one("kind", now) })
			}
			time.Sleep(2 * time.Millisecond)
		}
		all.Wait()
		served = count.Load()
	})
	return served
}

// A route that has become cheap is soon priced cheap, though others flood the server and shut its requests out
// by what they used to cost: as many are served as of one that was cheap before.
func TestCheapAgain(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 18))
	for range 5 {
		dear := time.Duration(100+r.IntN(400)) * time.Millisecond
		cheap := time.Duration(1+r.IntN(10)) * time.Millisecond
		got, want := besideAFlood(t, dear, cheap), besideAFlood(t, cheap, cheap)
		t.Logf("%v after %v: %d of 600 served, %d where it was so before", cheap, dear, got, want)
		if float64(got) < 0.8*float64(want) {
			t.Errorf("%v after %v: %d of 600 served, want about %d", cheap, dear, got, want)
		}
	}
}
