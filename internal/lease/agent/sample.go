package agent

import (
	"time"

	"github.com/stint-io/stint/internal/bucket"
	"github.com/stint-io/stint/internal/demand"
	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/limit"
)

// sample measures the demand, gives back what is not needed, and decides whether the
// coordinator has to know.
func (l *resource) sample(now limit.Time, t *timing) {
	if l.closed {
		l.sampling.next = lease.Never
		if l.shrinkTo(now, 0, 0); l.lease.held().Burst > 0 {
			l.sampling.next = now.Add(maxSampleGap) // places that are in use
		}
		return
	}
	r := l.bucket.Observe(now)
	unit := max(fixed.Token, r.Largest)
	if 0 < l.sampling.next && l.sampling.next < now {
		l.load.meter.Standstill(now, time.Duration(now-l.sampling.next))
	}
	changed := l.load.meter.ObserveWaiting(now, l.lastCame(now, r), r.Attempted, unit.Float(), r.Waited)
	if l.load.meter.At == now {
		l.load.notAdmitted = r.Attempted - r.Admitted
	}
	if l.refusals.starved {
		l.refusals.recentUntil = now.Add(contendedGap)
	}
	l.load.waitUntil = 0
	if r.Waiting > 0 {
		l.load.waitUntil = r.WaitUntil
	}
	if l.opts.Silent {
		l.sampling.next = lease.Never
		return
	}
	if l.answer.limit.Suppress != nil {
		l.sampleSuppressed(now, r, changed)
		return
	}
	quiet := l.load.meter.Quiet > 0 && r.Waiting == 0 && !l.refusals.starved
	switch {
	case !quiet:
		l.sampling.idleSince = 0
	case l.sampling.idleSince == 0:
		l.sampling.idleSince = now
	}
	if l.answer.limit.Semaphore {
		l.samplePermits(now, t, r)
	} else {
		l.sampleRate(now, t, r, unit)
	}
	l.schedule(now, r, changed)
	if !l.report.urgent {
		l.refusals.starved = false
	}
}

// lastCame is when the last request came, 0 if that is not known: one that was refused is
// ackedReport at once, and one that was admitted at once has left its time.
func (l *resource) lastCame(now limit.Time, r bucket.Reading) limit.Time {
	switch {
	case l.refusals.last == now:
		return now
	case l.load.notAdmitted != r.Attempted-r.Admitted:
		return 0
	}
	return r.Last
}

// demandRate is the demand in tokens per second.
func (l *resource) demandRate(now limit.Time, r bucket.Reading) fixed.Amount {
	switch l.opts.Estimator {
	case Declared:
		return min(r.Declared, fixed.MaxAmount)
	case Utilisation:
		if l.load.admittedMeter == nil {
			l.load.admittedMeter = &demand.Meter{}
		}
		l.load.admittedMeter.Observe(now, r.Admitted, max(fixed.Token, r.Largest).Float())
		admitted, err := fixed.AmountOf(l.load.admittedMeter.Rate)
		if err != nil {
			return 0
		}
		if l.lease.held().Rate == 0 {
			break // what it was admitted tells nothing; that it asks does
		}
		return demand.WantedByUse(l.lease.held().Rate, admitted, useTolerance, useGrowth)
	}
	// A backlog is to be worked off within a second; by those who wait as long as it
	// takes, sooner, since they ask for nothing meanwhile.
	rate := l.load.meter.Rate + r.Waiting.Float()
	if r.Waiting > 0 && r.Patient {
		rate = l.load.meter.Rate + max(r.Waiting.Float(), min(r.Waiting.Float()/demand.RecentSpan, l.answer.limit.Rate.Float()/lease.Hysteresis))
	}
	if held := l.lease.held().Rate; now < l.refusals.recentUntil && r.Waiting == 0 && held+held/lease.Hysteresis >= l.sent.demand {
		rate = l.load.meter.Recent(max(fixed.Token, r.Largest).Float())
	}
	want, err := fixed.AmountOf(rate)
	if err != nil {
		return 0
	}
	return want
}

