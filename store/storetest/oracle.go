package storetest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/store"
)

// bucket is one key under the arithmetic of package limit: what a store's answers
// are compared with.
type bucket struct {
	take, peek func(now limit.Time, cost int64, permit uint64) limit.Verdict
	refuse     func(now limit.Time, cost int64)
	finish     func(permit uint64)
}

func newBucket(p limit.Policy) *bucket {
	switch p.Algorithm {
	case limit.FixedWindow:
		a := limit.NewFixedCounter(p)
		return bucketOf[limit.FixedState](&a)
	case limit.SlidingWindowLog:
		a := limit.NewSlidingLog(p)
		return bucketOf[limit.LogState](&a)
	case limit.SlidingWindowCounter:
		a := limit.NewSlidingCounter(p)
		return bucketOf[limit.SlidingState](&a)
	case limit.Concurrency:
		a, s := limit.NewInFlight(p), new(limit.InFlightState)
		return &bucket{
			take:   func(now limit.Time, cost int64, permit uint64) limit.Verdict { return a.Take(s, now, cost, permit) },
			peek:   func(now limit.Time, cost int64, _ uint64) limit.Verdict { return a.Peek(*s, now, cost) },
			refuse: func(limit.Time, int64) {},
			finish: func(permit uint64) { a.Finish(s, permit) },
		}
	default:
		a := limit.NewBucket(p)
		return bucketOf[limit.BucketState](&a)
	}
}

func bucketOf[S any](a interface {
	Take(s *S, now limit.Time, cost int64) limit.Verdict
	Peek(s S, now limit.Time, cost int64) limit.Verdict
	Refuse(s *S, now limit.Time, cost int64)
},
) *bucket {
	s := new(S)
	return &bucket{
		take:   func(now limit.Time, cost int64, _ uint64) limit.Verdict { return a.Take(s, now, cost) },
		peek:   func(now limit.Time, cost int64, _ uint64) limit.Verdict { return a.Peek(*s, now, cost) },
		refuse: func(now limit.Time, cost int64) { a.Refuse(s, now, cost) },
		finish: func(uint64) {},
	}
}

// history draws random Takes on a few keys of one limit and compares every
// verdict with the oracle's.
func history(t *testing.T, open Open, o Options, p limit.Policy, n, steps int) {
	h := start(t, open, o)
	for i := range n {
		r := random{rand.New(rand.NewPCG(uint64(i), 1))}
		c := h.bind(fmt.Sprintf("history-%d", i), p)
		keys := [3]*bucket{newBucket(p), newBucket(p), newBucket(p)}
		for step := range steps {
			h.advance(r.pause())
			k, cost, permit := r.IntN(len(keys)), r.cost(), r.Uint64N(8)
			one := []store.Charge{charge(c, fmt.Sprint(k), cost)}
			one[0].Permit = permit
			if p.Algorithm == limit.Concurrency && r.IntN(3) == 0 {
				keys[k].finish(permit)
				if err := h.store.Finish(context.Background(), one); err != nil {
					t.Fatal(err)
				}
				continue
			}
			want := keys[k].take(h.now(), cost, permit)
			if cost == 0 {
				want = keys[k].peek(h.now(), 0, 0)
			}
			if got, want := h.verdict(one[0]), h.shown(want); got != want {
				t.Fatalf("history %d, step %d, key %d, cost %d:\n got %+v\nwant %+v", i, step, k, cost, got, want)
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
func severalHistories(t *testing.T, open Open, o Options, n, steps int) {
	all := make([]limit.Policy, 0, len(policies()))
	for _, name := range []string{"token_bucket", "leaky_bucket", "fixed_window", "sliding_log", "sliding_counter_up", "token_bucket_unpacked", "fixed_window_refused", "sliding_log_refused"} {
		all = append(all, policies()[name])
	}
	h := start(t, open, o)
	for i := range n {
		r := random{rand.New(rand.NewPCG(uint64(i), 2))}
		type limitUnderTest struct {
			counters store.Counters
			keys     [2]*bucket
		}
		limits := make([]limitUnderTest, 2+r.IntN(3))
		for j := range limits {
			p := all[r.IntN(len(all))]
			limits[j] = limitUnderTest{h.bind(fmt.Sprintf("several-%d-%d", i, j), p), [2]*bucket{newBucket(p), newBucket(p)}}
		}
		for step := range steps {
			h.advance(r.pause())
			var charges []store.Charge
			var buckets []*bucket
			for _, l := range limits {
				k := r.IntN(len(l.keys))
				charges = append(charges, charge(l.counters, fmt.Sprint(k), r.cost()))
				charges[len(charges)-1].Shadow = r.IntN(4) == 0
				buckets = append(buckets, l.keys[k])
			}
			want := takeAll(buckets, charges, h.now())
			if got := h.take(charges...); got != want {
				t.Fatalf("history %d, step %d: Take answered %v, want %v; charges %+v", i, step, got, want, charges)
			}
			for j := range charges {
				now := h.shown(buckets[j].peek(h.now(), 0, 0))
				if got := h.remainingOf(charges[j]); got != now.Remaining {
					t.Fatalf("history %d, step %d, limit %d: %d remaining after the Take, want %d", i, step, j, got, now.Remaining)
				}
				if v := charges[j].Verdict; !want && v.Allowed && charges[j].Cost > 0 && (v.Remaining != now.Remaining || v.ResetAfter != now.ResetAfter || v.Delay != 0) {
					t.Fatalf("history %d, step %d, limit %d: refused by another, and answered %+v, want it as it stands, %+v", i, step, j, v, now)
				}
			}
		}
		for _, l := range limits {
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

// takeAll is Take over several buckets, by the book.
func takeAll(buckets []*bucket, charges []store.Charge, now limit.Time) bool {
	allowed := true
	for i, b := range buckets {
		allowed = allowed && (charges[i].Shadow || b.peek(now, charges[i].Cost, 0).Allowed)
	}
	for i, b := range buckets {
		switch cost := charges[i].Cost; {
		case cost == 0:
		case allowed && b.peek(now, cost, 0).Allowed:
			b.take(now, cost, 0)
		default:
			b.refuse(now, cost)
		}
	}
	return allowed
}
