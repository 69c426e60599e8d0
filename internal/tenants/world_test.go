package tenants

import (
	"container/heap"
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stint-io/stint/internal/fairshare"
	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/store"
)

// world is one limit with tenants in virtual time: the table, and behind it the exact bucket, as in the engine.
type world struct {
	t      testing.TB
	now    limit.Time
	table  *Table
	terms  *store.ShareTerms
	bucket limit.Bucket
	state  limit.BucketState

	got, asked []int64
	// eager tenants ask again as soon as a refusal says, until they have had something.
	eager map[int]bool
	// asks is called for every request, before it is counted; nil = nobody listens.
	asks func(tenant int, allowed bool)
	// wait is what the latest refusal said.
	wait time.Duration
	// behind are requests that the table let pass and the bucket refused.
	behind int
}

func newWorld(t testing.TB, rate, burst int64) *world {
	w := &world{t: t, now: 1e18}
	policy := limit.Policy{Rate: limit.Rate{Count: rate, Period: time.Second}, Burst: burst}
	w.table = New(Options{Now: func() limit.Time { return w.now }})
	w.terms = &store.ShareTerms{ID: "x", Policy: policy}
	w.bucket = limit.NewBucket(policy)
	return w
}

func name(i int) string { return fmt.Sprintf("t%02d", i) }

// share asks for a cost and returns the answer of the table.
func (w *world) share(tenant string, cost int64) store.Share {
	w.t.Helper()
	s := store.Share{Terms: w.terms, Tenant: []byte(tenant), Cost: cost}
	if err := w.table.TakeShare(context.Background(), &s); err != nil {
		w.t.Fatal(err)
	}
	return s
}

// take asks table and bucket, as the engine does.
func (w *world) take(tenant string, cost int64) bool {
	w.t.Helper()
	s := w.share(tenant, cost)
	if !s.Verdict.Allowed {
		w.wait = s.Verdict.RetryAfter
		return false
	}
	if w.bucket.Take(&w.state, w.now, cost).Allowed {
		return true
	}
	w.behind++
	if err := w.table.ReturnShare(context.Background(), &s); err != nil {
		w.t.Fatal(err)
	}
	return false
}

type arrival struct {
	at     limit.Time
	tenant int
	again  bool // it was refused
}

type arrivals []arrival

func (a arrivals) Len() int           { return len(a) }
func (a arrivals) Less(i, j int) bool { return a[i].at < a[j].at }
func (a arrivals) Swap(i, j int)      { a[i], a[j] = a[j], a[i] }
func (a *arrivals) Push(x any)        { *a = append(*a, x.(arrival)) }
func (a *arrivals) Pop() any {
	last := len(*a) - 1
	x := (*a)[last]
	*a = (*a)[:last]
	return x
}

// run plays random arrivals at the demands, in requests per second, for a time. It counts in got and asked
// from nothing.
func (w *world) run(rng *rand.Rand, demand []float64, lasts time.Duration) {
	w.t.Helper()
	w.got, w.asked = make([]int64, len(demand)), make([]int64, len(demand))
	end := w.now.Add(lasts)
	var q arrivals
	next := func(i int) {
		heap.Push(&q, arrival{w.now.Add(time.Duration(rng.ExpFloat64() / demand[i] * 1e9)), i, false})
	}
	for i := range demand {
		if demand[i] > 0 {
			next(i)
		}
	}
	for len(q) > 0 && q[0].at < end {
		a := heap.Pop(&q).(arrival)
		w.now = a.at
		if a.again && !w.eager[a.tenant] {
			continue
		}
		if !a.again {
			next(a.tenant)
		}
		allowed := w.take(name(a.tenant), 1)
		if w.asks != nil {
			w.asks(a.tenant, allowed)
		}
		w.asked[a.tenant]++
		switch {
		case allowed:
			w.got[a.tenant]++
			delete(w.eager, a.tenant)
		case w.eager[a.tenant]:
			heap.Push(&q, arrival{w.now.Add(w.wait), a.tenant, true})
		}
	}
	w.now = end
}

// fair returns the weighted max-min shares of the demands with the guarantees of the terms: by
// internal/fairshare, after everybody has the guarantee who would have less.
func (w *world) fair(demand []float64) []float64 {
	p := w.terms.Policy.Rate
	left := fixed.Amount(float64(p.Count) / p.Period.Seconds() * 1e6)
	shares := make([]fixed.Amount, len(demand))
	claims := make([]fairshare.Claimant, len(demand))
	floors := make([]fixed.Amount, len(demand))
	for i, d := range demand {
		claims[i] = fairshare.Claimant{Want: fixed.Amount(d * 1e6), Weight: uint32(w.terms.Weight([]byte(name(i))))}
		for _, g := range w.terms.Guaranteed {
			if g.Tenant == name(i) {
				floors[i] = min(claims[i].Want, fixed.Amount(float64(g.Rate.Count)/g.Rate.Period.Seconds()*1e6))
			}
		}
	}
	pinned := make([]fixed.Amount, len(demand))
	for again := true; again; {
		(&fairshare.Allocator{}).Allocate(left, claims, shares)
		again = false
		for i := range claims {
			if claims[i].Want > 0 && shares[i] < floors[i] {
				pinned[i], claims[i].Want = floors[i], 0
				left -= floors[i]
				again = true
			}
		}
	}
	out := make([]float64, len(demand))
	for i := range out {
		out[i] = float64(shares[i]+pinned[i]) / 1e6
	}
	return out
}
