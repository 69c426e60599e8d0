package engine_test

import (
	"context"
	"errors"
	"testing"

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
