package fixed

import (
	"math"
	"math/big"
	"math/rand/v2"
	"testing"

	"github.com/stint-io/stint/internal/seeding"
)

func bigOf(w Wide) *big.Int {
	x := new(big.Int).SetUint64(w.Hi)
	return x.Lsh(x, 64).Or(x, new(big.Int).SetUint64(w.Lo))
}

// TestWide: numbers of 128 bits are those of integers without bounds, at most what the comment of each function says.
func TestWide(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	most := new(big.Int).SetUint64(math.MaxUint64)
	capped := func(x *big.Int) uint64 {
		if x.Cmp(most) > 0 {
			return math.MaxUint64
		}
		return x.Uint64()
	}
	var over, exact int
	for seed := range seeding.Draw(t, 20_000) {
		r := rand.New(rand.NewPCG(seed, 8))
		// Numbers of all lengths, some of them all ones or with one bit.
		word := func() uint64 {
			switch n := r.Uint64() >> r.IntN(64); r.IntN(4) {
			case 0:
				return math.MaxUint64 >> r.IntN(65)
			case 1:
				return 1 << r.IntN(64)
			default:
				return n
			}
		}
		a, b, c, d := word(), word(), word(), max(word(), 1)
		w, v := Product(a, b), Wide{word() >> 1, word()}
		x, y := new(big.Int).Mul(new(big.Int).SetUint64(a), new(big.Int).SetUint64(b)), bigOf(v)
		if r.IntN(4) == 0 {
			d, c = max(a, 1), b // a quotient that is exact
		}
		n := new(big.Int).SetUint64(d)
		down, up := new(big.Int).Quo(x, n), new(big.Int).Sub(new(big.Int).Add(x, n), big.NewInt(1))
		up.Quo(up, n)
		if down.Cmp(most) > 0 {
			over++
		} else if down.Cmp(up) == 0 {
			exact++
		}
		less := new(big.Int).Sub(y, x)
		if less.Sign() < 0 {
			less.SetInt64(0)
		}
		switch sum := new(big.Int).Add(new(big.Int).Rsh(y, 1), new(big.Int).SetUint64(c)); {
		case bigOf(w).Cmp(x) != 0:
			t.Fatalf("seed %d: %d x %d is %v", seed, a, b, w)
		case w.Div(d) != capped(down) || w.DivUp(d) != capped(up):
			t.Fatalf("seed %d: %v/%d is %d, rounded up %d, want %v and %v", seed, x, d, w.Div(d), w.DivUp(d), down, up)
		case bigOf(v.Minus(w)).Cmp(less) != 0:
			t.Fatalf("seed %d: %v - %v is %v, want %v", seed, y, x, v.Minus(w), less)
		case v.More(w) != (y.Cmp(x) > 0) || ProductAtMost(a, b, c, d) != (x.Cmp(new(big.Int).Mul(new(big.Int).SetUint64(c), n)) <= 0):
			t.Fatalf("seed %d: %v and %v, %d x %d: the larger one is wrong", seed, y, x, c, d)
		case bigOf(Wide{v.Hi >> 1, v.Hi<<63 | v.Lo>>1}.Add(c)).Cmp(sum) != 0:
			t.Fatalf("seed %d: half of %v + %d is not %v", seed, y, c, sum)
		case w.Min(d) != min(capped(x), d) || w.AtMost(d) != (x.Cmp(n) <= 0):
			t.Fatalf("seed %d: the lesser of %v and %d is %d", seed, x, d, w.Min(d))
		case down.Cmp(most) <= 0 && MulDiv(a, b, d) != down.Uint64(), up.Cmp(most) <= 0 && MulDivUp(a, b, d) != up.Uint64():
			t.Fatalf("seed %d: %d x %d / %d is %d, rounded up %d, want %v and %v", seed, a, b, d, MulDiv(a, b, d), MulDivUp(a, b, d), down, up)
		}
	}
	if up := Product(math.MaxUint64, 3).Add(1).DivUp(3); up != math.MaxUint64 {
		t.Errorf("a third more than the largest word is rounded up to %d", up)
	}
	if over < 1000 || exact < 1000 {
		t.Errorf("%d quotients were above a word, %d exact: too tame", over, exact)
	}
}
