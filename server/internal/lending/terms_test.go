package lending

import (
	"math/big"
	"reflect"
	"testing"
	"time"

	"github.com/stint-io/stint/internal/seeding"

	"github.com/stint-io/stint/internal/fairshare"
	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/rules"
)

// Rates are exact to the millionth, rounded down.
func TestPerSecond(t *testing.T) {
	r := seeding.Rand(t)
	for range 10_000 {
		rate := limit.Rate{Count: r.Int64N(limit.MaxCount) >> r.IntN(62), Period: time.Duration(1 + r.Int64()>>(1+r.IntN(60)))}
		want := new(big.Int).Mul(big.NewInt(rate.Count), big.NewInt(1e15))
		want.Div(want, big.NewInt(int64(rate.Period)))
		if most := big.NewInt(int64(fixed.MaxAmount)); want.Cmp(most) > 0 {
			want = most
		}
		if got := perSecond(rate); int64(got) != want.Int64() {
			t.Fatalf("%v: %d, want %v", rate, got, want)
		}
	}
	for rate, want := range map[limit.Rate]fixed.Amount{
		{}: 0, {Period: 1}: 0, {Count: 1, Period: time.Second}: fixed.Token, {Count: 2, Period: 3 * time.Second}: 666_666,
		// Where the product is about 2^64, with the shortest period.
		{Count: 18_446, Period: 1}: fixed.MaxAmount, {Count: 18_447, Period: 1}: fixed.MaxAmount, {Count: 1, Period: 1}: 1_000_000_000 * fixed.Token,
	} {
		if got := perSecond(rate); got != want {
			t.Errorf("%v is %d, want %d", rate, got, want)
		}
	}
}

func TestTerms(t *testing.T) {
	x := newLimitIndex(limits(t, `limits:
  - name: all
    rate: 90/minute
    sharing: leased
    lease: {safe: 1/2s, guarantees: {2: 0.5/s, 0: 1/s}}
  - {name: busy, rate: 90/minute, sharing: leased, lease: {allocation: busy, tolerance: 0.25, change: 0.125}}
  - {name: free, unlimited: true, sharing: leased}
  - {name: open, algorithm: concurrency, unlimited: true, sharing: leased}
  - {name: none, rate: 0/s, sharing: leased}
  - {name: huge, rate: 1000000000000000/s, sharing: leased}
  - {name: places, algorithm: concurrency, max_in_flight: 3, sharing: leased, lease: {safe: 1}}
  - {name: keyed, key: [a], rate: 1/s, sharing: leased}
`))
	for name, want := range map[string]lease.Terms{
		"all": {
			Rate: 1_500_000, Burst: fixed.Whole(90), Safe: 500_000,
			Guarantees: []fairshare.Guarantee{{Band: 0, Amount: fixed.Token}, {Band: 2, Amount: 500_000}},
		},
		"busy": {Rate: 1_500_000, Burst: fixed.Whole(90)},
		"free": {Rate: unlimited, Burst: unlimited, Allocation: fairshare.None}, "none": {},
		"open":   {Burst: unlimited, Semaphore: true, Allocation: fairshare.None},
		"huge":   {Rate: unlimited, Burst: unlimited},
		"places": {Burst: fixed.Whole(3), Semaphore: true, Safe: fixed.Token},
	} {
		got, status := x.resolve(lease.ResourceID{Limit: name})
		if status != lease.StatusOK || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %+v %v, want %+v", name, got, status, want)
		}
	}
	for _, key := range []string{"", "\x05a", badKey, "\x01a\x01b"} {
		if _, status := x.resolve(lease.ResourceID{Limit: "keyed", Key: key}); status != lease.StatusBadKey {
			t.Errorf("key %q: %v", key, status)
		}
	}
}

// Limit files and the machines have the same allocations, by number.
func TestAllocations(t *testing.T) {
	for a := range rules.AllocationNone + 1 {
		if fairshare.Allocation(a).String() != a.String() {
			t.Errorf("allocation %d is %v in limit files and %v to the coordinator", a, a, fairshare.Allocation(a))
		}
	}
	if (rules.AllocationNone+1).String() != "unknown" || int(rules.AllocationNone) != int(fairshare.None) {
		t.Error("an allocation is missing here")
	}
}

// TestSharedTerms: what a file says of suppression and of split is what the coordinator
// works by. What the file may say at the ends of its ranges the machines take.
func TestSharedTerms(t *testing.T) {
	x := newLimitIndex(limits(t, `limits:
  - {name: usual, rate: 10/s, burst: 3, sharing: suppressed}
  - {name: described, rate: 10/s, sharing: suppressed, suppress: {report: 2s, window: 24s, interval: 6s, average: admitted, ramp: linear, full: 4, draws: independent}}
  - {name: fast, rate: 10/s, sharing: suppressed, suppress: {report: 10ms, window: 640ms, interval: 10ms, ramp: linear, full: 2}}
  - {name: slow, rate: 10/s, sharing: suppressed, suppress: {report: 1m, window: 1h, interval: 1m, ramp: linear, full: 1000}}
  - {name: free, unlimited: true, sharing: suppressed}
  - {name: members, rate: 10/s, sharing: split}
  - {name: part, rate: 10/s, burst: 7, sharing: split, split: {instances: 4, weight: 2}}
  - {name: places, algorithm: concurrency, max_in_flight: 7, sharing: split, split: {instances: 3}}
`))
	ten, all := 10*fixed.Token, fixed.Whole(10)
	for name, want := range map[string]lease.Terms{
		"usual":     {Rate: ten, Burst: fixed.Whole(3), Suppress: &lease.Suppress{}},
		"described": {Rate: ten, Burst: all, Suppress: &lease.Suppress{Report: 2 * time.Second, Window: 24 * time.Second, Intervals: 4, Ramp: lease.RampLinear, Full: 4, Admitted: true, Independent: true}},
		"fast":      {Rate: ten, Burst: all, Suppress: &lease.Suppress{Report: 10 * time.Millisecond, Window: 640 * time.Millisecond, Intervals: 64, Ramp: lease.RampLinear, Full: 2}},
		"slow":      {Rate: ten, Burst: all, Suppress: &lease.Suppress{Report: time.Minute, Window: time.Hour, Intervals: 60, Ramp: lease.RampLinear, Full: 1000}},
		"free":      {Rate: unlimited, Burst: unlimited, Allocation: fairshare.None},
		"members":   {Rate: ten, Burst: all, Allocation: fairshare.Equal},
		"part":      {Rate: 5 * fixed.Token, Burst: fixed.Whole(3), Allocation: fairshare.Equal},
		"places":    {Burst: fixed.Whole(2), Semaphore: true, Allocation: fairshare.Equal},
	} {
		got, status := x.resolve(lease.ResourceID{Limit: name})
		if status != lease.StatusOK || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %+v %+v %v, want %+v %+v", name, got, got.Suppress, status, want, want.Suppress)
		}
		if got.Suppress != nil && got.Suppress.Validate() != nil {
			t.Errorf("%s: %v", name, got.Suppress.Validate())
		}
	}
}
