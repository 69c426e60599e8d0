package ledger

import (
	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/internal/lease/pool"
	"github.com/stint-io/stint/limit"
)

// NewSite returns a resource whose capacity is lent by a parent: nothing, so far.
func NewSite(id lease.ResourceID, terms lease.Terms, now limit.Time) *Resource {
	r := &Resource{ID: id, Supply: &pool.Supply{}, Scratch: new(Scratch), Terms: &lease.Terms{}}
	r.Pool.At = now
	r.SetTerms(terms, now)
	return r
}

// Hold is [pool.Supply.Hold] for the pool of the resource. It returns what the site holds from then on.
func (r *Resource) Hold(now limit.Time, held, ceiling lease.Capacity, tokens fixed.Amount) (inForce lease.Capacity, surplus fixed.Amount) {
	surplus = r.Supply.Hold(&r.Pool, now, held, ceiling, tokens)
	r.divisible()
	return r.Supply.Held, surplus
}

// Lapse ends what the site holds; see [pool.Supply.Lapse].
func (r *Resource) Lapse(now limit.Time) {
	r.Supply.Lapse(&r.Pool, now)
	r.divisible()
}

// Expire ends what the site and its instances hold, when the lease of the parent is over: those
// of the instances ended before it.
func (r *Resource) Expire(now limit.Time) {
	r.Pool.Refill(now)
	for _, a := range r.accounts {
		a.End()
		a.Pending = true
	}
	r.Lapse(now)
	r.Pool.Level, r.Pool.Remainder = 0, 0
}

// Alone has the site use a rate and a burst of its own, while no parent answers.
func (r *Resource) Alone(now limit.Time, rate, burst fixed.Amount) {
	r.Supply.UseAlone(&r.Pool, now, rate, burst)
	r.divisible()
}

// Inform takes note of what the parent says, and reports whether that changes how the limit is
// divided.
func (r *Resource) Inform(a pool.Answer) (changed bool) {
	former, unknown := r.Supply.Answer, r.Unknown()
	r.Supply.Answer = a
	if a.Status == lease.StatusOK && a.Limit.Semaphore != r.Supply.Own.Semaphore {
		r.Supply.Status = lease.StatusNotLeased // requests per second are not requests in flight
	}
	if former.Limit.Rate != a.Limit.Rate || former.Limit.Burst != a.Limit.Burst || !former.Known {
		r.divisible()
	}
	changed = !former.Known || former.Contended != a.Contended || former.Saturated != a.Saturated
	if r.Status = r.Supply.Status; former.Status == r.Status && unknown == r.Unknown() {
		return changed
	}
	for _, account := range r.accounts {
		account.Pending = true
		if account.Status = r.Status; r.Status != lease.StatusOK {
			account.Demand, account.Shortfall = 0, 0
		}
	}
	return true
}

// divisible sets what the dividers divide.
func (r *Resource) divisible() { r.Terms.Rate, r.Terms.Burst = r.Supply.Divisible() }

// SupplyHeld is the rate and the burst that the site holds, and whether that is without a lease.
func (r *Resource) SupplyHeld() (held lease.Capacity, alone bool) {
	return r.Supply.Held, r.Supply.Alone
}

// Owes says whether instances have to return something so that the site can come down to the
// ceiling.
func (r *Resource) Owes() bool { return r.Supply.Owed() != lease.Capacity{} }
