package redis_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stint-io/stint/internal/engine"
	"github.com/stint-io/stint/internal/redistest"
	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/rules"
	"github.com/stint-io/stint/store/redis"
)

// Two servers on one Redis, in real time: eight tenants that ask without a pause, three times as many callers at one
// server as at the other, have equal parts of the limit, and all of it is used and no more.
func TestServersShareFairly(t *testing.T) {
	server := redistest.Start(t)
	set, err := rules.Parse("test.yaml", []byte("limits: [{name: model, rate: 400/s, burst: 100, share: {by: tenant}}]"))
	if err != nil {
		t.Fatal(err)
	}
	const tenants, lasts = 8, 2 * time.Second
	var got [tenants]atomic.Int64
	ctx, cancel := context.WithTimeout(t.Context(), 10*lasts)
	defer cancel()
	begun := time.Now()
	var wg sync.WaitGroup
	for s := range 2 {
		st, err := redis.New(redis.Options{Addrs: []string{server.Addr()}, Timeout: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = st.Close() })
		e, err := engine.New(st, set, engine.Options{})
		if err != nil {
			t.Fatal(err)
		}
		for tenant := s; tenant < tenants; tenant += 2 {
			for range 3 - 2*s {
				wg.Go(func() {
					req := limit.Request{Attributes: []limit.Attribute{{Name: "tenant", Value: fmt.Sprint(tenant)}}}
					for time.Since(begun) < lasts {
						d, err := e.Take(ctx, req)
						if err != nil && !errors.Is(err, context.Canceled) {
							t.Error(err)
							return
						}
						if d.Allowed {
							got[tenant].Add(1)
						}
					}
				})
			}
		}
	}
	wg.Wait()
	took := time.Since(begun)
	sum, squares := 0.0, 0.0
	for i := range got {
		n := float64(got[i].Load())
		sum, squares = sum+n, squares+n*n
	}
	jain, most := sum*sum/squares/tenants, 100+400*took.Seconds()
	t.Logf("%v: Jain %.4f, %.0f of at most %.0f", took.Round(time.Millisecond), jain, sum, most)
	if sum > most+1 {
		t.Errorf("%.0f were admitted, want at most %.0f", sum, most)
	}
	// The last of the burst is left to newcomers.
	if jain < 0.99 || sum < 0.9*400*lasts.Seconds() {
		t.Errorf("Jain %.4f, %.0f admitted", jain, sum)
	}
}
