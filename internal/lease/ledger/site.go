package ledger

import (
	"github.com/stint-io/stint/internal/fairshare"
	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/internal/lease/pool"
)

// Name says whose account a is: the cap of the limit for that name holds for it. lends says that
// the instance is a site.
func (r *Resource) Name(a *Account, name string, lends bool) {
	if a.site != nil || !lends && !r.Terms.Caps(name) {
		return
	}
	a.site = &siteAccount{name: name, lends: lends, ceiling: lease.NoCap()}
	a.setCap()
}

// setSite takes note of what only sites report.
func (a *Account) setSite(d *lease.Demand) {
	if a.site == nil || !a.site.lends {
		return
	}
	a.site.claims = append(a.site.claims[:0], d.Claims...)
	if d.Most != a.site.most {
		a.site.most = d.Most
		a.setCap()
	}
}

// most is the largest rate, or number of permits, that the account may have.
func (a *Account) most() fixed.Amount {
	switch {
	case a.site == nil:
		return fixed.MaxAmount
	case a.resource.Terms.Semaphore:
		return a.site.ceiling.Burst
	}
	return a.site.ceiling.Rate
}

// claimCount is how many claims the account has in a division.
func (a *Account) claimCount() int {
	if a.site == nil || a.Demand == 0 {
		return 1
	}
	return max(1, len(a.site.claims))
}

// addClaims adds the claims of an account to a division. one is what it is as a single claim.
func (r *Resource) addClaims(a *Account, one fairshare.Claimant) {
	n := a.claimCount()
	if n == 1 {
		r.claims, r.parts = append(r.claims, one), append(r.parts, 0)
		return
	}
	first, sum := len(r.claims), fixed.Amount(0)
	for _, c := range a.site.claims {
		r.claims = append(r.claims, fairshare.Claimant{Want: c.Rate, Weight: c.Weight, Band: c.Band})
		r.parts = append(r.parts, 0)
		sum = fixed.SaturatingAdd(sum, max(0, c.Rate))
	}
	own, parts := r.claims[first:], r.parts[first:]
	if sum > one.Want {
		// What it may have is divided among its claims as it will be divided at the site.
		r.alloc.Waterfill(one.Want, own, parts)
		for i := range own {
			own[i].Want = parts[i]
		}
	}
}

// setCaps puts the caps of all accounts in force after the limit has changed.
func (r *Resource) setCaps() {
	for _, a := range r.accounts {
		if a.site != nil {
			a.setCap()
		}
	}
}

// setCap puts the cap of the account in force: that of the terms, or the site's own limit where
// that is smaller.
func (a *Account) setCap() {
	r, s, t := a.resource, a.site, a.resource.Terms
	if r.Supply != nil {
		t = &r.Supply.Own // Terms have what the parent lends of it at this moment
	}
	s.ceiling = t.CapOf(s.name, s.lends)
	if s.most != (lease.Capacity{}) && (s.most.Rate < t.Rate || s.most.Burst < t.Burst) {
		s.ceiling = lease.Capacity{Rate: min(s.ceiling.Rate, s.most.Rate), Burst: min(s.ceiling.Burst, s.most.Burst)}
	}
	if t.PerInstance() || t.Semaphore || s.ceiling == lease.NoCap() {
		// Permits need no bucket: no more are lent than the target. Without a cap there is none.
		if a.cap != nil {
			h := a.Held()
			a.cap.Refill(r.Pool.At)
			a.cap.TakeBack(lease.Capacity{Rate: h.Rate, Burst: h.Burst})
			a.cap = nil
		}
		return
	}
	c := r.caps[s.name]
	switch {
	case c == nil:
		if r.caps == nil {
			r.caps = map[string]*pool.Cap{}
		}
		c = pool.NewCap(r.Pool.At, s.ceiling, r.restarted)
		r.caps[s.name] = c
	default:
		c.Change(r.Pool.At, s.ceiling)
	}
	if a.cap != c {
		h := a.Held()
		c.Lend(lease.Capacity{Rate: h.Rate, Burst: h.Burst})
		a.cap = c
	}
}

// bound reduces a grant to what the cap of the account leaves.
func (a *Account) bound(g lease.Capacity) lease.Capacity {
	if a.cap == nil {
		return g
	}
	if a.resource.Recovering {
		return lease.Capacity{} // what the site holds by a former coordinator is not known yet
	}
	return a.cap.Bound(a.resource.Pool.At, g)
}
