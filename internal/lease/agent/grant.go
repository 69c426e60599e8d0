package agent

import (
	"time"

	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/limit"
)

// makeDemand is what to tell about the lease in the Report with that number.
func (l *resource) makeDemand(now limit.Time, number uint64, trip time.Duration) lease.Demand {
	if l.sent.number > l.acks.report {
		l.sent.tries++
	}
	d := lease.Demand{
		Handle: l.handle, Lease: l.lease.counted(), Silent: l.opts.Silent, Rate: l.load.demand, Need: l.load.shortfall,
		Weight: l.opts.Weight, Band: l.opts.Band, Closed: l.closed && l.lease.held().Burst <= 0, Returned: l.lease.returned, AckedGrant: l.acks.grant,
	}
	if l.answer.limit.Suppress != nil {
		d.Attempted, d.Admitted = l.load.attempted, l.load.admitted
		d.Need = l.load.largest
		l.sent.more, l.sent.attempted = l.load.attempted != l.sent.attempted, l.load.attempted
	}
	if !l.acks.named || d.Lease == 0 {
		d.Resource, d.Attributes = l.id, l.opts.Attributes
	}
	if l.lease.claiming && !l.lease.orphan {
		d.Claim = l.lease.token
	}
	if l.load.waitUntil != 0 && now >= l.refusals.expectedUntil {
		// Half of the round trip has passed when the coordinator has it, the
		// other half passes before the answer is here.
		d.Within = max(time.Duration(l.load.waitUntil-now)-trip, 1)
	}
	if l.closed || l.opts.Silent || l.content() {
		d.Rate, d.Need = 0, 0
	}
	l.sent.number, l.sent.at, l.sent.demand, l.sent.shortfall, l.acks.confirmed = number, now, l.load.demand, l.load.shortfall, l.acks.grant
	l.report.urgent, l.refusals.starved, l.sent.closed = false, false, d.Closed
	return d
}

// receive takes what the coordinator tells.
func (l *resource) receive(now limit.Time, t *timing, g *lease.Grant, s *lease.Share) {
	if g.Number <= l.acks.grant {
		return // an older one, late or doubled
	}
	l.acks.grant = g.Number
	if s.AckedReport >= l.sent.number {
		l.sent.tries = 0
		if l.acks.report < l.sent.number && l.lease.held().Rate > l.load.demand {
			l.sampling.next = min(l.sampling.next, now) // what is not needed can be given back now
		}
	}
	l.acks.report = max(l.acks.report, s.AckedReport)
	l.answer.status = s.Status
	switch s.Status {
	case lease.StatusOK, lease.StatusBadDemand, lease.StatusBroken:
	case lease.StatusLeaseGone, lease.StatusBadClaim:
		l.unknown(now, s.Status, t)
		return
	default:
		l.gone(now, t)
		return
	}
	l.answer.known, l.acks.named = true, true
	was := l.content()
	l.answer.saturated, l.answer.contended, l.answer.recovering, l.answer.limit, l.answer.safe = s.Saturated, s.Contended, s.Recovering, s.Limit, s.Safe
	if was && !l.answer.recovering {
		l.ask(now, lease.MinReportGap)
	}
	l.answer.capRate, l.answer.capBurst = s.CapRate, s.CapBurst
	if s.Token != nil {
		l.lease.token = s.Token
	}
	if l.closed {
		if l.lease.granted != s.Granted {
			l.acks.changed = l.acks.grant
		}
		l.lease.granted = s.Granted
		l.lease.number, l.lease.orphan = s.Lease, false
		l.shrinkTo(now, 0, 0)
		return
	}
	l.adopt(now, s)
	l.alone(now, t)
	l.suppress(now, s.Suppress)
}

// alone ends what is spent without a lease when it is known that no lease comes: not
// while the coordinator learns what is lent, and not before it has had the time to call
// something back, for which one who does not answer has a whole lease.
func (l *resource) alone(now limit.Time, t *timing) {
	switch {
	case !l.fallback.starting && !l.fallback.expired:
	case l.lease.number != 0:
		l.fallback.starting, l.fallback.expired, l.fallback.until = false, false, 0
	case l.answer.recovering:
		l.fallback.until = 0
	case l.fallback.starting:
		l.endAlone(now) // it was for before the first answer
	case l.fallback.until == 0:
		l.fallback.until = now.Add(t.lease)
	case now >= l.fallback.until:
		l.endAlone(now)
	}
}

// content says whether the instance asks for nothing because it spends what its mode says,
// and the coordinator learns: the little that is surely free is for those who have nothing.
func (l *resource) content() bool {
	return l.answer.recovering && l.lease.number == 0 && l.answer.limit.Suppress == nil && (l.fallback.starting || l.fallback.expired && l.opts.Expiry != Pessimistic)
}

// endAlone spends nothing without a lease any more.
func (l *resource) endAlone(now limit.Time) {
	l.fallback.starting, l.fallback.expired, l.fallback.until = false, false, 0
	l.bucket.Update(now, 0, 0, 0)
}

// unknown takes note that the coordinator does not know the lease, and asks for another.
// One that a former coordinator gave is spent until it runs out all the same: this one
// lends nothing of it before that.
func (l *resource) unknown(now limit.Time, status lease.Status, t *timing) {
	l.acks.named = false
	switch {
	case l.closed:
		l.gone(now, t)
	case l.lease.orphan, l.lease.number == 0 && (l.fallback.starting || l.fallback.expired):
		l.ask(now, lease.MinReportGap)
	case l.lease.number != 0 && l.lease.claiming && l.lease.token != nil && status == lease.StatusLeaseGone:
		l.ask(now, lease.MinReportGap)
	case l.lease.number != 0 && l.lease.epoch != l.lease.current:
		l.lease.orphan, l.lease.token = true, nil
		l.ask(now, lease.MinReportGap)
	default:
		l.gone(now, t)
	}
}

