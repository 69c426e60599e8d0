package coordinator

import (
	"cmp"
	"slices"
	"time"

	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/internal/lease/holding"
	"github.com/stint-io/stint/limit"
)

// rise goes above an epoch that a report had, of a coordinator that this one does not know of: the epoch is
// higher than its own, or between those of its predecessor and its own. What that one has lent is not known: the
// record of it was lost or is an old copy, or the clock that made the epoch was set back. So this
// coordinator begins anew, as its own successor. Every instance is sent the new epoch at once and claims what it was
// lent, and nothing else is lent until the leases of the other coordinator must have expired.
func (c *Coordinator) rise(now limit.Time, received uint64) {
	former := c.opts.Epoch
	if received < former && !c.lent() {
		former = received // its leases can be claimed
	}
	c.restart(now, c.above(max(received, c.opts.Epoch)), former, holding.Holders{Unknown: true})
}

// Knows reports whether an epoch is one of this coordinator or of those that it follows.
func (c *Coordinator) Knows(epoch uint64) bool {
	return epoch <= max(c.opts.Former, c.idle) || c.first <= epoch && epoch <= c.opts.Epoch
}

// lent reports whether an instance holds anything of this coordinator.
func (c *Coordinator) lent() bool {
	return slices.ContainsFunc(c.list, func(r *resource) bool { return r.Lent() != lease.Capacity{} })
}

// above returns an epoch above one that was received.
func (c *Coordinator) above(received uint64) uint64 {
	if c.opts.Above == nil {
		return received + 1
	}
	return max(received+1, c.opts.Above(received))
}

// restart begins anew with an epoch, and sends every instance the new epoch at once.
func (c *Coordinator) restart(now limit.Time, epoch, former uint64, holders holding.Holders) {
	all := make([]*session, 0, len(c.sessions))
	for _, s := range c.sessions {
		all = append(all, s)
	}
	slices.SortFunc(all, func(a, b *session) int {
		return cmp.Or(cmp.Compare(a.Instance, b.Instance), cmp.Compare(a.Session, b.Session))
	})
	c.begin(now, epoch, former, c.opts.Lease+c.opts.Lease/(lease.DriftMargin/2), holders)
	// What the pools had is not known. A pool that nobody had was full, and one that was
	// used up has filled since: to count all as used up admits too little for the time
	// that a pool takes to fill, and never too much.
	c.emptySince = now
	for _, s := range all {
		c.out = append(c.out, lease.Grant{
			To: s.Member, Epoch: c.opts.Epoch, Number: s.number + 1,
			Echo: s.stamp, Age: time.Duration(now - s.receivedAt), Lease: c.length(s), Refresh: c.opts.Refresh,
		})
	}
}

// Takeover says that another coordinator may have lent until now: the coordinator begins
// anew, above its own epoch, and recovers for the length of a lease.
type Takeover struct {
	// Epoch is that of the new term; 0 = one above the present epoch. Where it is not above Former the coordinator
	// takes one that is.
	Epoch uint64
	// Former is the epoch of the predecessor, whose leases can be claimed. It counts with Epoch.
	Former uint64
	// Idle is the epoch of the latest coordinator after Former, which lent nothing; 0 = there was none.
	Idle uint64
	// Holders are who may hold leases of the predecessor. It counts with Epoch. When all of
	// them have reported completely, recovery is over before its time.
	Holders holding.Holders
	// Used is what is known of the buckets, by the predecessor's last record or by a replica; nil =
	// nothing, and they count as used up. It counts with Epoch, and belongs to the coordinator from
	// here on.
	Used *Used
	// Seal replaces that of the options; nil = it stays.
	Seal *Seal
}

// Reseal says that leases are signed and read by another Seal from here on.
type Reseal struct{ Seal *Seal }

func (Reseal) Event() {}

func (Takeover) Event() {}

