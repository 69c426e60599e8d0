package remote

import (
	"context"
	"errors"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"github.com/ulule/limiter/v3"
	"github.com/ulule/limiter/v3/drivers/store/redis"

	"github.com/stint-io/stint/bench/internal/contender"
)

// ulule is github.com/ulule/limiter/v3 with its Redis store: a fixed window, which
// is less work than a bucket.
type ulule struct {
	client  *goredis.Client
	limiter *limiter.Limiter
}

func newUlule(addr string, p contender.Plan) (Limiter, error) {
	c := dial(addr)
	store, err := redis.NewStoreWithOptions(c, limiter.StoreOptions{Prefix: "ulule"})
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return &ulule{c, limiter.New(store, limiter.Rate{Period: p.Window(), Limit: p.Burst})}, nil
}

func (u *ulule) Close() error { return u.client.Close() }

func (u *ulule) Caller() Caller {
	return func(ctx context.Context, key string) (Answer, error) {
		c, err := u.limiter.Get(ctx, key)
		if err != nil {
			return Answer{}, err
		}
		a := Answer{Allowed: !c.Reached, Remaining: c.Remaining}
		if c.Reached {
			a.RetryAfter = time.Until(time.Unix(c.Reset, 0))
		}
		return a, nil
	}
}
