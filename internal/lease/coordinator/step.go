package coordinator

import (
	"cmp"
	"slices"
	"time"

	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/limit"
)

// This file is the way of one report, top to bottom: it is received, and soon after a round of
// its limit divides, lends and revokes, and what has changed is sent. What depends on the kind
// of limit is done by its divider; for a rate limit that is in rates.go.

// Step takes an event at now and returns the grants to send. They are valid until the
// next Step.
func (c *Coordinator) Step(now limit.Time, e lease.Event) []lease.Grant {
	c.out = c.out[:0]
	switch e := e.(type) {
	case *lease.Report:
		c.stats.Reports++
		c.report(now, e)
	case Reconfigure:
		c.reconfigure(now)
	case Takeover:
		c.takeOver(now)
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
	if m.Epoch > c.opts.Epoch && m.Epoch <= MaxEpoch {
		c.rise(now, m.Epoch)
	}
	s := c.sessions[m.Member]
	if s == nil {
		s = c.join(now, m)
	}
	if m.Number > s.latest {
		s.latest, s.stamp, s.heardAt = m.Number, m.Stamp, now
		s.transit(now, m.Stamp)
		s.expires = now.Add(c.opts.Lease + c.opts.Lease/lease.DriftMargin)
	}
	if m.Leaving {
		// It holds nothing any more, and spends nothing after this report.
		c.drop(s, now)
		return
	}
	s.sent = m.Stamp
	for i := range m.Demands {
		d := &m.Demands[i]
		a := s.accounts[d.Handle]
		switch {
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
	if len(m.Demands) == 0 && m.Number == s.latest {
		c.enqueue(s)
	}
}

// receive updates an account by a demand: first what has arrived of what was granted, then
// what was returned of that, then what the instance demands now.
func (c *Coordinator) receive(now limit.Time, a *account, d *lease.Demand, acked uint64) {
	r := a.resource
	r.pool.refill(now)
	arrived := a.acknowledge(acked)
	a.status = r.status
	if r.broken {
		a.status = lease.StatusBroken
	}
	switch {
	case d.Lease == 0 && a.lease != 0 && a.ackedGrant >= a.born:
		// The instance knew of the lease and has none: the lease has expired there.
		a.end()
	case d.Lease != 0 && d.Lease != a.lease:
		c.claim(now, a, d)
	case d.Lease != 0 && !a.settle(d.Returned, arrived):
		a.status = lease.StatusBadDemand
	}
	a.weight, a.band = max(1, d.Weight), d.Band
	a.silent = d.Silent || r.terms.Suppress != nil && a.session.version < lease.SuppressVersion
	demand, shortfall, ok := fixed.Amount(0), fixed.Amount(0), a.status == lease.StatusOK
	if ok {
		demand, shortfall, ok = r.divider.demanded(a, d, now)
	}
	if a.status == lease.StatusOK && !ok || !inRange(d) {
		a.status = lease.StatusBadDemand
	}
	if ok = a.status == lease.StatusOK; !ok {
		demand, shortfall = 0, 0
	}
	a.demand, a.shortfall = demand, min(shortfall, r.terms.Burst)
	if ok {
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
	a.closed = d.Closed
	a.pending = true
	c.scheduleRound(r, now)
}

// scheduleRound plans a round of r.
func (c *Coordinator) scheduleRound(r *resource, now limit.Time) {
	due := now.Add(r.delay())
	if !r.dirty || due < r.due {
		r.due = due
	}
	r.dirty = true
	if !r.queued {
		r.queued = true
		c.dirty = append(c.dirty, r)
	}
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
		if !r.broken {
			if r.round(now); r.broken {
				c.stats.Broken++
			}
		}
		c.collect(r, now)
		if r.dirty && !r.broken {
			r.queued = true
			left = append(left, r)
		}
	}
	clear(c.dirty[len(left):])
	c.dirty = left
}

// round divides the limit anew and moves what can be moved at once: it lends what is free to
// accounts below their target, and revokes from accounts above theirs if others are short of
// it. A panic stays within the resource: it lends nothing more until its terms change,
// and its instances are sent StatusBroken.
func (r *resource) round(now limit.Time) {
	defer func() {
		if recover() != nil {
			r.broken, r.dirty = true, false
			for _, a := range r.accounts {
				a.pending, a.status = true, lease.StatusBroken
			}
		}
	}()
	r.pool.refill(now)
	r.divider.targets(r, now)
	r.due = r.divider.lend(r, now)
	r.dirty = r.due != lease.Never
	r.revoke()
}

// revoke sends a cap to accounts that hold more than their target, if others are short of it
// or the limit became smaller. Where nobody is short, an uneven distribution is left alone.
// As few accounts as possible get a cap on their rate: first those that hold the most above
// their target, in relation to it.
func (r *resource) revoke() {
	var short lease.Capacity
	for _, a := range r.accounts {
		short = short.SaturatingAdd(r.shortOf(a))
	}
	if r.tokenByToken {
		short.Rate = r.terms.Rate // tokens come to the pool only where the rate is
	}
	short, whole := r.divider.short(r, short)
	short.Burst = max(short.Burst, -r.pool.burst)
	if need := short.Rate - r.pool.rate; need > 0 {
		above := r.order[:0]
		for _, a := range r.accounts {
			if a.held().Rate > a.target.Rate {
				above = append(above, a)
			}
		}
		r.order = above
		slices.SortStableFunc(above, func(a, b *account) int { return cmp.Compare(b.reached(), a.reached()) })
		for i := 0; i < len(above) && need > 0; i++ {
			above[i].gives = true
			need -= above[i].held().Rate - above[i].target.Rate
		}
	}
	for _, a := range r.accounts {
		h := a.held()
		capRate, capBurst := fixed.MaxAmount, fixed.MaxAmount
		if over := h.Rate - a.target.Rate; over > 0 && (a.gives || short.Rate > 0 && over > a.target.Rate/lease.Hysteresis) {
			capRate = a.target.Rate
		}
		a.gives = false
		// Tokens that were lent without a rate are returned when they are used, or soon if
		// they are not.
		tokens := h.Rate == 0 && a.target.Rate == 0 && r.pool.burst >= 0 && !whole
		if h.Burst > a.target.Burst && short.Burst > 0 && !tokens {
			capBurst = a.target.Burst
		}
		if r.pool.rate >= 0 && a.capRate < h.Rate && (capRate == fixed.MaxAmount && a.target.Rate < h.Rate || capRate != fixed.MaxAmount && fixed.Near(capRate, a.capRate, lease.Hysteresis)) {
			capRate = a.capRate // the cap was sent already, and the answer to it is under way
		}
		if capRate == a.capRate && capBurst == a.capBurst {
			continue
		}
		a.capRate, a.capBurst = capRate, capBurst
		if capRate != fixed.MaxAmount || capBurst != fixed.MaxAmount {
			a.pending = true
			a.session.cut(a)
		}
	}
}

// collect puts the accounts of r that have to be sent into the grants of their sessions, and
// ends those that are closed.
func (c *Coordinator) collect(r *resource, now limit.Time) {
	kept := r.accounts[:0]
	for _, a := range r.accounts {
		if a.pending {
			c.addShare(a, now)
		}
		if a.closed {
			a.end()
			delete(a.session.accounts, a.handle)
			delete(a.session.of, r)
			r.rotation.leave(a)
			continue
		}
		kept = append(kept, a)
	}
	clear(r.accounts[len(kept):])
	r.accounts = kept
}

// addShare adds the state of an account to the next grant of its session.
func (c *Coordinator) addShare(a *account, now limit.Time) {
	s, r := a.session, a.resource
	if a.lease == 0 && a.held() != (lease.Capacity{}) {
		c.serial++
		a.lease, a.born = c.serial, s.number+1
	}
	a.pending = false
	a.sentGrant, a.sentAt = s.number+1, now
	if a.unsent != (lease.Capacity{}) {
		a.unackedGrants = append(a.unackedGrants, unackedGrant{a.sentGrant, a.unsent})
		a.unsent = lease.Capacity{}
	}
	share := lease.Share{
		Handle: a.handle, Status: a.status, AckedReport: a.lastReport, Lease: a.lease, Granted: a.granted,
		CapRate: a.capRate, CapBurst: a.capBurst, Safe: r.safe(),
		Contended: r.contended, Saturated: r.saturatedFor(a), Recovering: r.recovering, Limit: r.terms,
		Suppress: r.divider.suppression(a),
	}
	if a.lease != 0 && c.opts.Seal != nil {
		share.Token = c.opts.Seal.sign(c.opts.Epoch, s.Member, r.id, a.lease, a.granted, a.held())
	}
	c.queueShare(s, share)
}

// queueShare adds a share to the next grant of a session.
func (c *Coordinator) queueShare(s *session, share lease.Share) {
	s.shares = append(s.shares, share)
	if share.Status != lease.StatusOK {
		c.stats.Refused++
	}
	c.enqueue(s)
}

// enqueue has the next flush make a grant for the session.
func (c *Coordinator) enqueue(s *session) {
	if !s.queued {
		s.queued = true
		c.queue = append(c.queue, s)
	}
}

// flush makes a grant for each session that is queued. It repeats the caps that the
// instance has not come down to yet.
func (c *Coordinator) flush(now limit.Time) {
	for _, s := range c.queue {
		s.uncut()
		for _, a := range s.cuts {
			if a.sentGrant <= s.number {
				c.addShare(a, now)
			}
		}
		s.queued = false
		s.number++
		c.out = append(c.out, lease.Grant{
			To: s.Member, Epoch: c.opts.Epoch, Number: s.number,
			Echo: s.stamp, Age: time.Duration(now - s.heardAt), Lease: c.opts.Lease, Refresh: c.opts.Refresh,
			Shares: s.shares,
		})
		s.shares = nil
	}
	c.queue = c.queue[:0]
}
