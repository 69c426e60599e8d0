package rules

import (
	"math"
	"math/big"
	"testing"
	"time"

	"github.com/stint-io/stint/internal/seeding"

	"github.com/stint-io/stint/limit"
)

func TestSuppressAndSplitAreRead(t *testing.T) {
	s := mustParse(t, `limits:
  - {name: a, rate: 10/s, sharing: suppressed}
  - {name: b, rate: 10/s, sharing: suppressed, suppress: {report: 2s, window: 24s, interval: 6s, average: admitted, ramp: linear, full: 4, draws: independent}}
  - {name: c, rate: 10/s, sharing: split}
  - {name: d, rate: 10/s, sharing: split, split: {instances: 5, weight: 2}}
  - {name: e, rate: 10/s, sharing: split, split: {instances: 5}}
`)
	if w := s.Warnings(); len(w) > 0 {
		t.Errorf("warnings: %v", w)
	}
	full := Suppress{Report: 2 * time.Second, Window: 24 * time.Second, Interval: 6 * time.Second, Linear: true, Full: 4, Admitted: true, Independent: true}
	for i, want := range []Limit{
		{Sharing: SharingSuppressed},
		{Sharing: SharingSuppressed, Suppress: full},
		{Sharing: SharingSplit},
		{Sharing: SharingSplit, Split: Split{Instances: 5, Weight: 2}},
		{Sharing: SharingSplit, Split: Split{Instances: 5, Weight: 1}},
	} {
		if got := s.Limits()[i]; got.Sharing != want.Sharing || got.Suppress != want.Suppress || got.Split != want.Split {
			t.Errorf("limit %d: %v %+v %+v, want %v %+v %+v", i, got.Sharing, got.Suppress, got.Split, want.Sharing, want.Suppress, want.Split)
		}
	}
}

// TestPart: the parts of all services are together never above the limit, and miss of its
// burst less than one token for each.
func TestPart(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	part := Split{Instances: 4, Weight: 3}.Part(limit.Policy{Rate: limit.Rate{Count: 10, Period: time.Second}, Burst: 10})
	if part.Rate != (limit.Rate{Count: 30, Period: 4 * time.Second}) || part.Burst != 7 {
		t.Errorf("three quarters of 10/s with a burst of 10 are %v with %d", part.Rate, part.Burst)
	}
	r := seeding.Rand(t)
	for range 20_000 {
		p := limit.Policy{
			Rate:  limit.Rate{Count: 1 + r.Int64N(limit.MaxCount)>>r.IntN(62), Period: 1 + time.Duration(r.Int64N(math.MaxInt64-1)>>r.IntN(62))},
			Burst: r.Int64N(limit.MaxCount) >> r.IntN(62), MaxInFlight: r.Int64N(1 << 16),
		}
		rate, burst, places, of := new(big.Rat), int64(0), int64(0), 1+r.Int64N(100)
		services := int64(0)
		for left := of; left > 0; services++ {
			weight := 1 + r.Int64N(left)
			left -= weight
			part := Split{Instances: of, Weight: weight}.Part(p)
			if part.Rate.Count < 0 || part.Rate.Count > limit.MaxCount || part.Rate.Period <= 0 || part.Burst < 0 || part.MaxInFlight < 0 {
				t.Fatalf("%d of %d of %+v are %+v", weight, of, p, part)
			}
			rate.Add(rate, big.NewRat(part.Rate.Count, int64(part.Rate.Period)))
			burst, places = burst+part.Burst, places+part.MaxInFlight
		}
		if rate.Cmp(big.NewRat(p.Rate.Count, int64(p.Rate.Period))) > 0 || burst > p.Burst || burst <= p.Burst-services || places > p.MaxInFlight || places <= p.MaxInFlight-services {
			t.Fatalf("%d services have %v, %d and %d of %+v", services, rate, burst, places, p)
		}
	}
	unlimited := limit.Policy{Unlimited: true}
	if got := (Split{Instances: 7}).Part(unlimited); got != unlimited {
		t.Errorf("a part of no limit is %+v", got)
	}
}
