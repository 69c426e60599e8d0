package ledger

import (
	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/internal/lease"
)

// Receive updates an account by what the instance demands. A demand that is out of range or
// contradicts an earlier one counts as none, and sets Status; so does one while Status is not
// StatusOK already.
func (r *Resource) Receive(a *Account, d *lease.Demand, at Arrival) {
	a.Weight, a.Band, a.Spare = max(1, d.Weight), d.Band, d.Spare
	a.setSite(d)
	a.Silent = d.Silent || r.Terms.Suppress != nil && !at.Suppresses
	demand, shortfall, ok := fixed.Amount(0), fixed.Amount(0), a.Status == lease.StatusOK
	if ok {
		demand, shortfall, ok = r.divider.demanded(a, d, at)
	}
	if a.Status == lease.StatusOK && !ok || !d.InRange() {
		a.Status = lease.StatusBadDemand
	}
	if ok = a.Status == lease.StatusOK; !ok {
		demand, shortfall = 0, 0
	}
	a.Demand, a.Shortfall = demand, min(shortfall, r.Whole().Burst)
	if ok {
		a.shortUntil = lease.Never
		if d.Within > 0 {
			a.shortUntil = at.Now.Add(d.Within)
		}
		switch {
		case a.Shortfall == 0:
			a.shortSince = 0
		case a.shortSince == 0:
			a.shortSince = at.Now
		}
	}
	a.Closed, a.Pending = d.Closed, true
}
