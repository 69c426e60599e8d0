package agent

import (
	"time"

	"github.com/stint-io/stint/internal/bucket"
	"github.com/stint-io/stint/internal/demand"
	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/limit"
)

// look measures the demand, gives back what is not needed, and decides whether the
// coordinator has to know.
func (l *resource) look(now limit.Time, h *Agent) {
	if l.closed {
		l.lookAt = lease.Never
		if l.keep(now, 0, 0); l.Held().Depth > 0 {
			l.lookAt = now.Add(longestLook) // places that are in use
		}
		return
	}
	r := l.spender.Observe(now)
	unit := max(fixed.Token, r.Largest)
	if 0 < l.lookAt && l.lookAt < now {
		l.meter.Standstill(now, time.Duration(now-l.lookAt))
	}
	changed := l.meter.ObserveWaiting(now, l.lastCame(now, r), r.Attempted, unit.Float(), r.Waited)
	if l.meter.At == now {
		l.others = r.Attempted - r.Admitted
	}
	l.waiting = r.Waiting
	if l.starved {
		l.shortUntil = now.Add(scarceGap)
	}
	l.waitUntil = 0
	if r.Waiting > 0 {
		l.waitUntil = r.WaitUntil
	}
	if l.opts.Silent {
		l.lookAt = lease.Never
		return
	}
	if l.terms.Suppress != nil {
		l.lookSuppressed(now, r, changed)
		return
	}
	quiet := l.meter.Quiet > 0 && r.Waiting == 0 && !l.starved
	switch {
	case !quiet:
		l.idleSince = 0
	case l.idleSince == 0:
		l.idleSince = now
	}
	if l.terms.Gauge {
		l.lookPlaces(now, h, r)
	} else {
		l.lookRate(now, h, r, unit)
	}
	l.schedule(now, r, changed)
	if !l.urgent {
		l.starved = false
	}
}

// lastCame is when the last request came, 0 if that is not known: one that was refused is
// seen at once, and one that was admitted at once has left its time.
func (l *resource) lastCame(now limit.Time, r bucket.Reading) limit.Time {
	switch {
	case l.refusedAt == now:
		return now
	case l.others != r.Attempted-r.Admitted:
		return 0
	}
	return r.Last
}

// scarceGap is between reports that move a few tokens while all is lent. Not shorter:
// they would cost more than they bring.
const scarceGap = 250 * time.Millisecond

// useTolerance and useGrowth are for demand that is known by use alone: above nine
// tenths an instance may want more, and asks for twice as much.
const (
	useTolerance = 0.1
	useGrowth    = 2.0
)

// wantRate is the demand in tokens per second.
func (l *resource) wantRate(now limit.Time, r bucket.Reading) fixed.Amount {
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
		if l.Held().Rate == 0 {
			break // what it was admitted tells nothing; that it asks does
		}
		return demand.WantedByUse(l.Held().Rate, admitted, useTolerance, useGrowth)
	}
	// A backlog is to be worked off within a second; by those who wait as long as it
	// takes, sooner, since they ask for nothing meanwhile.
	rate := l.meter.Rate + r.Waiting.Float()
	if r.Waiting > 0 && r.Patient {
		rate = l.meter.Rate + max(r.Waiting.Float(), min(r.Waiting.Float()/demand.RecentSpan, l.terms.Rate.Float()/lease.Hysteresis))
	}
	if held := l.Held().Rate; now < l.shortUntil && r.Waiting == 0 && held+held/lease.Hysteresis >= l.sentWant {
		rate = l.meter.Recent(max(fixed.Token, r.Largest).Float())
	}
	want, err := fixed.AmountOf(rate)
	if err != nil {
		return 0
	}
	return want
}

// lookRate is look for a rate.
func (l *resource) lookRate(now limit.Time, h *Agent, r bucket.Reading, unit fixed.Amount) {
	l.want = l.wantRate(now, r)
	held := l.Held()
	trip := max(h.trip, 5*time.Millisecond)
	// What comes while an answer is under way, and one request more.
	cover := unit + l.want.Scale(fixed.Amount(2*trip), fixed.Amount(time.Second))
	l.lack = l.lacks(now, h, r, held, cover, unit)
	l.giveBack(now, h, r, held, cover)
	l.decide(now, held, unit)
}

// longestWait is how long a token waits at most for the next one who is expected. Not
// longer: others lack it.
const longestWait = 4 * time.Second

