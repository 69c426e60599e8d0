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
func (l *resource) sample(now limit.Time, h *Agent) {
	if l.closed {
		l.sampleAt = lease.Never
		if l.shrinkTo(now, 0, 0); l.held().Burst > 0 {
			l.sampleAt = now.Add(maxSampleGap) // places that are in use
		}
		return
	}
	r := l.bucket.Observe(now)
	unit := max(fixed.Token, r.Largest)
	if 0 < l.sampleAt && l.sampleAt < now {
		l.meter.Standstill(now, time.Duration(now-l.sampleAt))
	}
	changed := l.meter.ObserveWaiting(now, l.lastCame(now, r), r.Attempted, unit.Float(), r.Waited)
	if l.meter.At == now {
		l.others = r.Attempted - r.Admitted
	}
	l.waiting = r.Waiting
	if l.starved {
		l.shortUntil = now.Add(contendedGap)
	}
	l.waitUntil = 0
	if r.Waiting > 0 {
		l.waitUntil = r.WaitUntil
	}
	if l.opts.Silent {
		l.sampleAt = lease.Never
		return
	}
	if l.terms.Suppress != nil {
		l.sampleSuppressed(now, r, changed)
		return
	}
	quiet := l.meter.Quiet > 0 && r.Waiting == 0 && !l.starved
	switch {
	case !quiet:
		l.idleSince = 0
	case l.idleSince == 0:
		l.idleSince = now
	}
	if l.terms.Semaphore {
		l.samplePermits(now, h, r)
	} else {
		l.sampleRate(now, h, r, unit)
	}
	l.schedule(now, r, changed)
	if !l.urgent {
		l.starved = false
	}
}

// lastCame is when the last request came, 0 if that is not known: one that was refused is
// ackedReport at once, and one that was admitted at once has left its time.
func (l *resource) lastCame(now limit.Time, r bucket.Reading) limit.Time {
	switch {
	case l.refusedAt == now:
		return now
	case l.others != r.Attempted-r.Admitted:
		return 0
	}
	return r.Last
}

// contendedGap is between reports that move a few tokens while all is lent. Not shorter:
// they would cost more than they bring.
const contendedGap = 250 * time.Millisecond

// useTolerance and useGrowth are for demand that is known by use alone: above nine
// tenths an instance may want more, and asks for twice as much.
const (
	useTolerance = 0.1
	useGrowth    = 2.0
)

// demandRate is the demand in tokens per second.
func (l *resource) demandRate(now limit.Time, r bucket.Reading) fixed.Amount {
	switch l.opts.Estimator {
	case Declared:
		return min(r.Declared, fixed.MaxAmount)
	case Utilisation:
		if l.admitted == nil {
			l.admitted = &demand.Meter{}
		}
		l.admitted.Observe(now, r.Admitted, max(fixed.Token, r.Largest).Float())
		admitted, err := fixed.AmountOf(l.admitted.Rate)
		if err != nil {
			return 0
		}
		if l.held().Rate == 0 {
			break // what it was admitted tells nothing; that it asks does
		}
		return demand.WantedByUse(l.held().Rate, admitted, useTolerance, useGrowth)
	}
	// A backlog is to be worked off within a second; by those who wait as long as it
	// takes, sooner, since they ask for nothing meanwhile.
	rate := l.meter.Rate + r.Waiting.Float()
	if r.Waiting > 0 && r.Patient {
		rate = l.meter.Rate + max(r.Waiting.Float(), min(r.Waiting.Float()/demand.RecentSpan, l.terms.Rate.Float()/lease.Hysteresis))
	}
	if held := l.held().Rate; now < l.shortUntil && r.Waiting == 0 && held+held/lease.Hysteresis >= l.sentDemand {
		rate = l.meter.Recent(max(fixed.Token, r.Largest).Float())
	}
	want, err := fixed.AmountOf(rate)
	if err != nil {
		return 0
	}
	return want
}