// sampleRate is look for a rate.
func (l *resource) sampleRate(now limit.Time, t *timing, r bucket.Reading, unit fixed.Amount) {
	l.load.demand = l.demandRate(now, r)
	held := l.lease.held()
	trip := max(t.trip, minTrip)
	// What comes while an answer is under way, and one request more.
	cover := unit + l.load.demand.Scale(fixed.Amount(2*trip), fixed.Amount(time.Second))
	l.load.shortfall = l.shortfallAt(now, t, r, held, cover, unit)
	l.giveBack(now, t, r, held, cover)
	l.decide(now, held, unit)
}

// shortfallAt is how many tokens are missing at this moment.
func (l *resource) shortfallAt(now limit.Time, t *timing, r bucket.Reading, held lease.Capacity, cover, unit fixed.Amount) fixed.Amount {
	if l.refusals.starved && r.Waiting == 0 {
		// The next one will come about then, and should find a token.
		next := lease.IdleGrace
		if l.load.demand > 0 {
			apart := time.Duration(float64(unit) / float64(l.load.demand) * float64(time.Second))
			next = max(min(lease.IdleGrace, 2*apart), min(maxTokenWait, apart+apart/4))
		}
		l.refusals.expectedUntil = now.Add(max(next, 2*t.trip))
	}
	if l.load.demand == 0 && !l.refusals.starved {
		l.refusals.expectedUntil = 0 // there is no next one
	}
	waiting := r.Waiting > 0 && (l.load.waitUntil == 0 || l.load.waitUntil > now.Add(t.trip))
	short := waiting || now < l.refusals.expectedUntil
	low := min(cover, max(held.Burst/2, fixed.Token))
	// Without a rate of its own an instance asks when somebody wants a token.
	if held.Rate > 0 && l.load.demand > 0 && r.Level < low && (held.Rate < l.load.demand || l.answer.contended) {
		short = true
	}
	if !short {
		return 0
	}
	if l.answer.saturated && held.Rate > 0 && held.Burst >= max(unit, r.Waiting) && !fixed.Near(min(l.load.demand, held.Rate), l.load.demand, 16) {
		return 0 // it has its part of what all want more of
	}
	need := max(cover, r.Waiting, held.Burst/2)
	if !l.refusals.starved && r.Waiting == 0 {
		need = max(cover, held.Burst/2)
	}
	if l.answer.contended && held.Rate > 0 {
		// Tokens to fill the depth that it has, for more would be missing elsewhere.
		need = min(need, max(held.Burst, r.Waiting, unit))
	}
	if need <= r.Level {
		if !l.refusals.starved {
			return 0
		}
		need = r.Level + unit // the one that was refused was larger
	}
	if lack := need - r.Level; lack >= fixed.Token || r.Level < unit || l.refusals.starved || r.Waiting > 0 {
		return lack
	}
	return 0 // the next one finds a token, and a part of one may not fit
}

// giveBack gives back what is held and not needed.
func (l *resource) giveBack(now limit.Time, t *timing, r bucket.Reading, held lease.Capacity, cover fixed.Amount) {
	if l.lease.number == 0 {
		return
	}
	if held.Rate == 0 && r.Level < fixed.Token && held.Burst > 0 {
		// Depth that nothing fills is of use to others only.
		l.shrinkTo(now, 0, 0)
	}
	if l.refusals.starved || r.Waiting > 0 || held.Rate > 0 && !l.agreed() {
		return
	}
	switch {
	case l.load.demand == 0 && l.sampling.idleSince != 0 && time.Duration(now-l.sampling.idleSince) >= lease.IdleGrace:
		l.shrinkTo(now, 0, 0)
	case l.load.demand == 0 && held.Rate > 0:
		// Some tokens stay, in case that it was a pause.
		l.shrinkTo(now, 0, min(held.Burst, r.Level)/fixed.Token*fixed.Token)
	case held.Rate == 0 && now < l.refusals.expectedUntil:
		// They were lent for the next one, who is still expected.
	case held.Rate == 0 && held.Burst > 0 && l.sampling.idleSince != 0 && time.Duration(now-l.sampling.idleSince) >= l.patient(t):
		l.shrinkTo(now, 0, 0)
	case l.load.demand == 0:
	case held.Burst >= l.answer.limit.Burst:
		// With no depth elsewhere the rate would fill nothing.
	case !l.answer.contended && held.Rate > 2*l.load.demand && held.Rate-l.load.demand > l.answer.limit.Rate/256 && time.Duration(now-l.sent.at) >= lease.IdleGrace:
		// Nobody needs it yet, so it is enough to follow slowly.
		l.shrink(now, held, l.load.demand+l.load.demand/4, cover)
	case l.answer.contended && held.Rate > l.load.demand+l.load.demand/4 && held.Rate-l.load.demand > l.answer.limit.Rate/256:
		l.shrink(now, held, l.load.demand+l.load.demand/16, cover)
	case l.answer.contended && r.Level >= held.Burst && time.Duration(now-l.sent.at) >= contendedGap && (held.Rate > l.load.demand+l.load.demand/lease.Headroom || held.Rate > l.load.demand && !l.answer.saturated):
		// It is full and would overflow, and others lack it.
		l.shrinkTo(now, l.load.demand, max(2*fixed.Token, (held.Burst/2+fixed.Token-1)/fixed.Token*fixed.Token))
	}
}

