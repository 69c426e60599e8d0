package remote

import (
	"context"

	"github.com/go-redis/redis_rate/v10"
	"github.com/redis/go-redis/v9"

	"github.com/stint-io/stint/bench/internal/contender"
)

// redisRate is github.com/go-redis/redis_rate/v10: GCRA in floating point, one
// script for each request.
type redisRate struct {
	client  *redis.Client
	limiter *redis_rate.Limiter
	limit   redis_rate.Limit
}

func newRedisRate(addr string, p contender.Plan) (Limiter, error) {
	c := dial(addr)
	return &redisRate{c, redis_rate.NewLimiter(c), redis_rate.Limit{Rate: int(p.Count), Burst: int(p.Burst), Period: p.Period}}, nil
}

func (r *redisRate) Close() error { return r.client.Close() }

func (r *redisRate) Caller() Caller {
	return func(ctx context.Context, key string) (Answer, error) {
		a, err := r.limiter.Allow(ctx, key, r.limit)
		if err != nil {
			return Answer{}, err
		}
		return Answer{a.Allowed > 0, int64(a.Remaining), a.RetryAfter}, nil
	}
}
