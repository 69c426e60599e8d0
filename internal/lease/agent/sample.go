package agent

import (
	"time"

	"github.com/stint-io/stint/internal/bucket"
	"github.com/stint-io/stint/internal/demand"
	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/limit"
)

// sample observes the bucket: it measures the demand, gives back what is not needed, and
// plans a report where the coordinator has to know.
func (r *resource) sample(now limit.Time, t *timing) {
	if r.closed {
		r.sampling.next = lease.Never
		if r.shrinkTo(now, 0, 0); r.lease.held().Burst > 0 {
			r.sampling.next = now.Add(maxSampleGap) // permits that are in use
		}
		return
	}
	if r.site != nil {
		r.sampleSite(now, t)
		return
	}
	obs := r.bucket.Observe(now)
	unit := max(fixed.Token, obs.Largest)
	if 0 < r.sampling.next && r.sampling.next < now {
		r.load.meter.Standstill(now, time.Duration(now-r.sampling.next))
	}
	came := obs.Attempted != r.load.meter.Total
	changed := r.load.meter.ObserveWaiting(now, r.lastArrival(now, obs), obs.Attempted, unit.Float(), obs.Waited)
	if r.load.meter.At == now {
		r.load.notAdmitted = obs.Attempted - obs.Admitted
	}
	if r.refusals.starved {
		r.refusals.recentUntil = now.Add(contendedGap)
	}
	r.load.waitUntil = 0
	if obs.Waiting > 0 {
		r.load.waitUntil = obs.WaitUntil
	}
	if r.opts.Silent {
		r.sampling.next = lease.Never
		return
	}
	if r.answer.limit().Suppress != nil {
		r.sampleSuppressed(now, obs, changed)
		return
	}
	quiet := r.load.meter.Quiet > 0 && obs.Waiting == 0 && !r.refusals.starved
	switch {
	case !quiet:
		r.sampling.idleSince = 0
	case r.sampling.idleSince == 0:
		r.sampling.idleSince = now
	}
	if r.answer.limit().Semaphore {
		r.samplePermits(now, obs)
	} else {
		r.sampleRate(now, t, obs, unit)
	}
	r.schedule(now, obs, changed, came || r.arrivals(obs) > loneRequests*unit)
	if !r.report.urgent {
		r.refusals.starved = false
	}
}

// lastArrival is when the latest request arrived; 0 = not known. A refused one is known from
// the event Starved, and the bucket records when one was admitted without waiting.
func (r *resource) lastArrival(now limit.Time, obs bucket.Reading) limit.Time {
	switch {
	case r.refusals.last == now:
		return now
	case r.load.notAdmitted != obs.Attempted-obs.Admitted:
		return 0
	}
	return obs.Last
}

// demandRate is the demand in tokens per second.
func (r *resource) demandRate(now limit.Time, obs bucket.Reading) fixed.Amount {
	switch r.opts.Estimator {
	case Declared:
		return min(obs.Declared, fixed.MaxAmount)
	case Utilisation:
		if r.load.admittedMeter == nil {
			r.load.admittedMeter = &demand.Meter{}
		}
		r.load.admittedMeter.Observe(now, obs.Admitted, max(fixed.Token, obs.Largest).Float())
		admitted, err := fixed.AmountOf(r.load.admittedMeter.Rate)
		if err != nil {
			return 0
		}
		if r.lease.held().Rate == 0 {
			break // without a rate only attempts say something
		}
		return demand.WantedByUse(r.lease.held().Rate, admitted, useTolerance, useGrowth)
	}
	// The waiting cost is served within a second: tokens divided by 1 s. Patient callers,
	// such as a loop around Wait, send nothing while they wait, so theirs is served faster.
	rate := r.load.meter.Rate + obs.Waiting.Float()
	if obs.Waiting > 0 && obs.Patient {
		rate = r.load.meter.Rate + max(obs.Waiting.Float(), min(obs.Waiting.Float()/demand.RecentSpan, r.answer.limit().Rate.Float()/lease.Hysteresis))
	}
	if held := r.lease.held().Rate; now < r.refusals.recentUntil && obs.Waiting == 0 && held+held/lease.Hysteresis >= r.sent.demand {
		rate = r.load.meter.Recent(max(fixed.Token, obs.Largest).Float())
	}
	perSecond, err := fixed.AmountOf(rate)
	if err != nil {
		return 0
	}
	return perSecond
}

// sampleRate is sample for a limit per second.
func (r *resource) sampleRate(now limit.Time, t *timing, obs bucket.Reading, unit fixed.Amount) {
	r.load.demand = r.demandRate(now, obs)
	held := r.lease.held()
	trip := max(t.trip, minTrip)
	// cover is the tokens that the demand takes in two round trips, and one request more.
	cover := unit + r.load.demand.In(2*trip)
	r.load.shortfall = r.currentShortfall(now, t, obs, held, cover, unit)
	r.giveBackUnneeded(now, t, obs, held, cover)
	r.reportChange(now, held, unit)
}

