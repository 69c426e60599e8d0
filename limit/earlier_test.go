package limit

import (
	"math/big"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stint-io/stint/internal/seeding"
)

// The time may be read before the limiter is made, or be no time at all.
func TestAllowBeforeItsMaking(t *testing.T) {
	for _, p := range []Policy{
		bucketPolicy(PerSecond(1), 1),
		bucketPolicy(PerSecond(999_983), 1), // which no word holds
		bucketPolicy(Rate{}, 1),
		{Algorithm: LeakyBucket, Rate: PerSecond(1)},
		{Algorithm: FixedWindow, Rate: PerSecond(1)},
		{Algorithm: FixedWindow, Rate: PerSecond(1), Align: AlignFirstHit},
		{Algorithm: SlidingWindowLog, Rate: PerSecond(1)},
		{Algorithm: SlidingWindowCounter, Rate: PerSecond(1)},
	} {
		now := time.Now()
		for name, at := range map[string]time.Time{
			"just before": now,
			"a year ago":  now.AddDate(-1, 0, 0),
			"wall clock":  now.Round(0),
			"1900":        time.Date(1900, 1, 1, 0, 0, 0, 0, time.UTC),
			"zero":        {},
		} {
			l := newLimiter(t, p)
			if got := l.RemainingAt(at); got != p.Quota() {
				t.Errorf("%v, %s: %d remain, want all", p, name, got)
			}
			if !l.AllowN(at, 1) || l.AllowN(at, 1) {
				t.Errorf("%v, %s: want one admitted, and no more", p, name)
			}
			l = newLimiter(t, p)
			if r := l.ReserveN(at, 1); !r.OK() || r.DelayFrom(at) != 0 {
				t.Errorf("%v, %s: a reservation for later", p, name)
			}
		}
	}
}

// oracle is a bucket in exact fractions: tokens at a time, which never goes back.
type oracle struct {
	tokens, burst *big.Rat
	perNano       *big.Rat
	last          Time
}

func newOracle(p Policy) *oracle {
	burst := new(big.Rat).SetInt64(p.Burst)
	return &oracle{tokens: burst, burst: burst, perNano: big.NewRat(p.Rate.Count, int64(p.Rate.Period)), last: -1}
}

func (o *oracle) at(t Time) *big.Rat {
	if o.last < 0 || t <= o.last {
		return o.tokens
	}
	more := new(big.Rat).Mul(o.perNano, new(big.Rat).SetInt64(int64(t-o.last)))
	if more.Add(more, o.tokens); more.Cmp(o.burst) > 0 {
		return o.burst
	}
	return more
}

func (o *oracle) take(t Time, n int64) bool {
	if o.at(t).Cmp(new(big.Rat).SetInt64(n)) < 0 {
		return false
	}
	o.charge(t, n)
	return true
}

// charge takes n, there or not.
func (o *oracle) charge(t Time, n int64) {
	if n > 0 {
		o.tokens, o.last = new(big.Rat).Sub(o.at(t), new(big.Rat).SetInt64(n)), max(t, o.last)
	}
}

// was is at for a time that may be before the last, at which it had less.
func (o *oracle) was(t Time) *big.Rat {
	if t >= o.last {
		return o.at(t)
	}
	since := new(big.Rat).SetInt64(int64(o.last - t))
	return since.Sub(o.tokens, since.Mul(since, o.perNano))
}

// times are what AllowN is asked at: around now, before the making, without a monotonic
// reading.
func times(r *rand.Rand, now, before time.Time, span int64) time.Time {
	switch r.IntN(10) {
	case 0:
		return before
	case 1:
		return time.Time{}
	case 2:
		return now
	case 3:
		return now.Round(0)
	default:
		return now.Add(time.Duration(r.Int64N(3*span) - 2*span))
	}
}

func randomBucket(r *rand.Rand) Policy {
	return bucketPolicy(Rate{1 + r.Int64N(200), time.Duration(1 + r.Int64N(int64(time.Second)))}, 1+r.Int64N(10))
}

// Times of all kinds, in any order, against exact fractions.
func TestAllowAtAnyTime(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	for seed := range seeding.Draw(t, 300) {
		r := rand.New(rand.NewPCG(seed, 41))
		p := randomBucket(r)
		synctest.Test(t, func(t *testing.T) {
			before, span := time.Now(), 2*int64(p.Window())
			<-time.After(time.Duration(r.Int64N(int64(time.Minute))))
			l, o := newLimiter(t, p), newOracle(p)
			for step := range 200 {
				if r.IntN(3) == 0 {
					<-time.After(time.Duration(1 + r.Int64N(span)))
				}
				at, n := times(r, time.Now(), before, span), r.Int64N(1+p.Burst)
				if got, want := l.AllowN(at, n), o.take(max(0, At(at)), n); got != want {
					t.Fatalf("seed %d, step %d: %v: %d, %v after the making: AllowN says %v, want %v", seed, step, p, n, at.Sub(l.origin), got, want)
				}
			}
		})
	}
}

// The same beside Allow, which takes without the lock and records no time: a caller that names
// an earlier time gets at least what was left after that, and all together no more than the
// limit by the times that count.
func TestAllowAtAnEarlierTimeBesideAllow(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	for seed := range seeding.Draw(t, 300) {
		r := rand.New(rand.NewPCG(seed, 43))
		p := randomBucket(r)
		synctest.Test(t, func(t *testing.T) {
			before, span := time.Now(), 2*int64(p.Window())
			l, o := newLimiter(t, p), newOracle(p)
			var last Time
			var first, latest []Time // of those admitted: when it counted
			var costs []int64
			for step := range 200 {
				if r.IntN(3) == 0 {
					<-time.After(time.Duration(1 + r.Int64N(span)))
				}
				now, n := time.Now(), int64(1)
				at, got := now, false
				if r.IntN(2) == 0 {
					got = l.Allow()
				} else {
					if at, n = times(r, now, before, span), 1+r.Int64N(p.Burst); at.After(now) {
						at = now
					}
					got = l.AllowN(at, n)
				}
				counts := max(0, At(at), last) // as this time, or as a later one
				if there := o.was(counts); !got && there.Cmp(new(big.Rat).SetInt64(n)) >= 0 {
					f, _ := there.Float64()
					t.Fatalf("seed %d, step %d: %v: %d refused where %v are there", seed, step, p, n, f)
				}
				if got {
					last = counts
					o.charge(At(now), n) // at the latest
					first, latest, costs = append(first, counts), append(latest, At(now)), append(costs, n)
				}
			}
			for i := range first {
				sum := int64(0)
				for j := i; j < len(latest); j++ {
					sum += costs[j]
					if d := min(int64(latest[j]-first[i]), 1<<40); (sum-p.Burst)*int64(p.Rate.Period) > p.Rate.Count*d {
						t.Fatalf("seed %d: %v: %d admitted in %v", seed, p, sum, time.Duration(d))
					}
				}
			}
		})
	}
}
