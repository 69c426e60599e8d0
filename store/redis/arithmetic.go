package redis

import (
	"time"

	"github.com/stint-io/stint/limit"
)

// The methods below are package limit's, on a state of any scalar kind.

func (r *rule) take(s *state, now limit.Time, cost int64) limit.Verdict {
	switch r.kind {
	case kindBucket:
		return r.bucket.Take(&s.bucket, now, cost)
	case kindFixed:
		return r.fixed.Take(&s.fixed, now, cost)
	default:
		return r.sliding.Take(&s.sliding, now, cost)
	}
}

func (r *rule) peek(s state, now limit.Time, cost int64) limit.Verdict {
	switch r.kind {
	case kindBucket:
		return r.bucket.Peek(s.bucket, now, cost)
	case kindFixed:
		return r.fixed.Peek(s.fixed, now, cost)
	default:
		return r.sliding.Peek(s.sliding, now, cost)
	}
}

func (r *rule) refuse(s *state, now limit.Time, cost int64) {
	switch r.kind {
	case kindBucket:
		r.bucket.Refuse(&s.bucket, now, cost)
	case kindFixed:
		r.fixed.Refuse(&s.fixed, now, cost)
	default:
		r.sliding.Refuse(&s.sliding, now, cost)
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

// gone says whether the window in which something was taken has ended, so that there
// is nothing to give back. 0 = it has not, by what the caller says.
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

// finding is what the script says of a bucket whose state it keeps to itself.
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
		if r.kind == kindPlaces {
			v.Reason = limit.ReasonConcurrency
		}
	}
	return v
}

// step is the step of Redis' clock.
const step = time.Microsecond

// whole rounds the waits of v up to steps of the clock by which they end, so that
// nobody who waits as long as told is early.
func whole(v *limit.Verdict) {
	for _, d := range [...]*time.Duration{&v.RetryAfter, &v.ResetAfter, &v.Delay} {
		if *d != limit.Never {
			if rest := *d % step; rest != 0 && *d < limit.Never-step {
				*d += step - rest
			}
		}
	}
}

// untouched makes v, of a cost that would have fitted, say how the bucket stands
// without it.
func untouched(v *limit.Verdict, rest limit.Verdict) {
	v.Remaining, v.ResetAfter, v.Delay = rest.Remaining, rest.ResetAfter, 0
}
