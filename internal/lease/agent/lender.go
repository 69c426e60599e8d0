package agent

import (
	"slices"
	"time"

	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/limit"
)

// inform passes the answer on to a Lender.
func (r *resource) inform(now limit.Time) {
	if r.site == nil {
		return
	}
	a := &r.answer
	r.site.lender.Inform(Answer{Status: a.status, Limit: *a.limit(), Safe: a.safe, Contended: a.contended, Saturated: a.saturated, Recovering: a.recovering})
	r.sampling.next = min(r.sampling.next, now)
}

// sampleSite is sample for a resource that is lent on. It is event-driven: [Observed] says when
// the load has changed, and the timer finds what changes with time alone.
func (r *resource) sampleSite(now limit.Time, t *timing) {
	r.site.load = r.site.lender.Load(now)
	l := &r.site.load
	r.load.demand, r.load.shortfall, r.load.waitUntil = l.Demand, l.Shortfall, 0
	if l.Shortfall > 0 && l.ShortUntil != lease.Never {
		r.load.waitUntil = l.ShortUntil
	}
	r.opts.Weight, r.opts.Band = max(1, l.Weight), l.Band
	switch {
	case l.Demand > 0 || l.Shortfall > 0:
		r.sampling.idleSince = 0
	case r.sampling.idleSince == 0:
		r.sampling.idleSince = now
	}
	held := r.lease.held()
	switch {
	case r.lease.number == 0:
	case held.Rate > r.answer.capRate || held.Burst > r.answer.capBurst:
		r.returnAbove(now, min(held.Rate, r.answer.capRate), min(held.Burst, r.answer.capBurst))
	default:
		r.giveBackFree(now, held)
	}
	r.reportLoad(now, t)
	r.scheduleSite(now, l)
}

// returnAbove gives back what is above a rate and a burst and is free.
func (r *resource) returnAbove(now limit.Time, rate, burst fixed.Amount) {
	before := r.lease.returned
	r.update(now, rate, burst, 0)
	if r.lease.returned != before {
		r.report.plan(now) // other sites need it
	}
}

// giveBackFree gives back what is free and not needed: not at once where the limit is not
// contended, since the next request of an instance would wait for it.
func (r *resource) giveBackFree(now limit.Time, held lease.Capacity) {
	l := &r.site.load
	if !r.demandAcknowledged() || l.Shortfall > 0 || r.answer.recovering {
		return
	}
	idle := r.sampling.idleSince != 0 && time.Duration(now-r.sampling.idleSince) >= lease.IdleGrace
	settled := time.Duration(now-r.sent.at) >= lease.IdleGrace
	keep := held
	switch {
	case r.answer.limit().Semaphore && (r.answer.contended || idle || settled):
		keep.Burst = l.Demand
	case r.answer.limit().Semaphore:
	case l.Demand == 0 && idle:
		keep.Rate, keep.Burst = 0, 0
	case l.Demand == 0:
		keep.Rate = 0
	case r.answer.contended && held.Rate > l.Demand+l.Demand/16 && held.Rate-l.Demand > r.answer.limit().Rate/giveBackFloor,
		!r.answer.contended && !l.Spare && settled && held.Rate > 2*l.Demand && held.Rate-l.Demand > r.answer.limit().Rate/giveBackFloor:
		keep.Rate = l.Demand + l.Demand/16
		if !r.answer.contended {
			keep.Rate = l.Demand + l.Demand/4
		}
		keep.Burst = (max(2*fixed.Token, held.Burst.Scale(keep.Rate, held.Rate)) + fixed.Token - 1) / fixed.Token * fixed.Token
	case r.answer.contended && l.Free.Rate > 0 && l.Free.Tokens >= l.Room && held.Rate > l.Demand:
		keep.Rate = max(l.Demand, held.Rate-l.Free.Rate) // what it refills would be lost
	}
	// No instance is asked to return anything: those give back what they do not need themselves.
	keep.Rate, keep.Burst = max(keep.Rate, held.Rate-l.Free.Rate), max(keep.Burst, held.Burst-l.Free.Burst)
	if keep.Rate < held.Rate || keep.Burst < held.Burst {
		r.returnAbove(now, min(keep.Rate, held.Rate), min(keep.Burst, held.Burst))
	}
}

