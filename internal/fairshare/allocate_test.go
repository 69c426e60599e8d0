package fairshare

import (
	"errors"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/stint-io/stint/internal/seeding"

	"github.com/stint-io/stint/internal/fixed"
)

// sharesOf allocates once and checks what holds for every kind.
func sharesOf(t testing.TB, a *Allocator, capacity fixed.Amount, claims []Claimant) []fixed.Amount {
	t.Helper()
	before := slices.Clone(claims)
	shares := make([]fixed.Amount, len(claims))
	for i := range shares {
		shares[i] = -12345 // whatever was there is overwritten
	}
	a.Allocate(capacity, claims, shares)
	if !slices.Equal(before, claims) {
		t.Fatalf("%v changed the claims", a.Kind)
	}
	checkShares(t, a, capacity, claims, shares)
	again := make([]fixed.Amount, len(claims))
	a.Allocate(capacity, claims, again)
	if !slices.Equal(shares, again) {
		t.Fatalf("%v gave %v and then %v for the same", a.Kind, shares, again)
	}
	return shares
}

// checkShares checks the sum and the bounds that each kind promises.
func checkShares(t testing.TB, a *Allocator, capacity fixed.Amount, claims []Claimant, shares []fixed.Amount) {
	t.Helper()
	var total, wants fixed.Wide
	active := false
	for i, s := range shares {
		if s < 0 || s > fixed.MaxAmount {
			t.Fatalf("%v: share %d is %d", a.Kind, i, s)
		}
		c := claims[i]
		if a.Kind != Equal && uint64(s) > fixed.Clamp(c.Want) {
			t.Fatalf("%v: share %d is %d, above the %d that it wants", a.Kind, i, s, c.Want)
		}
		total, wants = total.Add(uint64(s)), wants.Add(fixed.Clamp(c.Want))
		active = active || c.Want > 0
	}
	most := fixed.Clamp(capacity)
	want := most
	switch a.Kind {
	case MaxMin, Proportional:
		want = wants.Min(most)
	case Static, None:
		return
	case Equal:
		active = len(claims) > 0
	}
	if !active {
		want = 0
	}
	if total != (fixed.Wide{Lo: want}) {
		t.Fatalf("%v: the shares of %d sum to %d, want %d", a.Kind, capacity, total, want)
	}
}

// tokens returns claims that want whole tokens.
func tokens(wants ...int64) []Claimant {
	claims := make([]Claimant, len(wants))
	for i, w := range wants {
		claims[i].Want = fixed.Whole(w)
	}
	return claims
}

