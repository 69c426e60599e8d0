package agent

import (
	"time"

	"github.com/stint-io/stint/internal/bucket"
	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/limit"
)

// giveBackUnneeded gives back what is held and not needed. cover is as in sampleRate. Burst
// is given back along with rate, since it is refilled by rate alone.
func (r *resource) giveBackUnneeded(now limit.Time, t *timing, obs bucket.Reading, held lease.Capacity, cover fixed.Amount) {
	if r.lease.number == 0 {
		return
	}
	if held.Rate == 0 && obs.Level < fixed.Token {
		// A burst without a rate and without tokens is of use only elsewhere.
		r.shrinkTo(now, 0, 0)
	}
	if r.refusals.starved || obs.Waiting > 0 || held.Rate > 0 && !r.demandAcknowledged() {
		return
	}
	switch {
	case r.load.demand == 0 && r.sampling.idleSince != 0 && time.Duration(now-r.sampling.idleSince) >= lease.IdleGrace:
		r.shrinkTo(now, 0, 0)
	case r.load.demand == 0 && held.Rate > 0:
		// The tokens in the bucket stay, in case that this is a pause.
		r.shrinkTo(now, 0, min(held.Burst, obs.Level)/fixed.Token*fixed.Token)
	case held.Rate == 0 && now < r.refusals.expectedUntil:
		// They were granted for the next request, which is still expected.
	case held.Rate == 0 && r.sampling.idleSince != 0 && time.Duration(now-r.sampling.idleSince) >= r.idleGrace(t):
		r.shrinkTo(now, 0, 0)
	case r.load.demand == 0:
	case held.Burst >= r.answer.limit().Burst:
		// The whole burst of the limit is held here: rate elsewhere would refill nothing.
	case !r.answer.contended && held.Rate > 2*r.load.demand && held.Rate-r.load.demand > r.answer.limit().Rate/giveBackFloor && time.Duration(now-r.sent.at) >= lease.IdleGrace:
		// Not contended: it is enough to follow the demand slowly.
		r.shrink(now, held, r.load.demand+r.load.demand/4, cover)
	case r.answer.contended && held.Rate > r.load.demand+r.load.demand/4 && held.Rate-r.load.demand > r.answer.limit().Rate/giveBackFloor:
		r.shrink(now, held, r.load.demand+r.load.demand/16, cover)
	case r.answer.contended && obs.Level >= held.Burst && time.Duration(now-r.sent.at) >= contendedGap && (held.Rate > r.load.demand+r.load.demand/lease.Headroom || held.Rate > r.load.demand && !r.answer.saturated):
		// The bucket is full: what the rate refills would be lost, and is missing elsewhere.
		r.shrinkTo(now, r.load.demand, max(2*fixed.Token, (held.Burst/2+fixed.Token-1)/fixed.Token*fixed.Token))
	}
}

// demandAcknowledged says whether the coordinator has acknowledged about the present demand.
// Only then is capacity given back without being revoked: a coordinator that does not answer
// cannot lend it to others, and after a short pause the instance itself would not have it.
func (r *resource) demandAcknowledged() bool {
	return !r.lease.claiming && r.sent.number > 0 && r.acks.report >= r.sent.number && fixed.Near(r.load.demand, r.sent.demand, demandChanged)
}

// shrink gives back all but a rate and the same fraction of the burst, at least two tokens
// and cover.
func (r *resource) shrink(now limit.Time, held lease.Capacity, rate, cover fixed.Amount) {
	burst := (max(2*fixed.Token, cover, held.Burst.Scale(rate, held.Rate)) + fixed.Token - 1) / fixed.Token * fixed.Token
	r.shrinkTo(now, rate, burst)
}

// idleGrace is how long tokens stay with an instance that is idle: not long when the limit
// is contended.
func (r *resource) idleGrace(t *timing) time.Duration {
	if r.answer.contended {
		return min(lease.IdleGrace, max(2*t.trip, minSampleGap))
	}
	return lease.IdleGrace
}

// giveUp gives back everything, and ends what is spent without a lease.
func (r *resource) giveUp(now limit.Time) {
	r.shrinkTo(now, 0, 0)
	if r.lease.number == 0 {
		r.endFallback(now)
	}
}

// shrinkTo returns what is held above a rate and a burst, without being asked to.
func (r *resource) shrinkTo(now limit.Time, rate, burst fixed.Amount) {
	held := r.lease.held()
	if r.lease.number == 0 || held.Rate <= rate && held.Burst <= burst {
		return
	}
	before := r.lease.returned
	r.update(now, min(rate, held.Rate), min(burst, held.Burst), 0)
	if r.lease.returned != before {
		r.planReport(now, lease.MinReportGap)
	}
}
