package watch

import (
	"context"
	"errors"
	"math"
	"sync"
	"testing"
	"time"

	"github.com/stint-io/stint/limit"
)

func result(allowed bool, reason limit.Reason) *limit.Result {
	return &limit.Result{Cost: 1, Verdict: limit.Verdict{Allowed: allowed, Reason: reason}}
}

// Answers are seen by limit: admitted and refused apart, without a key not at all, of overrides not in the hour; what is
// no limit any more is forgotten.
func TestWatch(t *testing.T) {
	w := New()
	a, b := w.Limit("a"), w.Limit("b")
	for range 6 {
		a.Saw([]byte("k"), result(true, limit.ReasonNone))
	}
	a.Saw([]byte("k"), result(false, limit.ReasonRate))
	a.Saw([]byte("none"), result(false, limit.ReasonMissing))
	special := result(true, limit.ReasonNone)
	special.Detail = "user=acme"
	a.Saw([]byte("acme"), special)
	b.Saw([]byte("k"), result(false, limit.ReasonRate))
	top := w.Top(5)
	if len(top.Admitted["a"]) != 2 || math.Abs(top.Admitted["a"][0].Rate-0.1) > 1e-9 || len(top.Refused["a"]) != 1 || len(top.Refused["b"]) != 1 || top.Admitted["b"] != nil || top.One != 1 || top.AdmittedError != 0 {
		t.Errorf("%+v", top)
	}
	p := limit.Policy{Rate: limit.PerHour(1), Burst: 2}
	if x, err := w.WhatIf(t.Context(), "a", p, p, 0); err != nil || x.Asked != 7 || x.Refused != 1 || x.Then != 5 {
		t.Errorf("%+v, %v", x, err)
	}
	if w.Limit("a") != a {
		t.Error("a limit that is configured again begins anew")
	}
	w.Keep(func(name string) bool { return name == "b" })
	if _, err := w.WhatIf(t.Context(), "a", p, p, 0); !errors.Is(err, ErrUnknown) {
		t.Error(err)
	}
	if top := w.Top(5); top.Admitted["a"] != nil || top.Refused["b"] == nil {
		t.Errorf("%+v", top)
	}
	a.Saw([]byte("late"), result(true, limit.ReasonNone)) // a request that began before
}

// Run ends with its context.
func TestRun(t *testing.T) {
	w := New()
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { w.Run(ctx) })
	cancel()
	ended := make(chan struct{})
	go func() { running.Wait(); close(ended) }()
	select {
	case <-ended:
	case <-time.After(10 * time.Second):
		t.Fatal("it goes on")
	}
	for _, x := range []struct {
		quota, left int64
		want        float64
	}{{10, 10, 0}, {10, 5, 50}, {10, -5, 100}, {0, 0, 0}, {10, 20, 0}} {
		if got := Percent(x.quota, x.left); got != x.want {
			t.Errorf("%+v: %g", x, got)
		}
	}
}
