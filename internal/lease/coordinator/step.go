package coordinator

import (
	"slices"
	"time"

	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/internal/lease/ledger"
	"github.com/stint-io/stint/limit"
)

// This file is the way of one report, top to bottom: it is received, and soon after a round of
// its limit divides, lends and revokes, and what has changed is sent. What depends on the kind
// of limit is done below, in package ledger.

// Step takes an event at now and returns the grants to send. They are valid until the
// next Step.
func (c *Coordinator) Step(now limit.Time, e lease.Event) []lease.Grant {
	c.out, c.levels = c.out[:0], c.levels[:0]
	switch e := e.(type) {
	case *lease.Report:
		c.stats.Reports++
		c.report(now, e)
	case *Asked:
		c.answer(now, e)
	case Reconfigure:
		c.reconfigure(now)
	case Supplied:
		c.supplied(now, e.Resources)
	case Takeover:
		c.takeOver(now, e)
	case Reseal:
		c.opts.Seal = e.Seal
	case Drain:
		c.draining = e.On
		for _, r := range c.list {
			c.scheduleRound(r, now)
		}
	}
	if now >= c.sweepAt {
		c.sweep(now)
		if c.sweepAt = now.Add(c.sweepInterval()); now < c.recoverUntil {
			c.sweepAt = min(c.sweepAt, c.recoverUntil) // what recovery withholds is lent as soon as it ends
		}
	}
	c.runRounds(now)
	c.flush(now)
	c.stats.Grants += uint64(len(c.out))
	return c.out
}

// report receives a report: it renews the leases of the session, and each demand in it
// updates an account.
func (c *Coordinator) report(now limit.Time, m *lease.Report) {
	if !c.Knows(m.Epoch) && m.Epoch <= MaxEpoch {
		c.rise(now, m.Epoch)
	}
	s := c.sessions[m.Member]
	if s == nil {
		s = c.join(now, m)
	}
	latest := m.Number > s.latest
	if latest {
		s.latest = m.Number
		s.transit(now, m.Stamp)
	}
	s.sent = m.Stamp
	for i := range m.Demands {
		d := &m.Demands[i]
		a := s.accounts[d.Handle]
		switch {
		case a == nil && m.Leaving:
			continue
		case a == nil:
			if a = c.open(now, s, m.Number, d); a == nil {
				continue
			}
		case m.Number <= a.lastReport:
			continue // an older report, which is late or came twice
		}
		acked := d.AckedGrant
		if m.Epoch != c.opts.Epoch {
			acked = 0 // the number of another coordinator's Grant
		}
		a.lastReport = m.Number
		c.receive(now, a, d, acked)
	}
	if latest && !c.keeps(now, s) {
		s.stamp, s.receivedAt = m.Stamp, now
		s.expires = now.Add(c.opts.Lease + c.opts.Lease/lease.DriftMargin)
	}
	if m.Leaving {
		// It holds nothing any more, and spends nothing after this report.
		c.reported(now, s, m)
		c.drop(now, s)
		return
	}
	if m.Complete {
		c.reported(now, s, m)
	}
	if len(m.Demands) == 0 && m.Number == s.latest {
		c.enqueue(s)
	}
}

// receive updates an account by a demand: first what has arrived of what was granted, then
// what was returned of that, then what the instance demands now.
func (c *Coordinator) receive(now limit.Time, a *account, d *lease.Demand, acked uint64) {
	r := a.resource
	r.Pool.Refill(now)
	arrived := a.Acknowledge(acked)
	a.Status = r.Status
	if r.Broken {
		a.Status = lease.StatusBroken
	}
	switch {
	case d.Lease == 0 && a.Lease != 0 && a.AckedGrant >= a.Born:
		// The instance knew of the lease and has none: the lease has expired there.
		a.End()
	case d.Lease != 0 && d.Lease != a.Lease:
		c.claim(now, a, d)
	case d.Lease != 0 && !a.Settle(d.Returned, arrived):
		a.Status = lease.StatusBadDemand
	}
	r.Receive(&a.Account, d, ledger.Arrival{
		Now: now, Sent: a.session.sent, Late: a.session.late, Suppresses: a.session.version >= lease.SuppressVersion,
	})
	c.scheduleRound(r, now)
}