// agreed says whether the coordinator has answered what the instance wants now. Only then
// is anything given back unasked: what is given to one that does not answer is nobody's,
// for as long as the lease lasts, and demand that was gone for a moment finds nothing.
func (l *resource) agreed() bool {
	return !l.lease.claiming && l.sent.number > 0 && l.acks.report >= l.sent.number && fixed.Near(l.load.demand, l.sent.demand, 8)
}

// shrink gives back all but a rate, and the depth that belongs to it.
func (l *resource) shrink(now limit.Time, held lease.Capacity, rate, cover fixed.Amount) {
	depth := (max(2*fixed.Token, cover, held.Burst.Scale(rate, held.Rate)) + fixed.Token - 1) / fixed.Token * fixed.Token
	l.shrinkTo(now, rate, depth)
}

// patient is how long tokens wait for somebody to use them: not long if others wait
// for them.
func (l *resource) patient(t *timing) time.Duration {
	if l.answer.contended {
		return min(lease.IdleGrace, max(2*t.trip, minSampleGap))
	}
	return lease.IdleGrace
}

// decide says whether the coordinator has to know at once.
func (l *resource) decide(now limit.Time, held lease.Capacity, unit fixed.Amount) {
	switch {
	case l.opts.Estimator != Attempted && !fixed.Near(l.load.demand, l.sent.demand, 32):
		l.ask(now, lease.MinReportGap)
	case l.load.shortfall > 0 && l.sent.shortfall == 0 && !(l.answer.contended && held.Rate > 0):
		l.ask(now, lease.MinReportGap)
	case l.load.demand > held.Rate && !fixed.Near(l.load.demand, l.sent.demand, 8):
		// Above twice what it gets it makes no difference how much.
		if !l.answer.saturated || held.Rate == 0 || l.sent.demand < 2*held.Rate || l.load.demand > 2*l.sent.demand {
			l.ask(now, lease.MinReportGap)
		}
	case l.load.demand < l.sent.demand && !fixed.Near(l.load.demand, l.sent.demand, 8) && (l.answer.contended || l.load.demand == 0):
		gap := lease.MinReportGap
		if l.load.demand > 0 && l.sent.demand-l.load.demand < l.answer.limit.Rate/1024 {
			gap = contendedGap
		}
		l.ask(now, gap)
	case l.answer.contended && !fixed.Near(l.load.demand, l.sent.demand, lease.Hysteresis) && min(l.load.demand, l.sent.demand) <= held.Rate+held.Rate/4 && l.differs(unit):
		l.ask(now, contendedGap)
	case l.refusals.starved && l.load.demand > l.sent.demand && l.load.demand > held.Rate && !fixed.Near(l.load.demand, l.sent.demand, lease.Hysteresis):
		l.ask(now, max(l.report.gap, lease.MinReportGap)) // that it was refused shows that it is no chance
	case l.load.demand < l.sent.demand/2:
		l.ask(now, lease.IdleGrace)
	case l.load.shortfall > 0 && l.answer.saturated && held.Rate > 0 && held.Burst >= unit:
		l.refusals.starved = false // it has its part
	case l.load.shortfall > 0 && l.sent.number > l.acks.report:
		// Asking again brings nothing while an answer is under way.
	case l.load.shortfall > 0 && l.answer.contended && held.Rate > 0:
		l.ask(now, max(l.report.gap, contendedGap))
	case l.load.shortfall > 0:
		l.ask(now, l.report.gap)
	case l.load.shortfall == 0 && l.sent.shortfall > 0 && held.Rate == 0 && l.answer.contended:
		l.ask(now, lease.MinReportGap) // or a token would come for nobody
	case l.answer.contended && !fixed.Near(l.load.demand, l.sent.demand, 100) && !(l.answer.saturated && l.load.demand > held.Rate+held.Rate/4):
		l.ask(now, time.Second)
	}
}

