package storetest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/store"
)

// bucket is one key under the arithmetic of package limit, with which a store's answers are
// compared.
type bucket struct {
	take, peek func(now limit.Time, c *store.Charge) limit.Verdict
	refuse     func(now limit.Time, c *store.Charge)
	finish     func(now limit.Time, permit uint64, keep bool)
}

// arithmetic is what the algorithms of package limit have in common.
type arithmetic[S any] interface {
	Take(s *S, now limit.Time, cost int64) limit.Verdict
	Peek(s S, now limit.Time, cost int64) limit.Verdict
	Refuse(s *S, now limit.Time, cost int64)
}

// free is c with a cost of 0, which shows how its bucket stands.
func free(c *store.Charge) *store.Charge {
	f := *c
	f.Cost = 0
	return &f
}

func newBucket(p limit.Policy) *bucket {
	switch p.Algorithm {
	case limit.FixedWindow:
		return bucketOf(func(c *store.Charge) arithmetic[limit.FixedState] {
			a := limit.NewFixedCounter(counted(p, c))
			if c.HasQuota {
				a = a.WithQuota(c.Quota)
			}
			return &a
		})
	case limit.SlidingWindowLog:
		return bucketOf(func(c *store.Charge) arithmetic[limit.LogState] {
			a := limit.NewSlidingLog(counted(p, c))
			return &a
		})
	case limit.SlidingWindowCounter:
		return bucketOf(func(c *store.Charge) arithmetic[limit.SlidingState] {
			a := limit.NewSlidingCounter(counted(p, c))
			return &a
		})
	case limit.RisingWindow:
		return bucketOf(func(c *store.Charge) arithmetic[limit.SlidingState] {
			a := limit.NewRisingCounter(p)
			if c.CountRefused {
				a = a.CountingRefused()
			}
			return &a
		})
	case limit.Concurrency:
		a, s := limit.NewInFlight(p), new(limit.InFlightState)
		return &bucket{
			take:   func(now limit.Time, c *store.Charge) limit.Verdict { return a.Take(s, now, c.Cost, c.Permit) },
			peek:   func(now limit.Time, c *store.Charge) limit.Verdict { return a.Peek(*s, now, c.Cost) },
			refuse: func(limit.Time, *store.Charge) {},
			finish: func(now limit.Time, permit uint64, keep bool) {
				if keep {
					a.Keep(s, now, permit)
				} else {
					a.Finish(s, permit)
				}
			},
		}
	default:
		return bucketOf(func(c *store.Charge) arithmetic[limit.BucketState] {
			a := limit.NewBucket(counted(p, c))
			return &a
		})
	}
}

// counted is the policy that a charge is decided by.
func counted(p limit.Policy, c *store.Charge) limit.Policy {
	p.CountRefused = p.CountRefused || c.CountRefused
	return p
}

func bucketOf[S any](of func(*store.Charge) arithmetic[S]) *bucket {
	s := new(S)
	return &bucket{
		take:   func(now limit.Time, c *store.Charge) limit.Verdict { return of(c).Take(s, now, c.Cost) },
		peek:   func(now limit.Time, c *store.Charge) limit.Verdict { return of(c).Peek(*s, now, c.Cost) },
		refuse: func(now limit.Time, c *store.Charge) { of(c).Refuse(s, now, c.Cost) },
		finish: func(limit.Time, uint64, bool) {},
	}
}

// history draws random Takes on a few keys of one limit and compares every
// verdict with the oracle's.
func history(t *testing.T, open Open, o Options, p limit.Policy) {
	h := start(t, open, o)
	for i := range seeds(t, o) {
		r := random{rand.New(rand.NewPCG(i, 1))}
		c := h.bind(fmt.Sprintf("history-%d", i), p)
		keys := [3]*bucket{newBucket(p), newBucket(p), newBucket(p)}
		for step := range steps {
			h.advance(r.pause())
			k, cost, permit := r.IntN(len(keys)), r.cost(), r.Uint64N(8)
			one := []store.Charge{charge(c, fmt.Sprint(k), cost)}
			one[0].Permit = permit
			if p.Algorithm == limit.Concurrency && r.IntN(3) == 0 {
				one[0].Keep = r.IntN(2) == 0
				keys[k].finish(h.now(), permit, one[0].Keep)
				if err := h.store.Finish(context.Background(), one); err != nil {
					t.Fatal(err)
				}
				continue
			}
			r.options(&one[0], p)
			var want limit.Verdict
			if one[0].Cost == 0 {
				want = keys[k].peek(h.now(), &one[0])
			} else {
				want = keys[k].take(h.now(), &one[0])
			}
			if got, want := h.verdict(one[0]), h.shown(want); got != want {
				t.Fatalf("history %d, step %d, key %d, charge %+v:\n got %+v\nwant %+v", i, step, k, one[0], got, want)
			}
		}
		if err := h.store.Unbind(c); err != nil {
			t.Fatal(err)
		}
	}
}

