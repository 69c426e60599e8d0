package ledger

import (
	"cmp"
	"slices"
	"time"

	"github.com/stint-io/stint/internal/bucket"
	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/limit"
)

// permits is the divider of a semaphore: a limit of requests in flight.
type permits struct{}

func (permits) demanded(a *Account, d *lease.Demand, _ Arrival) (demand, shortfall fixed.Amount, ok bool) {
	return d.Shortfall, max(0, d.Shortfall-a.Held().Burst), true
}

func (permits) targets(r *Resource, now limit.Time) {
	r.divide(now)
	r.targetPermits(now)
}

func (permits) lend(r *Resource, now limit.Time) limit.Time {
	r.raisePermits()
	for _, a := range r.accounts {
		a.expireShortfall(now)
	}
	if r.Rotation.Until == 0 {
		return lease.Never
	}
	return r.Rotation.Until
}

func (permits) short(_ *Resource, of lease.Capacity) (lease.Capacity, bool) { return of, true }

func (permits) suppression(*Account) bucket.Suppression { return bucket.Suppression{} }

// targetPermits rounds the shares down to whole permits. The permits that rounding leaves go to
// accounts with demand for more, one each; if there are more such accounts, by rotation.
func (r *Resource) targetPermits(now limit.Time) {
	left := r.Terms.Amount()
	for i, a := range r.accounts {
		a.target = lease.Capacity{Burst: r.shares[i] / fixed.Token * fixed.Token}
		left -= a.target.Burst
	}
	wanting := r.order[:0]
	for i, a := range r.accounts {
		if a.target.Burst < min(a.Demand, a.most()) && r.shares[i] > 0 || a.Silent && a.target.Burst < r.shares[i] {
			wanting = append(wanting, a)
		}
	}
	r.order = wanting
	free := int(max(0, left.Floor()))
	if free == 0 || len(wanting) <= free {
		r.Rotation = Rotation{Members: r.Rotation.Members[:0]}
	} else if r.rotationIsOver(wanting, free, now) {
		r.chooseNext(wanting, free, r.permitRotation(wanting), now)
		wanting = r.Rotation.Members
	} else {
		wanting = r.Rotation.Members
	}
	for _, a := range wanting[:min(free, len(wanting))] {
		a.target.Burst += fixed.Token
	}
}

// permitRotation is the length of a turn. A permit that goes from one site to another is in use by nobody for a trip at
// each level of sites. 40 trips leave 0.95 of it where the sites have turns of their own.
func (r *Resource) permitRotation(wanting []*Account) time.Duration {
	if !slices.ContainsFunc(wanting, func(a *Account) bool { return a.site != nil && a.site.lends }) {
		return minRotation
	}
	return min(max(minRotation, 2*rotationTrips*time.Duration(r.trip)), longestPermits)
}

// rotationIsOver says whether other accounts are to have the permits: the time is over, the number
// of permits has changed, or a member has no demand for its permit.
func (r *Resource) rotationIsOver(wanting []*Account, permits int, now limit.Time) bool {
	if now >= r.Rotation.Until || len(r.Rotation.Members) != permits {
		return true
	}
	for _, a := range r.Rotation.Members {
		if !slices.Contains(wanting, a) {
			return true
		}
	}
	return false
}

// raisePermits lends free permits up to the targets, first to the accounts that hold fewest.
func (r *Resource) raisePermits() {
	list := r.order[:0]
	for _, a := range r.accounts {
		if a.Held().Burst < a.target.Burst {
			list = append(list, a)
		}
	}
	r.order = list
	slices.SortStableFunc(list, func(a, b *Account) int {
		return cmp.Or(cmp.Compare(b.Band, a.Band), cmp.Compare(a.Held().Burst, b.Held().Burst))
	})
	for _, a := range list {
		free := max(0, r.Pool.Burst) / fixed.Token * fixed.Token
		// Permits have no tokens in them.
		a.grant(lease.Capacity{Burst: min(a.target.Burst-a.Held().Burst, free)})
	}
}
