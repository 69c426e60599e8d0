package memory

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stint-io/stint/internal/seeding"
	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/store"
)

func mustHolder(t testing.TB, k *Keyed) limit.Preparer {
	t.Helper()
	h, err := k.Preparer("per-key", "key")
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func keyRequest(key string, cost int64) limit.Request {
	return limit.Request{Attributes: []limit.Attribute{{Name: "key", Value: key}}, Cost: cost}
}

func TestHolderWalk(t *testing.T) {
	now := limit.Time(1e18)
	k := mustKeyed(t, limit.Policy{Rate: limit.PerSecond(10), Burst: 5}, Options{Now: func() limit.Time { return now }})
	h := mustHolder(t, k)
	var r limit.Result
	hold := func(cost int64) limit.Prepared {
		held, err := h.Prepare(t.Context(), keyRequest("a", cost), false, &r)
		if err != nil {
			t.Fatal(err)
		}
		return held
	}
	left := func() int64 {
		if _, err := h.Prepare(t.Context(), limit.Request{Attributes: keyRequest("a", 1).Attributes, Peek: true}, false, &r); err != nil {
			t.Fatal(err)
		}
		return r.Remaining
	}
	held := hold(3)
	if !r.Allowed || r.Limit != "per-key" || r.Quota != 5 || r.Window != 500*time.Millisecond || r.Cost != 3 || r.Remaining != 2 {
		t.Errorf("%+v", r)
	}
	if hold(3); r.Allowed || r.Reason != limit.ReasonRate || r.RetryAfter != 100*time.Millisecond {
		t.Errorf("%+v", r)
	}
	if h.Rollback(held); left() != 5 {
		t.Errorf("%d are left, want 5", left())
	}
	held = hold(3)
	if h.Commit(held); left() != 2 {
		t.Errorf("%d are left, want 2", left())
	}
	// Prepared while it was full, and 200 ms later another takes 3: the bucket would have
	// overflowed by 2 in between, so 1 of the 3 is given back.
	now = now.Add(time.Second)
	held = hold(3)
	now = now.Add(200 * time.Millisecond)
	hold(3)
	if h.Rollback(held); left() != 2 {
		t.Errorf("%d are left, want 2: as if only the other had taken", left())
	}
	h.Rollback(limit.Prepared{})
	if _, err := h.Prepare(t.Context(), keyRequest("a", -1), false, &r); !errors.Is(err, limit.ErrNegativeCost) {
		t.Errorf("a negative cost: %v", err)
	}
	if _, err := h.Prepare(t.Context(), keyRequest("a", limit.MaxCount+1), false, &r); err == nil {
		t.Error("a cost above MaxCount was decided")
	}
	if err := k.SetPolicy(limit.Policy{Algorithm: limit.FixedWindow, Rate: limit.PerSecond(1)}); err != nil {
		t.Fatal(err)
	}
	if _, err := h.Prepare(t.Context(), keyRequest("a", 1), false, &r); err == nil {
		t.Error("a window was held")
	}
	if _, err := k.Preparer("x", "key"); err == nil {
		t.Error("a window is no Preparer")
	}
	if _, err := mustKeyed(t, limit.Policy{}, Options{}).Preparer("x", "key"); err == nil {
		t.Error("a rate of 0 is no Preparer")
	}
}

// TestHolderLeavesNoTrace: two limits with keys, and one without, as scopes of one
// request. Whatever is refused, each key has what it has in tables that never saw it.
func TestHolderLeavesNoTrace(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	for seed := range seeding.Draw(t, 200) {
		r := rand.New(rand.NewPCG(seed, 3))
		now := limit.Time(1e18)
		clock := func() limit.Time { return now }
		var own, oracle [3]*Keyed
		var scopes []limit.Scope
		for i := range own {
			p := limit.Policy{Rate: limit.PerSecond(1 + r.Int64N(50)), Burst: r.Int64N(20)}
			if r.IntN(3) == 0 {
				p.Algorithm = limit.LeakyBucket
			}
			own[i], oracle[i] = mustKeyed(t, p, Options{Now: clock}), mustKeyed(t, p, Options{Now: clock})
			scopes = append(scopes, limit.Scope{Name: strconv.Itoa(i), Taker: mustHolder(t, own[i])})
		}
		s, err := limit.All(scopes...)
		if err != nil {
			t.Fatal(err)
		}
		for step := range 200 {
			req := keyRequest(fmt.Sprint(r.IntN(3)), 1+r.Int64N(4))
			key := string(keyBytes(req))
			want := true
			for _, k := range oracle {
				v, err := k.Peek(key, req.Cost)
				if err != nil {
					t.Fatal(err)
				}
				want = want && v.Allowed
			}
			d, err := s.Take(context.Background(), req)
			if err != nil || d.Allowed != want {
				t.Fatalf("seed %d, step %d: %+v, %v, want allowed %v", seed, step, d, err, want)
			}
			for i := range oracle {
				if want {
					if _, err := oracle[i].Take(key, req.Cost); err != nil {
						t.Fatal(err)
					}
				}
				got, _ := own[i].Peek(key, 0)
				if exact, _ := oracle[i].Peek(key, 0); got != exact {
					t.Fatalf("seed %d, step %d: limit %d has %+v, want %+v", seed, step, i, got, exact)
				}
			}
			if r.IntN(2) == 0 {
				now += limit.Time(r.Int64N(int64(200 * time.Millisecond)))
			}
		}
	}
}

// keyBytes is the key that a Preparer makes of a request.
func keyBytes(req limit.Request) []byte {
	value, _ := req.Get("key")
	return appendOne(value)
}

// TestHoldersConserve: many at once on few keys, while the table grows and moves. What a
// key has lost is what was kept of it.
func TestHoldersConserve(t *testing.T) {
	const burst, workers, rounds = 100_000, 8, 1500
	p := limit.Policy{Rate: limit.PerHour(1), Burst: burst}
	k := mustKeyed(t, p, Options{})
	h := mustHolder(t, k)
	var mu sync.Mutex
	kept := map[string]int64{}
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			mine := map[string]int64{}
			for i := range rounds {
				key := strconv.Itoa(i % 7)
				var r limit.Result
				held, err := h.Prepare(t.Context(), keyRequest(key, 2), false, &r)
				if err != nil || !r.Allowed {
					t.Errorf("%+v, %v", r, err)
					return
				}
				if i%10 == w {
					h.Commit(held)
					mine[key] += 2
				} else {
					h.Rollback(held)
				}
				// Others, so that the arrays are copied.
				k.Allow(strconv.Itoa(w*rounds + i + 100))
			}
			mu.Lock()
			defer mu.Unlock()
			for key, n := range mine {
				kept[key] += n
			}
		})
	}
	wg.Wait()
	for key, n := range kept {
		v, err := k.Peek(string(appendOne(key)), 0)
		if err != nil || v.Remaining > burst-n || v.Remaining < burst-n-1 {
			t.Errorf("key %s has %d, want %d or a part of a token less: %v", key, v.Remaining, burst-n, err)
		}
	}
	if len(kept) != 7 {
		t.Errorf("%d keys, want 7", len(kept))
	}
}

func TestHoldAllocatesNothing(t *testing.T) {
	h := mustHolder(t, mustKeyed(t, limit.Policy{Rate: limit.PerSecond(100), Burst: 100}, Options{}))
	req := keyRequest("connection-1", 1)
	var r limit.Result
	if n := testing.AllocsPerRun(1000, func() {
		held, err := h.Prepare(t.Context(), req, false, &r)
		if err != nil {
			t.Fatal(err)
		}
		h.Rollback(held)
	}); n != 0 && !raceEnabled {
		t.Errorf("%v allocations per Prepare and Rollback, want 0", n)
	}
}

// appendOne is the key of one value.
func appendOne(value string) []byte { return store.AppendKey(nil, value) }