// reportLoad plans a report if the load differs from what was sent so much that the coordinator
// would decide otherwise.
func (r *resource) reportLoad(now limit.Time, t *timing) {
	held := r.lease.held()
	has := held.Rate
	if r.answer.limit().Semaphore {
		has = held.Burst
	}
	l := &r.site.load
	flight := r.sent.number > r.acks.report
	switch {
	case r.sent.number > 0 && l.Most != r.site.sentMost:
		r.planReport(now, lease.MinReportGap)
	case !fixed.Near(l.Demand, r.sent.demand, exactDemandChanged) || r.claimsChanged():
		gap := lease.MinReportGap
		if l.Demand < r.sent.demand && !r.answer.contended && l.Demand > 0 || r.answer.saturated && min(l.Demand, r.sent.demand) > 2*has && has > 0 {
			gap = contendedGap
		}
		r.planReport(now, gap)
	case l.Shortfall > 0 && r.sent.shortfall == 0:
		r.planReport(now, lease.MinReportGap)
	case l.Shortfall > 0 && !flight && r.answer.saturated && has > 0:
		r.planReport(now, max(r.report.gap, contendedGap))
	case l.Shortfall > 0 && !flight:
		r.planReport(now, max(r.report.gap, lease.MinReportGap, t.trip))
	case l.Shortfall == 0 && r.sent.shortfall > 0 && r.answer.contended:
		r.planReport(now, contendedGap) // else tokens are granted that nothing here needs
	case r.answer.contended && !fixed.Near(l.Demand, r.sent.demand, lease.Hysteresis):
		r.planReport(now, contendedGap)
	case !fixed.Near(l.Demand, r.sent.demand, demandDrifted) && !r.answer.saturated:
		r.planReport(now, driftGap)
	}
}

// claimsChanged says whether demand has moved between claims by more than a part in
// exactDemandChanged of the whole.
func (r *resource) claimsChanged() bool {
	now, sent := r.site.load.Claims, r.site.sent
	moved, i, j := fixed.Amount(0), 0, 0
	for i < len(now) || j < len(sent) {
		switch {
		case j == len(sent) || i < len(now) && now[i].Band < sent[j].Band:
			moved = fixed.SaturatingAdd(moved, now[i].Rate)
			i++
		case i == len(now) || now[i].Band > sent[j].Band:
			moved = fixed.SaturatingAdd(moved, sent[j].Rate)
			j++
		default:
			a, b := now[i].Rate, sent[j].Rate
			moved = fixed.SaturatingAdd(moved, max(a, b)-min(a, b))
			if now[i].Weight != sent[j].Weight && len(now)+len(sent) > 2 {
				moved = fixed.SaturatingAdd(moved, max(a, b)/exactDemandChanged)
			}
			i, j = i+1, j+1
		}
	}
	return moved > r.site.load.Demand/(exactDemandChanged/2)
}

// scheduleSite plans the next sample.
func (r *resource) scheduleSite(now limit.Time, l *Load) {
	held := r.lease.held()
	switch {
	case l.Demand == 0 && l.Shortfall == 0 && held.Rate == 0 && held.Burst == 0:
		r.sampling.next = lease.Never
	case held.Rate > r.answer.capRate || held.Burst > r.answer.capBurst || r.answer.contended && l.Demand > 0:
		r.sampling.next = now.Add(2 * minSampleGap)
	default:
		r.sampling.next = now.Add(maxSampleGap)
	}
}

// stopLending handles that the coordinator lends nothing of the resource any more: what is lent
// on is revoked, and given back as it comes.
func (r *resource) stopLending(now limit.Time) {
	r.answer.capRate, r.answer.capBurst, r.answer.known = 0, 0, true
	r.update(now, 0, 0, 0)
	r.planReport(now, lease.DefaultRefresh)
}

// addLoad adds to a demand what only sites report.
func (r *resource) addLoad(d *lease.Demand) {
	if r.site == nil {
		return
	}
	r.site.sent = append(r.site.sent[:0], r.site.load.Claims...)
	if d.Rate > 0 || d.Shortfall > 0 {
		d.Claims = slices.Clone(r.site.sent)
	}
	d.Most, d.Spare = r.site.load.Most, r.site.load.Spare
	r.site.sentMost = d.Most
	// The site knows the kind from its own limit. The first demand is sent before the coordinator has answered.
	if r.site.load.Permits {
		d.Shortfall = d.Rate
	}
}