// sampleRate is look for a rate.
func (l *resource) sampleRate(now limit.Time, h *Agent, r bucket.Reading, unit fixed.Amount) {
	l.demand = l.demandRate(now, r)
	held := l.held()
	trip := max(h.trip, 5*time.Millisecond)
	// What comes while an answer is under way, and one request more.
	cover := unit + l.demand.Scale(fixed.Amount(2*trip), fixed.Amount(time.Second))
	l.shortfall = l.shortfallAt(now, h, r, held, cover, unit)
	l.giveBack(now, h, r, held, cover)
	l.decide(now, held, unit)
}

// maxTokenWait is how long a token waits at most for the next one who is expected. Not
// longer: others lack it.
const maxTokenWait = 4 * time.Second

// shortfallAt is how many tokens are missing at this moment.
func (l *resource) shortfallAt(now limit.Time, h *Agent, r bucket.Reading, held lease.Capacity, cover, unit fixed.Amount) fixed.Amount {
	if l.starved && r.Waiting == 0 {
		// The next one will come about then, and should find a token.
		next := lease.IdleGrace
		if l.demand > 0 {
			apart := time.Duration(float64(unit) / float64(l.demand) * float64(time.Second))
			next = max(min(lease.IdleGrace, 2*apart), min(maxTokenWait, apart+apart/4))
		}
		l.shortfallUntil = now.Add(max(next, 2*h.trip))
	}
	if l.demand == 0 && !l.starved {
		l.shortfallUntil = 0 // there is no next one
	}
	waiting := r.Waiting > 0 && (l.waitUntil == 0 || l.waitUntil > now.Add(h.trip))
	short := waiting || now < l.shortfallUntil
	low := min(cover, max(held.Burst/2, fixed.Token))
	// Without a rate of its own an instance asks when somebody wants a token.
	if held.Rate > 0 && l.demand > 0 && r.Level < low && (held.Rate < l.demand || l.contended) {
		short = true
	}
	if !short {
		return 0
	}
	if l.saturated && held.Rate > 0 && held.Burst >= max(unit, r.Waiting) && !fixed.Near(min(l.demand, held.Rate), l.demand, 16) {
		return 0 // it has its part of what all want more of
	}
	need := max(cover, r.Waiting, held.Burst/2)
	if !l.starved && r.Waiting == 0 {
		need = max(cover, held.Burst/2)
	}
	if l.contended && held.Rate > 0 {
		// Tokens to fill the depth that it has, for more would be missing elsewhere.
		need = min(need, max(held.Burst, r.Waiting, unit))
	}
	if need <= r.Level {
		if !l.starved {
			return 0
		}
		need = r.Level + unit // the one that was refused was larger
	}
	if lack := need - r.Level; lack >= fixed.Token || r.Level < unit || l.starved || r.Waiting > 0 {
		return lack
	}
	return 0 // the next one finds a token, and a part of one may not fit
}

