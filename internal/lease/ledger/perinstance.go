package ledger

import (
	"github.com/stint-io/stint/internal/bucket"
	"github.com/stint-io/stint/internal/fairshare"
	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/limit"
)

// perInstance is the divider of a limit that each instance has for itself, and of no limit.
type perInstance struct {
	static  bool // each instance has the limit; else there is none
	permits bool // of requests in flight
}

func (p perInstance) demanded(a *Account, d *lease.Demand, at Arrival) (demand, shortfall fixed.Amount, ok bool) {
	switch {
	case p.permits:
		return permits{}.demanded(a, d, at)
	case p.static:
		return d.Rate, 0, true // what the instance is missing, no other has
	}
	return rates{}.demanded(a, d, at)
}

func (p perInstance) targets(r *Resource, now limit.Time) {
	r.divide(now)
	r.targetOwn()
}

func (p perInstance) lend(r *Resource, now limit.Time) limit.Time {
	switch {
	case p.permits:
		return permits{}.lend(r, now)
	case p.static:
		r.lendOwn()
		return r.nextRound(now)
	}
	return rates{}.lend(r, now)
}

func (p perInstance) short(r *Resource, of lease.Capacity) (lease.Capacity, bool) {
	if !p.permits {
		of, _ = rates{}.short(r, of)
	}
	if p.static {
		of.Rate, of.Burst = max(1, r.Terms.Rate), max(1, r.Terms.Burst) // no instance may have more than its limit
	}
	return of, p.permits
}

func (perInstance) suppression(*Account) bucket.Suppression { return bucket.Suppression{} }

// targetOwn sets the target of each account to a limit of its own.
func (r *Resource) targetOwn() {
	for i, a := range r.accounts {
		a.target = lease.Capacity{}
		if r.Terms.Allocation == fairshare.Static {
			// An instance without demand keeps what it has: no other can use it.
			h := a.Held()
			a.target = lease.Capacity{Rate: min(h.Rate, r.Terms.Rate), Burst: min(h.Burst, r.Terms.Burst)}
		}
		if r.shares[i] > 0 && r.Terms.Semaphore {
			a.target.Burst = (r.shares[i] + fixed.Token - 1) / fixed.Token * fixed.Token
		} else if r.shares[i] > 0 {
			// Bounded, so that one instance cannot take all of lease.Unlimited.
			a.target = lease.Capacity{Rate: min(r.shares[i], lease.Unlimited>>16), Burst: r.Terms.Burst}
			if r.Terms.Allocation == fairshare.Static {
				// All of it at once: no other can use it.
				a.target.Rate = r.Terms.Rate
			}
		}
	}
	r.Contended, r.Saturated = false, false
}

// lendOwn lends each account what it is short of its own limit, with the tokens that are left
// of it.
func (r *Resource) lendOwn() {
	for _, a := range r.accounts {
		if a.Own == nil {
			continue
		}
		a.refillOwn()
		h, p := a.Held(), a.Own
		g := lease.Capacity{Rate: max(0, min(a.target.Rate-h.Rate, p.Rate)), Burst: max(0, min(a.target.Burst-h.Burst, p.Spare()))}
		if g.Burst > 0 {
			g.Tokens = max(0, min(p.Level, g.Burst))
		}
		a.grant(g)
	}
}
