package coordinator

import (
	"cmp"
	"slices"
	"time"

	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/limit"
)

// rise goes above a higher epoch that a report had. The coordinator of that epoch has lent what
// this one does not know of: the file with the epoch was lost, or the clock that made the epoch
// was set back. So this one begins anew, as its own successor. Every instance is sent the new
// epoch at once and claims what it was lent, and nothing else is lent until the leases of
// the other coordinator must have expired.
func (c *Coordinator) rise(now limit.Time, heard uint64) { c.restart(now, heard, c.opts.Epoch) }

// restart begins anew above an epoch, and sends every instance the new epoch at once.
func (c *Coordinator) restart(now limit.Time, heard, former uint64) {
	all := make([]*session, 0, len(c.sessions))
	for _, s := range c.sessions {
		all = append(all, s)
	}
	slices.SortFunc(all, func(a, b *session) int {
		return cmp.Or(cmp.Compare(a.Instance, b.Instance), cmp.Compare(a.Session, b.Session))
	})
	above := heard + 1
	if c.opts.Above != nil {
		above = max(above, c.opts.Above(heard))
	}
	c.begin(now, above, former, c.opts.Lease+c.opts.Lease/(lease.DriftMargin/2))
	for _, s := range all {
		c.out = append(c.out, lease.Grant{
			To: s.Member, Epoch: c.opts.Epoch, Number: s.number + 1,
			Echo: s.stamp, Age: time.Duration(now - s.heardAt), Lease: c.opts.Lease, Refresh: c.opts.Refresh,
		})
	}
}

// takeOver begins anew where another coordinator may have lent. What this one has lent can
// be claimed, or if it has lent nothing, what the former one of its own line has.
func (c *Coordinator) takeOver(now limit.Time) {
	former := c.opts.Epoch
	if len(c.sessions) == 0 {
		former = c.opts.Former
	}
	c.restart(now, c.opts.Epoch, former)
}

// Recovering says whether leases of a former coordinator may be in use at now.
func (c *Coordinator) Recovering(now limit.Time) bool { return now < c.recoverUntil }

// RecoveredAt is when the latest recovery ends, or has ended.
func (c *Coordinator) RecoveredAt() limit.Time { return c.recoverUntil }

// Takeover says that another coordinator may have lent until now: the coordinator begins
// anew, above its own epoch, and recovers for the length of a lease.
type Takeover struct{}

func (Takeover) Event() {}

// freeze adds to what is frozen until recovery ends; negative amounts reduce it.
func (r *resource) freeze(rate, burst fixed.Amount) {
	r.frozen.Rate += rate
	r.frozen.Burst += burst
	r.pool.rate -= rate
	r.pool.burst -= burst
}

// thaw ends recovery: leases that no instance has claimed have expired.
func (r *resource) thaw(now limit.Time) {
	if !r.recovering {
		return
	}
	r.pool.refill(now)
	r.pool.takeBack(lease.Capacity{Rate: r.frozen.Rate, Burst: r.frozen.Burst})
	r.frozen, r.claimed, r.recovering = lease.Capacity{}, nil, false
	for _, a := range r.accounts {
		a.pending = true // instances in fallback report their demand when recovery ends
	}
}

// claim grants an account what a former coordinator had granted it, at most what is frozen.
func (r *resource) claim(a *account, number uint64, h lease.Capacity, now limit.Time) {
	if r.claimed == nil {
		r.claimed = map[uint64]struct{}{}
	}
	r.claimed[number] = struct{}{}
	r.pool.refill(now)
	h = lease.Capacity{Rate: min(h.Rate, r.frozen.Rate), Burst: min(h.Burst, r.frozen.Burst)}
	r.frozen = r.frozen.Sub(h)
	r.pool.takeBack(h)
	a.grant(h)
	if a.refundable = h.Burst; a.own != nil { // the instance's bucket may be full
		a.own.level = 0 // and all other tokens may have been spent
	}
}

// claim receives a demand under a lease that this coordinator did not grant, or has taken back.
func (c *Coordinator) claim(now limit.Time, a *account, d *lease.Demand) {
	switch {
	case a.lease == 0 && a.held() != (lease.Capacity{}), a.lease != 0 && a.ackedGrant < a.born:
		return // the claim was accepted, and the Grant that says so is unacknowledged
	case len(d.Claim) == 0 || c.opts.Seal == nil:
		a.status = lease.StatusLeaseGone
		return
	case !a.resource.recovering || a.lease != 0:
		a.status = lease.StatusBadClaim
		return
	}
	granted, held, ok := c.opts.Seal.open(d.Claim, c.opts.Former, a.session.Member, a.resource.id, d.Lease)
	left := granted.Sub(d.Returned)
	_, used := a.resource.claimed[d.Lease]
	// What was returned can only have grown since the token was made.
	if !ok || used || left.Rate < 0 || left.Burst < 0 || left.Rate > held.Rate || left.Burst > held.Burst {
		a.status = lease.StatusBadClaim
		return
	}
	a.resource.claim(a, d.Lease, left, now)
}
