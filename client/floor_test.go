package client

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/internal/lease/adjust"
	"github.com/stint-io/stint/internal/seeding"
	"github.com/stint-io/stint/limit"
)

// TestFailingReceiverGetsTheFloor: while every delivery fails, a receiver gets its heartbeat, however its consumer asks:
// by Take, Allow or Wait, one by one or in a poll, with pauses after which the lease is taken anew, and across a
// coordinator that starts again. When deliveries succeed the consumer is back.
func TestFailingReceiverGetsTheFloor(t *testing.T) {
	if testing.Short() {
		t.Skip("TestMessagesLost has the same goroutines: nothing for the race detector")
	}
	failingReceiver(t, 0, true)
	for seed := range seeding.Draw(t, 2) {
		failingReceiver(t, seed, false)
	}
}

func failingReceiver(t *testing.T, seed uint64, usual bool) {
	r := rand.New(rand.NewPCG(seed, 1))
	a := Adjustment{Interval: time.Second, SlowRate: 1 + 9*r.Float64()}
	a.HeartbeatRate = a.SlowRate * (0.02 + 0.2*r.Float64())
	terms := lease.Terms{Rate: fixed.Whole(1 + r.Int64N(200)), Burst: fixed.Whole(1 + r.Int64N(60))}
	every, each, how := time.Duration(1+r.IntN(3000))*time.Millisecond, 1+r.IntN(60), r.IntN(3)
	restarts := r.IntN(3) == 0
	if usual {
		a = Adjustment{SlowRate: 5, HeartbeatRate: 0.5}
		terms, every, each, how, restarts = rateOf(100, 50), time.Second, 50, 0, false
	}
	about := fmt.Sprintf("seed %d: %v/s burst %v, slow %.2f/s, heartbeat %.3f/s, up to %d by way %d each %v, restart %v",
		seed, terms.Rate, terms.Burst, a.SlowRate, a.HeartbeatRate, each, how, every, restarts)
	synctest.Test(t, func(t *testing.T) {
		h := newHub(t, link20)
		h.terms["m"] = terms
		l := openLimit(t, h.run(t, "one"), "m", LimitOptions{Adjust: &a})
		end := time.Time{}
		ask := func() bool {
			switch how {
			case 0:
				d, err := l.Take(t.Context(), limit.Request{})
				return err == nil && d.Allowed
			case 1:
				time.Sleep(20 * time.Millisecond) // a token comes after a round trip
				return l.Allow()
			}
			ctx, cancel := context.WithDeadline(t.Context(), end)
			defer cancel()
			return l.Wait(ctx) == nil
		}
		// polls asks each times, and again after every.
		polls := func(d time.Duration, report func()) (n int) {
			for end = time.Now().Add(d); time.Now().Before(end); time.Sleep(every) {
				for range each {
					if ask() {
						n++
						report()
					}
				}
			}
			return n
		}
		for range 60 {
			if polls(10*time.Second, l.Failed); l.lease.paced.adjuster.Mode() == adjust.AdjusterHeartbeat {
				break
			}
		}
		if restarts {
			h.crash()
			h.set(func() { h.down = false; h.start(2, 0) })
		}
		began := time.Now()
		n := polls(60*time.Second, l.Failed)
		took := time.Since(began)
		if most := 1 + int(a.HeartbeatRate*took.Seconds()); n > most || n == 0 {
			t.Errorf("%s: %d in %v, want 1 to %d", about, n, took, most)
		}
		polls(400*time.Second, l.Succeeded)
		if mode := l.lease.paced.adjuster.Mode(); mode != adjust.AdjusterNormal {
			t.Errorf("%s: the receiver is well again and the mode is %v", about, mode)
		}
	})
}
