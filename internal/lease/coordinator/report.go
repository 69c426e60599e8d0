package coordinator

import (
	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/limit"
)

// report takes what an instance tells.
func (c *Coordinator) report(now limit.Time, m *lease.Report) {
	if m.Epoch > c.opts.Epoch && m.Epoch <= MaxEpoch {
		c.rise(now, m.Epoch)
	}
	s := c.session(now, m)
	if m.Number > s.latest {
		s.latest = m.Number
		s.stamp, s.heardAt = m.Stamp, now
		s.expires = now.Add(c.opts.Lease + c.opts.Lease/lease.DriftMargin)
		s.transit(now, m.Stamp)
	}
	if m.Leaving {
		// It holds nothing any more, and spends nothing from its Leaving on.
		c.drop(s, now)
		return
	}
	s.sent = m.Stamp
	for i := range m.Demands {
		d := &m.Demands[i]
		heard := d.AckedGrant
		if m.Epoch != c.opts.Epoch {
			heard = 0 // that was another coordinator's count
		}
		c.demand(now, s, m.Number, d, heard)
	}
	if len(m.Demands) == 0 && m.Number == s.latest && !s.queued {
		s.queued = true
		c.queue = append(c.queue, s)
	}
}

func (c *Coordinator) session(now limit.Time, m *lease.Report) *session {
	s := c.sessions[m.Member]
	if s == nil {
		s = &session{
			Member: m.Member, version: m.Version, accounts: map[uint32]*account{}, of: map[*resource]*account{},
			// An instance that outlived its session must not take grants of
			// the next one for old.
			number:  uint64(now),
			expires: now.Add(c.opts.Lease + c.opts.Lease/lease.DriftMargin),
		}
		c.sessions[m.Member] = s
	}
	return s
}

// demand takes what an instance tells about one resource.
func (c *Coordinator) demand(now limit.Time, s *session, number uint64, d *lease.Demand, heard uint64) {
	a := s.accounts[d.Handle]
	if a == nil {
		if a = c.open(now, s, number, d); a == nil {
			return
		}
	} else if number <= a.lastReport {
		return // an older one, late or doubled
	}
	r := a.resource
	r.pool.refill(now)
	a.lastReport = number
	landed := a.acknowledge(heard)
	a.status = r.status
	if r.broken {
		a.status = lease.StatusBroken
	}
	switch {
	case d.Lease == 0 && a.lease != 0 && a.ackedGrant >= a.born:
		// It knew of the lease and has none: it let it run out.
		a.end()
	case d.Lease != 0 && d.Lease != a.lease:
		c.claim(now, a, d)
	case d.Lease != 0 && !a.settle(d.Returned, landed):
		a.status = lease.StatusBadDemand
	}
	if a.status == lease.StatusOK && !a.takeAttempts(now, d) {
		a.status = lease.StatusBadDemand
	}
	a.takeDemand(now, d)
	a.closed = d.Closed
	a.pending = true
	c.scheduleRound(r, now)
}

// takeDemand takes note of what the instance wants.
func (a *account) takeDemand(now limit.Time, d *lease.Demand) {
	a.weight, a.band = max(1, d.Weight), d.Band
	a.silent = d.Silent || a.resource.suppressed != nil && a.session.version < lease.SuppressVersion
	if d.Rate < 0 || d.Shortfall < 0 || d.Rate > fixed.MaxAmount || d.Shortfall > fixed.MaxAmount {
		a.status = lease.StatusBadDemand
	}
	if a.status != lease.StatusOK {
		a.demand, a.shortfall = 0, 0
		return
	}
	a.demand, a.shortfall = d.Rate, d.Shortfall
	if a.resource.suppressed != nil {
		a.largest, a.shortfall = d.Shortfall, 0 // nobody else has what it lacks
	}
	if a.own != nil {
		a.shortfall = 0 // the same
	}
	if a.resource.terms.Semaphore {
		a.demand = d.Shortfall
		a.shortfall = max(0, d.Shortfall-a.held().Burst)
	}
	a.shortfall = min(a.shortfall, a.resource.terms.Burst)
	a.shortUntil = lease.Never
	if d.Within > 0 {
		a.shortUntil = now.Add(d.Within)
	}
	switch {
	case a.shortfall == 0:
		a.shortSince = 0
	case a.shortSince == 0:
		a.shortSince = now
	}
}

// open makes an account, and its resource if it is the first. It returns nil, and
// says why, when there is none to be had.
func (c *Coordinator) open(now limit.Time, s *session, number uint64, d *lease.Demand) *account {
	refuse := func(status lease.Status) *account {
		c.queueShare(s, lease.Share{Handle: d.Handle, Status: status, AckedReport: number, CapRate: fixed.MaxAmount, CapBurst: fixed.MaxAmount})
		return nil
	}
	if d.Resource.Limit == "" || d.Closed {
		// It was known by its handle alone, to one who has forgotten it; or it
		// is closed already.
		return refuse(lease.StatusLeaseGone)
	}
	r := c.resources[d.Resource]
	if r == nil {
		terms, status := c.resolve(d.Resource)
		switch {
		case status != lease.StatusOK:
			return refuse(status)
		case len(c.list) >= c.opts.MaxResources:
			return refuse(lease.StatusTooMany)
		}
		r = newResource(d.Resource, terms, now, now < c.recoverUntil)
		c.resources[d.Resource] = r
		c.list = append(c.list, r)
	}
	if s.of[r] != nil {
		return refuse(lease.StatusBadKey) // it has it under another handle
	}
	a := &account{session: s, resource: r, handle: d.Handle, since: now}
	a.caps, a.weight = noCaps, 1
	a.setOwn(lease.Terms{}, r.terms)
	s.accounts[d.Handle], s.of[r] = a, a
	r.accounts = append(r.accounts, a)
	return a
}
