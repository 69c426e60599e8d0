package agent

import (
	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/limit"
)

// receive puts in force what a Grant says about the resource. latest are the terms that a Grant had
// last, of any resource.
func (r *resource) receive(now limit.Time, t *timing, g *lease.Grant, s *lease.Share, latest **lease.Terms) {
	if g.Number <= r.acks.grant {
		return // late, or received twice
	}
	r.acks.grant = g.Number
	if s.AckedReport >= r.sent.number {
		if r.sent.tries = 0; r.report.urgent && r.report.notBefore <= r.sent.at.Add(lease.MinReportGap) {
			r.report.notBefore = min(r.report.notBefore, now)
		}
		if r.acks.report < r.sent.number && r.lease.held().Rate > r.load.demand {
			r.sampling.next = min(r.sampling.next, now) // now that the demand is acknowledged, what it does not need can be given back
		}
	}
	r.acks.report = max(r.acks.report, s.AckedReport)
	r.answer.status, r.answer.former = s.Status, false
	switch s.Status {
	case lease.StatusOK, lease.StatusBadDemand, lease.StatusBroken:
	case lease.StatusLeaseGone, lease.StatusBadClaim:
		r.answer.former = true // what it lends it says when it is asked for another lease
		r.leaseUnknown(now, s.Status, t)
		return
	default:
		r.refused(now, t)
		return
	}
	r.answer.known, r.acks.named = true, true
	sufficed := r.fallbackSuffices()
	if !r.answer.terms.Equal(&s.Limit) {
		if !(*latest).Equal(&s.Limit) {
			own := s.Limit
			*latest = &own
		}
		r.answer.terms = *latest
	}
	r.answer.saturated, r.answer.contended, r.answer.recovering, r.answer.safe = s.Saturated, s.Contended, s.Recovering, s.Safe
	if sufficed && !r.answer.recovering {
		r.planReport(now, lease.MinReportGap)
	}
	r.answer.capRate, r.answer.capBurst = s.CapRate, s.CapBurst
	if s.Token != nil {
		r.lease.token = s.Token
	}
	r.inform(now)
	if r.closed {
		if r.lease.granted != s.Granted {
			r.acks.changed = r.acks.grant
		}
		r.lease.granted = s.Granted
		r.lease.number, r.lease.orphan = s.Lease, false
		r.shrinkTo(now, 0, 0)
		return
	}
	r.apply(now, s)
	r.endFallbackWhenDue(now, t)
	r.suppress(now, s.Suppress)
}

// leaseUnknown asks for another lease, since the coordinator does not know this one. A lease
// that a former coordinator granted is an orphan: it is spent until it expires, since the
// present coordinator lends nothing of it before that.
func (r *resource) leaseUnknown(now limit.Time, status lease.Status, t *timing) {
	r.acks.named = false
	switch {
	case r.closed:
		r.refused(now, t)
	case r.lease.orphan, r.lease.number == 0 && (r.fallback.starting || r.fallback.expired):
		r.planReport(now, lease.MinReportGap)
	case r.lease.number != 0 && r.lease.claiming && r.lease.token != nil && status == lease.StatusLeaseGone:
		r.planReport(now, lease.MinReportGap)
	case r.lease.number != 0 && (r.lease.epoch != r.lease.current || r.site != nil):
		// What a site has lent on is spent until it expires, whoever does not know the lease.
		r.lease.claiming = r.lease.claiming || r.site != nil
		r.lease.orphan, r.lease.token = true, nil
		r.planReport(now, lease.MinReportGap)
	default:
		r.refused(now, t)
	}
}

// refused ends a lease of which the coordinator lends nothing, and asks again.
func (r *resource) refused(now limit.Time, t *timing) {
	r.inform(now)
	if r.site != nil && r.lease.number != 0 && !r.closed {
		r.stopLending(now)
		return
	}
	r.endLease(now, false)
	r.fallback.starting, r.fallback.expired, r.fallback.until = false, false, 0
	r.acks.named = false
	if r.closed {
		return
	}
	if r.answer.status == lease.StatusLeaseGone || r.answer.status == lease.StatusBadClaim {
		r.planReport(now, lease.MinReportGap)
		return
	}
	// The coordinator may know the limit when its configuration is loaded again.
	r.report.urgent, r.report.notBefore, r.load.shortfall = true, now.Add(max(t.refresh, lease.DefaultRefresh)), 0
	r.answer.known = true
}

// apply puts in force what was granted since the last grant, and gives back what is above the
// cap.
func (r *resource) apply(now limit.Time, s *lease.Share) {
	more := lease.Capacity{}
	switch {
	case s.Lease == 0 || s.Lease <= r.lease.dropped && s.Lease != r.lease.number:
		r.lease.claiming = r.lease.claiming && r.lease.number != 0
		r.backOff()
		return
	case s.Lease != r.lease.number:
		if r.lease.orphan {
			// This coordinator has not lent the tokens in the bucket.
			r.lease.orphan = false
			r.lapse(now)
		}
		// A confirmed claim keeps the tokens in the bucket.
		more = s.Granted
		r.lease.number, r.lease.epoch, r.lease.granted, r.lease.returned = s.Lease, r.lease.current, s.Granted, lease.Capacity{}
		r.lease.dropped = max(r.lease.dropped, s.Lease-1)
	default:
		more = s.Granted.Sub(r.lease.granted)
		if more.Rate < 0 || more.Burst < 0 || more.Tokens < 0 {
			return
		}
		r.lease.granted = s.Granted
	}
	r.lease.claiming = false
	if more != (lease.Capacity{}) {
		r.acks.changed = r.acks.grant
	}
	before := r.lease.returned
	held := r.lease.held()
	r.update(now, min(held.Rate, r.answer.capRate), min(held.Burst, r.answer.capBurst), more.Tokens)
	switch {
	case r.lease.returned != before:
		r.report.urgent, r.report.notBefore = true, now // other instances need it
	case more != (lease.Capacity{}):
		r.report.gap, r.sent.shortfall = lease.MinReportGap, 0
		if !r.report.urgent {
			r.report.urgent, r.report.notBefore = true, now.Add(confirmWithin)
		}
		// Sample soon, to see whether it is enough.
		r.sampling.next = min(r.sampling.next, now.Add(minSampleGap))
	default:
		r.backOff()
	}
}

// backOff doubles the gap before the next report that asks for more, since nothing came.
func (r *resource) backOff() {
	if r.load.shortfall > 0 {
		r.report.gap = min(2*r.report.gap, maxAskGap)
	}
}
