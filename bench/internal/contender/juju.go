package contender

import (
	"sync"
	"time"

	"github.com/juju/ratelimit"
)

// juju keeps github.com/juju/ratelimit buckets in a sync.Map.
type juju struct {
	plan Plan
	keys sync.Map // string to *ratelimit.Bucket
}

func newJuju(p Plan) (Limiter, error) { return &juju{plan: p}, nil }

func (j *juju) Allow(key string) bool {
	if b, ok := j.keys.Load(key); ok {
		return b.(*ratelimit.Bucket).TakeAvailable(1) == 1
	}
	return j.add(key).TakeAvailable(1) == 1
}

func (j *juju) add(key string) *ratelimit.Bucket {
	b, _ := j.keys.LoadOrStore(key, ratelimit.NewBucket(j.plan.Period/time.Duration(j.plan.Count), j.plan.Burst))
	return b.(*ratelimit.Bucket)
}

func (j *juju) Hot(key string, n int) (admitted int) {
	for range n {
		if j.Allow(key) {
			admitted++
		}
	}
	return admitted
}

func (j *juju) Spin(w *Walk, n int) (admitted int) {
	for range n {
		if j.Allow(w.Next()) {
			admitted++
		}
	}
	return admitted
}