// giveBack gives back what is held and not needed.
func (l *resource) giveBack(now limit.Time, h *Agent, r bucket.Reading, held lease.Capacity, cover fixed.Amount) {
	if l.lease == 0 {
		return
	}
	if held.Rate == 0 && r.Level < fixed.Token && held.Burst > 0 {
		// Depth that nothing fills is of use to others only.
		l.shrinkTo(now, 0, 0)
	}
	if l.starved || r.Waiting > 0 || held.Rate > 0 && !l.agreed() {
		return
	}
	switch {
	case l.demand == 0 && l.idleSince != 0 && time.Duration(now-l.idleSince) >= lease.IdleGrace:
		l.shrinkTo(now, 0, 0)
	case l.demand == 0 && held.Rate > 0:
		// Some tokens stay, in case that it was a pause.
		l.shrinkTo(now, 0, min(held.Burst, r.Level)/fixed.Token*fixed.Token)
	case held.Rate == 0 && now < l.shortfallUntil:
		// They were lent for the next one, who is still expected.
	case held.Rate == 0 && held.Burst > 0 && l.idleSince != 0 && time.Duration(now-l.idleSince) >= l.patient(h):
		l.shrinkTo(now, 0, 0)
	case l.demand == 0:
	case held.Burst >= l.terms.Burst:
		// With no depth elsewhere the rate would fill nothing.
	case !l.contended && held.Rate > 2*l.demand && held.Rate-l.demand > l.terms.Rate/256 && time.Duration(now-l.sentAt) >= lease.IdleGrace:
		// Nobody needs it yet, so it is enough to follow slowly.
		l.shrink(now, held, l.demand+l.demand/4, cover)
	case l.contended && held.Rate > l.demand+l.demand/4 && held.Rate-l.demand > l.terms.Rate/256:
		l.shrink(now, held, l.demand+l.demand/16, cover)
	case l.contended && r.Level >= held.Burst && time.Duration(now-l.sentAt) >= contendedGap && (held.Rate > l.demand+l.demand/lease.Headroom || held.Rate > l.demand && !l.saturated):
		// It is full and would overflow, and others lack it.
		l.shrinkTo(now, l.demand, max(2*fixed.Token, (held.Burst/2+fixed.Token-1)/fixed.Token*fixed.Token))
	}
}

// agreed says whether the coordinator has answered what the instance wants now. Only then
// is anything given back unasked: what is given to one that does not answer is nobody's,
// for as long as the lease lasts, and demand that was gone for a moment finds nothing.
func (l *resource) agreed() bool {
	return !l.claiming && l.sent > 0 && l.ackedReport >= l.sent && fixed.Near(l.demand, l.sentDemand, 8)
}

// shrink gives back all but a rate, and the depth that belongs to it.
func (l *resource) shrink(now limit.Time, held lease.Capacity, rate, cover fixed.Amount) {
	depth := (max(2*fixed.Token, cover, held.Burst.Scale(rate, held.Rate)) + fixed.Token - 1) / fixed.Token * fixed.Token
	l.shrinkTo(now, rate, depth)
}

// patient is how long tokens wait for somebody to use them: not long if others wait
// for them.
func (l *resource) patient(h *Agent) time.Duration {
	if l.contended {
		return min(lease.IdleGrace, max(2*h.trip, minSampleGap))
	}
	return lease.IdleGrace
}

// decide says whether the coordinator has to know at once.
func (l *resource) decide(now limit.Time, held lease.Capacity, unit fixed.Amount) {
	switch {
	case l.opts.Estimator != Attempted && !fixed.Near(l.demand, l.sentDemand, 32):
		l.ask(now, lease.MinReportGap)
	case l.shortfall > 0 && l.sentShortfall == 0 && !(l.contended && held.Rate > 0):
		l.ask(now, lease.MinReportGap)
	case l.demand > held.Rate && !fixed.Near(l.demand, l.sentDemand, 8):
		// Above twice what it gets it makes no difference how much.
		if !l.saturated || held.Rate == 0 || l.sentDemand < 2*held.Rate || l.demand > 2*l.sentDemand {
			l.ask(now, lease.MinReportGap)
		}
	case l.demand < l.sentDemand && !fixed.Near(l.demand, l.sentDemand, 8) && (l.contended || l.demand == 0):
		gap := lease.MinReportGap
		if l.demand > 0 && l.sentDemand-l.demand < l.terms.Rate/1024 {
			gap = contendedGap
		}
		l.ask(now, gap)
	case l.contended && !fixed.Near(l.demand, l.sentDemand, lease.Hysteresis) && min(l.demand, l.sentDemand) <= held.Rate+held.Rate/4 && l.differs(unit):
		l.ask(now, contendedGap)
	case l.starved && l.demand > l.sentDemand && l.demand > held.Rate && !fixed.Near(l.demand, l.sentDemand, lease.Hysteresis):
		l.ask(now, max(l.gap, lease.MinReportGap)) // that it was refused shows that it is no chance
	case l.demand < l.sentDemand/2:
		l.ask(now, lease.IdleGrace)
	case l.shortfall > 0 && l.saturated && held.Rate > 0 && held.Burst >= unit:
		l.starved = false // it has its part
	case l.shortfall > 0 && l.sent > l.ackedReport:
		// Asking again brings nothing while an answer is under way.
	case l.shortfall > 0 && l.contended && held.Rate > 0:
		l.ask(now, max(l.gap, contendedGap))
	case l.shortfall > 0:
		l.ask(now, l.gap)
	case l.shortfall == 0 && l.sentShortfall > 0 && held.Rate == 0 && l.contended:
		l.ask(now, lease.MinReportGap) // or a token would come for nobody
	case l.contended && !fixed.Near(l.demand, l.sentDemand, 100) && !(l.saturated && l.demand > held.Rate+held.Rate/4):
		l.ask(now, time.Second)
	}
}

