package client

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/limit"
)

func TestExpiry(t *testing.T) {
	for _, tt := range []struct {
		expiry      Expiry
		least, most int // admitted in the 10 s after the lease ended
	}{{Pessimistic, 0, 0}, {Safe, 450, 560}, {Optimistic, 700, 2500}} {
		synctest.Test(t, func(t *testing.T) {
			h := newHub(t, link20)
			terms := rateOf(100, 10)
			terms.Safe = fixed.Whole(50)
			h.terms["m"] = terms
			c := h.run(t, "one")
			l := openLimit(t, c, "m", LimitOptions{Expiry: tt.expiry})
			spend := func(d time.Duration) (n int) {
				for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
					if l.Allow() {
						n++
					}
				}
				return n
			}
			if n := spend(5 * time.Second); n < 450 {
				t.Fatalf("%d admitted in 5 s", n)
			}
			h.crash()
			if n := spend(3500 * time.Millisecond); n < 330 {
				t.Errorf("%v: %d admitted while the lease ran", tt.expiry, n)
			}
			spend(2 * time.Second)
			if n := spend(10 * time.Second); n < tt.least || n > tt.most {
				t.Errorf("%v: %d admitted without a lease, want %d to %d", tt.expiry, n, tt.least, tt.most)
			}
			if d, err := l.Take(t.Context(), limit.Request{}); tt.expiry == Pessimistic &&
				(err != nil || d.Allowed || d.Results[0].Reason != limit.ReasonStoreFailure) {
				t.Errorf("Take = %+v, %v", d, err)
			}
			waited := make(chan error, 1)
			if tt.expiry == Pessimistic {
				go func() { waited <- l.Wait(t.Context()) }()
			} else {
				waited <- nil
			}
			h.set(func() { h.down = false; h.start(2, 0) })
			if err := <-waited; err != nil {
				t.Errorf("a wait over the restart: %v", err)
			}
			spend(6 * time.Second)
			if n := spend(5 * time.Second); n < 450 || n > 510 {
				t.Errorf("%v: %d admitted in 5 s after the coordinator came back", tt.expiry, n)
			}
			if !c.Connected() {
				t.Error("not connected")
			}
		})
	}
}

func TestOptimisticStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHub(t, link20)
		h.down = true
		h.terms["m"] = rateOf(100, 10)
		l := openLimit(t, h.run(t, "one"), "m", LimitOptions{Start: OptimisticStart(20)})
		n := 0
		for begin := time.Now(); time.Since(begin) < 5*time.Second; time.Sleep(time.Millisecond) {
			if l.Allow() {
				n++
			}
		}
		if n < 95 || n > 105 {
			t.Errorf("%d admitted in 5 s at 20/s", n)
		}
		strict := openLimit(t, l.lease.client, "n", LimitOptions{})
		begin := time.Now()
		d, err := strict.Take(t.Context(), limit.Request{})
		if err != nil || d.Allowed || time.Since(begin) != 0 {
			t.Errorf("without a coordinator: %+v, %v after %v", d, err, time.Since(begin))
		}
		l.Close()
		time.Sleep(time.Second)
		if l.Allow() {
			t.Error("admitted after Close")
		}
	})
}

func TestAdjust(t *testing.T) {
	if testing.Short() {
		t.Skip("TestMessagesLost has the same goroutines: nothing for the race detector")
	}
	synctest.Test(t, func(t *testing.T) {
		h := newHub(t, link20)
		h.terms["m"] = rateOf(100, 10)
		l := openLimit(t, h.run(t, "one"), "m", LimitOptions{Adjust: &Adjustment{Interval: time.Second, SlowRate: 5}})
		spend := func(d time.Duration, failing bool) (n int) {
			for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
				if l.Allow() {
					n++
					if failing {
						l.Failed()
					} else {
						l.Succeeded()
					}
				}
			}
			return n
		}
		if n := spend(3*time.Second, false); n < 270 {
			t.Errorf("%d admitted in 3 s", n)
		}
		spend(1200*time.Millisecond, true)
		if n := spend(time.Second, true); n > 8 {
			t.Errorf("%d admitted in 1 s at the slow rate", n)
		}
		if st := l.Lease(); st.Rate < 90 || st.Demand < 150 {
			t.Errorf("the demand is what it was: %+v", st)
		}
		spend(200*time.Second, false)
		if n := spend(3*time.Second, false); n < 270 {
			t.Errorf("%d admitted in 3 s, well again", n)
		}
	})
}

// TestMuteCoordinator: one that answers nothing holds nobody up for longer than ask, and
// a limit that is full is refused at once.
func TestMuteCoordinator(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHub(t, link20)
		h.terms["m"] = rateOf(100, 10)
		c := h.run(t, "one")
		l := openLimit(t, c, "m", LimitOptions{Ask: 70 * time.Millisecond})
		for end := time.Now().Add(2 * time.Second); time.Now().Before(end); time.Sleep(2 * time.Millisecond) {
			l.Allow()
		}
		if !l.Lease().Full {
			t.Fatalf("500/s of 100/s is full: %+v", l.Lease())
		}
		begin := time.Now()
		for l.Allow() {
		}
		d, err := l.Take(t.Context(), limit.Request{Cost: 9})
		if err != nil || d.Allowed || time.Since(begin) != 0 || d.RetryAfter() <= 0 {
			t.Errorf("Take from a full limit: %+v, %v after %v", d, err, time.Since(begin))
		}
		if err := l.WaitMaxN(t.Context(), 9, 10*time.Millisecond); !errors.Is(err, limit.ErrWaitTooLong) || time.Since(begin) != 0 {
			t.Errorf("WaitMax: %v after %v", err, time.Since(begin))
		}
		h.set(func() { h.mute = true })
		fresh := openLimit(t, c, "n", LimitOptions{Ask: 70 * time.Millisecond})
		begin = time.Now()
		d, err = fresh.Take(t.Context(), limit.Request{})
		if err != nil || d.Allowed || d.Results[0].Reason != limit.ReasonStoreFailure || time.Since(begin) != 70*time.Millisecond {
			t.Errorf("Take without an answer: %+v, %v after %v", d, err, time.Since(begin))
		}
		begin = time.Now()
		l.Close()
		fresh.Close()
		if time.Since(begin) != 0 {
			t.Error("Close waited")
		}
	})
}
