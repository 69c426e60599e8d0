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