// runRounds runs the rounds that are due, and sends what each has changed.
func (c *Coordinator) runRounds(now limit.Time) {
	left := c.dirty[:0]
	for _, r := range c.dirty {
		if r.due > now {
			left = append(left, r)
			continue
		}
		c.stats.Rounds++
		r.queued = false
		if r.due = lease.Never; !r.Broken && !c.draining {
			if r.due = max(r.Round(now), now.Add(r.delay())); r.Broken {
				c.stats.Broken++
			}
		}
		c.collect(r, now)
		if r.Supply != nil {
			c.opts.Parent.Divided(r.Resource)
		}
		if r.dirty = r.due != lease.Never; r.dirty {
			r.queued = true
			left = append(left, r)
		}
	}
	clear(c.dirty[len(left):])
	c.dirty = left
}

// collect puts the accounts of r that have to be sent into the grants of their sessions, and
// ends those that are closed.
func (c *Coordinator) collect(r *resource, now limit.Time) {
	closed := false
	for _, a := range r.accounts {
		switch {
		case a.cutting:
			a.cut.most = lease.Capacity{Rate: max(a.cut.most.Rate, a.CapRate), Burst: max(a.cut.most.Burst, a.CapBurst)}
		case a.AboveCap():
			// Until a report shows that it has come down, every Grant to its session repeats the
			// cap: a Grant renews all leases, and a lease that is renewed by a Grant without the
			// cap would be used above it.
			a.cutting = true
			a.cutTo(now)
			a.session.cuts = append(a.session.cuts, a)
		}
		if a.Pending && !c.awaitsParent(a, now) {
			c.addShare(a, now)
		}
		closed = closed || a.Closed
	}
	if closed {
		c.remove(r, func(a *ledger.Account) bool { return a.Closed })
	}
	c.tell(r, now)
}

// addShare adds the state of an account to the next grant of its session.
func (c *Coordinator) addShare(a *account, now limit.Time) {
	s, r := a.session, a.resource
	if a.Lease == 0 && a.Held() != (lease.Capacity{}) {
		c.serial++
		a.Lease, a.Born = c.serial, s.number+1
	}
	a.sentGrant, a.sentAt = s.number+1, now
	a.Sent(a.sentGrant)
	share := lease.Share{
		Handle: a.handle, Status: a.Status, Shard: r.Terms.Shard, AckedReport: a.lastReport, Lease: a.Lease, Granted: a.Granted,
		CapRate: a.CapRate, CapBurst: a.CapBurst, Safe: r.Safe(),
		Contended: r.Contended, Saturated: r.SaturatedFor(&a.Account), Recovering: r.Unknown(), Limit: r.Whole(),
		Suppress: r.Suppression(&a.Account),
	}
	if a.Lease != 0 && c.opts.Seal != nil {
		share.Token = c.opts.Seal.sign(c.opts.Epoch, s.Member, r.ID, a.Lease, a.Granted, a.Held())
	}
	c.enqueue(s, share)
}

// enqueue has the next flush make a grant for the session, with the shares.
func (c *Coordinator) enqueue(s *session, shares ...lease.Share) {
	for i := range shares {
		if shares[i].Status != lease.StatusOK {
			c.stats.Refused++
		}
	}
	s.shares = append(s.shares, shares...)
	if !s.queued {
		s.queued = true
		c.queue = append(c.queue, s)
	}
}

// flush makes a grant for each session that is queued. It repeats the caps that the
// instance has not come down to yet.
func (c *Coordinator) flush(now limit.Time) {
	for _, s := range c.queue {
		s.cuts = slices.DeleteFunc(s.cuts, func(a *account) bool {
			if a.cutting = !a.Closed && a.Lease != 0 && a.AboveCap(); a.cutting && a.sentGrant <= s.number {
				c.addShare(a, now)
			}
			return !a.cutting
		})
		s.queued = false
		s.number++
		c.out = append(c.out, lease.Grant{
			To: s.Member, Epoch: c.opts.Epoch, Number: s.number,
			Echo: s.stamp, Age: time.Duration(now - s.receivedAt), Lease: c.length(s), Refresh: c.opts.Refresh,
			Path: c.path(s), Shares: s.shares,
		})
		s.shares = nil
	}
	c.queue = c.queue[:0]
}
