package contender

import (
	"context"

	"github.com/ulule/limiter/v3"
	"github.com/ulule/limiter/v3/drivers/store/memory"
)

// ulule is github.com/ulule/limiter/v3 with its memory store.
type ulule struct{ limiter *limiter.Limiter }

func newUlule(p Plan) (Limiter, error) {
	return &ulule{limiter.New(memory.NewStore(), limiter.Rate{Period: p.Window(), Limit: p.Burst})}, nil
}

func (u *ulule) Allow(key string) bool {
	c, err := u.limiter.Get(context.Background(), key)
	return err == nil && !c.Reached
}

func (u *ulule) Hot(key string, n int) (admitted int) {
	for range n {
		if u.Allow(key) {
			admitted++
		}
	}
	return admitted
}

func (u *ulule) Spin(w *Walk, n int) (admitted int) {
	for range n {
		if u.Allow(w.Next()) {
			admitted++
		}
	}
	return admitted
}
