package coordinator

import (
	"cmp"
	"maps"
	"slices"

	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/internal/lease/holding"
	"github.com/stint-io/stint/internal/lease/ledger"
	"github.com/stint-io/stint/limit"
)

// sweep ends expired sessions, ends recovery when it is over, sends again what was not
// acknowledged, and forgets unused resources. The share of a crashed instance is freed here, by
// the expiry of its session.
func (c *Coordinator) sweep(now limit.Time) {
	c.endExpired(now)
	c.unlent.Sweep(now)
	if now >= c.recoverUntil {
		c.settledAt = c.settled(now)
		c.expected = holding.Holders{}
	}
	for _, r := range c.list {
		if r.Recovering && now >= c.recoverUntil {
			r.Thaw(now)
			c.scheduleRound(r, now)
		}
		again := false
		for _, a := range r.accounts {
			if r.Supply != nil && a.Pending || a.unacknowledged() && now-a.sentAt > limit.Time(c.sweepInterval()) {
				a.Pending, again = true, true
			}
		}
		if again {
			c.collect(r, now)
		}
	}
	c.list = slices.DeleteFunc(c.list, func(r *resource) bool {
		if r.moves && r.Lent() == (lease.Capacity{}) {
			c.remove(r, func(*ledger.Account) bool { return true })
			r.dirty, r.moves = false, false
		} else if !c.forgets(now, r) {
			return false
		}
		if r.Supply != nil {
			c.opts.Parent.Closed(now, r.Resource)
		}
		delete(c.resources, r.ID)
		return true
	})
}

// unacknowledged says whether the account has to be sent again: capacity was granted and did
// not arrive, or the instance holds more than a cap that was sent.
func (a *account) unacknowledged() bool {
	return a.AckedGrant < a.sentGrant && (a.InTransit() != (lease.Capacity{}) || a.AboveCap())
}

// keeps says whether the instance has kept what was revoked for longer than the length of a lease. Its
// session is not renewed then, neither here nor by the Grants to it, so its leases run out at both ends. One
// that is honest does not come to it: a Grant that renews has the cap, and with none its leases end before.
// Requests in flight keep their permits for as long as they take, and a site waits for its instances.
func (c *Coordinator) keeps(now limit.Time, s *session) (keeps bool) {
	for _, a := range s.cuts {
		if a.obeys() {
			a.cutTo(now) // there may be a lower cap by now
		}
		keeps = keeps || now > a.cut.since.Add(c.opts.Lease) && !a.resource.Terms.Semaphore && !s.site
	}
	return keeps
}

// endExpired ends the sessions at their expiry, and takes back what they held.
func (c *Coordinator) endExpired(now limit.Time) {
	var gone []*session
	for _, s := range c.sessions {
		if now >= s.expires {
			gone = append(gone, s)
		}
	}
	// The order of a map differs from run to run.
	slices.SortFunc(gone, func(a, b *session) int {
		return cmp.Or(cmp.Compare(a.Instance, b.Instance), cmp.Compare(a.Session, b.Session))
	})
	c.stats.Expired += uint64(len(gone))
	c.drop(now, gone...)
}

// drop ends sessions and all their accounts. The accounts of one resource are removed together: one by
// one, a thousand sessions that expire together would search its list a thousand times.
func (c *Coordinator) drop(now limit.Time, gone ...*session) {
	c.stats.Ended += uint64(len(gone))
	var shrink []*resource
	for _, s := range gone {
		delete(c.sessions, s.Member)
		for _, handle := range slices.Sorted(maps.Keys(s.accounts)) {
			a := s.accounts[handle]
			a.Gone = true
			if r := a.resource; !r.shrinks {
				r.shrinks = true
				shrink = append(shrink, r)
			}
		}
	}
	for _, r := range shrink {
		r.shrinks = false
		r.Pool.Refill(now)
		c.remove(r, func(a *ledger.Account) bool { return a.Gone })
		c.scheduleRound(r, now)
	}
}
