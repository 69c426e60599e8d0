package engine

import (
	"context"
	"errors"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stint-io/stint/internal/seeding"
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
		second, other := limit.Rate{Count: 1, Period: 2 * time.Second}, limit.Rate{Count: 1, Period: 3 * time.Second}
		want(limit.PerSecond(1), true, false)
		want(second, false, true)
		if got := st.Stats().Limits; got != bound+2 {
			t.Fatalf("%d counters, want 2 for overrides", got-bound)
		}
		time.Sleep(12 * time.Second) // in the bubble
		want(second, true, false)
		want(other, false, true)
		want(hour, false, false)
		if got := st.Stats().Limits; got != bound+2 {
			t.Fatalf("%d counters, want 2 for overrides", got-bound)
		}
	})
}

// TestOverridesShareWhatWasUsed: a request's own limit is measured against all that its
// descriptor has asked for in the window, whatever limits the requests before it
// brought. Another unit, or another descriptor, has a window of its own.
func TestOverridesShareWhatWasUsed(t *testing.T) {
	set, err := rules.Parse("edge.yaml", []byte("domain: edge\ndescriptors:\n  - {key: k}\n"))
	if err != nil {
		t.Fatal(err)
	}
	for seed := range seeding.Draw(t, 50) {
		synctest.Test(t, func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 1))
			e, err := New(memory.New(memory.Options{}), set, Options{})
			if err != nil {
				t.Fatal(err)
			}
			type window struct {
				value  string
				period time.Duration
				number int64
			}
			used := map[window]int64{}
			for step := range 200 {
				time.Sleep(time.Duration(r.Int64N(int64(20 * time.Minute)))) // in the bubble
				d := Descriptor{
					Attributes: []limit.Attribute{{Name: "k", Value: []string{"a", "b"}[r.IntN(2)]}}, Cost: 1 + r.Int64N(3),
					Override: limit.Rate{Count: r.Int64N(30), Period: []time.Duration{time.Hour, 24 * time.Hour}[r.IntN(2)]}, HasOverride: true,
				}
				q := Query{Domain: "edge", Descriptors: []Descriptor{d}}
				if err := e.Decide(context.Background(), &q); err != nil {
					t.Fatal(err)
				}
				w := window{d.Attributes[0].Value, d.Override.Period, time.Now().UnixNano() / int64(d.Override.Period)}
				used[w] += d.Cost // refused requests count, as in Envoy's service
				want := used[w] <= d.Override.Count
				if r := q.Decision.Results[0]; q.Decision.Allowed != want || r.Quota != d.Override.Count || r.Remaining != max(0, d.Override.Count-used[w]) {
					t.Fatalf("seed %d, step %d: %d of %v used, cost %d: %+v", seed, step, used[w], d.Override, d.Cost, q.Decision)
				}
			}
		})
	}
}
