package spending_test

import (
	"context"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stint-io/stint/internal/seeding"

	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/server/internal/spending"
	"github.com/stint-io/stint/store"
)

// use is what a permit takes, by limit.
type use struct {
	n    map[string]int64
	ends time.Time
}

// Permits against a list of them: whatever is taken over one limit or two, ended once or
// twice, given back or left to its time-out, there are as many free as the limit has less
// those on the list.
func TestPermitsAgainstList(t *testing.T) {
	const timeout = 10 * time.Second
	most := map[string]int64{"p": 5, "q": 3}
	for seed := range seeding.Draw(t, some(10, 2)) {
		synctest.Test(t, func(t *testing.T) {
			f, stop := open(t, spending.Options{}, `
  - {name: p, key: [k], algorithm: concurrency, max_in_flight: 5, timeout: 10s, sharing: leased}
  - {name: q, key: [k], algorithm: concurrency, max_in_flight: 3, timeout: 10s, sharing: leased}
`)
			defer stop()
			r := rand.New(rand.NewPCG(seed, 2))
			uses := map[uint64]use{}
			free := func(name string) int64 {
				left := most[name]
				for permit, u := range uses {
					if !time.Now().Before(u.ends) {
						delete(uses, permit)
						continue
					}
					left -= u.n[name]
				}
				return left
			}
			for permit := range uint64(120) {
				var charges []store.Charge
				n := map[string]int64{}
				fits := true
				for _, name := range []string{"p", "q"} {
					if r.IntN(3) == 0 {
						continue
					}
					n[name] = 1 + r.Int64N(3)
					c := f.charge(name, "1", n[name])
					c.Permit = permit
					charges = append(charges, c)
					fits = fits && n[name] <= free(name)
				}
				ask, peek := f.Take, r.IntN(4) == 0
				if peek {
					ask = f.Peek
				}
				got, err := ask(t.Context(), charges)
				if err != nil || got != fits {
					t.Fatalf("seed %d, permit %d: %v, %v, want %v: %+v; %v in use", seed, permit, got, err, fits, charges, uses)
				}
				if got && !peek {
					uses[permit] = use{n, time.Now().Add(timeout)}
				}
				for _, c := range charges {
					if got && c.Verdict.Remaining > most[c.Counters.Spec().ID] {
						t.Fatalf("seed %d, permit %d: %+v", seed, permit, c)
					}
				}
				settle()
				for range r.IntN(3) { // end one, also such that are over, that never were, and twice
					ended := permit - min(permit, r.Uint64N(6))
					var charges []store.Charge
					for _, name := range []string{"p", "q"} {
						c := f.charge(name, "1", 0)
						c.Permit = ended
						charges = append(charges, c)
					}
					if err := f.Finish(t.Context(), charges); err != nil {
						t.Fatal(err)
					}
					delete(uses, ended)
				}
				settle()
			}
			time.Sleep(timeout)
			for name, n := range most { // nothing is lost
				c := f.charge(name, "1", n)
				c.Permit = 1000
				f.take(true, c)
			}
		})
	}
}

// Many permits, most of which end: what is remembered of them does not grow, and their
// permits come back in time.
func TestManyPermits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, stop := open(t, spending.Options{}, "  - {name: p, algorithm: concurrency, max_in_flight: 300, timeout: 10s, sharing: leased}\n")
		defer stop()
		var held int
		for permit := range uint64(2000) {
			c := f.charge("p", "", 1)
			c.Permit = permit
			f.take(true, c)
			if permit%10 == 0 {
				held++
				continue
			}
			if err := f.Finish(t.Context(), []store.Charge{c}); err != nil {
				t.Fatal(err)
			}
		}
		settle()
		c := f.charge("p", "", int64(300-held))
		c.Permit = 5000
		f.take(true, c)
		c = f.charge("p", "", 1)
		c.Permit = 5001
		f.take(false, c)
		time.Sleep(12 * time.Second)
		c = f.charge("p", "", 300)
		c.Permit = 5002
		f.take(true, c)
	})
}

// Several charges of one request on the same semaphore add up, are given back together when
// another charge refuses, and end together.
func TestPermitsTwiceInOneRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, stop := open(t, spending.Options{}, `
  - {name: p, algorithm: concurrency, max_in_flight: 6, timeout: 10s, sharing: leased}
  - {name: x, rate: 1/day}
`)
		defer stop()
		place := func(permit uint64, n int64) store.Charge {
			c := f.charge("p", "", n)
			c.Permit = permit
			return c
		}
		f.take(true, f.charge("x", "", 1))
		f.take(true, place(10, 6)) // all are here
		if err := f.Finish(t.Context(), []store.Charge{place(10, 0)}); err != nil {
			t.Error(err)
		}
		f.take(true, place(1, 1), place(1, 2))
		f.take(false, place(2, 2), place(2, 2))
		f.take(false, place(1, 2), place(1, 2))
		for range 5 {
			f.take(false, place(3, 1), place(3, 2), f.charge("x", "", 1))
			f.take(false, place(1, 1), place(1, 1), f.charge("x", "", 1)) // those that it has, it keeps
		}
		f.take(true, place(4, 3))
		f.take(false, place(5, 1))
		if err := f.Finish(t.Context(), []store.Charge{place(4, 0)}); err != nil {
			t.Error(err)
		}
		f.take(true, place(6, 3))
		f.take(false, place(7, 1))
		if err := f.Finish(t.Context(), []store.Charge{place(1, 0)}); err != nil {
			t.Error(err)
		}
		f.take(true, place(8, 3))
		f.take(false, place(9, 1))
	})
}

// A permit that another server has given back a moment ago is found at the first request,
// though the limit was saturated by the latest grant; also by a request over two leases.
func TestPermitThatJustCameFree(t *testing.T) {
	for _, several := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) { testPermitThatJustCameFree(t, several) })
	}
}

func testPermitThatJustCameFree(t *testing.T, several bool) {
	t.Helper()
	const text = "  - {name: p, algorithm: concurrency, max_in_flight: 3, timeout: 1h, sharing: leased}\n  - {name: q, rate: 1000/s, sharing: leased}\n"
	one, stopOne := open(t, spending.Options{}, text)
	defer stopOne()
	two, stopTwo := open(t, spending.Options{Connect: func(ctx context.Context) (spending.Stream, error) { return one.coordinator.Pipe(ctx, 0) }}, text)
	defer stopTwo()
	place := func(f *fixture, permit uint64) []store.Charge {
		c := f.charge("p", "", 1)
		c.Permit = permit
		if several {
			return []store.Charge{c, f.charge("q", "", 1)}
		}
		return []store.Charge{c}
	}
	for permit := range uint64(3) {
		one.take(true, place(one, permit)...)
		settle()
	}
	for permit := range uint64(3) {
		refused := two.take(false, place(two, 100+permit)...)[0].Verdict
		if refused.Reason != limit.ReasonConcurrency || refused.RetryAfter <= 0 {
			t.Errorf("a fourth place: %+v", refused)
		}
		settle()
		if err := one.Finish(t.Context(), place(one, permit)); err != nil {
			t.Fatal(err)
		}
		begin := time.Now()
		two.take(true, place(two, permit)...)
		if took := time.Since(begin); took > 50*time.Millisecond {
			t.Errorf("it took %v", took)
		}
		settle()
	}
}
