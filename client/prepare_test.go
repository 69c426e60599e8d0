package client

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/limit"
)

func all(t testing.TB, scopes ...limit.Scope) *limit.Scopes {
	t.Helper()
	s, err := limit.All(scopes...)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func local(t testing.TB, rate limit.Rate, burst int64) *limit.Limiter {
	t.Helper()
	l, err := limit.NewLimiter(limit.Policy{Rate: rate, Burst: burst})
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func openGauge(t *testing.T, c *Client, name string) *Semaphore {
	t.Helper()
	g, err := c.Semaphore(name, LimitOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// TestScopesOfLeases: a connection's own limit, a leased rate with a key, and a leased
// semaphore, as one. The first request waits for the leases, with nothing held of the others;
// later ones wait for nothing; what one refuses leaves no trace in any other.
func TestScopesOfLeases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHub(t, link20)
		h.terms["messages"], h.terms["connections"] = rateOf(10, 100), placesOf(3)
		c := h.run(t, "one")
		keyed, err := c.Keyed("messages", []string{"account"}, KeyedOptions{RefuseMissing: true})
		if err != nil {
			t.Fatal(err)
		}
		gauge, own := openGauge(t, c, "connections"), local(t, limit.PerHour(1), 50)
		s := all(t,
			limit.Scope{Name: "account", Taker: keyed, Cost: func(r limit.Request) (int64, error) { return 2 * max(1, r.Cost), nil }},
			limit.Scope{Taker: gauge, Cost: func(limit.Request) (int64, error) { return 1, nil }},
			limit.Scope{Name: "own", Taker: own})
		acme := limit.Request{Attributes: []limit.Attribute{{Name: "account", Value: "acme"}}}
		begin := time.Now()
		var permits []uint64
		for i := range 3 {
			d, err := s.Take(t.Context(), acme)
			if err != nil || !d.Allowed || d.Permit == 0 || len(d.Results) != 3 || d.Results[1].Limit != "account" {
				t.Fatalf("Take %d: %+v, %v", i, d, err)
			}
			permits = append(permits, d.Permit)
		}
		if waited := time.Since(begin); waited < 2*link20 || waited > 20*link20 {
			t.Errorf("3 Takes took %v, want about a round trip for each lease", waited)
		}
		time.Sleep(10 * time.Second) // the leases come to rest, and the bucket is full
		lease := func() int64 {
			var r limit.Result
			if _, err := keyed.Prepare(t.Context(), limit.Request{Attributes: acme.Attributes, Peek: true}, false, &r); err != nil {
				t.Error(err)
			}
			return r.Remaining
		}
		was, ownWas := lease(), own.Remaining()
		for range 100 {
			d, err := s.Take(t.Context(), acme)
			if err != nil || d.Allowed || d.Refused().Limit != "connections" || d.Refused().Reason != limit.ReasonConcurrency {
				t.Fatalf("the fourth connection of 3: %+v, %v", d, err)
			}
		}
		if lease() < was || own.Remaining() != ownWas || gauge.InUse() != 3 {
			t.Errorf("100 refusals by a gauge: the lease has %d, had %d; the local limit %d, had %d; %d places in use", lease(), was, own.Remaining(), ownWas, gauge.InUse())
		}
		for range 2 {
			if err := s.Finish(t.Context(), acme, permits[0]); err != nil || gauge.InUse() != 2 {
				t.Errorf("%d places in use after Finish, want 2: %v", gauge.InUse(), err)
			}
		}
		if d, err := s.Take(t.Context(), limit.Request{Attributes: acme.Attributes, Cost: 60}); err != nil || d.Allowed || d.Refused().Limit != "own" || gauge.InUse() != 2 {
			t.Errorf("a local limit that refuses: %+v, %v; %d places in use", d, err, gauge.InUse())
		}
		if d, err := s.Take(t.Context(), limit.Request{}); err != nil || d.Allowed || d.Refused().Reason != limit.ReasonMissing {
			t.Errorf("without the key: %+v, %v", d, err)
		}
		keyed.Close()
		if _, err := s.Take(t.Context(), acme); !errors.Is(err, ErrClosed) || gauge.InUse() != 2 || own.Remaining() != ownWas {
			t.Errorf("a closed lease: %v; %d places in use, the local limit has %d, want %d", err, gauge.InUse(), own.Remaining(), ownWas)
		}
	})
}

// TestRefusedElsewhereIsNoDemand: what another scope refuses does not make an instance
// ask for more of a lease, so it takes nothing from instances that could use it.
func TestRefusedElsewhereIsNoDemand(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHub(t, link20)
		h.terms["messages"] = rateOf(1000, 1000)
		h.terms["connections"] = placesOf(0)
		c := h.run(t, "one")
		messages := openLimit(t, c, "messages", LimitOptions{})
		s := all(t, limit.Scope{Taker: messages}, limit.Scope{Taker: openGauge(t, c, "connections")})
		for range 200 {
			if d, err := s.Take(t.Context(), limit.Request{}); err != nil || d.Allowed {
				t.Fatalf("%+v, %v", d, err)
			}
			time.Sleep(10 * time.Millisecond)
		}
		if wants := messages.Lease().Demand; wants > 1 {
			t.Errorf("it wants %v/s of a lease that it never could use, want no more than at its first request", wants)
		}
	})
}

