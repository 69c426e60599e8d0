package client

import (
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/limit"
)

// suppressedOf are the terms of a limit that is shared by suppression.
func suppressedOf(perSecond, burst int64) lease.Terms {
	t := rateOf(perSecond, burst)
	t.Suppress = &lease.Suppress{}
	return t
}

// TestSuppressedInTwoInstances: each admits what it is asked while both together are
// within the limit, and both together admit the limit when they are asked for more. A
// refusal names the limit and the reason.
func TestSuppressedInTwoInstances(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHub(t, link20)
		h.terms["m"] = suppressedOf(200, 20)
		limiters := []*Limiter{openLimit(t, h.run(t, "one"), "m", LimitOptions{}), openLimit(t, h.run(t, "two"), "m", LimitOptions{})}
		for _, l := range limiters {
			if d, err := l.Take(t.Context(), limit.Request{}); err != nil || !d.Allowed {
				t.Fatalf("the first Take = %+v, %v", d, err)
			}
		}
		both := func(every time.Duration, d time.Duration) (admitted, refused int) {
			var mu sync.Mutex
			var wg sync.WaitGroup
			for _, l := range limiters {
				wg.Go(func() {
					for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(every) {
						d, err := l.Take(t.Context(), limit.Request{})
						if err != nil {
							t.Error(err)
						}
						mu.Lock()
						if d.Allowed {
							admitted++
						} else {
							refused++
							// Before it gets a fraction an instance may reach its own cap.
							if r := d.Results[0]; r.Reason != limit.ReasonSuppressed && r.Reason != limit.ReasonRate || r.Limit != "m" || r.RetryAfter <= 0 || d.Status != 429 {
								t.Errorf("refusal %+v", d)
							}
						}
						mu.Unlock()
					}
				})
			}
			wg.Wait()
			return admitted, refused
		}
		if _, refused := both(11*time.Millisecond, 10*time.Second); refused > 0 {
			t.Errorf("%d refused at 0.91 of the limit", refused)
		}
		both(2*time.Millisecond, time.Second)
		if admitted, _ := both(2*time.Millisecond, 10*time.Second); admitted < 1940 || admitted > 2060 {
			t.Errorf("%d admitted in 10 s, of 200 in a second", admitted)
		}
		if d, err := limiters[0].Take(t.Context(), limit.Request{Cost: 20}); err != nil || d.Allowed || d.Results[0].Reason != limit.ReasonSuppressed {
			t.Errorf("an expensive one at five times the limit: %+v, %v", d, err)
		}
		if got := limiters[0].Lease().Reject; got < 0.75 || got > 0.85 {
			t.Errorf("the part %v is refused at five times the limit", got)
		}
		// The expensive one makes a fall uncertain until half a bucket is left of the limit.
		both(11*time.Millisecond, 3*time.Second)
		if _, refused := both(11*time.Millisecond, 10*time.Second); refused > 0 {
			t.Errorf("%d refused when it was over", refused)
		}
	})
}

// TestSuppressedInTwoPhases: requests that have to pass other limits too are refused at random,
// by the same fraction, as those that are decided by one call: were only the empty bucket to
// refuse them, regular requests would be admitted in regular intervals.
func TestSuppressedInTwoPhases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHub(t, link20)
		h.terms["m"] = suppressedOf(200, 20)
		s := all(t, limit.Scope{Taker: openLimit(t, h.run(t, "one"), "m", LimitOptions{})}, limit.Scope{Taker: local(t, limit.PerSecond(1000), 1000)})
		admitted, usual, gap := 0, 0, 0
		for i := range 12_000 {
			d, err := s.Take(t.Context(), limit.Request{})
			if err != nil {
				t.Fatal(err)
			}
			gap++
			if i > 2000 && d.Allowed {
				if admitted++; gap == 5 {
					usual++
				}
			}
			if d.Allowed {
				gap = 0
			}
			time.Sleep(time.Millisecond)
		}
		if admitted < 1940 || admitted > 2060 || usual > admitted/3 {
			t.Errorf("%d admitted in 10 s of 200/s, %d of them each fifth", admitted, usual)
		}
	})
}

// TestSuppressedWaits: waiters are served at the rate that is permitted, in order, and one that
// cannot be served in time is refused at once.
func TestSuppressedWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHub(t, link20)
		h.terms["m"] = suppressedOf(100, 10)
		l := openLimit(t, h.run(t, "one"), "m", LimitOptions{})
		var wg sync.WaitGroup
		begin := time.Now()
		for range 500 {
			wg.Go(func() {
				if err := l.Wait(t.Context()); err != nil {
					t.Error(err)
				}
			})
		}
		time.Sleep(time.Second)
		asked := time.Now()
		if err := l.WaitMax(t.Context(), 100*time.Millisecond); !errors.Is(err, limit.ErrWaitTooLong) || time.Since(asked) > 50*time.Millisecond {
			t.Errorf("behind four seconds of others: %v after %v", err, time.Since(asked))
		}
		wg.Wait()
		if took := time.Since(begin); took < 4800*time.Millisecond || took > 6500*time.Millisecond {
			t.Errorf("500 at 100/s with a burst of 10 took %v", took)
		}
	})
}

// TestSuppressedOutlivesItsCoordinator: without a coordinator the fraction that was sent last
// is refused, and everybody admits the limit at most.
func TestSuppressedOutlivesItsCoordinator(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHub(t, link20)
		h.terms["m"] = suppressedOf(100, 10)
		l := openLimit(t, h.run(t, "one"), "m", LimitOptions{})
		spend := func(d time.Duration) (n int) {
			for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
				if l.Allow() {
					n++
				}
			}
			return n
		}
		spend(5 * time.Second)
		h.crash()
		spend(7 * time.Second)
		if n := spend(10 * time.Second); n < 950 || n > 1060 {
			t.Errorf("%d admitted in 10 s without a coordinator, of 100 in a second", n)
		}
		h.set(func() { h.down = false; h.start(2, 0) })
		spend(6 * time.Second)
		if n := spend(10 * time.Second); n < 950 || n > 1060 {
			t.Errorf("%d admitted in 10 s with another coordinator", n)
		}
	})
}
