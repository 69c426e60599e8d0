package memory

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stint-io/stint/internal/seeding"
	"github.com/stint-io/stint/limit"
)

// The Taker of a Keyed answers for each key, field by field, as a limit.Limiter of that key
// alone does: what is taken, only peeked at, or counted though it is refused.
func TestTakerAnswersAsLimitersDo(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	for seed := range seeding.Draw(t, 120) {
		synctest.Test(t, func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 61))
			p := limit.Policy{Algorithm: limit.Algorithm(seed % 5), Rate: limit.Rate{Count: 1 + r.Int64N(20), Period: time.Second}}
			if p.Algorithm <= limit.LeakyBucket {
				p.Burst = 1 + r.Int64N(10)
			}
			if seed%10 == 0 {
				p.Rate.Count, p.Rate.Period = 999_983, 99_991*time.Second // which no word holds
			}
			k, err := NewKeyed(p, Options{})
			if err != nil {
				t.Fatal(err)
			}
			taker := k.Taker("per-user", "user", "path")
			limiters := map[string]*limit.Limiter{}
			for step := range 150 {
				time.Sleep(time.Duration(r.Int64N(int64(p.Window())/3 + 1)))
				// An attribute that is not there counts as an empty one.
				req := limit.Request{Cost: r.Int64N(p.Quota() + 2), Peek: r.IntN(4) == 0, CountRefused: r.IntN(4) == 0}
				key := fmt.Sprint("u", r.IntN(2))
				if req.Attributes = []limit.Attribute{{Name: "other", Value: "x"}, {Name: "user", Value: key}}; r.IntN(2) == 0 {
					req.Attributes = append(req.Attributes, limit.Attribute{Name: "path", Value: ""})
				}
				if limiters[key] == nil {
					if limiters[key], err = limit.NewLimiter(p); err != nil {
						t.Fatal(err)
					}
				}
				want, err := limiters[key].Take(t.Context(), req)
				if err != nil {
					t.Fatal(err)
				}
				want.Results[0].Limit = "per-user"
				if got, err := taker.Take(t.Context(), req); err != nil || !reflect.DeepEqual(got, want) {
					t.Fatalf("seed %d, step %d: %+v %+v:\n got %+v, %v\nwant %+v", seed, step, p, req, got, err, want)
				}
			}
			before := k.Stats()
			for _, req := range []limit.Request{{Cost: -1}, {Cost: -1, Peek: true}, {Cost: limit.MaxCount + 1}, {Cost: limit.MaxCount + 1, Peek: true}, {Cost: -1, CountRefused: true}} {
				if d, err := taker.Take(t.Context(), req); err == nil || d.Allowed || d.Results != nil {
					t.Errorf("%+v: %+v, %v", req, d, err)
				}
			}
			gone, cancel := context.WithCancel(t.Context())
			cancel()
			if d, err := taker.Take(gone, limit.Request{}); !errors.Is(err, context.Canceled) || d.Allowed {
				t.Errorf("whose context has ended: %+v, %v", d, err)
			}
			if got := k.Stats(); !reflect.DeepEqual(got, before) {
				t.Errorf("what was not decided left a trace: %+v, then %+v", before, got)
			}
		})
	}
}
