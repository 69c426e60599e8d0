package agent

import (
	"time"

	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/limit"
)

// makeDemand returns what the Report with that number says about the resource.
func (r *resource) makeDemand(now limit.Time, number uint64, trip time.Duration) lease.Demand {
	if r.sent.number > r.acks.report {
		r.sent.tries++
	}
	d := lease.Demand{
		Handle: r.handle, Lease: r.lease.counted(), Silent: r.opts.Silent, Rate: r.load.demand, Shortfall: r.load.shortfall,
		Weight: r.opts.Weight, Band: r.opts.Band, Closed: r.closed && r.lease.held().Burst <= 0, Returned: r.lease.returned, AckedGrant: r.acks.grant,
	}
	if r.answer.limit().Suppress != nil {
		if r.site == nil && !r.closed {
			// An idle bucket is sampled seldom: what arrived since the latest sample, in a later report, would
			// look like a burst above the limit.
			obs := r.bucket.Observe(now)
			r.load.attempted, r.load.admitted = obs.Attempted, obs.Admitted
		}
		d.Attempted, d.Admitted = r.load.attempted, r.load.admitted
		d.Shortfall = r.load.largest
		r.sent.more, r.sent.attempted = r.load.attempted != r.sent.attempted, r.load.attempted
	}
	if !r.acks.named || d.Lease == 0 {
		d.Resource, d.Attributes = r.id, r.opts.Attributes
	}
	if r.lease.claiming && !r.lease.orphan {
		d.Claim = r.lease.token
	}
	if r.load.waitUntil != 0 && now >= r.refusals.expectedUntil {
		// Half of the round trip passes until the coordinator has the report, the other half
		// until its answer is here.
		d.Within = max(time.Duration(r.load.waitUntil-now)-trip, 1)
	}
	if r.closed || r.opts.Silent || r.fallbackSuffices() {
		d.Rate, d.Shortfall = 0, 0
	}
	r.addLoad(&d)
	r.sent.number, r.sent.at, r.sent.demand, r.sent.shortfall, r.acks.confirmed = number, now, r.load.demand, r.load.shortfall, r.acks.grant
	r.report.urgent, r.refusals.starved, r.sent.closed = false, false, d.Closed
	return d
}

// reportChange plans a report if demand or shortfall differ from what was sent so much that
// the coordinator would decide otherwise. unit is the cost of the largest recent request.
func (r *resource) reportChange(now limit.Time, held lease.Capacity, unit fixed.Amount) {
	switch {
	case r.opts.Estimator != Attempted && !fixed.Near(r.load.demand, r.sent.demand, exactDemandChanged):
		r.planReport(now, lease.MinReportGap)
	case r.load.shortfall > 0 && r.sent.shortfall == 0 && !(r.answer.contended && held.Rate > 0):
		r.planReport(now, lease.MinReportGap)
	case r.load.demand > held.Rate && !fixed.Near(r.load.demand, r.sent.demand, demandChanged):
		// A saturated coordinator treats any demand above twice what is held alike.
		if !r.answer.saturated || held.Rate == 0 || r.sent.demand < 2*held.Rate || r.load.demand > 2*r.sent.demand {
			r.planReport(now, lease.MinReportGap)
		}
	case r.load.demand < r.sent.demand && !fixed.Near(r.load.demand, r.sent.demand, demandChanged) && (r.answer.contended || r.load.demand == 0):
		gap := lease.MinReportGap
		if r.load.demand > 0 && r.sent.demand-r.load.demand < r.answer.limit().Rate/smallDecrease {
			gap = contendedGap
		}
		r.planReport(now, gap)
	case r.answer.contended && !fixed.Near(r.load.demand, r.sent.demand, lease.Hysteresis) && min(r.load.demand, r.sent.demand) <= held.Rate+held.Rate/4 && r.differsByMoreThanNoise(unit):
		r.planReport(now, contendedGap)
	case r.refusals.starved && r.load.demand > r.sent.demand && r.load.demand > held.Rate && !fixed.Near(r.load.demand, r.sent.demand, lease.Hysteresis):
		r.planReport(now, max(r.report.gap, lease.MinReportGap)) // a refusal shows that the rise is no noise
	case r.load.demand < r.sent.demand/2:
		r.planReport(now, lease.IdleGrace)
	case r.load.shortfall > 0 && r.answer.saturated && held.Rate > 0 && held.Burst >= unit:
		r.refusals.starved = false // it has what a saturated limit can give
	case r.load.shortfall > 0 && r.sent.number > r.acks.report:
		// The answer is under way.
	case r.load.shortfall > 0 && r.answer.contended && held.Rate > 0:
		r.planReport(now, max(r.report.gap, contendedGap))
	case r.load.shortfall > 0:
		r.planReport(now, r.report.gap)
	case r.load.shortfall == 0 && r.sent.shortfall > 0 && held.Rate == 0 && r.answer.contended:
		r.planReport(now, lease.MinReportGap) // else a token is granted that nothing here uses
	case r.answer.contended && !fixed.Near(r.load.demand, r.sent.demand, demandDrifted) && !(r.answer.saturated && r.load.demand > held.Rate+held.Rate/4):
		r.planReport(now, driftGap)
	}
}

// differsByMoreThanNoise says whether the demand differs from what was sent by more than the
// error of its measurement.
func (r *resource) differsByMoreThanNoise(unit fixed.Amount) bool {
	off := max(r.load.demand, r.sent.demand) - min(r.load.demand, r.sent.demand)
	return off.Float() > r.load.demand.Float()*r.load.meter.Doubt(unit.Float())
}

// next is when the resource needs a Tick.
func (r *resource) next(t *timing) limit.Time {
	if r.blocked {
		return lease.Never
	}
	next := r.sampling.next
	if r.report.urgent {
		next = min(next, r.report.notBefore)
	}
	if r.sent.number > r.acks.report {
		next = min(next, r.sent.at.Add(r.retryAfter(t)))
	}
	if r.fallback.until != 0 {
		next = min(next, r.fallback.until)
	}
	return next
}

// retryAfter is how long to wait for an answer. It doubles with each report that was not
// answered, since a coordinator that is gone is not found by asking often.
func (r *resource) retryAfter(t *timing) time.Duration {
	return min(t.retry()<<min(r.sent.tries, maxRetryDoublings), max(t.refresh, t.retry()))
}

// due says whether something is to be reported at now.
func (r *resource) due(now limit.Time, t *timing) bool {
	return r.report.urgent && now >= r.report.notBefore || r.sent.number > r.acks.report && now >= r.sent.at.Add(r.retryAfter(t))
}

// acknowledged says whether the coordinator knows all that there is to report.
func (r *resource) acknowledged() bool {
	return !r.report.urgent && r.acks.report >= r.sent.number && r.sent.number > 0
}