// takeOver begins anew where another coordinator may have lent.
func (c *Coordinator) takeOver(now limit.Time, e Takeover) {
	if e.Seal != nil {
		c.opts.Seal = e.Seal
	}
	if e.Epoch != 0 {
		if e.Epoch < c.opts.Epoch || e.Epoch == c.opts.Epoch && c.stats.Grants > 0 {
			e.Epoch = c.opts.Epoch + 1 // instances ignore what is not above the epoch that they were sent
		}
		if e.Epoch <= e.Former {
			e.Epoch = c.above(e.Former) // the predecessor had risen to an epoch that this member's clock has not reached
		}
		c.restart(now, e.Epoch, e.Former, e.Holders)
		c.first, c.idle = e.Epoch, e.Idle
		switch {
		case e.Former == 0:
			c.emptySince, c.full = 0, true // there was no coordinator before
		case e.Used != nil:
			if c.used, c.emptySince = *e.Used, 0; c.used.others >= 0 {
				c.emptySince = now - limit.Time(c.used.others)
				if c.emptySince == 0 {
					c.emptySince = 1 // 0 says that they are full
				}
			}
		}
		return
	}
	// What this one has lent can be claimed, or if it has lent nothing, what the former one of
	// its own line has.
	former := c.opts.Epoch
	if len(c.sessions) == 0 {
		former = c.opts.Former
	}
	c.restart(now, c.above(c.opts.Epoch), former, holding.Holders{Unknown: true})
}

// Recovering says whether leases of a former coordinator may be in use at now.
func (c *Coordinator) Recovering(now limit.Time) bool {
	return now < c.recoverUntil && (c.expected.Unknown || c.expected.Sessions() > 0)
}

// Claiming reports whether instances that a record names may still claim leases of a former coordinator, or have claimed
// some and were not yet sent the leases that take their place.
func (c *Coordinator) Claiming(now limit.Time) bool {
	if c.Recovering(now) && !c.expected.Unknown {
		return true
	}
	for _, s := range c.sessions {
		for _, a := range s.accounts {
			if a.Lease == 0 && a.Held() != (lease.Capacity{}) {
				return true
			}
		}
	}
	return false
}

// recovering says whether leases of a limit may be in use that a former coordinator granted
// and that are not claimed yet.
func (c *Coordinator) recovering(now limit.Time, limit string) bool {
	return now < c.recoverUntil && c.expected.May(limit)
}

// settled is when recovery ended, at the latest, for limits for which it has. What instances held of a former
// coordinator they may have spent until then.
func (c *Coordinator) settled(now limit.Time) limit.Time {
	if now >= c.recoverUntil && (c.expected.Unknown || c.expected.Sessions() > 0) {
		return c.recoverUntil
	}
	return c.settledAt
}

// RecoveredAt is when the latest recovery ends at the latest, or has ended.
func (c *Coordinator) RecoveredAt() limit.Time { return c.recoverUntil }

// reported takes note of a report that has every lease of its session, all of which were
// claimed: recovery does not wait for it any more. A claim that was refused is waited for, since
// the instance may spend that lease until it expires.
func (c *Coordinator) reported(now limit.Time, s *session, m *lease.Report) {
	if !c.expected.Named(s.Session) {
		return
	}
	for i := range m.Demands {
		d := &m.Demands[i]
		if d.Lease == 0 {
			continue
		}
		if a := s.accounts[d.Handle]; a == nil || a.Lease != d.Lease && !a.resource.Claimed(d.Lease) {
			return
		}
	}
	c.expected.Remove(s.Session)
	c.settledAt = now
	for _, r := range c.list {
		if r.Recovering && !c.recovering(now, r.ID.Limit) {
			r.Thaw(now)
			c.scheduleRound(r, now)
		}
	}
}

// claim receives a demand under a lease that this coordinator did not grant, or has taken back.
func (c *Coordinator) claim(now limit.Time, a *account, d *lease.Demand) {
	switch {
	case a.Lease == 0 && a.Held() != (lease.Capacity{}), a.Lease != 0 && a.AckedGrant < a.Born:
		return // the claim was accepted, and the Grant that says so is unacknowledged
	case len(d.Claim) == 0 || c.opts.Seal == nil:
		a.Status = lease.StatusLeaseGone
		return
	case !c.expected.Covers(a.session.Session, a.resource.ID.Limit):
		a.Status = lease.StatusBadClaim // the former coordinator says that it held nothing in the end
		return
	case !a.resource.Recovering || a.Lease != 0:
		a.Status = lease.StatusBadClaim
		return
	}
	granted, held, ok := c.opts.Seal.open(d.Claim, c.opts.Former, a.session.Member, a.resource.ID, d.Lease)
	left := granted.Sub(d.Returned)
	// What was returned can only have grown since the token was made.
	if !ok || left.Rate < 0 || left.Burst < 0 || left.Rate > held.Rate || left.Burst > held.Burst ||
		!a.resource.Claim(&a.Account, d.Lease, left, now) {
		a.Status = lease.StatusBadClaim
	}
}
