package memory

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stint-io/stint/internal/seeding"
	"github.com/stint-io/stint/limit"
)

// TestKeyedAllowBySystemClock: by the system's clock, which has a way of its own without a
// lock, Allow admits what limit.Bucket does, request by request, for known keys and new ones,
// beside costs above 1 and refunds, for hours.
func TestKeyedAllowBySystemClock(t *testing.T) {
	for seed := range seeding.Draw(t, 40) {
		synctest.Test(t, func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 31))
			policy := limit.Policy{Rate: limit.PerSecond([]int64{1, 5, 100, 1000}[r.IntN(4)]), Burst: 1 + r.Int64N(8)}
			k, err := NewKeyed(policy, Options{})
			if err != nil {
				t.Fatal(err)
			}
			oracle := limit.NewBucket(policy)
			states := map[string]*limit.BucketState{}
			begin := time.Now()
			admitted := 0
			for step := range 2000 {
				if r.IntN(3) > 0 {
					time.Sleep(time.Duration(r.Int64N(int64(2 * time.Second / time.Duration(policy.Rate.Count)))))
				}
				if r.IntN(500) == 0 {
					time.Sleep(time.Duration(r.Int64N(int64(24 * time.Hour))))
				}
				key := fmt.Sprint(r.IntN(3))
				if states[key] == nil {
					states[key] = &limit.BucketState{}
				}
				now, cost := limit.Time(time.Since(begin)+time.Hour), int64(1)
				var got bool
				switch r.IntN(8) {
				case 0:
					cost = r.Int64N(policy.Burst + 1)
					got = k.AllowN(key, cost)
				case 1:
					k.Refund(key, 1)
					oracle.Refund(states[key], now, 1)
					continue
				default:
					got = k.Allow(key)
				}
				want := oracle.Take(states[key], now, cost).Allowed
				if got != want {
					t.Fatalf("seed %d, step %d, key %s: %v for %d, want %v", seed, step, key, got, cost, want)
				}
				if got {
					admitted++
				}
			}
			if admitted < 200 || admitted > 1900 {
				t.Errorf("seed %d: %d of 2000 admitted: the cases are one-sided", seed, admitted)
			}
		})
	}
}

// TestKeyedAllowAtOnce: many goroutines on few keys by the real clock: each key admits its
// burst and what comes with its rate, in time and no more.
func TestKeyedAllowAtOnce(t *testing.T) {
	const keys, rate, burst = 3, 20_000, 50
	k, err := NewKeyed(limit.Policy{Rate: limit.PerSecond(rate), Burst: burst}, Options{})
	if err != nil {
		t.Fatal(err)
	}
	var admitted [keys]atomic.Int64
	var wg sync.WaitGroup
	begin := time.Now()
	for worker := range 4 {
		wg.Go(func() {
			// Each key is asked until it has had its burst twice.
			for i := worker; admitted[i%keys].Load() < 2*burst && time.Since(begin) < time.Minute; i++ {
				if k.Allow(fmt.Sprint(i % keys)) {
					admitted[i%keys].Add(1)
				}
			}
		})
	}
	wg.Wait()
	most := burst + int64(rate*time.Since(begin).Seconds()) + 1
	if time.Since(begin) >= time.Minute {
		t.Error("no key admits its burst twice within a minute")
	}
	for i := range admitted {
		if got := admitted[i].Load(); got > most || got == 0 {
			t.Errorf("key %d: %d were admitted, want at most %d", i, got, most)
		}
	}
}
