package contender

import (
	"context"
	"time"

	"github.com/throttled/throttled/v2"
	"github.com/throttled/throttled/v2/store/memstore"
)

// gcraThrottled is github.com/throttled/throttled/v2 with its map store.
type gcraThrottled struct{ limiter *throttled.GCRARateLimiterCtx }

func newThrottled(p Plan) (Limiter, error) {
	store, err := memstore.NewCtx(0)
	if err != nil {
		return nil, err
	}
	l, err := throttled.NewGCRARateLimiterCtx(store, throttled.RateQuota{
		MaxRate:  throttled.PerDuration(1, p.Period/time.Duration(p.Count)),
		MaxBurst: int(p.Burst) - 1, // beyond the first one
	})
	if err != nil {
		return nil, err
	}
	// With the default of 10 attempts it answers an error now and then when
	// two threads meet on a key.
	l.SetMaxCASAttemptsLimit(1 << 20)
	return &gcraThrottled{l}, nil
}

func (g *gcraThrottled) Allow(key string) bool {
	limited, _, err := g.limiter.RateLimitCtx(context.Background(), key, 1)
	return !limited && err == nil
}

func (g *gcraThrottled) Hot(key string, n int) (admitted int) {
	for range n {
		if g.Allow(key) {
			admitted++
		}
	}
	return admitted
}

func (g *gcraThrottled) Spin(w *Walk, n int) (admitted int) {
	for range n {
		if g.Allow(w.Next()) {
			admitted++
		}
	}
	return admitted
}
