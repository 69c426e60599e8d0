package throttle_test

import (
	"context"
	"os"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stint-io/stint/internal/seeding"

	"github.com/stint-io/stint/throttle"
)

// 300 % overload in real time: 16 may run, each for 5 ms, and four classes send 9,600 requests a
// second together, of 1,000 users. What a busy machine cannot break is held; the figures are
// reported. STINT_SECONDS says for how long.
func TestOverloadInRealTime(t *testing.T) {
	seconds, err := strconv.Atoi(os.Getenv("STINT_SECONDS"))
	if err != nil {
		seconds = 1
	}
	const service, places, perTick = 5 * time.Millisecond, 16, 10
	var inUse atomic.Int64 // of all places, in nanoseconds
	th := newThrottle(t, throttle.Options{
		Concurrency: places, MaxWaiting: 256, MaxWait: 200 * time.Millisecond,
		Hooks: throttle.Hooks{OnDone: func(_ throttle.Criticality, _, _, service time.Duration) { inUse.Add(int64(service)) }},
	})
	var mu sync.Mutex
	var served, offered [throttle.CriticalPlus + 1]int
	var latencies []time.Duration
	var all sync.WaitGroup
	random := seeding.Rand(t)
	begin := time.Now()
	ticks := time.NewTicker(time.Second * perTick / (3 * places * 200))
	defer ticks.Stop()
	for time.Since(begin) < time.Duration(seconds)*time.Second {
		<-ticks.C
		for range perTick {
			c := throttle.Sheddable + throttle.Criticality(random.IntN(4))
			r := throttle.Request{Criticality: c, User: strconv.Itoa(random.IntN(1000)), Cost: service}
			offered[c]++
			all.Go(func() {
				arrived := time.Now()
				w, _, _ := th.Start(context.Background(), r)
				if w == nil {
					return
				}
				<-time.After(service)
				w.Done()
				mu.Lock()
				defer mu.Unlock()
				served[c]++
				if c == throttle.CriticalPlus {
					latencies = append(latencies, time.Since(arrived))
				}
			})
		}
	}
	elapsed := time.Since(begin)
	all.Wait()
	sum := 0
	for _, n := range served {
		sum += n
	}
	slices.Sort(latencies)
	top := throttle.CriticalPlus
	t.Logf("%d requests, %.1f times what fits; top class: %.3f %% served, p99 %v; the places were in use for %.1f %% of the time",
		offered[1]+offered[2]+offered[3]+offered[4], float64(offered[1]+offered[2]+offered[3]+offered[4])/(elapsed.Seconds()*places/service.Seconds()),
		100*float64(served[top])/float64(offered[top]), latencies[len(latencies)*99/100].Round(time.Millisecond/10),
		100*time.Duration(inUse.Load()).Seconds()/(places*elapsed.Seconds()))
	s := th.Stats()
	counted := 0
	for c, k := range s.Classes {
		if n := int(k.Admitted + k.Refused + k.Evicted + k.Expired + k.Left); n != offered[c] {
			t.Errorf("%d of %d requests of class %v were answered", n, offered[c], c)
		}
		counted += int(k.Done)
	}
	if counted != sum || s.Running+s.Waiting > 0 {
		t.Errorf("%d were done, %d served: %+v", counted, sum, s)
	}
	if s.Classes[top].Refused+s.Classes[top].Evicted > 0 && s.Classes[throttle.Sheddable].Admitted > s.Classes[top].Admitted {
		t.Errorf("the top class fared worse than the lowest: %+v", s)
	}
}
