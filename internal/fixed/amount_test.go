package fixed

import (
	"math"
	"testing"
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