func TestAllocateWalkThrough(t *testing.T) {
	weighted := tokens(100, 100, 100)
	weighted[0].Weight, weighted[1].Weight = 3, 2
	banded := tokens(100, 100, 100)
	banded[0].Band, banded[2].Band = 1, 7
	for _, tt := range []struct {
		name     string
		kind     Allocation
		capacity fixed.Amount
		claims   []Claimant
		want     []fixed.Amount
	}{
		{"Doorman's example", MaxMin, fixed.Whole(120), tokens(1000, 50, 10), []fixed.Amount{60 * fixed.Token, 50 * fixed.Token, 10 * fixed.Token}},
		{"its other example", Proportional, fixed.Whole(120), tokens(1000, 50, 10), []fixed.Amount{69_690_721, 40_309_279, 10 * fixed.Token}},
		{"no overload", MaxMin, fixed.Whole(1060), tokens(1000, 50, 10), []fixed.Amount{1000 * fixed.Token, 50 * fixed.Token, 10 * fixed.Token}},
		{"no overload", Proportional, fixed.Whole(2000), tokens(1000, 50, 10), []fixed.Amount{1000 * fixed.Token, 50 * fixed.Token, 10 * fixed.Token}},
		{"limit below the instances", MaxMin, fixed.Token, tokens(9, 9, 9), []fixed.Amount{333_333, 333_333, 333_334}},
		{"limit below the instances", Proportional, fixed.Token, tokens(9, 9, 9), []fixed.Amount{333_333, 333_333, 333_334}},
		{"all on one", MaxMin, fixed.Whole(10), tokens(0, 0, 0, 50), []fixed.Amount{0, 0, 0, 10 * fixed.Token}},
		{"all on one", Proportional, fixed.Whole(10), tokens(0, 0, 0, 50), []fixed.Amount{0, 0, 0, 10 * fixed.Token}},
		{"weights", MaxMin, fixed.Whole(60), weighted, []fixed.Amount{30 * fixed.Token, 20 * fixed.Token, 10 * fixed.Token}},
		{"weights", MaxMin, fixed.Whole(240), weighted, []fixed.Amount{100 * fixed.Token, 93_333_333, 46_666_667}},
		{"bands", MaxMin, fixed.Whole(150), banded, []fixed.Amount{50 * fixed.Token, 0, 100 * fixed.Token}},
		{"bands", MaxMin, fixed.Whole(250), banded, []fixed.Amount{100 * fixed.Token, 50 * fixed.Token, 100 * fixed.Token}},
		{"nothing to give", MaxMin, 0, tokens(5, 0, 5), []fixed.Amount{0, 0, 0}},
		{"less than nothing", MaxMin, -fixed.Token, tokens(5, 0, 5), []fixed.Amount{0, 0, 0}},
		{"less than nothing wanted", MaxMin, fixed.Whole(6), []Claimant{{Want: math.MinInt64}, {Want: fixed.Whole(9)}}, []fixed.Amount{0, 6 * fixed.Token}},
		{"two units", MaxMin, 2, tokens(1, 1, 1, 1, 1), []fixed.Amount{0, 0, 1, 0, 1}},
		{"nobody", MaxMin, fixed.Token, nil, []fixed.Amount{}},
		{"nobody", Equal, fixed.Token, nil, []fixed.Amount{}},
		{"whatever is wanted", Equal, fixed.Whole(60), weighted, []fixed.Amount{30 * fixed.Token, 20 * fixed.Token, 10 * fixed.Token}},
		{"whatever is wanted", Equal, fixed.Token, tokens(0, 0, 1000), []fixed.Amount{333_333, 333_333, 333_334}},
		{"each up to all", Static, fixed.Whole(60), tokens(100, 60, 7), []fixed.Amount{60 * fixed.Token, 60 * fixed.Token, 7 * fixed.Token}},
		{"no limit", None, fixed.Whole(60), tokens(100, 60, 7), []fixed.Amount{100 * fixed.Token, 60 * fixed.Token, 7 * fixed.Token}},
		{"no limit", None, 0, []Claimant{{Want: -1}, {Want: math.MaxInt64}}, []fixed.Amount{0, fixed.MaxAmount}},
		{"unknown kind", Allocation(99), fixed.Whole(60), nil, []fixed.Amount{}},
	} {
		t.Run(tt.kind.String()+"/"+tt.name, func(t *testing.T) {
			got := sharesOf(t, &Allocator{Kind: tt.kind}, tt.capacity, tt.claims)
			if !slices.Equal(got, tt.want) {
				t.Errorf("got %d, want %d", got, tt.want)
			}
		})
	}
}

func TestUnknownKindGivesNothing(t *testing.T) {
	shares := []fixed.Amount{1, 2}
	(&Allocator{Kind: 99}).Allocate(fixed.Whole(10), tokens(5, 5), shares)
	if shares[0] != 0 || shares[1] != 0 {
		t.Errorf("got %v", shares)
	}
}

func TestGuarantees(t *testing.T) {
	// Bands 9, 5, 5 and 1 want 100, 40, 20 and 100.
	claims := tokens(100, 40, 20, 100)
	claims[0].Band, claims[1].Band, claims[2].Band, claims[3].Band = 9, 5, 5, 1
	for _, tt := range []struct {
		name       string
		capacity   int64
		guarantees []Guarantee
		want       [4]int64
	}{
		{"none", 120, nil, [4]int64{100, 10, 10, 0}},
		{"the lowest has its part", 120, []Guarantee{{1, fixed.Whole(15)}}, [4]int64{100, 5 / 2, 5 / 2, 15}},
		{"the rest goes top-down", 120, []Guarantee{{1, fixed.Whole(30)}, {5, fixed.Whole(50)}}, [4]int64{40, 30, 20, 30}},
		{"within a band it is max-min", 100, []Guarantee{{5, fixed.Whole(30)}}, [4]int64{70, 15, 15, 0}},
		{"not more than is wanted", 130, []Guarantee{{5, fixed.Whole(1000)}}, [4]int64{70, 40, 20, 0}},
		{"not kept for nobody", 120, []Guarantee{{77, fixed.Whole(1000)}}, [4]int64{100, 10, 10, 0}},
		{"too many: higher bands first", 60, []Guarantee{{1, fixed.Whole(50)}, {5, fixed.Whole(50)}, {9, fixed.Whole(20)}}, [4]int64{20, 20, 20, 0}},
		{"of nothing", 0, []Guarantee{{1, fixed.Whole(50)}}, [4]int64{}},
		{"everything fits", 260, []Guarantee{{1, fixed.Whole(1)}}, [4]int64{100, 40, 20, 100}},
	} {
		got := sharesOf(t, &Allocator{Guarantees: tt.guarantees}, fixed.Whole(tt.capacity), claims)
		for i, s := range got {
			want := fixed.Whole(tt.want[i])
			if tt.name == "the lowest has its part" && (i == 1 || i == 2) {
				want = fixed.Token * 5 / 2
			}
			if s != want {
				t.Errorf("%s: got %v, want %v", tt.name, got, tt.want)
				break
			}
		}
	}
}

