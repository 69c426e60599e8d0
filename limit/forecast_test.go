package limit

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"
)

// The forecast of a refusal is a lower bound, whatever the policy, the state and the costs:
// requests that take in order, as early as possible, do not take before it.
func TestForecastIsALowerBound(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	eachHistory(t, func(r *rand.Rand) error {
		p := randomPolicy(r)
		m, l := newMeter(p), ledger{}
		now := Time(time.Hour)
		for range 20 {
			now += Time(r.Int64N(int64(p.Rate.Period)))
			cost := 1 + r.Int64N(m.quota+1)
			v := m.take(&l, now, cost)
			if v.Allowed || v.RetryAfter == Never {
				continue
			}
			d := Decision{Results: []Result{{Algorithm: p.Algorithm, Quota: m.quota, Window: p.Window(), Cost: cost, Verdict: v}}}
			var f forecast
			f.of(&d, now, now, cost)
			after, sum, from := l.clone(), int64(0), now
			f.loose = r.IntN(2) == 0 // who was refused has left
			for i := range 20 {
				next := cost
				if i > 0 || f.loose {
					next = 1 + r.Int64N(m.quota)
				}
				sum += next
				take, _, _ := m.earliest(&after, from, next)
				m.take(&after, take, next)
				from = take
				// A Window is rounded up to the nanosecond, so that a share of many
				// may be some too late.
				slack := Time(1 + sum/m.quota)
				if t := f.earliest(sum); t > take+slack {
					return fmt.Errorf("%+v: refused %d at %d until %v: %d in all not before %d, taken at %d", p, cost, now, v.RetryAfter, sum, t, take)
				}
			}
		}
		return nil
	})
	if got := (&forecast{results: []Result{{Quota: 1, Window: Never, Cost: 1, Verdict: Verdict{RetryAfter: 1}}}, cost: 1}).earliest(math.MaxInt64); got != math.MaxInt64 {
		t.Errorf("the largest of all sums: %d", got)
	}
}
