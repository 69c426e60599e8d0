package fairshare

import (
	"flag"
	"fmt"
	"math"
	"math/big"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stint-io/stint/internal/seeding"

	"github.com/stint-io/stint/internal/fixed"
)

var vectors = flag.Int("vectors", 3000, "random vectors that max-min is compared with the oracle on")

// logUniform returns a number whose logarithm is uniform, up to most.
func logUniform(rng *rand.Rand, most fixed.Amount) fixed.Amount {
	return fixed.Amount(math.Exp(rng.Float64() * math.Log(float64(most))))
}

// randomClaims returns n claims as they come in the worst of fleets: nobody, all alike,
// heavy tails, whole tokens, the largest numbers.
func randomClaims(rng *rand.Rand, n int) []Claimant {
	claims := make([]Claimant, n)
	style, weights, bands := rng.IntN(6), rng.IntN(4), 1+rng.IntN(4)*rng.IntN(3)
	alike := logUniform(rng, 1e15)
	for i := range claims {
		c := &claims[i]
		switch style {
		case 0:
			c.Want = logUniform(rng, 1e13)
		case 1:
			c.Want = fixed.Whole(rng.Int64N(1000))
		case 2:
			c.Want = alike + fixed.Amount(rng.Int64N(3))
		case 3:
			c.Want = fixed.Amount(rng.Int64N(20))
		case 4:
			c.Want = logUniform(rng, fixed.MaxAmount)
		default:
			c.Want = fixed.Amount(float64(alike) / float64(i+1)) // Zipf
		}
		if rng.IntN(8) == 0 {
			c.Want = 0
		}
		switch weights {
		case 0:
		case 1:
			c.Weight = uint32(rng.IntN(5))
		case 2:
			c.Weight = uint32(logUniform(rng, math.MaxUint32))
		default:
			c.Weight = uint32(1 + 99*rng.IntN(2))
		}
		c.Band = uint8(rng.IntN(bands) * 255 / bands)
	}
	return claims
}

// randomCapacity returns a capacity from far too little to more than enough.
func randomCapacity(rng *rand.Rand, claims []Claimant) fixed.Amount {
	want, _ := wanted(claims)
	switch rng.IntN(8) {
	case 0:
		return logUniform(rng, fixed.MaxAmount)
	case 1:
		return fixed.Amount(rng.IntN(10))
	default:
		all := math.Ldexp(float64(want.Hi), 64) + float64(want.Lo)
		return fixed.Amount(min(all*rng.Float64()*1.1, float64(fixed.MaxAmount)))
	}
}

func randomGuarantees(rng *rand.Rand, capacity fixed.Amount) []Guarantee {
	var g []Guarantee
	for b := range rng.IntN(4) {
		g = append(g, Guarantee{uint8(b * 255 / 4), fixed.Amount(float64(capacity) * rng.Float64() * 0.7)})
	}
	return g
}

// oracleBits is the resolution of the oracle: a level is right to 2^-80 millionths.
const oracleBits = 80

// oracle finds what max_min should give, in 2^-oracleBits millionths: band after band its
// guarantee, band after band the rest, and the level of each band by bisection. It
// shares no line with what it judges.
func oracle(capacity fixed.Amount, claims []Claimant, guarantees []Guarantee) []*big.Int {
	amounts := make([]*big.Int, len(claims))
	left := big.NewInt(int64(max(capacity, 0)))
	wants, served := map[int]*big.Int{}, map[int]*big.Int{}
	for _, c := range claims {
		b := int(c.Band)
		if wants[b] == nil {
			wants[b], served[b] = new(big.Int), new(big.Int)
		}
		wants[b].Add(wants[b], big.NewInt(int64(max(c.Want, 0))))
	}
	serve := func(b int, most *big.Int) {
		give := new(big.Int).Sub(wants[b], served[b])
		for _, bound := range []*big.Int{most, left} {
			if give.Cmp(bound) > 0 {
				give.Set(bound)
			}
		}
		served[b].Add(served[b], give)
		left.Sub(left, give)
	}
	for b := 255; b >= 0; b-- {
		for _, g := range guarantees {
			if int(g.Band) == b && wants[b] != nil {
				serve(b, big.NewInt(int64(g.Amount)))
			}
		}
	}
	for b := 255; b >= 0; b-- {
		if wants[b] != nil {
			serve(b, wants[b])
			bisect(claims, b, served[b], amounts)
		}
	}
	return amounts
}

