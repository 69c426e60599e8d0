package contender

import (
	"context"

	"github.com/sethvargo/go-limiter"
	"github.com/sethvargo/go-limiter/memorystore"
)

// goLimiter is github.com/sethvargo/go-limiter with its memory store.
type goLimiter struct{ store limiter.Store }

func newGoLimiter(p Plan) (Limiter, error) {
	s, err := memorystore.New(&memorystore.Config{Tokens: uint64(p.Burst), Interval: p.Window()})
	if err != nil {
		return nil, err
	}
	return &goLimiter{s}, nil
}

func (g *goLimiter) Allow(key string) bool {
	_, _, _, ok, err := g.store.Take(context.Background(), key)
	return ok && err == nil
}

func (g *goLimiter) close() {
	_ = g.store.Close(context.Background()) // it has no way to fail
}

func (g *goLimiter) Hot(key string, n int) (admitted int) {
	for range n {
		if g.Allow(key) {
			admitted++
		}
	}
	return admitted
}

func (g *goLimiter) Spin(w *Walk, n int) (admitted int) {
	for range n {
		if g.Allow(w.Next()) {
			admitted++
		}
	}
	return admitted
}