// differs says whether what is wanted differs from what was reported by more than chance.
func (l *resource) differs(unit fixed.Amount) bool {
	off := max(l.demand, l.sentDemand) - min(l.demand, l.sentDemand)
	return off.Float() > l.demand.Float()*l.meter.Doubt(unit.Float())
}

// samplePermits is look for a gauge: it wants what is in use and who waits, and keeps
// what it used of late.
func (l *resource) samplePermits(now limit.Time, h *Agent, r bucket.Reading) {
	held := l.held()
	want := r.InUse + r.Waiting
	if l.opts.Estimator == Declared {
		want = max(want, r.Declared)
	}
	if l.starved {
		want = max(want, held.Burst+max(fixed.Token, r.Largest))
	}
	if want >= l.recentPermits {
		l.recentPermits, l.recentUntil = want, now.Add(lease.IdleGrace)
	} else if now >= l.recentUntil {
		l.recentPermits, l.recentUntil = want, now.Add(lease.IdleGrace)
	}
	if l.contended {
		l.recentPermits = want
	}
	l.demand = max(want, l.recentPermits)
	l.shortfall = l.demand // for a gauge a report says how many places it wants in all
	l.meter.Rate = max(l.meter.Rate, r.InUse.Float())
	if l.lease != 0 && !l.starved && l.agreed() {
		l.shrinkTo(now, 0, max(l.demand, r.InUse))
	}
	if l.capBurst < l.held().Burst {
		// It was asked to come down, and does as places are released.
		l.shrinkTo(now, 0, l.capBurst)
		l.steady = 0
	}
	if l.demand > held.Burst && l.demand != l.sentDemand || l.demand < l.sentDemand && l.contended {
		l.ask(now, lease.MinReportGap)
	} else if l.demand > held.Burst {
		l.ask(now, l.gap)
	} else if l.demand < l.sentDemand {
		l.ask(now, lease.IdleGrace)
	}
}

// schedule plans the next look.
func (l *resource) schedule(now limit.Time, r bucket.Reading, changed bool) {
	l.steady++
	if changed || l.starved || r.Waiting > 0 && !l.saturated {
		l.steady = 0
	}
	gap := minSampleGap
	slowest := maxSampleGap
	if l.contended && l.demand > 0 {
		slowest = 2 * minSampleGap // what it leaves is missed by others
	}
	for i := 4; i < l.steady && gap < slowest; i += 4 {
		gap *= 2
	}
	gap = min(gap, slowest)
	switch {
	case l.held() == (lease.Capacity{Tokens: l.held().Tokens}) && l.demand == 0 && l.shortfall == 0 && r.InUse == 0:
		// Nothing is held and nothing comes: whoever finds it empty says so.
		l.sampleAt = lease.Never
	default:
		l.sampleAt = now.Add(gap)
	}
}