// bisect finds the highest level at which what the band b gets is at most the amount.
func bisect(claims []Claimant, b int, amount *big.Int, amounts []*big.Int) {
	var wants, weights []*big.Int
	var index []int
	for i, c := range claims {
		if int(c.Band) == b {
			want := big.NewInt(int64(max(c.Want, 0)))
			wants = append(wants, want.Lsh(want, oracleBits))
			weights = append(weights, big.NewInt(int64(max(c.Weight, 1))))
			index = append(index, i)
			amounts[i] = new(big.Int)
		}
	}
	fits := func(level *big.Int) bool {
		left := new(big.Int).Lsh(amount, oracleBits)
		for k, i := range index {
			amounts[i].Mul(weights[k], level)
			if amounts[i].Cmp(wants[k]) > 0 {
				amounts[i].Set(wants[k])
			}
			left.Sub(left, amounts[i])
		}
		return left.Sign() >= 0
	}
	low, high := new(big.Int), big.NewInt(1)
	for _, w := range wants {
		if w.Cmp(high) > 0 {
			high.Set(w)
		}
	}
	if fits(high) {
		return
	}
	for mid := new(big.Int); ; {
		mid.Add(low, high)
		mid.Rsh(mid, 1)
		if mid.Cmp(low) == 0 {
			fits(low)
			return
		}
		if fits(mid) {
			low.Set(mid)
		} else {
			high.Set(mid)
		}
	}
}

// TestMaxMinAgainstOracle: each share is the exact one rounded to a millionth, down or
// up, and the sum is exact.
func TestMaxMinAgainstOracle(t *testing.T) {
	rng := seeding.Rand(t)
	a := &Allocator{}
	overload, banded, guaranteed := 0, 0, 0
	worst := 0.0 // of the capacity, where a millionth is at most 1e-9 of it
	slack := new(big.Int)
	for v := range *vectors {
		n := 1 + rng.IntN(24)
		if v%100 == 0 {
			n = 300
		}
		claims := randomClaims(rng, n)
		capacity := randomCapacity(rng, claims)
		a.Guarantees = nil
		if rng.IntN(2) == 0 {
			a.Guarantees = randomGuarantees(rng, capacity)
		}
		shares := sharesOf(t, a, capacity, claims)
		want, _ := wanted(claims)
		if !want.AtMost(uint64(capacity)) {
			overload++
			if slices.ContainsFunc(claims, func(c Claimant) bool { return c.Band != claims[0].Band }) {
				banded++
				if len(a.Guarantees) > 0 {
					guaranteed++
				}
			}
		}
		for i, exact := range oracle(capacity, claims, a.Guarantees) {
			off := new(big.Int).Lsh(big.NewInt(int64(shares[i])), oracleBits)
			off.Sub(off, exact).Abs(off)
			// A unit, and what the oracle leaves open.
			slack.Lsh(big.NewInt(1), oracleBits)
			slack.Add(slack, big.NewInt(int64(max(claims[i].Weight, 1))))
			if off.Cmp(slack) > 0 {
				t.Fatalf("vector %d: capacity %d, guarantees %v, claims %+v:\nshare %d is %d, want %v",
					v, capacity, a.Guarantees, claims, i, shares[i], exact.Rsh(exact, oracleBits))
			}
			if capacity >= 1000*fixed.Token {
				f, _ := new(big.Float).SetInt(off).Float64()
				worst = max(worst, math.Ldexp(f, -oracleBits)/float64(capacity))
			}
		}
	}
	if worst > 1e-9 {
		t.Errorf("a share is off by %.2g of the capacity, want at most 1e-9", worst)
	}
	if overload < *vectors/3 || banded < *vectors/20 || guaranteed < *vectors/50 {
		t.Errorf("%d vectors, but %d in overload, %d of them with bands, %d with guarantees: too few to say much",
			*vectors, overload, banded, guaranteed)
	}
	t.Logf("%d vectors, %d in overload, %d with bands, %d with guarantees too: the worst share of limits from 1,000 tokens is off by %.2g of the limit",
		*vectors, overload, banded, guaranteed, worst)
}

