package fairshare

import (
	"math/rand/v2"
	"testing"

	"github.com/stint-io/stint/internal/fixed"
)

// TestRaiseLowersNoShare: what is handed out on top of what some have comes to them in full, to
// the least per weight first, up to one level: nobody loses a millionth, and who is above
// the level gets nothing.
func TestRaiseLowersNoShare(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	r := rand.New(rand.NewPCG(1, 94))
	above, all := 0, 0
	for range 20_000 {
		n := 1 + r.IntN(8)
		group, shares := make([]contender, n), make([]fixed.Amount, n)
		has, weights := make([]uint64, n), make([]uint64, n)
		for i := range group {
			has[i], weights[i] = uint64(r.Int64N(int64(1)<<r.IntN(50))), 1+uint64(r.IntN(4))
			if i > 0 && r.IntN(3) == 0 {
				has[i] = has[i-1] / weights[i-1] * weights[i] // as much per weight
			}
			group[i] = contender{has[i], weights[i], i}
		}
		amount := uint64(r.Int64N(int64(1) << r.IntN(50)))
		raise(group, amount, shares)
		given := uint64(0)
		for i := range shares {
			if uint64(shares[i]) < has[i] {
				t.Fatalf("one of %d has %d of weights %v and gets down to %d when %d are added: %v", has, has[i], weights, shares[i], amount, shares)
			}
			given += uint64(shares[i]) - has[i]
		}
		if given != amount {
			t.Fatalf("%d are added to %d, want %d", given, has, amount)
		}
		for i := range shares {
			got := uint64(shares[i]) > has[i]
			for j := range shares {
				// i got something: then nobody has less than i per weight, but for rounding.
				if got && uint64(shares[j]+8)*weights[i]+8 < uint64(shares[i])*weights[j] {
					t.Fatalf("%d of weights %v are raised by %d to %v: the %d. has less than the %d. per weight", has, weights, amount, shares, j+1, i+1)
				}
			}
			if got {
				all++
			} else {
				above++
			}
		}
	}
	if above < 10_000 || all < 10_000 {
		t.Errorf("%d were raised and %d not: too tame", all, above)
	}
}
