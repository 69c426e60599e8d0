package redis

import (
	"time"

	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/store"
)

// terms are the options by which a part of an operation is decided. Parts of one bucket are
// decided together whatever theirs are.
type terms struct {
	counts bool  // charge the cost even if the request is refused
	quota  int64 // of a fixed window, if own
	own    bool
}

// termsOf returns the terms of a charge.
func termsOf(c *store.Charge, r *rule) terms {
	t := terms{counts: (c.CountRefused || r.policy.CountRefused) && r.kind != kindPermits}
	if c.HasQuota && r.kind == kindFixed && r.policy.Ban == 0 {
		t.quota, t.own = min(c.Quota, maxCount), true // what is above is not exact here, and nobody uses so much
	}
	return t
}

// join makes t the terms of two charges on one bucket.
func (t *terms) join(u terms) {
	t.counts = t.counts || u.counts
	if u.own && (!t.own || u.quota < t.quota) {
		t.quota, t.own = u.quota, true
	}
}

// The methods below call package limit's for a state of any scalar kind.

func (r *rule) take(s *state, now limit.Time, cost int64, t terms) limit.Verdict {
	switch r.kind {
	case kindBucket:
		b := r.bucketBy(t)
		return b.Take(&s.bucket, now, cost)
	case kindFixed:
		w := r.fixedBy(t)
		return w.Take(&s.fixed, now, cost)
	default:
		c := r.slidingBy(t)
		return c.Take(&s.sliding, now, cost)
	}
}

func (r *rule) peek(s state, now limit.Time, cost int64, t terms) limit.Verdict {
	switch r.kind {
	case kindBucket:
		return r.bucket.Peek(s.bucket, now, cost)
	case kindFixed:
		w := r.fixedBy(t)
		return w.Peek(s.fixed, now, cost)
	default:
		return r.slidingBy(terms{}).Peek(s.sliding, now, cost)
	}
}

func (r *rule) refuse(s *state, now limit.Time, cost int64, t terms) {
	switch r.kind {
	case kindBucket:
		b := r.bucketBy(t)
		b.Refuse(&s.bucket, now, cost)
	case kindFixed:
		w := r.fixedBy(t)
		w.Refuse(&s.fixed, now, cost)
	default:
		c := r.slidingBy(t)
		c.Refuse(&s.sliding, now, cost)
	}
}

func (r *rule) bucketBy(t terms) limit.Bucket {
	if t.counts {
		return r.bucket.CountingRefused()
	}
	return r.bucket
}

func (r *rule) fixedBy(t terms) limit.FixedCounter {
	w := r.fixed
	if t.counts {
		w = w.CountingRefused()
	}
	if t.own {
		w = w.WithQuota(t.quota)
	}
	return w
}

// sliding is the arithmetic of a kind whose state is a SlidingState.
type sliding interface {
	Take(s *limit.SlidingState, now limit.Time, cost int64) limit.Verdict
	Peek(s limit.SlidingState, now limit.Time, cost int64) limit.Verdict
	Refuse(s *limit.SlidingState, now limit.Time, cost int64)
}

func (r *rule) slidingBy(t terms) sliding {
	switch rising := r.policy.Algorithm == limit.RisingWindow; {
	case rising && t.counts:
		c := r.rising.CountingRefused()
		return &c
	case rising:
		return &r.rising
	case t.counts:
		c := r.sliding.CountingRefused()
		return &c
	default:
		return &r.sliding
	}
}

func (r *rule) refund(s *state, now limit.Time, cost int64) {
	switch r.kind {
	case kindBucket:
		r.bucket.Refund(&s.bucket, now, cost)
	case kindFixed:
		r.fixed.Refund(&s.fixed, now, cost)
	default:
		r.sliding.Refund(&s.sliding, now, cost)
	}
}

// gone reports whether the window in which something was taken has ended, so that there is
// nothing to give back. taken is in microseconds; 0 = the caller says that the window is still
// the same.
func (r *rule) gone(s *state, taken int64) bool {
	switch {
	case taken == 0:
		return false
	case r.kind == kindFixed:
		return taken < int64(s.fixed.Start)/1000
	default:
		return r.kind == kindSliding && taken/int64(r.numbers[0]) < s.sliding.Index
	}
}

// finding is the script's answer for a bucket whose state it does not return.
type finding struct {
	fitted       bool
	used         int64
	reset, retry int64 // microseconds since the epoch; 0 = none
}

// verdict makes a verdict of a finding.
func (f *finding) verdict(r *rule, now limit.Time, cost int64) limit.Verdict {
	quota := r.policy.Quota()
	wait := func(us int64) time.Duration {
		if us == 0 {
			return 0
		}
		return time.Duration(max(0, limit.Time(us*1000)-now))
	}
	v := limit.Verdict{Allowed: f.fitted, Remaining: max(0, quota-f.used), ResetAfter: wait(f.reset)}
	switch {
	case f.fitted:
	case cost > quota:
		v.Reason, v.RetryAfter = limit.ReasonCost, limit.Never
	default:
		v.Reason, v.RetryAfter = limit.ReasonRate, wait(f.retry)
		if r.kind == kindPermits {
			v.Reason = limit.ReasonConcurrency
		}
	}
	return v
}

// step is the resolution of Redis' clock.
const step = time.Microsecond

// roundUp rounds the waits of v up to the resolution of the clock, so that a caller that waits
// as long as it says is not early.
func roundUp(v *limit.Verdict) {
	for _, d := range [...]*time.Duration{&v.RetryAfter, &v.ResetAfter, &v.Delay} {
		if *d != limit.Never {
			if rest := *d % step; rest != 0 && *d < limit.Never-step {
				*d += step - rest
			}
		}
	}
}

// untouched corrects v, the verdict of a cost that would have fitted and was not taken: it shows
// the bucket without that cost.
func untouched(v *limit.Verdict, rest limit.Verdict) {
	v.Remaining, v.ResetAfter, v.Delay = rest.Remaining, rest.ResetAfter, 0
}
