package agent

// What an instance spends without a lease: LeaseOptions.Start before the first grant, and what
// LeaseOptions.Expiry says after expiry.

import (
	"github.com/stint-io/stint/internal/bucket"
	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/limit"
)

// endFallbackWhenDue ends what is spent without a lease when a lease has come, or when it is
// known that none will come. Not while the coordinator recovers: it does not know yet what
// it can lend. And not before it has had the time to revoke capacity from other instances:
// one that does not answer keeps its capacity for a whole lease.
func (r *resource) endFallbackWhenDue(now limit.Time, t *timing) {
	switch {
	case !r.fallback.starting && !r.fallback.expired:
	case r.lease.number != 0:
		r.fallback.starting, r.fallback.expired, r.fallback.until = false, false, 0
	case r.answer.recovering:
		r.fallback.until = 0
	case r.fallback.starting:
		r.endFallback(now) // LeaseOptions.Start ends with the first grant
	case r.fallback.until == 0:
		r.fallback.until = now.Add(t.lease)
	case now >= r.fallback.until:
		r.endFallback(now)
	}
}

// fallbackSuffices says whether the instance reports no demand because it spends without a
// lease while the coordinator recovers: the little that is certainly free then goes to
// instances that have nothing.
func (r *resource) fallbackSuffices() bool {
	return r.answer.recovering && r.lease.number == 0 && r.answer.limit().Suppress == nil && (r.fallback.starting || r.fallback.expired && r.opts.Expiry != Pessimistic)
}

// endFallback ends what is spent without a lease.
func (r *resource) endFallback(now limit.Time) {
	r.fallback.starting, r.fallback.expired, r.fallback.until = false, false, 0
	r.lapse(now)
}

// lapse ends what is in force in the bucket.
func (r *resource) lapse(now limit.Time) {
	if r.site != nil {
		r.site.lender.Lapse(now)
		return
	}
	r.bucket.Update(now, 0, 0, 0)
}

// endLease stops spending under the lease. When it has expired, what the ExpiryMode says is
// in force from then on.
func (r *resource) endLease(now limit.Time, expired bool) {
	if r.lease.number != 0 || (r.fallback.starting || r.fallback.expired) && !expired {
		if r.lapse(now); r.site != nil && expired {
			r.site.lender.Expire(now)
		}
	}
	had := r.lease.number != 0
	r.lease.drop()
	if !expired {
		return
	}
	r.planReport(now, lease.MinReportGap)
	if r.closed {
		return
	}
	r.sampling.next = min(r.sampling.next, now.Add(minSampleGap))
	if !had && !r.answer.known {
		return
	}
	r.fallback.expired, r.fallback.until = true, 0
	if r.suppression.active {
		r.suppressExpired(now)
		return
	}
	switch r.opts.Expiry {
	case Optimistic:
		// Measured demand is no bound here: it may begin to rise only now. Declared demand is.
		whole := r.answer.limit().Amount()
		if r.opts.Estimator == Declared && r.load.demand > 0 {
			whole = min(whole, r.load.demand)
		}
		r.startFallback(now, whole)
	case Safe:
		r.startFallback(now, r.answer.safe)
	}
}

// startFallback spends rate (tokens per second, or permits of a semaphore) without a lease.
// The burst is the same fraction of the limit's burst; of a limit that is not known yet it is
// what the rate brings in a tenth of a second; at least one token.
func (r *resource) startFallback(now limit.Time, rate fixed.Amount) {
	f, ok := r.bucket.(fallbackBucket)
	if !ok || rate <= 0 {
		return
	}
	burst := max(fixed.Token, rate/10/fixed.Token*fixed.Token)
	if r.answer.limit().Semaphore {
		rate, burst = 0, max(fixed.Token, rate/fixed.Token*fixed.Token)
	} else if r.answer.limit().Rate > 0 {
		burst = max(fixed.Token, r.answer.limit().Burst.Scale(min(rate, r.answer.limit().Rate), r.answer.limit().Rate)/fixed.Token*fixed.Token)
	}
	f.UpdateFallback(now, rate, burst)
}

// suppressExpired is expiry for a limit that is shared by suppression. Suppression does not
// promise that the limit holds in a partition, and an unreachable coordinator must not make
// it refuse everything: by default the latest suppression stays in force, and the instance
// admits the whole limit at most.
func (r *resource) suppressExpired(now limit.Time) {
	rate := r.answer.limit().Rate
	if r.opts.Expiry == Safe {
		rate = r.answer.safe
	}
	if r.opts.Expiry != Pessimistic {
		r.suppress(now, bucket.Suppression{})
	}
	r.startFallback(now, rate)
}
