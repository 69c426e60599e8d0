package fairshare

import (
	"errors"
	"fmt"

	"github.com/stint-io/stint/internal/fixed"
)

// Allocation is how capacity is divided among the claimants. The zero value is
// MaxMin.
type Allocation uint8

// The kinds of allocation.
const (
	MaxMin       Allocation = iota // exact weighted max-min fairness, by priority bands
	Proportional                   // by weight, and what is left of that in proportion to what is missing; see [Allocator]
	Equal                          // each gets capacity/instances, by weight, whatever it wants
	Static                         // each gets what it wants up to the whole capacity: a limit per instance
	None                           // each gets what it wants: no limit
)

var allocationNames = [...]string{
	MaxMin: "max_min", Proportional: "proportional", Equal: "equal", Static: "static", None: "none",
}

// String returns the kind as it stands in a limits file.
func (k Allocation) String() string {
	if int(k) < len(allocationNames) {
		return allocationNames[k]
	}
	return fmt.Sprintf("Allocation(%d)", uint8(k))
}

// Claim is the part of one instance in an allocation.
type Claimant struct {
	Want   fixed.Amount // per second; 0 = nothing
	Weight uint32       // 0 counts as 1
	Band   uint8        // higher goes first
}

// Guarantee promises a band an amount before higher bands take everything.
type Guarantee struct {
	Band   uint8
	Amount fixed.Amount
}

// Allocator divides a capacity among claims. Its zero value divides by MaxMin.
// Settings may change between calls. It keeps memory from call to call, so that a
// round with no more claims than an earlier one allocates nothing; it is not safe for
// concurrent use.
//
// What each kind promises, in millionths of a token and without a rounding error in
// the sum:
//
//   - MaxMin: no claimant can get more except from one of a higher band, of the same
//     band with as little per weight, or with a guarantee. The sum is the capacity or
//     all that is wanted, whichever is less.
//   - Proportional: while all that is wanted fits, each gets it. In overload each gets
//     its part by weight; what some do not want of their part goes to those that want
//     more than theirs, in proportion to how much more. The sum is as for MaxMin.
//     Bands do not matter.
//   - Equal: the sum is the capacity, wanted or not. Nothing but weights matters.
//   - Static and None: each claim stands alone, so the sum may be above the capacity.
//
// Where a part is not a whole number of millionths it is rounded down or up, so that
// the sum is exact: which of the two depends on the order of the claims and on nothing
// else. Callers that keep the order see no share move without a reason.
type Allocator struct {
	Kind Allocation

	// Guarantees are served before anything else, the highest band first, as far as
	// the band wants it. What a band does not want of its guarantee is not kept for
	// it. Of two for one band the latter counts. MaxMin alone looks at them.
	Guarantees []Guarantee

	contenders []contender
	bands      []band // by number; made when there is more than one
}

// Validate returns all that is wrong with the settings.
func (a *Allocator) Validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf("fairshare: "+format, args...)) }
	if int(a.Kind) >= len(allocationNames) {
		bad("unknown %v: want one of %v", a.Kind, allocationNames)
	}
	if len(a.Guarantees) > 0 && a.Kind != MaxMin {
		bad("guarantees work with %v only, not with %v", MaxMin, a.Kind)
	}
	var seen [256]bool
	for _, g := range a.Guarantees {
		if g.Amount < 0 || g.Amount > fixed.MaxAmount {
			bad("the guarantee of band %d is %v, want 0 to %v", g.Band, g.Amount, fixed.MaxAmount)
		}
		if seen[g.Band] {
			bad("band %d has two guarantees: keep one", g.Band)
		}
		seen[g.Band] = true
	}
	return errors.Join(errs...)
}

// Allocate sets shares[i] to the part of claims[i], for all i; shares is as long as
// claims. An amount below 0 counts as 0, one above [fixed.MaxAmount] as that. No share is
// negative, and the sum is at most the capacity, except for Static and None. An unknown
// kind gives nothing.
func (a *Allocator) Allocate(capacity fixed.Amount, claims []Claimant, shares []fixed.Amount) {
	shares = shares[:len(claims)]
	c := fixed.Clamp(capacity)
	switch a.Kind {
	case MaxMin:
		a.maxMin(c, claims, shares)
	case Proportional:
		proportional(c, claims, shares)
	case Equal:
		equal(c, claims, shares)
	case Static:
		for i := range claims {
			shares[i] = fixed.Amount(min(claims[i].want(), c))
		}
	case None:
		for i := range claims {
			shares[i] = fixed.Amount(claims[i].want())
		}
	default:
		clear(shares)
	}
}

func (c *Claimant) want() uint64 { return fixed.Clamp(c.Want) }

func (c *Claimant) weight() uint64 { return uint64(max(c.Weight, 1)) }

// wanted returns the sums of what is wanted and of the weights. Weights of as many
// claims as fit a memory fit 64 bits.
func wanted(claims []Claimant) (want fixed.Wide, weights uint64) {
	for i := range claims {
		want = want.Add(claims[i].want())
		weights += claims[i].weight()
	}
	return want, weights
}

// giveWanted gives each what it wants.
func giveWanted(claims []Claimant, shares []fixed.Amount) {
	for i := range claims {
		shares[i] = fixed.Amount(claims[i].want())
	}
}

// Waterfill divides by MaxMin without guarantees, whatever a divides by.
func (a *Allocator) Waterfill(capacity fixed.Amount, claims []Claimant, shares []fixed.Amount) {
	kind, guarantees := a.Kind, a.Guarantees
	a.Kind, a.Guarantees = MaxMin, nil
	a.Allocate(capacity, claims, shares)
	a.Kind, a.Guarantees = kind, guarantees
}