// TestScopesOfLeasesNeverOver: many at once in two instances, of which a semaphore refuses a
// part. Together they are admitted what the limit allows, to the token, and what is refused
// by the semaphore does not count.
func TestScopesOfLeasesNeverOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHub(t, link20)
		h.terms["messages"], h.terms["connections"] = rateOf(200, 20), placesOf(6)
		begin := time.Now()
		var mu sync.Mutex
		var wg sync.WaitGroup
		admitted, byGauge, byRate := 0, 0, 0
		for _, name := range []string{"one", "two"} {
			c := h.run(t, name)
			// It does not ask for permits: what was taken of the rate would be in nobody's
			// use for as long.
			places, err := c.Semaphore("connections", LimitOptions{Ask: -1})
			if err != nil {
				t.Fatal(err)
			}
			s := all(t, limit.Scope{Taker: openLimit(t, c, "messages", LimitOptions{})}, limit.Scope{Taker: places})
			for range 10 {
				wg.Go(func() {
					for time.Since(begin) < 10*time.Second {
						d, err := s.Take(t.Context(), limit.Request{})
						if err != nil {
							t.Error(err)
							return
						}
						mu.Lock()
						switch {
						case d.Allowed:
							admitted++
							if most := 20 + 200*time.Since(begin).Seconds() + 1e-6; float64(admitted) > most {
								t.Errorf("%d admitted after %v", admitted, time.Since(begin))
							}
						case d.Refused().Limit == "connections":
							byGauge++
						default:
							byRate++
						}
						mu.Unlock()
						time.Sleep(3 * time.Millisecond)
						if d.Allowed {
							if err := s.Finish(t.Context(), limit.Request{}, d.Permit); err != nil {
								t.Error(err)
							}
						}
						time.Sleep(5 * time.Millisecond)
					}
				})
			}
		}
		wg.Wait()
		if admitted < 1800 || byRate == 0 || byGauge == 0 {
			t.Errorf("%d admitted of some 2020; refused by the rate %d, by the gauge %d", admitted, byRate, byGauge)
		}
		t.Logf("%d admitted; refused by the rate %d, by the gauge %d", admitted, byRate, byGauge)
	})
}

