package redis

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/stint-io/stint/internal/seeding"

	"github.com/stint-io/stint/internal/redistest"
	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/store"
)

// TestServerClockStepped: a step of the server's clock, forward or back, costs each key
// its quota once at most, above what the limit admits in the time that passes; and what a
// key owes in time is not made longer by the step.
func TestServerClockStepped(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	server := redistest.Start(t)
	for _, p := range []limit.Policy{
		{Rate: limit.Rate{Count: 20, Period: time.Second}, Burst: 10},
		{Algorithm: limit.LeakyBucket, Rate: limit.Rate{Count: 20, Period: time.Second}, Burst: 9},
		{Algorithm: limit.FixedWindow, Rate: limit.Rate{Count: 10, Period: 500 * time.Millisecond}},
		{Algorithm: limit.FixedWindow, Rate: limit.Rate{Count: 10, Period: 500 * time.Millisecond}, Align: limit.AlignFirstHit},
		{Algorithm: limit.SlidingWindowCounter, Rate: limit.Rate{Count: 10, Period: 500 * time.Millisecond}},
	} {
		for _, step := range []time.Duration{time.Hour, -time.Hour, -3 * time.Second, 10 * time.Second} {
			t.Run(p.Algorithm.String()+" "+step.String(), func(t *testing.T) {
				t.Parallel()
				var offset atomic.Int64
				s, err := New(quiet(server.Addr()))
				if err != nil {
					t.Fatal(err)
				}
				defer func() {
					if err := s.Close(); err != nil {
						t.Error(err)
					}
				}()
				awaitReady(t, s)
				s.hold = 1e8 // as the server's clock goes, keys do not expire sooner
				s.serverNow = func() limit.Time { return limit.At(time.Now()).Add(time.Duration(offset.Load())) }
				c := bind(t, s, "l"+t.Name(), p)
				admitted := func() (n int64) {
					for range 30 {
						one := []store.Charge{charge(c, "k", 1)}
						ok, err := s.Take(t.Context(), one)
						if err != nil {
							t.Fatal(err)
						}
						if ok {
							n++
						}
					}
					return n
				}
				began, sum := time.Now(), admitted()
				offset.Store(int64(step))
				again := sum
				await(t, "the key to be admitted again after the step", func() bool {
					again = admitted()
					sum += again
					return again > 0
				})
				took := time.Since(began)
				// One or two windows may end in that time.
				most := 2*p.Quota() + int64(20*took.Seconds()) + 1
				if p.Algorithm == limit.FixedWindow || p.Algorithm == limit.SlidingWindowCounter {
					most = p.Quota() * (3 + int64(took/p.Rate.Period))
				}
				if sum > most {
					t.Errorf("admitted %d in %v, want at most %d", sum, took, most)
				}
			})
		}
	}
}

// TestSetBack: the script takes a step out of states as this process does, for all states
// and policies, or they would disagree.
func TestSetBack(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	server := redistest.Start(t)
	s := connected(t, quiet(server.Addr()), nil)
	var clock, steps atomic.Int64
	clock.Store(1_700_000_000_000_000_000)
	s.serverNow, s.hold = func() limit.Time { return limit.Time(clock.Load()) }, 1e8
	r := seeding.Rand(t)
	for n := range 150 {
		p := drawPolicy(r, limit.Algorithm(r.IntN(5)))
		c := bind(t, s, "b"+string(rune('a'+n)), p)
		for range 8 {
			one := []store.Charge{charge(c, "k", boundedCost(p, r.Int64N(1+p.Quota())))}
			one[0].CountRefused = r.IntN(3) == 0
			if _, err := s.Take(t.Context(), one); err != nil {
				t.Fatalf("%+v: %v", p, err)
			}
			by := r.Int64N(int64(10 * time.Second))
			if r.IntN(3) == 0 {
				by = -by
				steps.Add(1)
			}
			clock.Add(by / 1000 * 1000)
		}
	}
	if steps.Load() < 300 {
		t.Errorf("%d steps back", steps.Load())
	}
}
