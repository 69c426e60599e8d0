package coordinator

import (
	"github.com/stint-io/stint/internal/fairshare"
	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/limit"
)

// newDivider returns the divider for the terms of r. Permits of a limit per instance are
// divided by perInstance as well.
func newDivider(r *resource, now limit.Time) divider {
	switch t := &r.terms; {
	case t.Suppress != nil:
		return newSuppression(r, now)
	case t.PerInstance():
		return perInstance{static: t.Allocation == fairshare.Static, permits: t.Semaphore}
	case t.Semaphore:
		return permits{}
	default:
		return rates{}
	}
}

// newResource returns a resource of which nothing is lent, as far as this coordinator knows.
// In recovery all of the limit is frozen: leases of a former coordinator may hold it.
func newResource(id lease.ResourceID, terms lease.Terms, now limit.Time, frozen bool) *resource {
	r := &resource{id: id}
	r.pool.at = now
	r.setTerms(terms, now)
	switch {
	case frozen && terms.PerInstance():
		// No instance takes from another, so new ones need not wait.
		r.frozen = lease.Capacity{Rate: lease.Unlimited / 2 / fixed.Token * fixed.Token, Burst: lease.Unlimited / 2 / fixed.Token * fixed.Token}
		r.pool.lend(r.frozen)
		r.pool.level, r.recovering = r.pool.burst, true
	case frozen:
		r.frozen = terms.Lendable()
		r.pool.lend(r.frozen)
		r.pool.level, r.recovering = 0, true
	default:
		// Nothing was taken yet, so the bucket is full.
		r.pool.level = r.pool.burst
	}
	return r
}

// setTerms puts terms in force. What instances hold stays lent, so a smaller limit leaves the
// pool below zero until enough was returned. What was used stays used, so a change that is undone
// adds no tokens, and those that a larger burst adds are in the pool at once.
func (r *resource) setTerms(t lease.Terms, now limit.Time) {
	r.pool.refill(now)
	more := t.Lendable().Sub(r.terms.Lendable())
	r.pool.resize(more.Rate, more.Burst)
	if r.recovering {
		// The former coordinator may have lent of terms that were larger still.
		r.freeze(max(more.Rate, -r.frozen.Rate), max(more.Burst, -r.frozen.Burst))
	}
	if t.PerInstance() {
		r.pool.level = r.pool.burst
	}
	r.pool.clip()
	for _, a := range r.accounts {
		a.setOwn(r.terms, t)
	}
	r.terms = t
	r.alloc.Kind, r.alloc.Guarantees = t.Allocation, t.Guarantees
	r.alloc.BusyTolerance, r.alloc.BusyChange = t.BusyTolerance, t.BusyChange
	r.divider = newDivider(r, now)
}

// setOwn puts terms in force for the account: a limit per instance is a bucket for each, of
// which the instance is lent a part. What was used of it stays used, as in the resource's pool.
func (a *account) setOwn(former, t lease.Terms) {
	switch {
	case t.Allocation != fairshare.Static || t.Semaphore:
		a.own = nil
	case a.own == nil:
		h := a.held()
		a.own = &pool{rate: t.Rate - h.Rate, burst: t.Burst - h.Burst, at: a.resource.pool.at}
		if a.lease == 0 {
			a.own.level = max(0, a.own.burst) // nothing was taken of it
		}
	default:
		a.refillOwn()
		a.own.resize(t.Rate-former.Rate, t.Burst-former.Burst)
		a.own.clip()
	}
}
