package lending

import (
	"github.com/stint-io/stint/internal/fairshare"
	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/rules"
)

// unlimited is the rate and the burst of a limit that admits everything. Not larger:
// sums over all instances stay far from what an amount can be. Not smaller: nobody
// makes a thousand million requests per second.
const unlimited = 1_000_000_000 * fixed.Token

// suppressOf translates how a limit is suppressed.
func suppressOf(o *rules.Suppress) *lease.Suppress {
	s := &lease.Suppress{Report: o.Report, Window: o.Window, Full: o.Full, Admitted: o.Admitted, Independent: o.Independent}
	if o.Linear {
		s.Ramp = lease.RampLinear
	}
	if o.Interval > 0 {
		s.Intervals = int(o.Window / o.Interval)
	}
	return s
}

// termsOf translates a policy. Rates are rounded down.
func termsOf(p *limit.Policy, o *rules.Lease) lease.Terms {
	t := lease.Terms{Semaphore: p.Algorithm == limit.Concurrency, Allocation: fairshare.Allocation(o.Allocation)}
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
	for _, c := range o.Sites {
		most := lease.SiteCap{Name: c.Name, Burst: amount(c.Rate, c.Places)}
		if !t.Semaphore {
			// The burst of a site is in proportion to its rate, and lets one request through.
			most.Rate = most.Burst
			most.Burst = max(fixed.Token, t.Burst.Scale(most.Rate, max(1, t.Rate))/fixed.Token*fixed.Token)
		}
		t.Sites = append(t.Sites, most)
	}
	return t
}

// perSecond is a rate in millionths of a token per second, rounded down.
func perSecond(r limit.Rate) fixed.Amount {
	if r.Period == 0 {
		return 0 // the zero rate
	}
	const scale = uint64(fixed.Token) * 1_000_000_000
	return fixed.Amount(min(fixed.Product(uint64(r.Count), scale).Div(uint64(r.Period)), uint64(fixed.MaxAmount)))
}
