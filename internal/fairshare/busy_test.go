package fairshare

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stint-io/stint/internal/fixed"
)

// busyFleet runs the rule round by round against demands that stay: each instance uses
// what it holds, up to its demand.
type busyFleet struct {
	a       *Allocator
	demands []fixed.Amount
	claims  []Claimant
}

func newBusyFleet(a *Allocator, has, demands []fixed.Amount) *busyFleet {
	f := &busyFleet{a, demands, make([]Claimant, len(has))}
	for i := range has {
		f.claims[i].Has = has[i]
	}
	return f
}

func (f *busyFleet) round(t testing.TB, capacity fixed.Amount) []fixed.Amount {
	t.Helper()
	for i := range f.claims {
		c := &f.claims[i]
		c.Want, c.Used = f.demands[i], min(f.demands[i], c.Has)
	}
	shares := sharesOf(t, f.a, capacity, f.claims)
	for i := range f.claims {
		f.claims[i].Has = shares[i]
	}
	return shares
}

// settle runs rounds until nothing moves, and returns how many did move something.
func (f *busyFleet) settle(t testing.TB, capacity fixed.Amount, most int) (shares []fixed.Amount, rounds int) {
	t.Helper()
	last := f.round(t, capacity)
	for rounds = 1; rounds <= most; rounds++ {
		shares = f.round(t, capacity)
		if slices.Equal(shares, last) {
			return shares, rounds
		}
		last = shares
	}
	t.Fatalf("still moving after %d rounds: capacity %v, demands %v, shares %v", most, capacity, f.demands, shares)
	return nil, 0
}

func amounts(xs ...float64) []fixed.Amount {
	all := make([]fixed.Amount, len(xs))
	for i, x := range xs {
		all[i] = fixed.Amount(x * float64(fixed.Token))
	}
	return all
}

func TestBusyWalkThrough(t *testing.T) {
	for _, tt := range []struct {
		name     string
		capacity float64
		has      []fixed.Amount
		demands  []fixed.Amount
		want     [][]fixed.Amount
	}{
		// The cycle of the article's rule: 24.3 becomes busy, falls to 21.3, rises again.
		// What rests at 0.8 of its share is left alone.
		{
			"who gave does not take back", 100, amounts(50, 50), amounts(20, 1000),
			[][]fixed.Amount{amounts(28.571428, 71.428572), amounts(25, 75), amounts(25, 75)},
		},
		{
			"limit 10, ten instances, one hot", 10, amounts(1, 1, 1, 1, 1, 1, 1, 1, 1, 1), amounts(0, 0, 0, 500, 0, 0, 0, 0, 0, 0),
			[][]fixed.Amount{amounts(0, 0, 0, 10, 0, 0, 0, 0, 0, 0)},
		},
		{"limit 0", 0, amounts(1, 1, 0), amounts(5, 5, 5), [][]fixed.Amount{amounts(0, 0, 0)}},
		{"from limit 0", 3, amounts(0, 0, 0), amounts(5, 5, 5), [][]fixed.Amount{amounts(1, 1, 1)}},
		{"nobody wants anything", 3, amounts(0, 0, 0), amounts(0, 0, 0), [][]fixed.Amount{amounts(0, 0, 0)}},
		{"nobody busy: nothing moves", 100, amounts(70, 30), amounts(10, 20), [][]fixed.Amount{amounts(70, 30)}},
		{"nobody busy: a rise is spread", 200, amounts(70, 30), amounts(10, 20), [][]fixed.Amount{amounts(140, 60)}},
		{"a cut is spread", 50, amounts(70, 30), amounts(10, 5), [][]fixed.Amount{amounts(35, 15)}},
		{"a rise goes to the busy", 5000, amounts(900, 100), amounts(1200, 50), [][]fixed.Amount{
			amounts(900+4000+33.333334, 66.666666),
			amounts(4933.333334, 66.666666), // neither is busy
		}},
		{"a joiner gets what is free", 100, amounts(45, 45, 0), amounts(500, 500, 500), [][]fixed.Amount{
			// The others are above the equal part by 11.67; 45/2 * 55/145 = 8.53 is their step.
			amounts(36.465518, 36.465518, 27.068964),
		}},
		{"a joiner is served by who is not busy first", 100, amounts(50, 50, 0), amounts(10, 48, 500), [][]fixed.Amount{
			// 50 at 0.2 keeps a third. Of 83.33 among two the equal part is 41.67.
			amounts(16.666666, 43.75, 39.583334),
		}},
	} {
		f := newBusyFleet(&Allocator{Kind: Busy}, tt.has, tt.demands)
		for i, want := range tt.want {
			if got := f.round(t, fixed.Amount(tt.capacity*float64(fixed.Token))); !slices.Equal(got, want) {
				t.Errorf("%s: round %d: got %d, want %d", tt.name, i+1, got, want)
				break
			}
		}
	}
}

// TestBusyWeights: the busy come to hold in proportion to their weights, to within the
// change that is too little to be moved.
func TestBusyWeights(t *testing.T) {
	f := newBusyFleet(&Allocator{Kind: Busy}, amounts(100, 0, 0), amounts(1e6, 1e6, 1e6))
	f.claims[0].Weight, f.claims[1].Weight, f.claims[2].Weight = 1, 2, 7
	shares, rounds := f.settle(t, fixed.Whole(100), 200)
	for i, want := range amounts(10, 20, 70) {
		if off := max(shares[i]-want, want-shares[i]); off > want/50 {
			t.Errorf("after %d rounds: got %v", rounds, shares)
		}
	}
}