// TestScopesOfLeasesNeverEarly: three instances without any lease yet, a hundred requests at
// once in each, and room for all: none is refused, though what one lease brings may be gone
// while another is waited for.
func TestScopesOfLeasesNeverEarly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHub(t, time.Millisecond)
		h.terms["connections"], h.terms["channels"], h.terms["messages"] = placesOf(2000), placesOf(500), rateOf(1000, 1000)
		var wg sync.WaitGroup
		for _, name := range []string{"one", "two", "three"} {
			c := h.run(t, name)
			s := all(t, limit.Scope{Taker: openGauge(t, c, "connections")}, limit.Scope{Taker: openGauge(t, c, "channels")}, limit.Scope{Taker: openLimit(t, c, "messages", LimitOptions{})})
			for range 100 {
				wg.Go(func() {
					if d, err := s.Take(t.Context(), limit.Request{}); err != nil || !d.Allowed {
						t.Errorf("%+v, %v", d, err)
					}
				})
			}
		}
		wg.Wait()
	})
}

// What is held by one who was waited for can be given back as well.
func TestPreparedAfterAWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHub(t, link20)
		h.terms["messages"], h.terms["jobs"] = rateOf(1, 10), placesOf(2)
		c := h.run(t, "one")
		var r limit.Result
		for _, holder := range []limit.Preparer{openLimit(t, c, "messages", LimitOptions{}), openGauge(t, c, "jobs")} {
			req := limit.Request{Cost: 2}
			held, err := holder.Prepare(t.Context(), req, false, &r)
			if err != nil || r.Allowed || !held.More {
				t.Fatalf("%T: cold, %+v, %+v, %v: more may come", holder, held, r, err)
			}
			if held, err = holder.Prepare(t.Context(), req, true, &r); err != nil || !r.Allowed {
				t.Fatalf("%T: %+v, %v", holder, r, err)
			}
			had := r.Remaining
			holder.Rollback(held)
			if _, err = holder.Prepare(t.Context(), limit.Request{Peek: true}, false, &r); err != nil || r.Remaining != had+2 {
				t.Errorf("%T: %d are left, want %d: %v", holder, r.Remaining, had+2, err)
			}
			holder.Rollback(limit.Prepared{})
			holder.Commit(limit.Prepared{})
			if held, err = holder.Prepare(t.Context(), limit.Request{Cost: 11}, true, &r); err != nil || r.Allowed || held.More || r.Reason != limit.ReasonCost {
				t.Errorf("%T: above the quota: %+v, %v", holder, r, err)
			}
			if _, err = holder.Prepare(t.Context(), limit.Request{Cost: -1}, true, &r); !errors.Is(err, limit.ErrNegativeCost) {
				t.Errorf("%T: a negative cost: %v", holder, err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			if _, err = holder.Prepare(ctx, req, true, &r); !errors.Is(err, context.Canceled) {
				t.Errorf("%T: a context that has ended: %v", holder, err)
			}
		}
	})
}

// TestRefusalStands: what was refused is described as refused though tokens have come since, with
// nothing to wait for.
func TestRefusalStands(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	l := leased(t, 1000*fixed.Token, 100)
	var r limit.Result
	if l.lease.describeTo(&r, 2, false); r.Allowed || r.Reason != limit.ReasonRate || r.RetryAfter != 1 || r.Remaining != 100 {
		t.Errorf("refused with tokens there: %+v", r)
	}
}

func TestScopesOfLeasesAllocateNothing(t *testing.T) {
	l := leased(t, 1000*fixed.Token, 100)
	s := all(t, limit.Scope{Name: "connection", Taker: local(t, limit.PerSecond(100), 500)}, limit.Scope{Taker: l})
	room := make([]limit.Result, 0, 4)
	allowed, refused := 0, 0
	n := testing.AllocsPerRun(1000, func() {
		d, err := s.TakeInto(t.Context(), limit.Request{}, room)
		switch {
		case err != nil:
			t.Fatal(err)
		case d.Allowed:
			allowed++
		default:
			refused++
		}
	})
	if n != 0 || allowed == 0 || refused == 0 {
		t.Errorf("%v allocations per decision, want 0; %d allowed and %d refused", n, allowed, refused)
	}
}