// severalHistories draws random Takes over several limits at once. The invariants:
// a request is admitted exactly when each limit alone would admit it; one that is
// refused charges nothing, except where refusals count.
func severalHistories(t *testing.T, open Open, o Options) {
	all := make([]limit.Policy, 0, len(policies()))
	for _, name := range []string{"token_bucket", "leaky_bucket", "fixed_window", "sliding_log", "sliding_counter_up", "token_bucket_unpacked", "fixed_window_refused", "sliding_log_refused", "token_bucket_refused"} {
		all = append(all, policies()[name])
	}
	h := start(t, open, o)
	for i := range seeds(t, o) {
		r := random{rand.New(rand.NewPCG(i, 2))}
		type limitUnderTest struct {
			counters store.Counters
			keys     [2]*bucket
		}
		limits := make([]limitUnderTest, 2+r.IntN(3))
		for j := range limits {
			p := all[r.IntN(len(all))]
			limits[j] = limitUnderTest{h.bind(fmt.Sprintf("several-%d-%d", i, j), p), [2]*bucket{newBucket(p), newBucket(p)}}
		}
		// Half of the Takes have one of two idempotency keys, which are soon forgotten.
		once := limit.Policy{Rate: limit.Rate{Count: 1, Period: 20 * time.Second}, Burst: 1}
		keys := limitUnderTest{h.bind(fmt.Sprintf("several-%d-once", i), once), [2]*bucket{newBucket(once), newBucket(once)}}
		for step := range steps {
			h.advance(r.pause())
			var charges []store.Charge
			var buckets []*bucket
			for _, l := range limits {
				k := r.IntN(len(l.keys))
				charges = append(charges, charge(l.counters, fmt.Sprint(k), r.cost()))
				charges[len(charges)-1].Shadow = r.IntN(4) == 0
				r.options(&charges[len(charges)-1], l.counters.Spec().Policy)
				buckets = append(buckets, l.keys[k])
			}
			if r.IntN(2) == 0 {
				k := r.IntN(len(keys.keys))
				charges = append(charges, charge(keys.counters, fmt.Sprint(k), 1))
				last := &charges[len(charges)-1]
				last.Once, last.CountRefused = true, r.IntN(4) == 0
				buckets = append(buckets, keys.keys[k])
			}
			want := takeAll(buckets, charges, h.now())
			if got := h.take(charges...); got != want {
				t.Fatalf("history %d, step %d: Take answered %v, want %v; charges %+v", i, step, got, want, charges)
			}
			for j := range charges {
				now := h.shown(buckets[j].peek(h.now(), free(&charges[j])))
				if got := h.remainingOf(charges[j]); got != now.Remaining {
					t.Fatalf("history %d, step %d, limit %d: %d remaining after the Take, want %d", i, step, j, got, now.Remaining)
				}
				if v := charges[j].Verdict; !want && v.Allowed && charges[j].Cost > 0 && (v.Remaining != now.Remaining || v.ResetAfter != now.ResetAfter || v.Delay != 0) {
					t.Fatalf("history %d, step %d, limit %d: refused by another, and answered %+v, want it as it stands, %+v", i, step, j, v, now)
				}
			}
		}
		for _, l := range append(limits, keys) {
			if err := h.store.Unbind(l.counters); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func (h *harness) remainingOf(c store.Charge) int64 {
	h.Helper()
	one := []store.Charge{c}
	one[0].Cost = 0
	if _, err := h.store.Peek(context.Background(), one); err != nil {
		h.Fatalf("Peek: %v", err)
	}
	return one[0].Verdict.Remaining
}

// takeAll is Take over several buckets, as its contract says.
func takeAll(buckets []*bucket, charges []store.Charge, now limit.Time) bool {
	allowed := true
	if n := len(charges) - 1; charges[n].Once && !buckets[n].peek(now, &charges[n]).Allowed {
		return false
	}
	for i, b := range buckets {
		allowed = allowed && (charges[i].Shadow || b.peek(now, &charges[i]).Allowed)
	}
	for i, b := range buckets {
		switch c := &charges[i]; {
		case c.Cost == 0:
		case allowed && b.peek(now, c).Allowed:
			b.take(now, c)
		default:
			b.refuse(now, c)
		}
	}
	return allowed
}
