package remote

import (
	"context"
	"errors"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/throttled/throttled/v2"
	"github.com/throttled/throttled/v2/store/goredisstore.v9"

	"github.com/stint-io/stint/bench/internal/contender"
)

// gcraThrottled is github.com/throttled/throttled/v2: it reads, decides and swaps,
// and does so again when somebody else was quicker.
type gcraThrottled struct {
	client  *redis.Client
	limiter *throttled.GCRARateLimiterCtx
}

func newThrottled(addr string, p contender.Plan) (Limiter, error) {
	c := dial(addr)
	l, err := throttledOn(c, p)
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	// With the default of 10 attempts it answers an error when many meet on a
	// key.
	l.SetMaxCASAttemptsLimit(1 << 20)
	return &gcraThrottled{c, l}, nil
}

func throttledOn(c *redis.Client, p contender.Plan) (*throttled.GCRARateLimiterCtx, error) {
	store, err := goredisstore.NewCtx(c, "throttled:")
	if err != nil {
		return nil, err
	}
	return throttled.NewGCRARateLimiterCtx(store, throttled.RateQuota{
		MaxRate:  throttled.PerDuration(1, p.Period/time.Duration(p.Count)),
		MaxBurst: int(p.Burst) - 1, // beyond the first one
	})
}

func (g *gcraThrottled) Close() error { return g.client.Close() }

func (g *gcraThrottled) Caller() Caller {
	return func(ctx context.Context, key string) (Answer, error) {
		limited, a, err := g.limiter.RateLimitCtx(ctx, key, 1)
		if err != nil {
			return Answer{}, err
		}
		return Answer{!limited, int64(a.Remaining), a.RetryAfter}, nil
	}
}
