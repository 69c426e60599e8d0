package engine

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/rules"
	"github.com/stint-io/stint/store/memory"
)

// An override makes room for another only when its windows are over: a flood of
// different ones never lifts a limit.
func TestOverridesAreDroppedOnlyWhenTheyAreOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		set, err := rules.Parse("edge.yaml", []byte("domain: edge\ndescriptors:\n  - {key: k}\n"))
		if err != nil {
			t.Fatal(err)
		}
		st := memory.New(memory.Options{})
		e, err := New(st, set, Options{MaxOverrides: 2})
		if err != nil {
			t.Fatal(err)
		}
		bound := st.Stats().Limits
		ask := func(rate limit.Rate) (bool, error) {
			q := Query{Domain: "edge", Descriptors: []Descriptor{{
				Attributes: []limit.Attribute{{Name: "k", Value: "v"}}, Cost: 1, Override: rate, HasOverride: true,
			}}}
			err := e.Decide(context.Background(), &q)
			return q.Decision.Allowed, err
		}
		want := func(rate limit.Rate, allowed bool, full bool) {
			t.Helper()
			got, err := ask(rate)
			if full != errors.Is(err, ErrBadRequest) || !full && (err != nil || got != allowed) {
				t.Fatalf("%v: %v, %v", rate, got, err)
			}
		}
		hour := limit.PerHour(1)
		want(hour, true, false)
		want(hour, false, false)
		want(limit.PerSecond(1), true, false)
		want(limit.PerSecond(2), false, true)
		if got := st.Stats().Limits; got != bound+2 {
			t.Fatalf("%d counters, want 2 for overrides", got-bound)
		}
		time.Sleep(12 * time.Second) // in the bubble
		want(limit.PerSecond(2), true, false)
		want(limit.PerSecond(3), false, true)
		want(hour, false, false)
		if got := st.Stats().Limits; got != bound+2 {
			t.Fatalf("%d counters, want 2 for overrides", got-bound)
		}
	})
}