// TestBusySettles: with demands that stay, whatever the start, the rounds come to an
// end; then who lacks has not less than another busy one with the same weight, and
// nobody at rest holds much more than it uses.
func TestBusySettles(t *testing.T) {
	rng := rand.New(rand.NewPCG(13, 14))
	longest := 0
	for range *vectors / 2 {
		n := 1 + rng.IntN(40)
		has, demands := make([]fixed.Amount, n), make([]fixed.Amount, n)
		capacity := logUniform(rng, 1e12)
		left := capacity
		for i := range n {
			has[i] = fixed.Amount(rng.Float64() * float64(left))
			left -= has[i]
			demands[i] = fixed.Amount(rng.ExpFloat64() * float64(capacity) / float64(n) * rng.Float64() * 4)
		}
		f := newBusyFleet(&Allocator{Kind: Busy}, has, demands)
		uneven := rng.IntN(2) == 0
		for i := range f.claims {
			if uneven {
				f.claims[i].Weight = 1 + rng.Uint32N(9)
			}
		}
		shares, rounds := f.settle(t, capacity, 50)
		longest = max(longest, rounds)
		var busy []int
		for i := range f.claims {
			f.claims[i].Used = min(demands[i], shares[i])
			if isBusy(&f.claims[i], uint64(shares[i]), 100_000) {
				busy = append(busy, i)
			}
		}
		for i := range f.claims {
			// 1/0.8 of the use, and what was not worth moving.
			if most := demands[i] + demands[i]/4 + shares[i]/90 + 2; len(busy) > 0 && !slices.Contains(busy, i) && shares[i] > most {
				t.Fatalf("%d of %d are busy and one keeps %d and uses %d", len(busy), n, shares[i], demands[i])
			}
		}
		for _, i := range busy {
			for _, j := range busy {
				a := float64(shares[i]) / float64(f.claims[i].weight())
				b := float64(shares[j]) / float64(f.claims[j].weight())
				if a > b*1.03+2 && capacity > 1000*fixed.Amount(n) {
					t.Fatalf("of two busy ones one has %v and the other %v per weight: %v", a, b, shares)
				}
			}
		}
	}
	t.Logf("%d fleets, at most %d rounds", *vectors/2, longest)
}

// TestBusyJoin: because somebody joins, nobody that is busy falls below the equal part
// of the busy, and nobody else below what it uses and the equal part of all.
func TestBusyJoin(t *testing.T) {
	rng := rand.New(rand.NewPCG(15, 16))
	for range 500 {
		n := 2 + rng.IntN(300)
		has, demands := make([]fixed.Amount, n), make([]fixed.Amount, n)
		capacity := fixed.Whole(1 + rng.Int64N(1000))
		for i := range n {
			demands[i] = fixed.Amount(rng.ExpFloat64() * float64(capacity) / float64(n) * 2)
			has[i] = capacity / fixed.Amount(n)
		}
		f := newBusyFleet(&Allocator{Kind: Busy}, has, demands)
		before, _ := f.settle(t, capacity, 50)
		f.claims = append(f.claims, Claimant{})
		f.demands = append(f.demands, capacity)
		after := f.round(t, capacity)
		busy, part := fixed.Amount(1), after[n]
		isBusyAt := func(i int) bool { return float64(demands[i]) > 0.9*float64(before[i]) }
		for i := range before {
			if isBusyAt(i) {
				busy++
				part += after[i]
			}
		}
		part /= busy
		for i, s := range before {
			if least := min(s, part) - 1; isBusyAt(i) && after[i] < least {
				t.Fatalf("%d instances share %v and one more comes: a busy one with %v gets %v, want at least %v", n, capacity, s, after[i], least)
			}
			if !isBusyAt(i) && after[i] < min(demands[i], capacity/fixed.Amount(n+1)) {
				t.Fatalf("%d instances share %v and one more comes: one that uses %v gets %v", n, capacity, demands[i], after[i])
			}
		}
		if after[n] == 0 {
			t.Fatalf("%d instances share %v: who joins gets nothing: %v", n, capacity, after)
		}
	}
}

// TestBusyAtScale: the threshold is relative to the share, so that 1,000 instances
// move as 10 do.
func TestBusyAtScale(t *testing.T) {
	for _, n := range []int{3, 10, 50, 100, 1000} {
		has, demands := make([]fixed.Amount, n), make([]fixed.Amount, n)
		capacity := fixed.Whole(int64(n))
		for i := range n {
			has[i], demands[i] = fixed.Token, fixed.Token/4
		}
		demands[0] = capacity // one is hot, the others use a quarter
		f := newBusyFleet(&Allocator{Kind: Busy}, has, demands)
		shares, rounds := f.settle(t, capacity, 20)
		used := fixed.Amount(0)
		for i := range shares {
			used += min(shares[i], demands[i])
		}
		if used < capacity*9/10 {
			t.Errorf("%d instances: %v of %v used after %d rounds", n, used, capacity, rounds)
		}
	}
}
