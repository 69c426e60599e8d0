package coordinator

import (
	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/internal/lease/pool"
	"github.com/stint-io/stint/limit"
)

// open makes an account, and its resource if it is the first. It returns nil, and
// says why, when there is none to be had.
func (c *Coordinator) open(now limit.Time, s *session, number uint64, d *lease.Demand) *account {
	share := lease.Share{Handle: d.Handle, AckedReport: number, CapRate: fixed.MaxAmount, CapBurst: fixed.MaxAmount}
	refuse := func(status lease.Status) *account {
		share.Status = status
		c.enqueue(s, share)
		return nil
	}
	if d.Resource.Limit == "" || d.Closed {
		// The instance refers to an account by its handle alone, and the account is gone; or
		// the account is closed already.
		return refuse(lease.StatusLeaseGone)
	}
	if c.accounts >= c.opts.MaxAccounts {
		return refuse(lease.StatusTooMany)
	}
	r := c.resources[d.Resource]
	if r == nil {
		terms, status := c.resolve(d.Resource)
		switch {
		case status != lease.StatusOK:
			share.Shard = terms.Shard
			return refuse(status)
		case len(c.list) >= c.opts.MaxResources:
			return refuse(lease.StatusTooMany)
		}
		r = c.newResource(now, d.Resource, terms)
		c.resources[d.Resource] = r
		c.list = append(c.list, r)
	}
	if s.of[r] != nil {
		return refuse(lease.StatusBadKey) // the session has an account of it under another handle
	}
	a := &account{session: s, resource: r, handle: d.Handle, since: now}
	r.Open(&a.Account)
	if a.Own != nil {
		s.closed.Open(pool.IDOf(r.ID), a.Own)
	}
	r.Name(&a.Account, r.Terms.CapName(s.Instance), s.site)
	s.accounts[d.Handle], s.of[r] = a, a
	r.accounts = append(r.accounts, a)
	c.accounts++
	return a
}

// resolve asks for the terms of a resource. The answer comes from outside: one that
// panics, or is out of range, spoils this resource and no other.
func (c *Coordinator) resolve(id lease.ResourceID) (t lease.Terms, status lease.Status) {
	defer func() {
		if recover() != nil {
			c.stats.Broken++
			t, status = lease.Terms{}, lease.StatusBroken
		}
	}()
	t, status = c.opts.Resolve(id)
	if status == lease.StatusOK && (t.Rate < 0 || t.Burst < 0 || t.Safe < 0 || t.Rate > fixed.MaxAmount || t.Burst > fixed.MaxAmount ||
		t.Suppress != nil && (t.Semaphore || t.Suppress.Validate() != nil)) {
		return lease.Terms{}, lease.StatusBroken
	}
	return t, status
}

// reconfigure asks for the terms of every resource again.
func (c *Coordinator) reconfigure(now limit.Time) {
	for _, r := range c.list {
		terms, status := c.resolve(r.ID)
		for _, a := range r.accounts {
			a.Pending, a.Status = true, status
			if status != lease.StatusOK {
				a.Demand, a.Shortfall = 0, 0
			}
		}
		if status != lease.StatusOK {
			terms = lease.Terms{Semaphore: r.Terms.Semaphore, Shard: terms.Shard}
		}
		if r.moves = status == lease.StatusOK && c.sourceChanged(r, &terms); r.moves {
			// When instances have returned what they hold, the resource is made anew.
			terms, status = lease.Terms{Semaphore: r.Terms.Semaphore}, lease.StatusNotLeased
			for _, a := range r.accounts {
				a.Status, a.Demand, a.Shortfall = status, 0, 0
			}
		}
		r.Status, r.Broken, r.told.as = status, false, toldOther
		r.SetTerms(terms, now)
		for _, a := range r.accounts {
			r.Name(&a.Account, r.Terms.CapName(a.session.Instance), a.session.site)
		}
		c.tell(r, now)
		c.scheduleRound(r, now)
	}
}

// join makes a session for an instance whose first report came at now.
func (c *Coordinator) join(now limit.Time, m *lease.Report) *session {
	s := &session{
		Member: m.Member, version: m.Version, site: m.Site, accounts: map[uint32]*account{}, of: map[*resource]*account{},
		// Above the number of every Grant of an earlier session of the same instance, which
		// would otherwise take the first Grants of this one for old ones.
		number:  uint64(now),
		expires: now.Add(c.opts.Lease + c.opts.Lease/lease.DriftMargin),
	}
	c.sessions[m.Member] = s
	return s
}
