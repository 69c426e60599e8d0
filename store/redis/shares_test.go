package redis

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stint-io/stint/internal/redistest"
	"github.com/stint-io/stint/internal/seeding"
	"github.com/stint-io/stint/internal/tenants"
	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/store"
)

// Two processes on one Redis answer as one table in memory, whatever tenants ask, with weights and guarantees that change.
func TestSharesAreThoseOfMemory(t *testing.T) {
	if testing.Short() {
		t.Skip("one request after another: nothing for the race detector")
	}
	server := redistest.Start(t)
	var clock atomic.Int64
	clock.Store(1.8e18)
	now := func() limit.Time { return limit.Time(clock.Load()) }
	stores := []*Store{
		connected(t, Options{Addrs: []string{server.Addr()}, Timeout: patient}, now),
		connected(t, Options{Addrs: []string{server.Addr()}, Timeout: patient}, now),
	}
	for seed := range seeding.Draw(t, 4) {
		rng := rand.New(rand.NewPCG(seed, 1))
		table := tenants.New(tenants.Options{Now: now})
		policy := limit.Policy{Rate: limit.Rate{Count: 1 + rng.Int64N(1000), Period: time.Second}, Burst: 20 + rng.Int64N(200)}
		var terms []*store.ShareTerms
		for i := range 2 {
			one := &store.ShareTerms{ID: fmt.Sprint("x", seed), Policy: policy, Weights: map[string]int64{"c": 3, "b": int64(1 + i)}}
			for _, name := range []string{"a", "g"}[i:] {
				one.Guaranteed = append(one.Guaranteed, store.Guaranteed{Tenant: name, Rate: limit.Rate{Count: policy.Rate.Count, Period: 4 * time.Second}})
			}
			terms = append(terms, one)
		}
		allowed, refused := 0, 0
		for i := range 1500 {
			if i%500 > 0 { // what passes at a change of terms is given back by those of before, or of after
				clock.Add(int64(rng.ExpFloat64()*1e6/float64(policy.Rate.Count)) * 1000)
			}
			want := store.Share{
				Terms: terms[i/500%2], Tenant: []byte([]string{"a", "b", "c", "g", fmt.Sprint(rng.IntN(20))}[rng.IntN(5)]),
				Cost: 1 + rng.Int64N(4), CountRefused: rng.IntN(50) == 0,
			}
			got := want
			ask, other := table.TakeShare, stores[i%2].TakeShare
			switch n := rng.IntN(10); {
			case n == 0:
				ask, other = table.PeekShare, stores[i%2].PeekShare
			case n == 1:
				ask, other = table.ReturnShare, stores[i%2].ReturnShare
			}
			if err := errors.Join(ask(t.Context(), &want), other(t.Context(), &got)); err != nil {
				t.Fatal(err)
			}
			same := got.Verdict == want.Verdict && got.Tenants == want.Tenants && math.Abs(got.Taken-want.Taken) < 1e-6 && math.Abs(got.Rate-want.Rate) < 1e-6*want.Rate+1e-9
			if !same {
				t.Fatalf("seed %d, step %d, %s for %d: Redis %+v %v %d %v, memory %+v %v %d %v", seed, i, want.Tenant, want.Cost,
					got.Verdict, got.Rate, got.Tenants, got.Taken, want.Verdict, want.Rate, want.Tenants, want.Taken)
			}
			if want.Verdict.Allowed {
				allowed++
			} else {
				refused++
			}
		}
		if allowed < 200 || refused < 200 {
			t.Errorf("seed %d: %d allowed, %d refused", seed, allowed, refused)
		}
	}
}

// A server that does not answer is an error that says so, at once when that is known.
func TestSharesWithoutRedis(t *testing.T) {
	server := redistest.Start(t)
	s := connected(t, Options{Addrs: []string{server.Addr()}}, nil)
	share := store.Share{Terms: &store.ShareTerms{ID: "x", Policy: limit.Policy{Rate: limit.Rate{Count: 1, Period: time.Second}, Burst: 4}}, Tenant: []byte("a"), Cost: 1}
	if err := s.TakeShare(t.Context(), &share); err != nil || !share.Verdict.Allowed || share.Verdict.Remaining != 3 {
		t.Fatal(share.Verdict, err)
	}
	server.Kill()
	for range 3 {
		if err := s.TakeShare(t.Context(), &share); !errors.Is(err, store.ErrUnavailable) {
			t.Fatalf("got %v", err)
		}
	}
	share.Cost = -1
	if err := s.TakeShare(t.Context(), &share); err == nil || errors.Is(err, store.ErrUnavailable) {
		t.Errorf("got %v", err)
	}
}
