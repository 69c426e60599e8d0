package contender

import (
	"sync"

	"github.com/failsafe-go/failsafe-go/ratelimiter"
)

// failsafe keeps github.com/failsafe-go/failsafe-go bursty limiters in a
// sync.Map. (Its smooth ones have no burst.)
type failsafe struct {
	plan Plan
	keys sync.Map // string to ratelimiter.RateLimiter[any]
}

func newFailsafe(p Plan) (Limiter, error) { return &failsafe{plan: p}, nil }

func (f *failsafe) Allow(key string) bool {
	if l, ok := f.keys.Load(key); ok {
		return l.(ratelimiter.RateLimiter[any]).TryAcquirePermit()
	}
	return f.add(key).TryAcquirePermit()
}

func (f *failsafe) add(key string) ratelimiter.RateLimiter[any] {
	l, _ := f.keys.LoadOrStore(key, ratelimiter.NewBursty[any](uint(f.plan.Burst), f.plan.Window()))
	return l.(ratelimiter.RateLimiter[any])
}

func (f *failsafe) Hot(key string, n int) (admitted int) {
	for range n {
		if f.Allow(key) {
			admitted++
		}
	}
	return admitted
}

func (f *failsafe) Spin(w *Walk, n int) (admitted int) {
	for range n {
		if f.Allow(w.Next()) {
			admitted++
		}
	}
	return admitted
}
