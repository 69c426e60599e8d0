package spending

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/rules"
	"github.com/stint-io/stint/store"
)

// TestShadowIsCharged: a shadow is charged for good, what it holds in flight too, and gets a lease
// though no other request ever uses its limit.
func TestShadowIsCharged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, stop := begin(t, "  - {name: a, key: [k], rate: 3/day, sharing: leased}\n  - {name: p, key: [k], algorithm: concurrency, max_in_flight: 1, timeout: 1h, sharing: leased}\n", nil)
		defer stop()
		shadow := func(name string, permit uint64) store.Charge {
			c := []store.Charge{s.charge(name, 1)}
			c[0].Shadow, c[0].Permit = true, permit
			if ok, err := s.Take(t.Context(), c); !ok || err != nil {
				t.Fatal(ok, err)
			}
			time.Sleep(time.Second)
			return c[0]
		}
		shadow("a", 0)
		if c := shadow("a", 0); !c.Verdict.Allowed || c.Failed || c.Verdict.Remaining > 2 {
			t.Errorf("a second later it has a lease: %+v", c)
		}
		for range 3 {
			shadow("a", 0)
		}
		if c := shadow("a", 0); c.Verdict.Allowed || c.Verdict.Reason != limit.ReasonRate {
			t.Errorf("the sixth of 3 in a day: %+v", c)
		}
		held := s.charge("p", 1)
		held.Permit = 1
		if ok, err := s.Take(t.Context(), []store.Charge{held}); !ok || err != nil {
			t.Fatal(ok, err)
		}
		if err := s.Finish(t.Context(), []store.Charge{held}); err != nil {
			t.Fatal(err)
		}
		for permit := range uint64(3) {
			c := shadow("p", permit)
			if !c.Verdict.Allowed || c.Verdict.Remaining != 0 {
				t.Errorf("permit %d: %+v", permit, c.Verdict)
			}
			if over := shadow("p", 10); over.Verdict.Allowed {
				t.Errorf("besides permit %d of 1: %+v", permit, over.Verdict)
			}
			if err := s.Finish(t.Context(), []store.Charge{c}); err != nil {
				t.Error(err)
			}
		}
	})
}

// TestNoLeaseOfALimitThatEnded: a request that found its limit leased before a reload ended that
// opens no lease after it.
func TestNoLeaseOfALimitThatEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, stop := begin(t, "  - {name: a, key: [k], rate: 10/day, sharing: leased}\n", nil)
		defer stop()
		key, before := s.charge("a", 0).Key, s.lent["a"]
		set, err := rules.Parse("test", []byte("limits:\n  - {name: a, key: [k], rate: 10/day}\n"))
		if err != nil {
			t.Fatal(err)
		}
		s.Reload(set, nil)
		if _, err := s.get(before, key); !errors.Is(err, errMoved) || s.Keys() != 0 {
			t.Errorf("%v, %d keys", err, s.Keys())
		}
		s.Reload(s.set, nil)
		if e, err := s.get(s.lent["a"], key); err != nil || s.Keys() != 1 {
			t.Errorf("leased again: %v, %d keys", err, s.Keys())
		} else {
			e.Done()
		}
	})
}