// gone drops a lease of which the coordinator lends nothing, and asks again.
func (l *resource) gone(now limit.Time, t *timing) {
	l.drop(now, false)
	l.fallback.starting, l.fallback.expired, l.fallback.until = false, false, 0
	l.acks.named = false
	if l.closed {
		return
	}
	if l.answer.status == lease.StatusLeaseGone || l.answer.status == lease.StatusBadClaim {
		l.ask(now, lease.MinReportGap)
		return
	}
	// The limit may come with the next configuration.
	l.report.urgent, l.report.notBefore, l.load.shortfall = true, now.Add(max(t.refresh, lease.DefaultRefresh)), 0
	l.answer.known = true
}

// adopt puts in force what was granted since, and comes down to what may be kept.
func (l *resource) adopt(now limit.Time, s *lease.Share) {
	more := lease.Capacity{}
	switch {
	case s.Lease == 0 || s.Lease <= l.lease.dropped && s.Lease != l.lease.number:
		l.lease.claiming = l.lease.claiming && l.lease.number != 0
		l.unanswered()
		return
	case s.Lease != l.lease.number:
		if l.lease.orphan {
			// The tokens that are left of it were not lent by this coordinator.
			l.lease.orphan = false
			l.bucket.Update(now, 0, 0, 0)
		}
		// A claim that was taken keeps the tokens that are in the bucket.
		more = s.Granted
		l.lease.number, l.lease.epoch, l.lease.granted, l.lease.returned = s.Lease, l.lease.current, s.Granted, lease.Capacity{}
		l.lease.dropped = max(l.lease.dropped, s.Lease-1)
	default:
		more = s.Granted.Sub(l.lease.granted)
		if more.Rate < 0 || more.Burst < 0 || more.Tokens < 0 {
			return
		}
		l.lease.granted = s.Granted
	}
	l.lease.claiming = false
	if more != (lease.Capacity{}) {
		l.acks.changed = l.acks.grant
	}
	before := l.lease.returned
	held := l.lease.held()
	l.update(now, min(held.Rate, l.answer.capRate), min(held.Burst, l.answer.capBurst), more.Tokens)
	switch {
	case l.lease.returned != before:
		l.report.urgent, l.report.notBefore = true, now // others wait for it
	case more != (lease.Capacity{}):
		l.report.gap, l.sent.shortfall = lease.MinReportGap, 0
		if !l.report.urgent {
			l.report.urgent, l.report.notBefore = true, now.Add(confirmWithin)
		}
		// See soon whether it is enough.
		l.sampling.next = min(l.sampling.next, now.Add(minSampleGap))
	default:
		l.unanswered()
	}
}

// unanswered waits longer before it asks again for what did not come.
func (l *resource) unanswered() {
	if l.load.shortfall > 0 {
		l.report.gap = min(2*l.report.gap, maxAskGap)
	}
}

// giveUp gives back everything and spends nothing without a lease either.
func (l *resource) giveUp(now limit.Time) {
	l.shrinkTo(now, 0, 0)
	if l.lease.number == 0 {
		l.endAlone(now)
	}
}

// drop stops spending under the lease, which nobody may count on any more.
func (l *resource) drop(now limit.Time, expired bool) {
	if l.lease.number != 0 || (l.fallback.starting || l.fallback.expired) && !expired {
		l.bucket.Update(now, 0, 0, 0)
	}
	had := l.lease.number != 0
	l.lease.drop()
	if !expired {
		return
	}
	l.ask(now, lease.MinReportGap)
	if l.closed {
		return
	}
	l.sampling.next = min(l.sampling.next, now.Add(minSampleGap))
	if !had && !l.answer.known {
		return
	}
	l.fallback.expired, l.fallback.until = true, 0
	if l.suppression.active {
		l.suppressAlone(now)
		return
	}
	switch l.opts.Expiry {
	case Optimistic:
		// What it wants, up to the whole limit. It may begin to want only now.
		whole := l.answer.limit.Rate
		if l.answer.limit.Semaphore {
			whole = l.answer.limit.Burst
		}
		if l.opts.Estimator == Declared && l.load.demand > 0 {
			whole = min(whole, l.load.demand)
		}
		l.fallBack(now, whole)
	case Safe:
		l.fallBack(now, l.answer.safe)
	}
}

// fallbackBucket is a Bucket that can be used without a lease.
type fallbackBucket interface {
	// UpdateFallback puts in force what may be spent without a lease, whatever the
	// deadline, until the next Amend.
	UpdateFallback(now limit.Time, rate, depth fixed.Amount)
}

// fallBack spends rate without a lease, or as many places of a gauge.
func (l *resource) fallBack(now limit.Time, rate fixed.Amount) {
	f, ok := l.bucket.(fallbackBucket)
	if !ok || rate <= 0 {
		return
	}
	depth := max(fixed.Token, rate/10/fixed.Token*fixed.Token) // a tenth of a second
	if l.answer.limit.Semaphore {
		rate, depth = 0, max(fixed.Token, rate/fixed.Token*fixed.Token)
	} else if l.answer.limit.Rate > 0 {
		depth = max(fixed.Token, l.answer.limit.Burst.Scale(min(rate, l.answer.limit.Rate), l.answer.limit.Rate)/fixed.Token*fixed.Token)
	}
	f.UpdateFallback(now, rate, depth)
}
