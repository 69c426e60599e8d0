package ledger

import (
	"github.com/stint-io/stint/internal/fairshare"
	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/limit"
)

// newDivider returns the divider for the terms of r. Permits of a limit per instance are
// divided by perInstance as well.
func newDivider(r *Resource, now limit.Time) divider {
	switch t := r.Terms; {
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

// New returns a resource of which nothing is lent, as far as its caller knows. It is not used while
// another one of s is. In recovery all of the limit is frozen: leases of a former coordinator may hold it.
func (s *Scratch) New(id lease.ResourceID, terms lease.Terms, now limit.Time, frozen bool) *Resource {
	r := &Resource{ID: id, restarted: frozen, Scratch: s, Terms: &lease.Terms{}}
	r.Pool.At = now
	r.SetTerms(terms, now)
	switch {
	case frozen && terms.PerInstance():
		// No instance takes from another, so new ones need not wait.
		r.Frozen = lease.Capacity{Rate: lease.Unlimited / 2 / fixed.Token * fixed.Token, Burst: lease.Unlimited / 2 / fixed.Token * fixed.Token}
		r.Pool.Lend(r.Frozen)
		r.Pool.Level, r.Recovering = r.Pool.Burst, true
	case frozen:
		r.Frozen = terms.Lendable()
		r.Pool.Lend(r.Frozen)
		r.Pool.Level, r.Recovering = 0, true
	default:
		// Nothing was taken yet, so the bucket is full.
		r.Pool.Level = r.Pool.Burst
	}
	return r
}

// Begin says how many tokens the pool of a new resource had at a time. In recovery they come at its end.
func (r *Resource) Begin(tokens fixed.Amount, then, now limit.Time) {
	if r.restarted = true; r.Recovering {
		r.kept = tokens
	} else {
		r.Pool.Begin(tokens, then)
		r.Pool.Refill(now)
	}
}

// SetTerms puts terms in force. What instances hold stays lent, so a smaller limit leaves the
// pool below zero until enough was returned. What was used stays used, so a change that is undone
// adds no tokens, and those that a larger burst adds are in the pool at once.
func (r *Resource) SetTerms(t lease.Terms, now limit.Time) {
	r.Pool.Refill(now)
	if r.Supply != nil {
		r.setSiteTerms(t, now)
		return
	}
	more := t.Lendable().Sub(r.Terms.Lendable())
	r.Pool.Resize(more.Rate, more.Burst)
	if r.Recovering {
		// The former coordinator may have lent of terms that were larger still.
		r.freeze(lease.Capacity{Rate: max(more.Rate, -r.Frozen.Rate), Burst: max(more.Burst, -r.Frozen.Burst)})
	}
	if t.PerInstance() {
		r.Pool.Level = r.Pool.Burst
	}
	r.Pool.Clip()
	for _, a := range r.accounts {
		a.setOwn(*r.Terms, t)
	}
	if !r.terms.Equal(&t) {
		own := t
		r.terms = &own
	}
	r.Terms = r.terms
	r.setCaps()
	r.setDivider(now)
}

// setSiteTerms puts terms in force for a site's resource: they bound what the parent lends.
func (r *Resource) setSiteTerms(t lease.Terms, now limit.Time) {
	if former := r.Terms; former.Semaphore != t.Semaphore {
		r.Expire(now) // permits are not tokens; instances learn that they hold nothing
	}
	r.Terms, r.Supply.Own = &t, t // what the parent lends is put in
	r.divisible()
	r.setCaps()
	r.setDivider(now)
}

// setDivider chooses how the limit is divided by the terms in force.
func (r *Resource) setDivider(now limit.Time) {
	r.divider = newDivider(r, now)
	// A rotation of tokens means nothing for permits, and the other way round. For terms of the
	// same kind a new period begins, in which those are served that were served least.
	r.Rotation, r.tokenByToken = Rotation{}, false
}