// differs says whether what is wanted differs from what was reported by more than chance.
func (l *resource) differs(unit fixed.Amount) bool {
	off := max(l.load.demand, l.sent.demand) - min(l.load.demand, l.sent.demand)
	return off.Float() > l.load.demand.Float()*l.load.meter.Doubt(unit.Float())
}

// samplePermits is look for a gauge: it wants what is in use and who waits, and keeps
// what it used of late.
func (l *resource) samplePermits(now limit.Time, t *timing, r bucket.Reading) {
	held := l.lease.held()
	want := r.InUse + r.Waiting
	if l.opts.Estimator == Declared {
		want = max(want, r.Declared)
	}
	if l.refusals.starved {
		want = max(want, held.Burst+max(fixed.Token, r.Largest))
	}
	if want >= l.permits.recent {
		l.permits.recent, l.permits.recentUntil = want, now.Add(lease.IdleGrace)
	} else if now >= l.permits.recentUntil {
		l.permits.recent, l.permits.recentUntil = want, now.Add(lease.IdleGrace)
	}
	if l.answer.contended {
		l.permits.recent = want
	}
	l.load.demand = max(want, l.permits.recent)
	l.load.shortfall = l.load.demand // for a gauge a report says how many places it wants in all
	l.load.meter.Rate = max(l.load.meter.Rate, r.InUse.Float())
	if l.lease.number != 0 && !l.refusals.starved && l.agreed() {
		l.shrinkTo(now, 0, max(l.load.demand, r.InUse))
	}
	if l.answer.capBurst < l.lease.held().Burst {
		// It was asked to come down, and does as places are released.
		l.shrinkTo(now, 0, l.answer.capBurst)
		l.sampling.steady = 0
	}
	if l.load.demand > held.Burst && l.load.demand != l.sent.demand || l.load.demand < l.sent.demand && l.answer.contended {
		l.ask(now, lease.MinReportGap)
	} else if l.load.demand > held.Burst {
		l.ask(now, l.report.gap)
	} else if l.load.demand < l.sent.demand {
		l.ask(now, lease.IdleGrace)
	}
}

// schedule plans the next look.
func (l *resource) schedule(now limit.Time, r bucket.Reading, changed bool) {
	l.sampling.steady++
	if changed || l.refusals.starved || r.Waiting > 0 && !l.answer.saturated {
		l.sampling.steady = 0
	}
	gap := minSampleGap
	slowest := maxSampleGap
	if l.answer.contended && l.load.demand > 0 {
		slowest = 2 * minSampleGap // what it leaves is missed by others
	}
	for i := 4; i < l.sampling.steady && gap < slowest; i += 4 {
		gap *= 2
	}
	gap = min(gap, slowest)
	switch {
	case l.lease.held() == (lease.Capacity{Tokens: l.lease.held().Tokens}) && l.load.demand == 0 && l.load.shortfall == 0 && r.InUse == 0:
		// Nothing is held and nothing comes: whoever finds it empty says so.
		l.sampling.next = lease.Never
	default:
		l.sampling.next = now.Add(gap)
	}
}
