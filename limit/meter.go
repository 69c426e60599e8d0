package limit

import (
	"math"
	"time"

	"github.com/stint-io/stint/internal/fixed"
)

// meter is the arithmetic of any policy but Concurrency, behind one interface.
type meter struct {
	policy  Policy
	quota   int64
	bucket  Bucket
	fixed   FixedCounter
	log     SlidingLog
	sliding SlidingCounter
	rising  RisingCounter
}

// ledger is the state that a meter counts in.
type ledger struct {
	// last is the time of the latest Take. An earlier time counts as last.
	last Time

	bucket  BucketState
	fixed   FixedState
	log     LogState
	sliding SlidingState
}

func newMeter(p Policy) meter {
	m := meter{policy: p, quota: p.Quota()}
	switch p.Algorithm {
	case FixedWindow:
		m.fixed = NewFixedCounter(p)
	case SlidingWindowLog:
		m.log = NewSlidingLog(p)
	case SlidingWindowCounter:
		m.sliding = NewSlidingCounter(p)
	case RisingWindow:
		m.rising = NewRisingCounter(p)
	default:
		m.bucket = NewBucket(p)
	}
	return m
}

// owe charges cost whether it fits or not. Where there is a ban it charges what fits: a cost
// that was admitted earlier must not ban the key.
func (m *meter) owe(l *ledger, now Time, cost int64) {
	if w := &m.fixed; m.policy.Algorithm == FixedWindow && w.ban > 0 {
		l.last = max(now, l.last)
		w.Take(&l.fixed, l.last, min(cost, w.Peek(l.fixed, l.last, 0).Remaining))
		return
	}
	m.count(l, now, cost)
}

// kind is the algorithm, the same for both kinds of bucket, whose states mean the same.
func (m *meter) kind() Algorithm {
	if m.policy.Algorithm == LeakyBucket {
		return TokenBucket
	}
	return m.policy.Algorithm
}

func (m *meter) paces() bool { return m.policy.Algorithm == LeakyBucket }

func (m *meter) take(l *ledger, now Time, cost int64) Verdict {
	if m.policy.Unlimited {
		return unlimitedVerdict()
	}
	if cost == 0 {
		return m.peek(l, now, 0) // a cost of 0 does not advance last
	}
	at := max(now, l.last)
	var v Verdict
	switch m.policy.Algorithm {
	case FixedWindow:
		v = m.fixed.Take(&l.fixed, at, cost)
	case SlidingWindowLog:
		v = m.log.Take(&l.log, at, cost)
	case SlidingWindowCounter:
		v = m.sliding.Take(&l.sliding, at, cost)
	case RisingWindow:
		v = m.rising.Take(&l.sliding, at, cost)
	default:
		v = m.bucket.Take(&l.bucket, at, cost)
	}
	if v.Allowed {
		l.last = at
	}
	return v.later(at - now)
}

func (m *meter) peek(l *ledger, now Time, cost int64) Verdict {
	if m.policy.Unlimited {
		return unlimitedVerdict()
	}
	at := max(now, l.last)
	var v Verdict
	switch m.policy.Algorithm {
	case FixedWindow:
		v = m.fixed.Peek(l.fixed, at, cost)
	case SlidingWindowLog:
		v = m.log.Peek(l.log, at, cost)
	case SlidingWindowCounter:
		v = m.sliding.Peek(l.sliding, at, cost)
	case RisingWindow:
		v = m.rising.Peek(l.sliding, at, cost)
	default:
		v = m.bucket.Peek(l.bucket, at, cost)
	}
	return v.later(at - now)
}

func (m *meter) refuse(l *ledger, now Time, cost int64) {
	at := max(now, l.last)
	switch m.policy.Algorithm {
	case FixedWindow:
		m.fixed.Refuse(&l.fixed, at, cost)
	case SlidingWindowLog:
		m.log.Refuse(&l.log, at, cost)
	case SlidingWindowCounter:
		m.sliding.Refuse(&l.sliding, at, cost)
	case RisingWindow:
		m.rising.Refuse(&l.sliding, at, cost)
	default:
		m.bucket.Refuse(&l.bucket, at, cost)
	}
}

