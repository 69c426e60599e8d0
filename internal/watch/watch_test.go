package watch

import (
	"context"
	"errors"
	"math"
	"sync"
	"testing"
	"time"

	"github.com/stint-io/stint/internal/engine"
	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/rules"
	"github.com/stint-io/stint/store/memory"
)

// Answers are seen by limit: admitted and refused apart, without a key and of limits that came with requests not at all,
// of overrides not in the hour; what is no limit any more is forgotten.
func TestWatch(t *testing.T) {
	w := New()
	parse := func(text string) *rules.Set {
		set, err := rules.Parse("l.yaml", []byte(text))
		if err != nil {
			t.Fatal(err)
		}
		return set
	}
	const bucket = "key: [user], burst: 7, rate: 1/h, overrides: [{when: {user: acme}, rate: 2/h}]}"
	e, err := engine.New(memory.New(memory.Options{}), parse("limits: [{name: a, missing: reject, "+bucket+", {name: b, match: {b: yes}, key: [user], rate: 1/h, burst: 1, shadow: true}]"), engine.Options{Decisions: []engine.DecisionObserver{w}})
	if err != nil {
		t.Fatal(err)
	}
	ask := func(cost int64, attrs ...string) {
		d := engine.Descriptor{Cost: cost}
		for i := 0; i < len(attrs); i += 2 {
			d.Attributes = append(d.Attributes, limit.Attribute{Name: attrs[i], Value: attrs[i+1]})
		}
		if err := e.Decide(t.Context(), &engine.Query{Descriptors: []engine.Descriptor{d}}); err != nil {
			t.Fatal(err)
		}
	}
	for range 6 {
		ask(1, "user", "k")
	}
	ask(2, "user", "k", "b", "yes")
	ask(1)
	ask(1, "user", "acme")
	top := w.Top(5)
	if len(top.Admitted["a"]) != 2 || math.Abs(top.Admitted["a"][0].Rate-0.1) > 1e-9 || len(top.Refused["a"]) != 1 || len(top.Refused["b"]) != 1 || top.Admitted["b"] != nil || top.One != 1 || top.AdmittedError != 0 {
		t.Errorf("%+v", top)
	}
	p := limit.Policy{Rate: limit.PerHour(1), Burst: 2}
	asked := func(want int64) {
		t.Helper()
		if x, err := w.WhatIf(t.Context(), "a", p, p, 0); err != nil || int64(x.Asked) != want || x.Refused != 1 {
			t.Errorf("%+v, %v", x, err)
		}
	}
	asked(7)
	w.Follow(parse("limits: [{name: b, rate: 1/s}, {name: a, rate: 2/s}]"))
	ask(1, "user", "k") // decided by the limit before
	asked(8)
	w.Follow(parse("limits: [{name: b, rate: 1/s}]"))
	if _, err := w.WhatIf(t.Context(), "a", p, p, 0); !errors.Is(err, ErrUnknown) {
		t.Error(err)
	}
	if top := w.Top(5); top.Admitted["a"] != nil || top.Refused["b"] == nil {
		t.Errorf("%+v", top)
	}
	ask(1, "user", "k") // a request that began before
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
