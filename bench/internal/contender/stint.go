package contender

import (
	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/store/memory"
)

type stint struct{ keyed *memory.Keyed }

// Policy returns the plan as stint's token bucket.
func (p Plan) Policy() limit.Policy {
	return limit.Policy{Rate: limit.Rate{Count: p.Count, Period: p.Period}, Burst: p.Burst}
}

func newStint(p Plan) (Limiter, error) {
	keyed, err := memory.NewKeyed(p.Policy(), memory.Options{})
	if err != nil {
		return nil, err
	}
	return &stint{keyed}, nil
}

func (s *stint) Allow(key string) bool { return s.keyed.Allow(key) }

func (s *stint) Hot(key string, n int) (admitted int) {
	for range n {
		if s.Allow(key) {
			admitted++
		}
	}
	return admitted
}

func (s *stint) Spin(w *Walk, n int) (admitted int) {
	for range n {
		if s.Allow(w.Next()) {
			admitted++
		}
	}
	return admitted
}
