package leaseservice

import (
	"math/bits"
	"slices"

	"github.com/stint-io/stint/internal/fairshare"
	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/internal/leasewire"
	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/rules"
)

// unlimited is the rate and the burst of a limit that admits everything. Not larger:
// sums over all instances stay far from what an amount can be. Not smaller: nobody
// makes a thousand million requests per second.
const unlimited = 1_000_000_000 * fixed.Token

// index finds limits by name. It is immutable.
type index struct {
	set    *rules.Set
	byName map[string]*rules.Limit
	leased int
}

func newIndex(set *rules.Set) *index {
	x := &index{set: set, byName: map[string]*rules.Limit{}}
	for _, l := range set.Limits() {
		if !l.Envoy {
			x.byName[l.Name] = l
			if l.Sharing.Local() {
				x.leased++
			}
		}
	}
	return x
}

// canonical puts the bucket's key in place of the values that an instance sent: the
// values of an address differ by how it is written, and the networks that count as
// one.
func (x *index) canonical(r *lease.Report) {
	for i := range r.Demands {
		id := &r.Demands[i].Resource
		l := x.byName[id.Limit]
		if l == nil || !l.Sharing.Local() {
			continue // resolve says so
		}
		if names := r.Demands[i].Attributes; len(names) > 0 && !slices.Equal(names, l.Key) {
			id.Key = otherAttributes
			continue
		}
		values, err := leasewire.DecodeKey(id.Key)
		key, ok := l.KeyOf(values...)
		if err != nil || !ok {
			id.Key = noKey
			continue
		}
		id.Key = string(key)
	}
}

// Keys of no limit: one that does not fit, and one of other attributes.
const (
	noKey           = "\xf0"
	otherAttributes = "\xf1"
)

// resolve says what a resource asks for.
func (x *index) resolve(id lease.ResourceID) (lease.Terms, lease.Status) {
	l := x.byName[id.Limit]
	switch {
	case l == nil:
		return lease.Terms{}, lease.StatusUnknownLimit
	case !l.Sharing.Local():
		return lease.Terms{}, lease.StatusNotLeased
	}
	if id.Key == otherAttributes {
		return lease.Terms{}, lease.StatusWrongAttributes
	}
	attrs, ok := l.KeyAttributes([]byte(id.Key))
	if !ok {
		return lease.Terms{}, lease.StatusBadKey
	}
	v := x.set.VariantFor(l, attrs)
	switch l.Sharing {
	case rules.SharingSplit:
		part := l.Split.Part(v.Policy)
		return terms(&part, &rules.Lease{Allocation: rules.AllocationEqual}), lease.StatusOK
	case rules.SharingSuppressed:
		t := terms(&v.Policy, &rules.Lease{})
		if !v.Policy.Unlimited {
			t.Suppress = suppress(&l.Suppress)
		}
		return t, lease.StatusOK
	default:
		return terms(&v.Policy, &l.Lease), lease.StatusOK
	}
}

// suppress translates how a limit is suppressed.
func suppress(o *rules.Suppress) *lease.Suppress {
	s := &lease.Suppress{Report: o.Report, Window: o.Window, Full: o.Full, Admitted: o.Admitted, Independent: o.Independent}
	if o.Linear {
		s.Ramp = lease.RampLinear
	}
	if o.Interval > 0 {
		s.Intervals = int(o.Window / o.Interval)
	}
	return s
}

// terms translates a policy. Rates are rounded down.
func terms(p *limit.Policy, o *rules.Lease) lease.Terms {
	t := lease.Terms{Semaphore: p.Algorithm == limit.Concurrency, Allocation: fairshare.Allocation(o.Allocation), BusyTolerance: o.Tolerance, BusyChange: o.Change}
	amount := func(r limit.Rate, places int64) fixed.Amount {
		if t.Semaphore {
			return fixed.Whole(places)
		}
		return perSecond(r)
	}
	t.Safe = amount(o.Safe, o.SafePlaces)
	for _, g := range o.Guarantees {
		t.Guarantees = append(t.Guarantees, fairshare.Guarantee{Band: g.Band, Amount: amount(g.Rate, g.Places)})
	}
	switch {
	case p.Unlimited:
		t.Burst, t.Allocation = unlimited, fairshare.None
		if !t.Semaphore {
			t.Rate = unlimited
		}
	case t.Semaphore:
		t.Burst = fixed.Whole(p.MaxInFlight)
	default:
		t.Rate, t.Burst = min(perSecond(p.Rate), unlimited), min(fixed.Whole(p.Burst), unlimited)
	}
	return t
}

// perSecond is a rate in millionths of a token per second, rounded down.
func perSecond(r limit.Rate) fixed.Amount {
	if r.Period == 0 {
		return 0 // the zero rate
	}
	const scale = uint64(fixed.Token) * 1_000_000_000
	hi, lo := bits.Mul64(uint64(r.Count), scale)
	if hi >= uint64(r.Period) {
		return fixed.MaxAmount
	}
	q, _ := bits.Div64(hi, lo, uint64(r.Period))
	return fixed.Amount(min(q, uint64(fixed.MaxAmount)))
}
