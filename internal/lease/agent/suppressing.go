package agent

import (
	"github.com/stint-io/stint/internal/bucket"
	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/limit"
)

// sampleSuppressed is look for a limit that is shared by suppression: it reports what was
// attempted and admitted, when that has changed, and never more often than is asked.
func (l *resource) sampleSuppressed(now limit.Time, r bucket.Reading, changed bool) {
	every := l.terms.Suppress.ReportInterval()
	switch l.opts.Estimator {
	case Declared:
		l.demand = min(r.Declared, fixed.MaxAmount)
	default:
		l.demand, _ = fixed.AmountOf(l.meter.Rate)
	}
	l.attempted, l.passed, l.largest = r.Attempted, r.Admitted, r.Largest
	l.shortfall, l.starved = 0, false
	// That nothing has come is told once, after what came last.
	if l.attempted != l.sentAttempted || l.sentMore || !fixed.Near(l.demand, l.sentDemand, 64) {
		l.ask(now, every)
	}
	// A change is seen the sooner the more often it is looked for.
	gap := max(minSampleGap, every/8)
	if l.steady++; changed || l.demand > 0 {
		l.steady = 0
	}
	if l.steady > 8 {
		gap = max(gap, min(every, maxSampleGap))
	}
	l.sampleAt = now.Add(gap)
}

// suppressor is a Spender that can refuse a part of what it is asked.
type suppressor interface {
	// Suppress puts s in force until the next call: see [Bucket.Suppress].
	Suppress(now limit.Time, s bucket.Suppression, independent bool)
}

// suppress puts in force what the coordinator said about what is asked.
func (l *resource) suppress(now limit.Time, s bucket.Suppression) {
	spender, ok := l.bucket.(suppressor)
	if !ok || !l.suppressing && l.terms.Suppress == nil {
		return
	}
	l.suppression = s
	if l.suppressing = l.terms.Suppress != nil; !l.suppressing {
		l.suppression = bucket.Suppression{}
		spender.Suppress(now, bucket.Suppression{}, false)
		return
	}
	if s.Reject > 0 && l.largest > fixed.Token {
		// Or a dear one would never be admitted, or only by a bucket that is full.
		s.Burst = min(fixed.SaturatingAdd(s.Burst, l.largest), l.terms.Burst)
	}
	spender.Suppress(now, s, l.terms.Suppress.Independent)
}

// suppressAlone is what an instance does when no coordinator has answered for as long as
// a lease lasts. Suppression never was a promise that the limit holds whatever happens,
// and it must not become a refusal of everything: by default what was told last stays,
// and the instance admits the whole limit at most.
func (l *resource) suppressAlone(now limit.Time) {
	rate := l.terms.Rate
	if l.opts.Expiry == Safe {
		rate = l.safe
	}
	if l.opts.Expiry != Pessimistic {
		l.suppress(now, bucket.Suppression{})
	}
	l.fallBack(now, rate)
}