// TestMaxMinUnitByUnit: giving one unit after another to who has the least, and wants
// it, comes to the same numbers.
func TestMaxMinUnitByUnit(t *testing.T) {
	rng := seeding.Rand(t)
	for range 2000 {
		claims := make([]Claimant, 1+rng.IntN(8))
		for i := range claims {
			claims[i].Want = fixed.Amount(rng.IntN(12))
		}
		capacity := fixed.Amount(rng.IntN(60))
		want := make([]fixed.Amount, len(claims))
		for range capacity {
			least := -1
			for i := range claims {
				if want[i] < claims[i].Want && (least < 0 || want[i] < want[least]) {
					least = i
				}
			}
			if least >= 0 {
				want[least]++
			}
		}
		got := sharesOf(t, &Allocator{}, capacity, claims)
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Fatalf("%d among %v: got %v, want %v", capacity, claims, got, want)
		}
	}
}

// TestMaxMinProperties are what the words of the promise say, checked without any
// other way to compute the shares. A unit is the rounding.
func TestMaxMinProperties(t *testing.T) {
	rng := seeding.Rand(t)
	a := &Allocator{}
	for range 3000 {
		claims := randomClaims(rng, 1+rng.IntN(30))
		capacity := randomCapacity(rng, claims)
		a.Guarantees = nil
		shares := sharesOf(t, a, capacity, claims)
		for i, c := range claims {
			if shares[i] == c.Want {
				continue
			}
			for j, d := range claims {
				if d.Band < c.Band && shares[j] > 0 {
					t.Fatalf("band %d gets %v while band %d lacks", d.Band, shares[j], c.Band)
				}
				// Nobody has more per weight than one who lacks.
				if d.Band == c.Band && !fixed.ProductAtMost(uint64(max(shares[j]-1, 0)), c.weight(), uint64(shares[i]+1), d.weight()) {
					t.Fatalf("%+v gets %v while %+v lacks and gets %v", d, shares[j], c, shares[i])
				}
			}
		}

		// More capacity takes from nobody.
		more := sharesOf(t, a, capacity+logUniform(rng, max(capacity/2, 1)), claims)
		for i := range shares {
			if more[i] < shares[i]-1 {
				t.Fatalf("more capacity: %v became %v", shares[i], more[i])
			}
		}

		// Who asks for more gets no less, and takes from nobody who asks for less than it.
		i := rng.IntN(len(claims))
		claims[i].Want += logUniform(rng, 1e12)
		claims[i].Want = min(claims[i].Want, fixed.MaxAmount)
		if greedy := sharesOf(t, a, capacity, claims); greedy[i] < shares[i]-1 {
			t.Fatalf("who asks for more got %v, before %v", greedy[i], shares[i])
		}

		// Another order changes nothing but the rounding.
		before := sharesOf(t, a, capacity, claims)
		order := rng.Perm(len(claims))
		shuffled := make([]Claimant, len(claims))
		for to, from := range order {
			shuffled[to] = claims[from]
		}
		after := sharesOf(t, a, capacity, shuffled)
		for to, from := range order {
			if off := after[to] - before[from]; off < -1 || off > 1 {
				t.Fatalf("in another order %v became %v", before[from], after[to])
			}
		}
	}
}

