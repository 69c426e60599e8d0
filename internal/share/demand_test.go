package share

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stint-io/stint/limit"
)

// TestMeterIsCalm: a steady load that comes by chance is no change, however often it is
// looked at: here at each arrival, as where each is refused.
func TestMeterIsCalm(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for _, rate := range []float64{100, 3000, 30_000} {
		var m meter
		now, total, changes := limit.Time(time.Hour), Amount(0), 0
		m.observe(now, total, 1)
		for range 200_000 {
			now = now.Add(time.Duration(r.ExpFloat64() / rate * float64(time.Second)))
			total += Token
			if m.observeFree(now, now, total, 1, 0) {
				changes++
			}
		}
		if changes > 20 || math.Abs(m.rate/rate-1) > 0.05 {
			t.Errorf("%v/s: %d changes seen, and %.0f/s in the end", rate, changes, m.rate)
		}
	}
}

// TestMeterFollowsEvenArrivals: when even arrivals become a quarter more or fewer, or change
// by a larger factor, they are known to 2 % from the sixth one at the new rate on, and stay
// so, though the meter is asked every 10 or 20 ms only.
func TestMeterFollowsEvenArrivals(t *testing.T) {
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 8))
		rate := func() float64 { return 0.5 * math.Pow(100, r.Float64()) } // 0.5/s to 50/s
		var m meter
		now, last, total, perSecond := limit.Time(time.Hour), limit.Time(0), Amount(0), 0.0
		m.observe(now, total, 1)
		for change := range 4 {
			was := perSecond
			for perSecond = rate(); perSecond < 1.25*was && was < 1.25*perSecond; {
				perSecond = rate()
			}
			gap := time.Duration(float64(time.Second) / perSecond)
			next, since := now.Add(gap), 0
			for since < 100 {
				now = now.Add(time.Duration(10+10*r.IntN(2)) * time.Millisecond)
				for ; next <= now; next = next.Add(gap) {
					total, last = total+Token, next
					since++
				}
				m.observeFree(now, last, total, 1, 0)
				// The first few show how even they are.
				if (change > 0 && since >= 6 || since >= 20) && math.Abs(m.rate/perSecond-1) > 0.02 {
					t.Fatalf("seed %d, change %d: %.4g/s are taken for %.4g/s after %d arrivals", seed, change, perSecond, m.rate, since)
				}
			}
		}
	}
}
