package coordinator

import (
	"cmp"
	"slices"

	"github.com/stint-io/stint/internal/bucket"
	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/limit"
)

// permits is the divider of a semaphore: a limit of requests in flight.
type permits struct{}

func (permits) demanded(a *account, d *lease.Demand, _ limit.Time) (demand, shortfall fixed.Amount, ok bool) {
	return d.Shortfall, max(0, d.Shortfall-a.held().Burst), true
}

func (permits) targets(r *resource, now limit.Time) {
	r.divide(now)
	r.targetPermits(now)
}

func (permits) lend(r *resource, now limit.Time) limit.Time {
	r.raisePermits()
	for _, a := range r.accounts {
		a.expireShortfall(now)
	}
	if r.rotation.until == 0 {
		return lease.Never
	}
	return r.rotation.until
}

func (permits) short(_ *resource, of lease.Capacity) (lease.Capacity, bool) { return of, true }

func (permits) suppression(*account) bucket.Suppression { return bucket.Suppression{} }

// targetPermits rounds the shares down to whole permits. The permits that rounding leaves go to
// accounts with demand for more, one each; if there are more such accounts, by rotation.
func (r *resource) targetPermits(now limit.Time) {
	left := r.capacity()
	for i, a := range r.accounts {
		a.target = lease.Capacity{Burst: r.shares[i] / fixed.Token * fixed.Token}
		left -= a.target.Burst
	}
	wanting := r.order[:0]
	for i, a := range r.accounts {
		if a.target.Burst < a.demand && r.shares[i] > 0 || a.silent && a.target.Burst < r.shares[i] {
			wanting = append(wanting, a)
		}
	}
	r.order = wanting
	free := int(max(0, left.Floor()))
	if free == 0 || len(wanting) <= free {
		r.rotation = rotation{members: r.rotation.members[:0]}
	} else if r.rotationIsOver(wanting, free, now) {
		r.chooseNext(wanting, free, minRotation, now)
		wanting = r.rotation.members
	} else {
		wanting = r.rotation.members
	}
	for _, a := range wanting[:min(free, len(wanting))] {
		a.target.Burst += fixed.Token
	}
}

// rotationIsOver says whether other accounts are to have the permits: the time is over, the number
// of permits has changed, or a member has no demand for its permit.
func (r *resource) rotationIsOver(wanting []*account, permits int, now limit.Time) bool {
	if now >= r.rotation.until || len(r.rotation.members) != permits {
		return true
	}
	for _, a := range r.rotation.members {
		if !slices.Contains(wanting, a) {
			return true
		}
	}
	return false
}

// raisePermits lends free permits up to the targets, first to the accounts that hold fewest.
func (r *resource) raisePermits() {
	list := r.order[:0]
	for _, a := range r.accounts {
		if a.held().Burst < a.target.Burst {
			list = append(list, a)
		}
	}
	r.order = list
	slices.SortStableFunc(list, func(a, b *account) int {
		return cmp.Or(cmp.Compare(b.band, a.band), cmp.Compare(a.held().Burst, b.held().Burst))
	})
	for _, a := range list {
		free := max(0, r.pool.burst) / fixed.Token * fixed.Token
		// Permits have no tokens in them.
		a.grant(lease.Capacity{Burst: min(a.target.Burst-a.held().Burst, free)})
	}
}
