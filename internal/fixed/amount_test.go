package fixed

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stint-io/stint/internal/seeding"
)

// TestAmountsAtTheirBounds: an amount may be 0 or the largest there is, as a number of tokens; what
// is above it is refused.
func TestAmountsAtTheirBounds(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	if a, err := AmountOf(MaxAmount.Float()); a != MaxAmount || err != nil {
		t.Errorf("the largest amount is %v, %v", a, err)
	}
	if a, err := AmountOf(math.Nextafter(MaxAmount.Float(), math.Inf(1))); err == nil {
		t.Errorf("what is above the largest amount is %v", a)
	}
	if a, err := AmountOf(0); a != 0 || err != nil {
		t.Errorf("nothing is %v, %v", a, err)
	}
	most := int64(MaxAmount / Token)
	if Whole(most) != Amount(most)*Token || Whole(most+1) != MaxAmount || Whole(math.MaxInt64) != MaxAmount {
		t.Errorf("%d tokens are %v, one more %v", most, Whole(most), Whole(most+1))
	}
}

// TestTimeFor: a rate has brought an amount after that time, and not a nanosecond earlier.
func TestTimeFor(t *testing.T) {
	never := 0
	for seed := range seeding.Draw(t, 20_000) {
		r := rand.New(rand.NewPCG(seed, 7))
		rate, amount := Amount(1+r.Int64N(int64(1)<<r.IntN(60))), Amount(1+r.Int64N(int64(1)<<r.IntN(60)))
		d := TimeFor(amount, rate)
		if d == math.MaxInt64 {
			if never++; rate.In(d-1) >= amount {
				t.Fatalf("seed %d: %v at %v/s never comes, but there is %v in %v", seed, amount, rate, rate.In(d-1), d-1)
			}
			continue
		}
		if rate.In(d) < amount || rate.In(d-1) >= amount {
			t.Fatalf("seed %d: %v at %v/s comes in %v, but there is %v, and %v before", seed, amount, rate, d, rate.In(d), rate.In(d-1))
		}
	}
	if never < 100 {
		t.Errorf("%d amounts never came: too tame", never)
	}
	if TimeFor(0, 0) != 0 || TimeFor(-1, 5) != 0 || TimeFor(1, 0) != math.MaxInt64 {
		t.Error("nothing takes time, or something comes of nothing")
	}
	if rate := (10 * Token).Per(4 * time.Second); rate != 5*Token/2 || rate.In(4*time.Second) != 10*Token || rate.In(-time.Second) != 0 {
		t.Errorf("10 tokens in 4 s are %v per second", rate)
	}
}
