package agent

import (
	"github.com/stint-io/stint/internal/bucket"
	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/limit"
)

// sampleSuppressed is sample for a limit that is shared by suppression: it plans a report of
// what was attempted and admitted when that has changed, no more often than the terms say.
func (r *resource) sampleSuppressed(now limit.Time, obs bucket.Reading, changed bool) {
	every := r.answer.limit().Suppress.ReportInterval()
	switch r.opts.Estimator {
	case Declared:
		r.load.demand = min(obs.Declared, fixed.MaxAmount)
	default:
		r.load.demand, _ = fixed.AmountOf(r.load.meter.Rate)
	}
	r.load.attempted, r.load.admitted, r.load.largest = obs.Attempted, obs.Admitted, obs.Largest
	r.load.shortfall, r.refusals.starved = 0, false
	// One more report follows the last change, to say that nothing has arrived since.
	if r.load.attempted != r.sent.attempted || r.sent.more || !fixed.Near(r.load.demand, r.sent.demand, lease.Hysteresis) {
		r.planReport(now, every)
	}
	// Eight samples in each interval between reports find a change in time.
	gap := max(minSampleGap, every/8)
	if r.sampling.steady++; changed || r.load.demand > 0 {
		r.sampling.steady = 0
	}
	if r.sampling.steady > 8 {
		gap = max(gap, min(every, maxSampleGap))
	}
	r.sampling.next = now.Add(gap)
}

// suppress puts the coordinator's suppression in force.
func (r *resource) suppress(now limit.Time, s bucket.Suppression) {
	spender, ok := r.bucket.(suppressor)
	if !ok || !r.suppression.active && r.answer.limit().Suppress == nil {
		return
	}
	r.suppression.sent = s
	if r.suppression.active = r.answer.limit().Suppress != nil; !r.suppression.active {
		r.suppression.sent = bucket.Suppression{}
		spender.Suppress(now, bucket.Suppression{}, false)
		return
	}
	if s.Reject > 0 && r.load.largest > fixed.Token {
		// The burst is that of an average request. Without the largest recent cost on top,
		// a costly request would never be admitted, or only by a full bucket.
		s.Burst = min(fixed.SaturatingAdd(s.Burst, r.load.largest), r.answer.limit().Burst)
	}
	spender.Suppress(now, s, r.answer.limit().Suppress.Independent)
}
