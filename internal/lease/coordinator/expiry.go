package coordinator

import (
	"cmp"
	"maps"
	"slices"

	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/limit"
)

// sweep ends expired sessions, ends recovery when it is over, sends again what was not
// acknowledged, and forgets unused resources. The share of a crashed instance is freed here, by
// the expiry of its session.
func (c *Coordinator) sweep(now limit.Time) {
	c.endExpired(now)
	for _, r := range c.list {
		if r.recovering && now >= c.recoverUntil {
			r.thaw(now)
			c.scheduleRound(r, now)
		}
		again := false
		for _, a := range r.accounts {
			if a.unacknowledged() && now-a.sentAt > limit.Time(c.sweepInterval()) {
				a.pending, again = true, true
			}
		}
		if again {
			c.collect(r, now)
		}
	}
	c.list = slices.DeleteFunc(c.list, func(r *resource) bool {
		if r.dirty || !r.idle(now) {
			return false
		}
		delete(c.resources, r.id)
		return true
	})
}

// unacknowledged says whether the account has to be sent again: capacity was granted and did
// not arrive, or the instance holds more than a cap that was sent.
func (a *account) unacknowledged() bool {
	if a.ackedGrant >= a.sentGrant {
		return false
	}
	h := a.held()
	return a.unacked != (lease.Capacity{}) || h.Rate > a.capRate || h.Burst > a.capBurst
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
	for _, s := range gone {
		c.stats.Expired++
		c.drop(s, now)
	}
}

// drop ends a session and all its accounts.
func (c *Coordinator) drop(s *session, now limit.Time) {
	delete(c.sessions, s.Member)
	for _, handle := range slices.Sorted(maps.Keys(s.accounts)) {
		a := s.accounts[handle]
		r := a.resource
		r.pool.refill(now)
		a.end()
		r.rotation.leave(a)
		r.accounts = slices.DeleteFunc(r.accounts, func(o *account) bool { return o == a })
		c.scheduleRound(r, now)
	}
	s.accounts, s.of = nil, nil
}

// idle says whether the resource may be forgotten: it has no accounts, and its pool is as full as
// that of a new one, or its limit is gone.
func (r *resource) idle(now limit.Time) bool {
	r.pool.refill(now)
	return len(r.accounts) == 0 && !r.recovering && (r.pool.level >= r.terms.Burst || r.terms.Semaphore || r.terms.PerInstance() || r.status != lease.StatusOK)
}
