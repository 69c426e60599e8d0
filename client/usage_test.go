package client

import (
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/internal/seeding"
)

// TestUsageIsComplete: what is decided at random moments is counted once, also by a lease that
// holds nothing and was not counted for long, and a lease that is not used costs nothing.
func TestUsageIsComplete(t *testing.T) {
	for seed := range seeding.Draw(t, 50) {
		synctest.Test(t, func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 17))
			c, err := New(Options{Address: "127.0.0.1:1", Instance: "one"})
			if err != nil {
				t.Fatal(err)
			}
			l, err := c.Limit("a", LimitOptions{})
			if err != nil {
				t.Fatal(err)
			}
			c.lanes()[0].loop.timer = time.NewTimer(time.Hour) // as Run does
			defer c.lanes()[0].loop.timer.Stop()
			admitted, refused := uint64(0), uint64(0)
			var sent lease.Usage
			send := func() {
				c.lanes()[0].mu.Lock()
				defer c.lanes()[0].mu.Unlock()
				for _, u := range c.lanes()[0].usage(c.now(), false) {
					sent.Admitted += u.Admitted
					sent.Refused += u.Refused
				}
			}
			for range 200 {
				switch r.IntN(8) {
				case 0: // it is lent some tokens, or all is taken back
					c.lanes()[0].mu.Lock()
					l.lease.Update(c.now(), 0, fixed.Whole(r.Int64N(4)), fixed.Whole(r.Int64N(4)))
					c.lanes()[0].mu.Unlock()
				case 1:
					time.Sleep(time.Duration(r.Int64N(int64(3 * time.Second))))
				default:
					time.Sleep(time.Duration(r.Int64N(int64(150 * time.Millisecond))))
				}
				for range r.IntN(4) {
					if l.Allow() {
						admitted++
					} else {
						refused++
					}
				}
				c.lanes()[0].takeSignals()
				send()
			}
			c.lanes()[0].mu.Lock()
			l.lease.Update(c.now(), 0, 0, 0)
			c.lanes()[0].mu.Unlock()
			for range 2 {
				time.Sleep(time.Second)
				send()
			}
			// It is not active now. Of two who are refused the second does not signal.
			for range 2 {
				l.Allow()
				refused++
				c.lanes()[0].takeSignals()
				time.Sleep(usageEvery)
				send()
				time.Sleep(time.Second)
				send()
			}
			c.lanes()[0].decided.sentAt = 0
			for range 2 {
				l.Allow()
				refused++
				c.lanes()[0].takeSignals()
				time.Sleep(time.Millisecond)
				send()
			}
			for range 2 {
				time.Sleep(time.Second)
				send()
			}
			if sent.Admitted != admitted || sent.Refused != refused || refused == 0 || len(c.lanes()[0].decided.active) != 0 {
				t.Errorf("seed %d: %d admitted and %d refused are sent of %d and %d, and %d leases are active", seed, sent.Admitted, sent.Refused, admitted, refused, len(c.lanes()[0].decided.active))
			}
		})
	}
}
