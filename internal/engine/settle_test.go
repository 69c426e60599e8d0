package engine_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stint-io/stint/internal/engine"
	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/rules"
	"github.com/stint-io/stint/store"
	"github.com/stint-io/stint/store/memory"
)

// unreached does as Redis does that is not reached: what refuses nothing fails nothing.
type unreached struct {
	store.Store
	away bool
}

func (u *unreached) Take(ctx context.Context, charges []store.Charge) (bool, error) {
	if !u.away {
		return u.Store.Take(ctx, charges)
	}
	for i := range charges {
		charges[i].Failed, charges[i].Verdict = true, limit.Verdict{Allowed: true}
		if !charges[i].Shadow {
			return false, store.ErrUnavailable
		}
	}
	return true, nil
}

// What is over and was not charged, as the store was not reached, is an error: it would be lost.
func TestOverIsNotLost(t *testing.T) {
	set, err := rules.Parse("limits.yaml", []byte("limits: [{name: hour, rate: 1000/hour, algorithm: fixed_window}]"))
	if err != nil {
		t.Fatal(err)
	}
	st := &unreached{Store: memory.New(memory.Options{})}
	e, err := engine.New(st, set, engine.Options{})
	if err != nil {
		t.Fatal(err)
	}
	_, parts, _, err := e.TakeParts(t.Context(), limit.Request{Cost: 10})
	if err != nil {
		t.Fatal(err)
	}
	st.away = true
	if err := e.Settle(t.Context(), parts, 1, 1, 50); !errors.Is(err, store.ErrUnavailable) {
		t.Error(err)
	}
}

// TestWindowsThatBeginWithARequest: what is given back comes back to the window that it was taken from,
// also when that window began after the caller noted the time, and never to a later one.
func TestWindowsThatBeginWithARequest(t *testing.T) {
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 0))
	set, err := rules.Parse("limits.yaml", []byte("limits: [{name: hour, rate: 10/hour, algorithm: fixed_window, align: first_hit}]"))
	if err != nil {
		t.Fatal(err)
	}
	for range 200 {
		var clock atomic.Int64
		start := limit.Time(1e18 + r.Int64N(1e16))
		clock.Store(int64(start))
		st := memory.New(memory.Options{Now: func() limit.Time { return limit.Time(clock.Load()) }})
		e, err := engine.New(st, set, engine.Options{})
		if err != nil {
			t.Fatal(err)
		}
		used := int64(0)
		if r.IntN(2) == 0 { // the window is open already
			used = 1
			take(t, e, 1)
			clock.Add(r.Int64N(int64(50 * time.Minute)))
		}
		noted := limit.Time(clock.Load())
		clock.Add(r.Int64N(int64(time.Second)))
		_, parts, _, err := e.TakeParts(t.Context(), limit.Request{Cost: 5})
		if err != nil {
			t.Fatal(err)
		}
		later := r.IntN(2) == 0
		if later {
			clock.Add(int64(time.Hour) + r.Int64N(int64(time.Hour)))
			take(t, e, 7)
		}
		if err := e.Settle(t.Context(), parts, noted, limit.Time(clock.Load()), 0); err != nil {
			t.Fatal(err)
		}
		want := 10 - used
		if later {
			want = 3
		}
		d, err := e.Take(t.Context(), limit.Request{Peek: true})
		if err != nil || d.Results[0].Remaining != want {
			t.Fatalf("seed %d: %d left, want %d (used before: %d, a later window: %v), %v", seed, d.Results[0].Remaining, want, used, later, err)
		}
	}
}

func take(t *testing.T, e *engine.Engine, cost int64) {
	t.Helper()
	if d, err := e.Take(t.Context(), limit.Request{Cost: cost}); err != nil || !d.Allowed {
		t.Fatalf("%+v, %v", d, err)
	}
}
