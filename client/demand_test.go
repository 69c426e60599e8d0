package client

import (
	"context"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/internal/lease/agent"
	"github.com/stint-io/stint/internal/seeding"
	"github.com/stint-io/stint/limit"
)

// TestWhatIsAskedIsDemand: the demand that is reported to the coordinator is what was asked for,
// whatever the verb and whatever became of it: each request counts once, also one that is
// refused because others wait; one that nobody could ever admit does not count.
func TestWhatIsAskedIsDemand(t *testing.T) {
	for seed := range seeding.Draw(t, 40) {
		synctest.Test(t, func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 41))
			const quota = 5
			l := lentAll(t, 10, quota)
			g := openGauge(t, l.lease.client, "jobs")
			g.lease.Update(l.lease.client.now(), 0, fixed.Whole(quota), 0)
			g.lease.state.Store(&agent.State{Known: true, Saturated: true, Held: lease.Capacity{Burst: fixed.Whole(quota)}, Limit: placesOf(quota)})
			asked, admitted := map[*leasedLimit]int64{}, map[*leasedLimit]int64{}
			var mu sync.Mutex // of admitted
			for range 100 {
				time.Sleep(time.Duration(r.IntN(150)) * time.Millisecond)
				n, d, busy := 1+r.Int64N(quota), time.Duration(r.IntN(400))*time.Millisecond+500*time.Microsecond, time.Duration(r.IntN(300))*time.Millisecond
				of := &l.lease
				if r.IntN(2) == 0 {
					of = &g.lease
				}
				count := func(taken bool) {
					mu.Lock()
					defer mu.Unlock()
					if taken {
						admitted[of] += n
						if of == &g.lease {
							time.AfterFunc(busy, func() { g.Release(n) })
						}
					}
				}
				asked[of] += n
				switch r.IntN(5) {
				case 0:
					switch {
					case of == &g.lease:
						count(g.TryAcquire(n))
					case n == 1:
						count(l.Allow())
					default:
						count(l.AllowN(time.Now(), n))
					}
				case 1:
					answer, err := of.take(t.Context(), limit.Request{Cost: n})
					if err != nil {
						t.Fatal(err)
					}
					count(answer.Allowed)
				case 2:
					cancel := of.waitFunc(n, d, func(err error) { count(err == nil) })
					if r.IntN(3) == 0 {
						time.AfterFunc(d/2, func() { cancel() })
					}
				case 3:
					ctx, cancel := context.WithTimeout(t.Context(), d)
					count(of.waitMax(ctx, n, limit.Never) == nil)
					cancel()
				case 4:
					var res limit.Result
					h, err := of.prepare(t.Context(), limit.Request{Cost: n}, r.IntN(2) == 0, &res)
					if err != nil {
						t.Fatal(err)
					}
					count(h.Cost > 0)
					of.commit(h)
				}
				// No demand: nobody could admit them, or nothing was taken.
				_ = of.waitMax(t.Context(), quota+1, limit.Never)
				_, _ = of.take(t.Context(), limit.Request{Cost: n, Peek: true})
				l.AllowN(time.Now(), -1)
				g.TryAcquire(-1)
			}
			time.Sleep(time.Minute)
			synctest.Wait()
			for of, want := range asked {
				got := of.spender.Observe(l.lease.client.now())
				if got.Attempted.Floor() != want || got.Admitted.Floor() != admitted[of] || got.Waiting != 0 || admitted[of] == 0 || admitted[of] == want {
					t.Errorf("seed %d, %s: %d asked for and %d admitted, want %d and %d; %+v", seed, of.id.Limit, got.Attempted.Floor(), got.Admitted.Floor(), want, admitted[of], got)
				}
			}
		})
	}
}

// TestPreparedCountsWhenCommitted: what is prepared is demand only when it is committed, once, by the
// verb that took it; and one of another limit is none of it.
func TestPreparedCountsWhenCommitted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, other := lentAll(t, 10, 5), lentAll(t, 10, 5)
		g := openGauge(t, l.lease.client, "jobs")
		g.lease.Update(l.lease.client.now(), 0, fixed.Whole(5), 0)
		g.lease.state.Store(&agent.State{Known: true, Saturated: true, Limit: placesOf(5)})
		var r limit.Result
		for _, tt := range []struct {
			preparer limit.Preparer
			of       *leasedLimit
		}{{l, &l.lease}, {g, &g.lease}} {
			counted := func(want int64, left int64, when string) {
				t.Helper()
				if got := tt.of.spender.Observe(l.lease.client.now()); got.Admitted.Floor() != want || got.Attempted.Floor() != want || tt.of.remaining(l.lease.client.now()) != left {
					t.Errorf("%s, %s: %+v, %d are left, want %d admitted and %d left", tt.of.id.Limit, when, got, tt.of.remaining(l.lease.client.now()), want, left)
				}
			}
			h, err := tt.preparer.Prepare(t.Context(), limit.Request{Cost: 3}, false, &r)
			if err != nil || h.Cost != 3 || !r.Allowed || !tt.preparer.Shared() {
				t.Fatalf("%+v, %+v, %v", h, r, err)
			}
			counted(0, 2, "held")
			other.Commit(h)
			other.Rollback(h)
			counted(0, 2, "kept by another")
			tt.preparer.Commit(h)
			counted(3, 2, "kept")
			if h, err = tt.preparer.Prepare(t.Context(), limit.Request{Cost: 2}, false, &r); err != nil || h.Cost != 2 {
				t.Fatalf("%+v, %+v, %v", h, r, err)
			}
			counted(3, 0, "held")
			tt.preparer.Rollback(h)
			counted(3, 2, "given back")
		}
	})
}

// TestUsageOfKeys: what is decided for the keys of a limit is reported as one sum, also of keys
// that were closed in between.
func TestUsageOfKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := table(t, KeyedOptions{})
		c := k.client
		for i, name := range []string{"a", "b", "c"} {
			touch(t, k, name)
			e := k.at("\x01" + name)
			n := int64(i + 1)
			e.limiter.lease.Update(c.now(), 0, fixed.Whole(n), fixed.Whole(n))
			if !e.limiter.AllowN(time.Now(), n) || e.limiter.AllowN(time.Now(), n) {
				t.Fatal("it is lent that much")
			}
		}
		time.Sleep(usageEvery)
		k.at("\x01a").limiter.Close()
		c.lanes()[0].mu.Lock()
		defer c.lanes()[0].mu.Unlock()
		got := c.lanes()[0].usage(c.now(), true)
		if len(got) != 1 || got[0] != (lease.Usage{Limit: "k", Admitted: 1 + 2 + 3, Refused: 3 + 1 + 2 + 3}) {
			t.Errorf("told of %+v", got)
		}
	})
}
