package share

import (
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// sharesOf allocates once and checks what holds for every kind.
func sharesOf(t testing.TB, a *Allocator, capacity Amount, claims []Claim) []Amount {
	t.Helper()
	before := slices.Clone(claims)
	shares := make([]Amount, len(claims))
	for i := range shares {
		shares[i] = -12345 // whatever was there is overwritten
	}
	a.Allocate(capacity, claims, shares)
	if !slices.Equal(before, claims) {
		t.Fatalf("%v changed the claims", a.Kind)
	}
	checkShares(t, a, capacity, claims, shares)
	again := make([]Amount, len(claims))
	a.Allocate(capacity, claims, again)
	if !slices.Equal(shares, again) {
		t.Fatalf("%v gave %v and then %v for the same", a.Kind, shares, again)
	}
	return shares
}

// checkShares checks the sum and the bounds that each kind promises.
func checkShares(t testing.TB, a *Allocator, capacity Amount, claims []Claim, shares []Amount) {
	t.Helper()
	var total, wants sum
	active := false
	for i, s := range shares {
		if s < 0 || s > MaxAmount {
			t.Fatalf("%v: share %d is %d", a.Kind, i, s)
		}
		c := claims[i]
		if a.Kind != Equal && a.Kind != Busy && uint64(s) > clamp(c.Want) {
			t.Fatalf("%v: share %d is %d, above the %d that it wants", a.Kind, i, s, c.Want)
		}
		total, wants = total.plus(uint64(s)), wants.plus(clamp(c.Want))
		active = active || c.Want > 0 || c.Has > 0 || c.Used > 0
	}
	most := clamp(capacity)
	want := most
	switch a.Kind {
	case MaxMin, Proportional:
		want = wants.least(most)
	case Static, None:
		return
	case Equal:
		active = len(claims) > 0
	}
	if !active {
		want = 0
	}
	if total != (sum{lo: want}) {
		t.Fatalf("%v: the shares of %d sum to %d, want %d", a.Kind, capacity, total, want)
	}
}

// tokens returns claims that want whole tokens.
func tokens(wants ...int64) []Claim {
	claims := make([]Claim, len(wants))
	for i, w := range wants {
		claims[i].Want = Whole(w)
	}
	return claims
}

func TestAllocateWalkThrough(t *testing.T) {
	weighted := tokens(100, 100, 100)
	weighted[0].Weight, weighted[1].Weight = 3, 2
	banded := tokens(100, 100, 100)
	banded[0].Band, banded[2].Band = 1, 7
	million := Amount(1_000_000)
	for _, tt := range []struct {
		name     string
		kind     Allocation
		capacity Amount
		claims   []Claim
		want     []Amount
	}{
		{"Doorman's example", MaxMin, Whole(120), tokens(1000, 50, 10), []Amount{60 * Token, 50 * Token, 10 * Token}},
		{"its other example", Proportional, Whole(120), tokens(1000, 50, 10), []Amount{69_690_721, 40_309_279, 10 * Token}},
		{"no overload", MaxMin, Whole(1060), tokens(1000, 50, 10), []Amount{1000 * Token, 50 * Token, 10 * Token}},
		{"no overload", Proportional, Whole(2000), tokens(1000, 50, 10), []Amount{1000 * Token, 50 * Token, 10 * Token}},
		{"limit below the instances", MaxMin, Token, tokens(9, 9, 9), []Amount{333_333, 333_333, 333_334}},
		{"limit below the instances", Proportional, Token, tokens(9, 9, 9), []Amount{333_333, 333_333, 333_334}},
		{"all on one", MaxMin, Whole(10), tokens(0, 0, 0, 50), []Amount{0, 0, 0, 10 * Token}},
		{"all on one", Proportional, Whole(10), tokens(0, 0, 0, 50), []Amount{0, 0, 0, 10 * Token}},
		{"weights", MaxMin, Whole(60), weighted, []Amount{30 * Token, 20 * Token, 10 * Token}},
		{"weights", MaxMin, Whole(240), weighted, []Amount{100 * Token, 93_333_333, 46_666_667}},
		{"bands", MaxMin, Whole(150), banded, []Amount{50 * Token, 0, 100 * Token}},
		{"bands", MaxMin, Whole(250), banded, []Amount{100 * Token, 50 * Token, 100 * Token}},
		{"nothing to give", MaxMin, 0, tokens(5, 0, 5), []Amount{0, 0, 0}},
		{"less than nothing", MaxMin, -Token, tokens(5, 0, 5), []Amount{0, 0, 0}},
		{"less than nothing wanted", MaxMin, Whole(6), []Claim{{Want: math.MinInt64}, {Want: Whole(9)}}, []Amount{0, 6 * Token}},
		{"two units", MaxMin, 2, tokens(1, 1, 1, 1, 1), []Amount{0, 0, 1, 0, 1}},
		{"nobody", MaxMin, Token, nil, []Amount{}},
		{"nobody", Equal, Token, nil, []Amount{}},
		{"whatever is wanted", Equal, Whole(60), weighted, []Amount{30 * Token, 20 * Token, 10 * Token}},
		{"whatever is wanted", Equal, Token, tokens(0, 0, 1000), []Amount{333_333, 333_333, 333_334}},
		{"each up to all", Static, Whole(60), tokens(100, 60, 7), []Amount{60 * Token, 60 * Token, 7 * Token}},
		{"no limit", None, Whole(60), tokens(100, 60, 7), []Amount{100 * Token, 60 * Token, 7 * Token}},
		{"no limit", None, 0, []Claim{{Want: -1}, {Want: math.MaxInt64}}, []Amount{0, MaxAmount}},
		{"unknown kind", Allocation(99), Whole(60), nil, []Amount{}},
		{"Hermes with limit 1", Busy, Token, []Claim{
			{Want: Token, Has: million / 3, Used: million / 3},
			{Want: Token, Has: million / 3, Used: million / 3},
			{Want: Token, Has: million / 3, Used: million / 3},
		}, []Amount{333_333, 333_333, 333_334}},
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
	shares := []Amount{1, 2}
	(&Allocator{Kind: 99}).Allocate(Whole(10), tokens(5, 5), shares)
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
		{"the lowest has its part", 120, []Guarantee{{1, Whole(15)}}, [4]int64{100, 5 / 2, 5 / 2, 15}},
		{"the rest goes top-down", 120, []Guarantee{{1, Whole(30)}, {5, Whole(50)}}, [4]int64{40, 30, 20, 30}},
		{"within a band it is max-min", 100, []Guarantee{{5, Whole(30)}}, [4]int64{70, 15, 15, 0}},
		{"not more than is wanted", 130, []Guarantee{{5, Whole(1000)}}, [4]int64{70, 40, 20, 0}},
		{"not kept for nobody", 120, []Guarantee{{77, Whole(1000)}}, [4]int64{100, 10, 10, 0}},
		{"too many: higher bands first", 60, []Guarantee{{1, Whole(50)}, {5, Whole(50)}, {9, Whole(20)}}, [4]int64{20, 20, 20, 0}},
		{"of nothing", 0, []Guarantee{{1, Whole(50)}}, [4]int64{}},
		{"everything fits", 260, []Guarantee{{1, Whole(1)}}, [4]int64{100, 40, 20, 100}},
	} {
		got := sharesOf(t, &Allocator{Guarantees: tt.guarantees}, Whole(tt.capacity), claims)
		for i, s := range got {
			want := Whole(tt.want[i])
			if tt.name == "the lowest has its part" && (i == 1 || i == 2) {
				want = Token * 5 / 2
			}
			if s != want {
				t.Errorf("%s: got %v, want %v", tt.name, got, tt.want)
				break
			}
		}
	}
}

func TestAllocateDoesNotOverflow(t *testing.T) {
	claims := make([]Claim, 10_000)
	for i := range claims {
		claims[i] = Claim{Want: MaxAmount, Has: MaxAmount, Used: MaxAmount, Weight: math.MaxUint32, Band: uint8(i % 2)}
	}
	claims[17].Want = math.MaxInt64
	for kind := MaxMin; kind <= Busy; kind++ {
		for _, capacity := range []Amount{1, Token, MaxAmount - 1, MaxAmount, math.MaxInt64} {
			a := &Allocator{Kind: kind, Guarantees: []Guarantee{{0, MaxAmount}, {1, MaxAmount}}}
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
		{Kind: Busy, BusyTolerance: 0.4, BusyChange: 0.5},
		{Guarantees: []Guarantee{{1, 0}, {2, MaxAmount}}},
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
		{Allocator{Kind: 6}, []string{"unknown Allocation(6)"}},
		{Allocator{Kind: Equal, Guarantees: []Guarantee{{1, 5}}}, []string{"guarantees work with max_min only, not with equal"}},
		{Allocator{Guarantees: []Guarantee{{1, -5}, {1, math.MaxInt64}}}, []string{
			"the guarantee of band 1 is -5e-06", "want 0 to", "band 1 has two guarantees",
		}},
		{Allocator{BusyTolerance: math.NaN(), BusyChange: math.NaN()}, []string{"the busy tolerance is NaN", "the busy change is NaN"}},
		{Allocator{BusyTolerance: 0.41, BusyChange: -0.01}, []string{"the busy tolerance is 0.41", "the busy change is -0.01"}},
		{Allocator{BusyTolerance: math.Inf(1)}, []string{"the busy tolerance is +Inf"}},
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
	if got := Busy.String(); got != "busy" {
		t.Errorf("got %q", got)
	}
}

func TestApportion(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 20_000 {
		parts := make([]uint64, 1+rng.IntN(20))
		var all sum
		for i := range parts {
			parts[i] = rng.Uint64() >> (1 + rng.UintN(64))
			all = all.plus(parts[i])
		}
		amount := rng.Uint64N(1<<62+1) >> rng.UintN(63)
		if all == (sum{}) {
			continue
		}
		a := newApportion(amount, all)
		var given sum
		for _, p := range parts {
			got := a.next(p)
			given = given.plus(got)
			if all.hi > 0 || all.lo >= amount {
				if got > p {
					t.Fatalf("%d of %v: %d for a part of %d", amount, parts, got, p)
				}
			}
			if all.hi == 0 {
				if down, up := scale(amount, p, all.lo), scaleUp(amount, p, all.lo); got < down || got > up {
					t.Fatalf("%d of %v: %d for a part of %d, want %d or %d", amount, parts, got, p, down, up)
				}
			}
		}
		if given != (sum{lo: amount}) {
			t.Fatalf("%d of %v: gave %v", amount, parts, given)
		}
	}
}

func TestAllocateAllocatesNothingAfterTheFirst(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	claims := randomClaims(rng, 500)
	shares := make([]Amount, len(claims))
	for kind := MaxMin; kind <= Busy; kind++ {
		a := &Allocator{Kind: kind}
		if kind == MaxMin {
			a.Guarantees = []Guarantee{{1, Token}}
		}
		round := func() {
			n := 100 + rng.IntN(400)
			a.Allocate(Whole(20), claims[:n], shares[:n])
		}
		a.Allocate(Whole(20), claims, shares)
		if n := testing.AllocsPerRun(50, round); n != 0 {
			t.Errorf("%v: %v allocations", kind, n)
		}
	}
}
