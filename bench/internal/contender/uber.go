package contender

import (
	"sync"
	"time"

	"go.uber.org/ratelimit"
)

// uber keeps go.uber.org/ratelimit limiters in a sync.Map. They wait and never
// refuse, so that every answer is yes; at one per nanosecond they do not wait.
type uber struct {
	plan Plan
	keys sync.Map // string to ratelimit.Limiter
}

func newUber(p Plan) (Limiter, error) { return &uber{plan: p}, nil }

func (u *uber) Allow(key string) bool {
	if l, ok := u.keys.Load(key); ok {
		return !l.(ratelimit.Limiter).Take().IsZero()
	}
	return !u.add(key).Take().IsZero()
}

func (u *uber) add(key string) ratelimit.Limiter {
	perSecond := int(u.plan.Count * int64(time.Second) / int64(u.plan.Period))
	l, _ := u.keys.LoadOrStore(key, ratelimit.New(max(perSecond, 1)))
	return l.(ratelimit.Limiter)
}

func (u *uber) Hot(key string, n int) (admitted int) {
	for range n {
		if u.Allow(key) {
			admitted++
		}
	}
	return admitted
}

func (u *uber) Spin(w *Walk, n int) (admitted int) {
	for range n {
		if u.Allow(w.Next()) {
			admitted++
		}
	}
	return admitted
}