// lacks is how many tokens are missing at this moment.
func (l *resource) lacks(now limit.Time, h *Agent, r bucket.Reading, held lease.Capacity, cover, unit fixed.Amount) fixed.Amount {
	if l.starved && r.Waiting == 0 {
		// The next one will come about then, and should find a token.
		next := lease.IdleGrace
		if l.want > 0 {
			apart := time.Duration(float64(unit) / float64(l.want) * float64(time.Second))
			next = max(min(lease.IdleGrace, 2*apart), min(longestWait, apart+apart/4))
		}
		l.lackUntil = now.Add(max(next, 2*h.trip))
	}
	if l.want == 0 && !l.starved {
		l.lackUntil = 0 // there is no next one
	}
	waiting := r.Waiting > 0 && (l.waitUntil == 0 || l.waitUntil > now.Add(h.trip))
	short := waiting || now < l.lackUntil
	low := min(cover, max(held.Depth/2, fixed.Token))
	// Without a rate of its own an instance asks when somebody wants a token.
	if held.Rate > 0 && l.want > 0 && r.Level < low && (held.Rate < l.want || l.scarce) {
		short = true
	}
	if !short {
		return 0
	}
	if l.full && held.Rate > 0 && held.Depth >= max(unit, r.Waiting) && !fixed.Near(min(l.want, held.Rate), l.want, 16) {
		return 0 // it has its part of what all want more of
	}
	need := max(cover, r.Waiting, held.Depth/2)
	if !l.starved && r.Waiting == 0 {
		need = max(cover, held.Depth/2)
	}
	if l.scarce && held.Rate > 0 {
		// Tokens to fill the depth that it has, for more would be missing elsewhere.
		need = min(need, max(held.Depth, r.Waiting, unit))
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
	if held.Rate == 0 && r.Level < fixed.Token && held.Depth > 0 {
		// Depth that nothing fills is of use to others only.
		l.keep(now, 0, 0)
	}
	if l.starved || r.Waiting > 0 || held.Rate > 0 && !l.agreed() {
		return
	}
	switch {
	case l.want == 0 && l.idleSince != 0 && time.Duration(now-l.idleSince) >= lease.IdleGrace:
		l.keep(now, 0, 0)
	case l.want == 0 && held.Rate > 0:
		// Some tokens stay, in case that it was a pause.
		l.keep(now, 0, min(held.Depth, r.Level)/fixed.Token*fixed.Token)
	case held.Rate == 0 && now < l.lackUntil:
		// They were lent for the next one, who is still expected.
	case held.Rate == 0 && held.Depth > 0 && l.idleSince != 0 && time.Duration(now-l.idleSince) >= l.patient(h):
		l.keep(now, 0, 0)
	case l.want == 0:
	case held.Depth >= l.terms.Burst:
		// With no depth elsewhere the rate would fill nothing.
	case !l.scarce && held.Rate > 2*l.want && held.Rate-l.want > l.terms.Rate/256 && time.Duration(now-l.sentAt) >= lease.IdleGrace:
		// Nobody needs it yet, so it is enough to follow slowly.
		l.shrink(now, held, l.want+l.want/4, cover)
	case l.scarce && held.Rate > l.want+l.want/4 && held.Rate-l.want > l.terms.Rate/256:
		l.shrink(now, held, l.want+l.want/16, cover)
	case l.scarce && r.Level >= held.Depth && time.Duration(now-l.sentAt) >= scarceGap && (held.Rate > l.want+l.want/lease.Headroom || held.Rate > l.want && !l.full):
		// It is full and would overflow, and others lack it.
		l.keep(now, l.want, max(2*fixed.Token, (held.Depth/2+fixed.Token-1)/fixed.Token*fixed.Token))
	}
}

// agreed says whether the coordinator has answered what the instance wants now. Only then
// is anything given back unasked: what is given to one that does not answer is nobody's,
// for as long as the lease lasts, and demand that was gone for a moment finds nothing.
func (l *resource) agreed() bool {
	return !l.claiming && l.sent > 0 && l.seen >= l.sent && fixed.Near(l.want, l.sentWant, 8)
}

// shrink gives back all but a rate, and the depth that belongs to it.
func (l *resource) shrink(now limit.Time, held lease.Capacity, rate, cover fixed.Amount) {
	depth := (max(2*fixed.Token, cover, held.Depth.Scale(rate, held.Rate)) + fixed.Token - 1) / fixed.Token * fixed.Token
	l.keep(now, rate, depth)
}

// patient is how long tokens wait for somebody to use them: not long if others wait
// for them.
func (l *resource) patient(h *Agent) time.Duration {
	if l.scarce {
		return min(lease.IdleGrace, max(2*h.trip, shortestLook))
	}
	return lease.IdleGrace
}

// decide says whether the coordinator has to know at once.
func (l *resource) decide(now limit.Time, held lease.Capacity, unit fixed.Amount) {
	switch {
	case l.opts.Estimator != Attempted && !fixed.Near(l.want, l.sentWant, 32):
		l.ask(now, lease.MinReportGap)
	case l.lack > 0 && l.sentLack == 0 && !(l.scarce && held.Rate > 0):
		l.ask(now, lease.MinReportGap)
	case l.want > held.Rate && !fixed.Near(l.want, l.sentWant, 8):
		// Above twice what it gets it makes no difference how much.
		if !l.full || held.Rate == 0 || l.sentWant < 2*held.Rate || l.want > 2*l.sentWant {
			l.ask(now, lease.MinReportGap)
		}
	case l.want < l.sentWant && !fixed.Near(l.want, l.sentWant, 8) && (l.scarce || l.want == 0):
		gap := lease.MinReportGap
		if l.want > 0 && l.sentWant-l.want < l.terms.Rate/1024 {
			gap = scarceGap
		}
		l.ask(now, gap)
	case l.scarce && !fixed.Near(l.want, l.sentWant, lease.Hysteresis) && min(l.want, l.sentWant) <= held.Rate+held.Rate/4 && l.differs(unit):
		l.ask(now, scarceGap)
	case l.starved && l.want > l.sentWant && l.want > held.Rate && !fixed.Near(l.want, l.sentWant, lease.Hysteresis):
		l.ask(now, max(l.gap, lease.MinReportGap)) // that it was refused shows that it is no chance
	case l.want < l.sentWant/2:
		l.ask(now, lease.IdleGrace)
	case l.lack > 0 && l.full && held.Rate > 0 && held.Depth >= unit:
		l.starved = false // it has its part
	case l.lack > 0 && l.sent > l.seen:
		// Asking again brings nothing while an answer is under way.
	case l.lack > 0 && l.scarce && held.Rate > 0:
		l.ask(now, max(l.gap, scarceGap))
	case l.lack > 0:
		l.ask(now, l.gap)
	case l.lack == 0 && l.sentLack > 0 && held.Rate == 0 && l.scarce:
		l.ask(now, lease.MinReportGap) // or a token would come for nobody
	case l.scarce && !fixed.Near(l.want, l.sentWant, 100) && !(l.full && l.want > held.Rate+held.Rate/4):
		l.ask(now, time.Second)
	}
}

// differs says whether what is wanted differs from what was reported by more than chance.
func (l *resource) differs(unit fixed.Amount) bool {
	off := max(l.want, l.sentWant) - min(l.want, l.sentWant)
	return off.Float() > l.want.Float()*l.meter.Doubt(unit.Float())
}

// lookPlaces is look for a gauge: it wants what is in use and who waits, and keeps
// what it used of late.
func (l *resource) lookPlaces(now limit.Time, h *Agent, r bucket.Reading) {
	held := l.Held()
	want := r.InUse + r.Waiting
	if l.opts.Estimator == Declared {
		want = max(want, r.Declared)
	}
	if l.starved {
		want = max(want, held.Depth+max(fixed.Token, r.Largest))
	}
	if want >= l.busyPlaces {
		l.busyPlaces, l.busyUntil = want, now.Add(lease.IdleGrace)
	} else if now >= l.busyUntil {
		l.busyPlaces, l.busyUntil = want, now.Add(lease.IdleGrace)
	}
	if l.scarce {
		l.busyPlaces = want
	}
	l.want = max(want, l.busyPlaces)
	l.lack = l.want // for a gauge a report says how many places it wants in all
	l.meter.Rate = max(l.meter.Rate, r.InUse.Float())
	if l.lease != 0 && !l.starved && l.agreed() {
		l.keep(now, 0, max(l.want, r.InUse))
	}
	if l.keepDepth < l.Held().Depth {
		// It was asked to come down, and does as places are released.
		l.keep(now, 0, l.keepDepth)
		l.steady = 0
	}
	if l.want > held.Depth && l.want != l.sentWant || l.want < l.sentWant && l.scarce {
		l.ask(now, lease.MinReportGap)
	} else if l.want > held.Depth {
		l.ask(now, l.gap)
	} else if l.want < l.sentWant {
		l.ask(now, lease.IdleGrace)
	}
}

// schedule plans the next look.
func (l *resource) schedule(now limit.Time, r bucket.Reading, changed bool) {
	l.steady++
	if changed || l.starved || r.Waiting > 0 && !l.full {
		l.steady = 0
	}
	gap := shortestLook
	slowest := longestLook
	if l.scarce && l.want > 0 {
		slowest = 2 * shortestLook // what it leaves is missed by others
	}
	for i := 4; i < l.steady && gap < slowest; i += 4 {
		gap *= 2
	}
	gap = min(gap, slowest)
	switch {
	case l.Held() == (lease.Capacity{Tokens: l.Held().Tokens}) && l.want == 0 && l.lack == 0 && r.InUse == 0:
		// Nothing is held and nothing comes: whoever finds it empty says so.
		l.lookAt = lease.Never
	default:
		l.lookAt = now.Add(gap)
	}
}
