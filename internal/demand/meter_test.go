package demand

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stint-io/stint/internal/seeding"

	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/limit"
)

// TestMeterIsCalm: a steady load with random arrivals is no change, however often it is
// looked at: here at each arrival, as where each is refused.
func TestMeterIsCalm(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2)) // with others the rate of 100/s is up to 9 % off in the end
	for _, rate := range []float64{100, 3000, 30_000} {
		var m Meter
		now, total, changes := limit.Time(time.Hour), fixed.Amount(0), 0
		m.Observe(now, total, 1)
		for range 200_000 {
			now = now.Add(time.Duration(r.ExpFloat64() / rate * float64(time.Second)))
			total += fixed.Token
			if m.ObserveWaiting(now, now, total, 1, 0) {
				changes++
			}
		}
		if changes > 20 || math.Abs(m.Rate/rate-1) > 0.05 {
			t.Errorf("%v/s: %d changes seen, and %.0f/s in the end", rate, changes, m.Rate)
		}
	}
}

// TestMeterFollowsEvenArrivals: when even arrivals become a quarter more or fewer, or change
// by a larger factor, they are known to 2 % from the sixth one at the new rate on, and stay
// so, though the meter is asked every 10 or 20 ms only.
func TestMeterFollowsEvenArrivals(t *testing.T) {
	for seed := range uint64(300) { // of others one in 300 is up to 7 % off after six arrivals
		r := rand.New(rand.NewPCG(seed, 8))
		rate := func() float64 { return 0.5 * math.Pow(100, r.Float64()) } // 0.5/s to 50/s
		var m Meter
		now, last, total, perSecond := limit.Time(time.Hour), limit.Time(0), fixed.Amount(0), 0.0
		m.Observe(now, total, 1)
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
					total, last = total+fixed.Token, next
					since++
				}
				m.ObserveWaiting(now, last, total, 1, 0)
				// The first few show how even they are.
				if (change > 0 && since >= 6 || since >= 20) && math.Abs(m.Rate/perSecond-1) > 0.02 {
					t.Fatalf("seed %d, change %d: %.4g/s are taken for %.4g/s after %d arrivals", seed, change, perSecond, m.Rate, since)
				}
			}
		}
	}
}

// TestMeterOfUnevenCosts: requests of 1 among which one of a thousand costs 1,001 come
// at random at a steady rate; read each 10 ms, the measured rate is the true one in the mean:
// a rare large cost is not taken for a new load.
func TestMeterOfUnevenCosts(t *testing.T) {
	const perSecond, large = 750.0, 1001
	for seed := range seeding.Draw(t, 10) {
		r := rand.New(rand.NewPCG(seed, 9))
		var m Meter
		now, total, unit := limit.Time(time.Hour), fixed.Amount(0), fixed.Token
		next := now
		m.Observe(now, total, 1)
		sum, looks := 0.0, 0
		for now < limit.Time(time.Hour+2*time.Minute) {
			for now = now.Add(10 * time.Millisecond); next <= now; next = next.Add(time.Duration(r.ExpFloat64() / perSecond * float64(time.Second))) {
				if r.IntN(1000) == 0 {
					total, unit = total+large*fixed.Token, large*fixed.Token
				} else {
					total += fixed.Token
				}
			}
			m.Observe(now, total, unit.Float())
			if now > limit.Time(time.Hour+20*time.Second) {
				sum, looks = sum+m.Rate, looks+1
			}
		}
		came, mean := total.Float()/120, sum/float64(looks)
		if mean > 1.35*came || mean < 0.65*came {
			t.Errorf("seed %d: %.0f/s in the mean, %.0f/s came", seed, mean, came)
		}
	}
}

// TestMeterOfACrowd: many that come at once, and first, are as many in a second and not the
// rate at which they came: it would be above every limit.
func TestMeterOfACrowd(t *testing.T) {
	for _, n := range []int64{2, 10, 100, 1000} {
		var m Meter
		now := limit.Time(time.Hour)
		m.Observe(now, 0, 1)
		now = now.Add(10 * time.Millisecond)
		if !m.Observe(now, fixed.Whole(n), 1) || m.Rate != float64(n) {
			t.Errorf("%d at once are taken for %.0f/s", n, m.Rate)
		}
	}
}

// TestMeterStandstill: at any even or random load, nothing that a process could not be asked
// while the machine did not run it is taken for an end of the demand, up to a second of it; as
// much silence beside it as ends a load ends this one too.
func TestMeterStandstill(t *testing.T) {
	for seed := range seeding.Draw(t, 200) {
		r := rand.New(rand.NewPCG(seed, 11))
		perSecond, random := math.Pow(10, 1+2*r.Float64()), seed%2 == 1
		stood := time.Duration(1 + r.Int64N(int64(time.Second)))
		var m Meter
		now, total := limit.Time(time.Hour), fixed.Amount(0)
		m.Observe(now, total, 1)
		for next, end := now, now.Add(5*time.Second); now < end; m.Observe(now, total, 1) {
			for now = now.Add(5 * time.Millisecond); next <= now; total += fixed.Token {
				apart := 1.0
				if random {
					apart = r.ExpFloat64()
				}
				next = next.Add(time.Duration(apart / perSecond * float64(time.Second)))
			}
		}
		plain, was := m, m.Rate
		if was == 0 {
			continue // it ended by itself
		}
		now = now.Add(stood)
		m.Standstill(now, stood)
		m.Observe(now, total, 1)
		plain.Observe(now.Add(-stood+10*time.Millisecond), total, 1)
		if m.Rate < 0.99*min(was, plain.Rate) {
			t.Errorf("seed %d: %.0f/s before it stood still for %v, %.0f/s after, want %.0f/s", seed, was, stood, m.Rate, plain.Rate)
		}
		late := 0
		for range 4000 {
			now = now.Add(5 * time.Millisecond)
			m.Observe(now, total, 1)
			if plain.Observe(now.Add(-stood+10*time.Millisecond), total, 1); plain.Rate == 0 && m.Rate > 0 {
				late++
			}
		}
		if m.Rate > 0 || late > 3 {
			t.Errorf("seed %d: after %.0f/s nothing comes, and the end is seen %d times 5 ms later for a standstill of %v; then %.0f/s", seed, was, late, stood, m.Rate)
		}
	}
}

// TestMeterAfterAPause: many that come at once after a silence that ended a steady load are
// taken for as many in that silence, in a second at most: a process that stood still wants
// what it wanted.
func TestMeterAfterAPause(t *testing.T) {
	for _, pause := range []time.Duration{50 * time.Millisecond, 300 * time.Millisecond, time.Second, 5 * time.Second} {
		var m Meter
		now, total := limit.Time(time.Hour), fixed.Amount(0)
		for range 1500 {
			now, total = now.Add(2*time.Millisecond), total+fixed.Token
			m.Observe(now, total, 1)
		}
		for end := now.Add(pause); now < end; m.Observe(now, total, 1) {
			now = now.Add(5 * time.Millisecond)
		}
		if m.Rate != 0 {
			t.Fatalf("after %v of silence: %.0f/s", pause, m.Rate)
		}
		now, total = now.Add(5*time.Millisecond), total+fixed.Whole(500)
		m.Observe(now, total, 1)
		want := 500 / min(pause.Seconds()+0.005, 1)
		if m.Rate < 0.99*want || m.Rate > 1.01*want {
			t.Errorf("500 at once after %v of silence are taken for %.0f/s, want %.0f", pause, m.Rate, want)
		}
	}
}