// TestGuaranteesHold: a band gets its guarantee, or all it wants, as long as the
// guarantees fit.
func TestGuaranteesHold(t *testing.T) {
	rng := seeding.Rand(t)
	for range 2000 {
		claims := randomClaims(rng, 2+rng.IntN(30))
		for i := range claims {
			claims[i].Band = uint8(rng.IntN(4) * 80)
		}
		capacity := randomCapacity(rng, claims)
		a := &Allocator{}
		for b := range 4 {
			a.Guarantees = append(a.Guarantees, Guarantee{uint8(b * 80), fixed.Amount(rng.Int64N(int64(capacity/4) + 1))})
		}
		shares := sharesOf(t, a, capacity, claims)
		for _, g := range a.Guarantees {
			var got, want fixed.Wide
			for i, c := range claims {
				if c.Band == g.Band {
					got, want = got.Add(uint64(shares[i])), want.Add(uint64(c.Want))
				}
			}
			if least := want.Min(uint64(g.Amount)); got.Hi == 0 && got.Lo < least {
				t.Fatalf("band %d gets %d of %d, guaranteed %d", g.Band, got.Lo, want, g.Amount)
			}
		}
	}
}

// adverse returns demands that make as many passes necessary as can be: each group
// wants a unit more than the level at which the one before it is served, and the groups
// come in the wrong order.
func adverse(n, groups int, capacity fixed.Amount) []Claimant {
	claims := make([]Claimant, n)
	left, rest, previous := capacity, fixed.Amount(n), fixed.Amount(-1)
	size := n / 2 / groups
	at := n
	for range groups {
		level := left / rest
		for range size {
			at--
			claims[at].Want = previous + 1
			left -= previous + 1
			rest--
		}
		previous = level
	}
	for i := range at {
		claims[i].Want = capacity
	}
	return claims
}

func TestMaxMinAdverse(t *testing.T) {
	for _, n := range []int{100, 1000} {
		for groups := 1; groups <= 20; groups++ {
			claims := adverse(n, groups, fixed.MaxAmount)
			shares := sharesOf(t, &Allocator{}, fixed.MaxAmount, claims)
			for i, exact := range oracle(fixed.MaxAmount, claims, nil) {
				off := new(big.Int).Lsh(big.NewInt(int64(shares[i])), oracleBits)
				if off.Sub(off, exact).Rsh(off.Abs(off), oracleBits).Int64() > 1 {
					t.Fatalf("%d claims in %d groups: share %d is %d", n, groups, i, shares[i])
				}
			}
		}
	}
}

func BenchmarkAllocate(b *testing.B) {
	for kind := MaxMin; kind <= None; kind++ {
		for _, n := range []int{100, 1000, 10_000} {
			b.Run(fmt.Sprintf("%v/%d", kind, n), func(b *testing.B) {
				rng := rand.New(rand.NewPCG(11, 12))
				claims := make([]Claimant, n)
				for i := range claims {
					claims[i] = Claimant{Want: logUniform(rng, 1e10), Weight: 1 + rng.Uint32N(4), Band: uint8(rng.IntN(3))}
				}
				benchmarkAllocate(b, &Allocator{Kind: kind}, fixed.Whole(int64(100*n)), claims)
			})
		}
	}
	b.Run("max_min/10000/fits", func(b *testing.B) {
		benchmarkAllocate(b, &Allocator{}, fixed.MaxAmount, tokens(make([]int64, 10_000)...))
	})
	b.Run("max_min/10000/adverse", func(b *testing.B) {
		benchmarkAllocate(b, &Allocator{}, fixed.MaxAmount, adverse(10_000, 10, fixed.MaxAmount))
	})
}

func benchmarkAllocate(b *testing.B, a *Allocator, capacity fixed.Amount, claims []Claimant) {
	shares := make([]fixed.Amount, len(claims))
	a.Allocate(capacity, claims, shares)
	checkShares(b, a, capacity, claims, shares)
	b.ReportAllocs()
	for b.Loop() {
		a.Allocate(capacity, claims, shares)
	}
}