func TestAllocateDoesNotOverflow(t *testing.T) {
	claims := make([]Claimant, 10_000)
	for i := range claims {
		claims[i] = Claimant{Want: fixed.MaxAmount, Weight: math.MaxUint32, Band: uint8(i % 2)}
	}
	claims[17].Want = math.MaxInt64
	for kind := MaxMin; kind <= None; kind++ {
		for _, capacity := range []fixed.Amount{1, fixed.Token, fixed.MaxAmount - 1, fixed.MaxAmount, math.MaxInt64} {
			a := &Allocator{Kind: kind, Guarantees: []Guarantee{{0, fixed.MaxAmount}, {1, fixed.MaxAmount}}}
			if kind != MaxMin {
				a.Guarantees = nil
			}
			sharesOf(t, a, capacity, claims)
		}
	}
}

func TestAllocatorValidate(t *testing.T) {
	for _, a := range []Allocator{
		{},
		{Guarantees: []Guarantee{{1, 0}, {2, fixed.MaxAmount}}},
		{Kind: Equal},
	} {
		if err := a.Validate(); err != nil {
			t.Errorf("%+v: %v", a, err)
		}
	}
	for _, tt := range []struct {
		a    Allocator
		want []string
	}{
		{Allocator{Kind: 5}, []string{"unknown Allocation(5)"}},
		{Allocator{Kind: Equal, Guarantees: []Guarantee{{1, 5}}}, []string{"guarantees work with max_min only, not with equal"}},
		{Allocator{Guarantees: []Guarantee{{1, -5}, {1, math.MaxInt64}}}, []string{
			"the guarantee of band 1 is -5e-06", "want 0 to", "band 1 has two guarantees",
		}},
	} {
		err := tt.a.Validate()
		if err == nil {
			t.Errorf("%+v: valid", tt.a)
			continue
		}
		for _, want := range tt.want {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%+v: %q does not say %q", tt.a, err, want)
			}
		}
		var joined interface{ Unwrap() []error }
		if !errors.As(err, &joined) {
			t.Errorf("%+v: %T does not hold all faults", tt.a, err)
		}
	}
	if got := Static.String(); got != "static" {
		t.Errorf("got %q", got)
	}
}

func TestApportion(t *testing.T) {
	rng := seeding.Rand(t)
	for range 20_000 {
		parts := make([]uint64, 1+rng.IntN(20))
		var all fixed.Wide
		for i := range parts {
			parts[i] = rng.Uint64() >> (1 + rng.UintN(64))
			all = all.Add(parts[i])
		}
		amount := rng.Uint64N(1<<62+1) >> rng.UintN(63)
		if all == (fixed.Wide{}) {
			continue
		}
		a := fixed.NewApportion(amount, all)
		var given fixed.Wide
		for _, p := range parts {
			got := a.Next(p)
			given = given.Add(got)
			if all.Hi > 0 || all.Lo >= amount {
				if got > p {
					t.Fatalf("%d of %v: %d for a part of %d", amount, parts, got, p)
				}
			}
			if all.Hi == 0 {
				if down, up := fixed.MulDiv(amount, p, all.Lo), fixed.MulDivUp(amount, p, all.Lo); got < down || got > up {
					t.Fatalf("%d of %v: %d for a part of %d, want %d or %d", amount, parts, got, p, down, up)
				}
			}
		}
		if given != (fixed.Wide{Lo: amount}) {
			t.Fatalf("%d of %v: gave %v", amount, parts, given)
		}
	}
}

func TestAllocateAllocatesNothingAfterTheFirst(t *testing.T) {
	rng := seeding.Rand(t)
	claims := randomClaims(rng, 500)
	shares := make([]fixed.Amount, len(claims))
	for kind := MaxMin; kind <= None; kind++ {
		a := &Allocator{Kind: kind}
		if kind == MaxMin {
			a.Guarantees = []Guarantee{{1, fixed.Token}}
		}
		round := func() {
			n := 100 + rng.IntN(400)
			a.Allocate(fixed.Whole(20), claims[:n], shares[:n])
		}
		a.Allocate(fixed.Whole(20), claims, shares)
		if n := testing.AllocsPerRun(50, round); n != 0 {
			t.Errorf("%v: %v allocations", kind, n)
		}
	}
}
