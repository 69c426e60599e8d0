package contender

import (
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// xtime keeps golang.org/x/time/rate limiters in a sync.Map.
type xtime struct {
	plan Plan
	keys sync.Map // string to *rate.Limiter
}

func newXTime(p Plan) (Limiter, error) { return &xtime{plan: p}, nil }

// XTimeLimiter is one rate.Limiter under the plan.
func (p Plan) XTimeLimiter() *rate.Limiter {
	return rate.NewLimiter(rate.Every(p.Period/time.Duration(p.Count)), int(p.Burst))
}

func (x *xtime) Allow(key string) bool {
	if l, ok := x.keys.Load(key); ok {
		return l.(*rate.Limiter).Allow()
	}
	return x.add(key).Allow()
}

func (x *xtime) add(key string) *rate.Limiter {
	l, _ := x.keys.LoadOrStore(key, x.plan.XTimeLimiter())
	return l.(*rate.Limiter)
}

func (x *xtime) Hot(key string, n int) (admitted int) {
	for range n {
		if x.Allow(key) {
			admitted++
		}
	}
	return admitted
}

func (x *xtime) Spin(w *Walk, n int) (admitted int) {
	for range n {
		if x.Allow(w.Next()) {
			admitted++
		}
	}
	return admitted
}
