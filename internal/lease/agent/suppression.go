package agent

import (
	"github.com/stint-io/stint/internal/bucket"
	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/limit"
)

// sampleSuppressed is look for a limit that is shared by suppression: it reports what was
// attempted and admitted, when that has changed, and never more often than is asked.
func (l *resource) sampleSuppressed(now limit.Time, r bucket.Reading, changed bool) {
	every := l.answer.limit.Suppress.ReportInterval()
	switch l.opts.Estimator {
	case Declared:
		l.load.demand = min(r.Declared, fixed.MaxAmount)
	default:
		l.load.demand, _ = fixed.AmountOf(l.load.meter.Rate)
	}
	l.load.attempted, l.load.admitted, l.load.largest = r.Attempted, r.Admitted, r.Largest
	l.load.shortfall, l.refusals.starved = 0, false
	// That nothing has come is told once, after what came last.
	if l.load.attempted != l.sent.attempted || l.sent.more || !fixed.Near(l.load.demand, l.sent.demand, 64) {
		l.ask(now, every)
	}
	// A change is seen the sooner the more often it is looked for.
	gap := max(minSampleGap, every/8)
	if l.sampling.steady++; changed || l.load.demand > 0 {
		l.sampling.steady = 0
	}
	if l.sampling.steady > 8 {
		gap = max(gap, min(every, maxSampleGap))
	}
	l.sampling.next = now.Add(gap)
}

// suppressor is a Spender that can refuse a part of what it is asked.
type suppressor interface {
	// Suppress puts s in force until the next call: see [Bucket.Suppress].
	Suppress(now limit.Time, s bucket.Suppression, independent bool)
}

// suppress puts in force what the coordinator said about what is asked.
func (l *resource) suppress(now limit.Time, s bucket.Suppression) {
	spender, ok := l.bucket.(suppressor)
	if !ok || !l.suppression.active && l.answer.limit.Suppress == nil {
		return
	}
	l.suppression.sent = s
	if l.suppression.active = l.answer.limit.Suppress != nil; !l.suppression.active {
		l.suppression.sent = bucket.Suppression{}
		spender.Suppress(now, bucket.Suppression{}, false)
		return
	}
	if s.Reject > 0 && l.load.largest > fixed.Token {
		// Or a dear one would never be admitted, or only by a bucket that is full.
		s.Burst = min(fixed.SaturatingAdd(s.Burst, l.load.largest), l.answer.limit.Burst)
	}
	spender.Suppress(now, s, l.answer.limit.Suppress.Independent)
}

// suppressAlone is what an instance does when no coordinator has answered for as long as
// a lease lasts. Suppression never was a promise that the limit holds whatever happens,
// and it must not become a refusal of everything: by default what was told last stays,
// and the instance admits the whole limit at most.
func (l *resource) suppressAlone(now limit.Time) {
	rate := l.answer.limit.Rate
	if l.opts.Expiry == Safe {
		rate = l.answer.safe
	}
	if l.opts.Expiry != Pessimistic {
		l.suppress(now, bucket.Suppression{})
	}
	l.fallBack(now, rate)
}
