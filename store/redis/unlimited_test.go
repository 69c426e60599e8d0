package redis

import (
	"math"
	"testing"
	"time"

	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/store"
)

// A limit without a bound is bound whatever else its policy says, and admits everything
// without asking Redis, also when that was never reached.
func TestUnlimitedAsksNobody(t *testing.T) {
	s, err := New(Options{Addrs: []string{unusedAddress(t)}, Timeout: patient})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for a := limit.TokenBucket; a <= limit.Concurrency; a++ {
		for _, rate := range []limit.Rate{{}, limit.PerSecond(1), {Count: limit.MaxCount, Period: math.MaxInt64}} {
			p := limit.Policy{Algorithm: a, Rate: rate, Unlimited: true}
			if a <= limit.LeakyBucket {
				p.Burst = 7
			}
			if a == limit.SlidingWindowLog {
				p.Rate.Count = min(p.Rate.Count, limit.MaxLogCount)
			}
			c, err := s.Bind(store.Spec{ID: "free", Policy: p})
			if err != nil || c.Spec().Policy != p {
				t.Errorf("%+v: %v", p, err)
				continue
			}
			charges := []store.Charge{charge(c, "k", limit.MaxCount), charge(c, "k", 1)}
			began := time.Now()
			for range 3 {
				if ok, err := s.Take(t.Context(), charges); err != nil || !ok || charges[0].Verdict != unlimited || charges[1].Verdict != unlimited {
					t.Errorf("%+v: %v, %v: %+v", p, ok, err, charges)
				}
			}
			if took := time.Since(began); took > patient/2 {
				t.Errorf("%+v: it took %v", p, took)
			}
		}
	}
	if st := s.Stats(); st.Calls != 0 || st.Fallbacks != 0 {
		t.Errorf("%+v", st)
	}
}