// currentShortfall is how many tokens are missing now; 0 if more would not help.
func (r *resource) currentShortfall(now limit.Time, t *timing, obs bucket.Reading, held lease.Capacity, cover, unit fixed.Amount) fixed.Amount {
	if r.refusals.starved && obs.Waiting == 0 {
		// The next request is expected one gap between requests from now, and should find a
		// token.
		next := lease.IdleGrace
		if r.load.demand > 0 {
			gap := time.Duration(float64(unit) / float64(r.load.demand) * float64(time.Second))
			next = max(min(lease.IdleGrace, 2*gap), min(maxTokenWait, gap+gap/4))
		}
		r.refusals.expectedUntil = now.Add(max(next, 2*t.trip))
	}
	if r.load.demand == 0 && !r.refusals.starved {
		r.refusals.expectedUntil = 0 // none is expected
	}
	waiting := obs.Waiting > 0 && (r.load.waitUntil == 0 || r.load.waitUntil > now.Add(t.trip))
	short := waiting || now < r.refusals.expectedUntil
	low := min(cover, max(held.Burst/2, fixed.Token))
	// An instance without a rate asks for tokens only when a request needs them.
	if held.Rate > 0 && r.load.demand > 0 && obs.Level < low && (held.Rate < r.load.demand || r.answer.contended) {
		short = true
	}
	if !short {
		return 0
	}
	if r.answer.saturated && held.Rate > 0 && held.Burst >= max(unit, obs.Waiting) && !fixed.Near(min(r.load.demand, held.Rate), r.load.demand, fairShareMet) {
		return 0 // it has what a saturated limit can give
	}
	need := max(cover, obs.Waiting, held.Burst/2)
	if !r.refusals.starved && obs.Waiting == 0 {
		need = max(cover, held.Burst/2)
	}
	if r.answer.contended && held.Rate > 0 {
		// No more tokens than fit the held burst: more would be missing elsewhere.
		need = min(need, max(held.Burst, obs.Waiting, unit))
	}
	if need <= obs.Level {
		if !r.refusals.starved {
			return 0
		}
		need = obs.Level + unit // the refused request costs more than the level
	}
	if missing := need - obs.Level; missing >= fixed.Token || obs.Level < unit || r.refusals.starved || obs.Waiting > 0 {
		return missing
	}
	return 0 // the next request finds its tokens, and a fraction of a token may not fit
}

// samplePermits is sample for a semaphore: its demand is the permits that are in use or
// waited for, and those of the last IdleGrace.
func (r *resource) samplePermits(now limit.Time, obs bucket.Reading) {
	held := r.lease.held()
	wanted := obs.InUse + obs.Waiting
	if r.opts.Estimator == Declared {
		wanted = max(wanted, obs.Declared)
	}
	if r.refusals.starved {
		wanted = max(wanted, held.Burst+max(fixed.Token, obs.Largest))
	}
	if wanted >= r.permits.recent {
		r.permits.recent, r.permits.recentUntil = wanted, now.Add(lease.IdleGrace)
	} else if now >= r.permits.recentUntil {
		r.permits.recent, r.permits.recentUntil = wanted, now.Add(lease.IdleGrace)
	}
	if r.answer.contended {
		r.permits.recent = wanted
	}
	r.load.demand = max(wanted, r.permits.recent)
	r.load.shortfall = r.load.demand // for a semaphore a report carries the demand in permits
	r.load.meter.Rate = max(r.load.meter.Rate, obs.InUse.Float())
	if r.lease.number != 0 && !r.refusals.starved && r.demandAcknowledged() {
		r.shrinkTo(now, 0, max(r.load.demand, obs.InUse))
	}
	if r.answer.capBurst < r.lease.held().Burst {
		// The coordinator revokes permits: they are given back as they are released.
		r.shrinkTo(now, 0, r.answer.capBurst)
		r.sampling.steady = 0
	}
	if r.load.demand > held.Burst && r.load.demand != r.sent.demand || r.load.demand < r.sent.demand && r.answer.contended {
		r.planReport(now, lease.MinReportGap)
	} else if r.load.demand > held.Burst {
		r.planReport(now, r.report.gap)
	} else if r.load.demand < r.sent.demand {
		r.planReport(now, lease.IdleGrace)
	}
}

// arrivals is what has arrived since nothing was demanded.
func (r *resource) arrivals(obs bucket.Reading) fixed.Amount {
	if r.load.demand == 0 {
		r.sampling.counted = obs.Attempted
	}
	return obs.Attempted - r.sampling.counted
}

// schedule plans the next sample: the longer nothing has changed, the later. measures says that there is
// a rate to measure: a few requests and then none show nothing but that time passes.
func (r *resource) schedule(now limit.Time, obs bucket.Reading, changed, measures bool) {
	r.sampling.steady++
	lone := !measures && !r.answer.contended && obs.Waiting == 0
	if changed && !lone || r.refusals.starved || obs.Waiting > 0 && !r.answer.saturated {
		r.sampling.steady = 0
	}
	gap, most, each := minSampleGap, maxSampleGap, 4
	if lone {
		most, each = maxLoneGap, 1
	}
	if r.answer.contended && r.load.demand > 0 {
		most = 2 * minSampleGap // what is not used here is missing elsewhere
	}
	for i := each; i < r.sampling.steady && gap < most; i += each {
		gap *= 2
	}
	gap = min(gap, most)
	switch {
	case r.lease.held() == (lease.Capacity{Tokens: r.lease.held().Tokens}) && r.load.demand == 0 && r.load.shortfall == 0 && obs.InUse == 0:
		// Nothing is held and nothing arrives: the next request is refused, and Starved comes.
		r.sampling.next = lease.Never
	default:
		r.sampling.next = now.Add(gap)
	}
}