// count charges cost whether it fits or not.
func (m *meter) count(l *ledger, now Time, cost int64) {
	if m.policy.Unlimited {
		return
	}
	l.last = max(now, l.last)
	counting := *m
	counting.bucket, counting.fixed = m.bucket.CountingRefused(), m.fixed.CountingRefused()
	counting.log, counting.sliding = m.log.CountingRefused(), m.sliding.CountingRefused()
	counting.rising = m.rising.CountingRefused()
	counting.refuse(l, l.last, cost)
}

// convert carries l over from another policy. A state of another kind starts afresh; so does a
// limit that was unlimited or becomes so.
func (m *meter) convert(l ledger, from *meter, now Time) ledger {
	now = max(now, l.last)
	next := ledger{last: l.last}
	if from.kind() != m.kind() || from.policy.Unlimited || m.policy.Unlimited {
		return next
	}
	switch m.policy.Algorithm {
	case FixedWindow:
		next.fixed = m.fixed.Convert(l.fixed, &from.fixed, now)
	case SlidingWindowLog:
		next.log = m.log.Convert(l.log, &from.log, now)
	case SlidingWindowCounter:
		next.sliding = m.sliding.Convert(l.sliding, &from.sliding, now)
	case RisingWindow:
		next.sliding = m.rising.Convert(l.sliding, &from.rising, now)
	default:
		next.bucket = m.bucket.Convert(l.bucket, &from.bucket, now)
	}
	return next
}

// earliest returns when, not before from, cost can be taken if all that l holds stays, and when
// the holder of a permit taken then may act. ok is false if there is no such time.
func (m *meter) earliest(l *ledger, from Time, cost int64) (take, act Time, ok bool) {
	from = max(from, l.last)
	for from < math.MaxInt64 {
		v := m.peek(l, from, cost)
		if v.Allowed {
			return from, from.Add(v.Delay), true
		}
		if v.RetryAfter == Never {
			break
		}
		from = from.Add(max(v.RetryAfter, 1))
	}
	return math.MaxInt64, math.MaxInt64, false
}

// skip takes cost, the sum of the costs of several waiters: each takes at most largest, and none
// finds it there on arrival. It returns false and takes nothing where the sum alone does not
// determine the state afterwards. l may share memory with another ledger.
//
// A bucket is never full meanwhile, so each take moves its state by its cost; rounding up to a
// nanosecond matters only if the bucket has to be full to within a nanosecond of refill. A fixed
// window is used up exactly if each waiter takes one.
func (m *meter) skip(l *ledger, cost, largest int64) bool {
	if m.policy.Unlimited {
		return false
	}
	switch m.policy.Algorithm {
	case TokenBucket, LeakyBucket:
		b := &m.bucket
		slack := fixed.Product(uint64(m.quota-largest), b.p)
		if largest > m.quota || b.n == 0 || b.n > 1 && slack.AtMost(b.n-1) {
			return false
		}
		l.bucket = BucketState(ticks(l.bucket).Plus(fixed.Product(uint64(cost), b.p)))
		return true
	case FixedWindow:
		w, s := &m.fixed, &l.fixed
		if largest > 1 || w.quota < 1 || w.ban > 0 || w.countRefused || s.Count <= 0 {
			return false
		}
		if room := max(0, w.quota-s.Count); cost > room {
			windows := (cost - room - 1) / w.quota
			s.Start = w.end(*s).Add(saturated(windows, w.period))
			s.Count = cost - room - windows*w.quota
			l.last = max(l.last, s.Start)
		} else {
			s.Count += cost
		}
		return true
	default:
		return false
	}
}

// saturated is n x d, at most the longest Duration.
func saturated(n int64, d time.Duration) time.Duration {
	return time.Duration(fixed.Product(uint64(n), uint64(d)).Min(uint64(Never)))
}

// clone returns a copy that shares nothing with l.
func (l *ledger) clone() ledger {
	c := *l
	if l.log.n > 0 {
		c.log = l.log.Clone()
	} else {
		c.log = LogState{}
	}
	return c
}

// later returns v, computed for a time shift after the caller's, with its waits counted from the
// caller's time.
func (v Verdict) later(shift Time) Verdict {
	if shift <= 0 {
		return v
	}
	longer := func(d time.Duration) time.Duration {
		if d == 0 || d == Never {
			return d
		}
		return time.Duration(Time(d).Add(time.Duration(shift)))
	}
	v.RetryAfter, v.ResetAfter = longer(v.RetryAfter), longer(v.ResetAfter)
	v.Delay = longer(v.Delay)
	return v
}
