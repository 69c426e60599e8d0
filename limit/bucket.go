package limit

import (
	"math/bits"
	"time"

	"github.com/stint-io/stint/internal/fixed"
)

// Bucket is the arithmetic of a token bucket and of a leaky bucket: the generic
// cell rate algorithm (GCRA, ITU-T I.371) in integers.
//
// The rate in lowest terms is n tokens per p nanoseconds. Time is counted in ticks of 1/n
// nanosecond, so that one token is worth exactly p ticks and one nanosecond exactly n: both the
// clock and a cost become whole numbers and nothing is ever rounded. The state is the
// theoretical arrival time, the tick at which the bucket is full again. Refill needs no addition
// as time passes: it is the difference between that tick and now. A cost c taken at tick t fits
// when
//
//	max(state, t) + c*p <= t + quota*p
//
// which makes it: in any interval of length T at most quota + T*n/p are admitted.
// Ticks need 126 bits at the largest rates and periods, hence two words;
// [PackedBucket] is the same in one word for the rates that fit.
//
// A Bucket is a value without state, safe for concurrent use.
type Bucket struct {
	n, p       uint64 // the refill: n tokens per p nanoseconds, in lowest terms
	quota      uint64 // what a full bucket holds
	burstTicks ticks  // quota in ticks
	paces      bool   // leaky: answer the delay
	owes       bool   // what does not fit is charged all the same
}

// mostOwed is where the debt of a bucket stops growing: 2^127 ticks, later than every Time, and
// far enough below 2^128 that adding a cost does not overflow.
const mostOwed = 1 << 63

// BucketState is the state of one key under a [Bucket]: the tick since the Unix
// epoch at which the bucket is full again. The zero value is a full bucket.
type BucketState struct {
	Hi, Lo uint64
}

// ticks is a number of ticks.
type ticks = fixed.Wide

// NewBucket returns the arithmetic of a TokenBucket or LeakyBucket policy, which
// must be valid.
func NewBucket(p Policy) Bucket {
	b := Bucket{quota: uint64(p.Quota()), paces: p.Algorithm == LeakyBucket, owes: p.CountRefused}
	b.n, b.p = p.Rate.ticks()
	b.burstTicks = fixed.Product(b.quota, b.p)
	return b
}

// at is now in ticks. A state above it has that much to refill.
func (b *Bucket) at(now Time) ticks { return fixed.Product(uint64(max(now, 0)), b.n) }

// CountingRefused returns the arithmetic of the same bucket under a policy that counts
// refused requests.
func (b Bucket) CountingRefused() Bucket {
	b.owes = true
	return b
}

// WithQuota returns the arithmetic of the same rate for a bucket that holds quota, from 0 to [MaxCount]. States mean
// the same under both: each says what is used.
func (b Bucket) WithQuota(quota int64) Bucket {
	b.quota = uint64(quota)
	b.burstTicks = fixed.Product(b.quota, b.p)
	return b
}

// Take takes cost at now if it fits. If it does not, s changes only when the policy
// counts refused requests. cost is from 0 to [MaxCount].
func (b *Bucket) Take(s *BucketState, now Time, cost int64) Verdict {
	t := b.at(now)
	next, ok := b.next(ticks(*s), t, cost)
	if ok {
		v := b.verdict(next, t, 0)
		if b.paces {
			v.Delay = b.wait(ticks(*s), t)
		}
		*s = BucketState(next)
		return v
	}
	b.Refuse(s, now, cost)
	return b.verdict(ticks(*s), t, cost)
}

// Peek answers whether cost would fit and changes nothing. Its RetryAfter holds for a caller
// that has not asked yet: a refusal by Take may itself be counted.
func (b *Bucket) Peek(s BucketState, now Time, cost int64) Verdict {
	look := *b
	look.owes = false
	return look.Take(&s, now, cost)
}

// Refuse records a request that was refused, by this limit or by another: it is
// charged if the policy counts refused requests.
func (b *Bucket) Refuse(s *BucketState, now Time, cost int64) {
	if !b.owes || cost <= 0 {
		return
	}
	next, _ := b.next(ticks(*s), b.at(now), cost)
	if next.Hi >= mostOwed {
		next = ticks{Hi: mostOwed}
	}
	*s = BucketState(next)
}

// Refund gives back cost, as far as the bucket has room for it.
func (b *Bucket) Refund(s *BucketState, _ Time, cost int64) {
	*s = BucketState(ticks(*s).Minus(fixed.Product(uint64(cost), b.p)))
}

// Holds reports whether what was taken at a time can be given back: a bucket takes back what it has room for.
func (b *Bucket) Holds(BucketState, Time, Time) bool { return true }

// Fresh says whether s equals the state of a key that was never seen.
func (b *Bucket) Fresh(s BucketState, now Time) bool { return !ticks(s).More(b.at(now)) }

// Convert carries s over from another policy. What was used stays used; what exceeds the new
// quota is debt, and nothing is admitted until the rate has paid it. So a change and its
// reversal add no tokens. Under the same rate a state means the same whatever the quota, and
// stays as it is.
//
// Under another rate the used amount is rounded up to a tick, which is less than one nanosecond
// of refill: no sequence of changes adds tokens, and none leaves debt that refill does not pay.
func (b *Bucket) Convert(s BucketState, from *Bucket, now Time) BucketState {
	used := ticks(s).Minus(from.at(now))
	switch {
	case used == (ticks{}):
		return BucketState{}
	case b.n == from.n && b.p == from.p:
		return s
	}
	// More than any sum of costs: such a state was written by another clock.
	const most = 1 << 63
	whole, part := uint64(most), uint64(0)
	if used.Hi < from.p {
		if q, rem := bits.Div64(used.Hi, used.Lo, from.p); q < most {
			whole, part = q, rem
		}
	}
	up := fixed.MulDivUp(part, b.p, from.p)
	return BucketState(b.at(now).Plus(fixed.Product(whole, b.p)).Add(up))
}

// next returns the state after cost is charged at tick t, and whether cost fits.
func (b *Bucket) next(s, t ticks, cost int64) (ticks, bool) {
	if t.More(s) {
		s = t
	}
	s = s.Plus(fixed.Product(uint64(cost), b.p))
	return s, !s.More(t.Plus(b.burstTicks))
}

// wait is the time from t until the tick s, rounded up.
func (b *Bucket) wait(s, t ticks) time.Duration {
	return ceilDiv(s.Minus(t), b.n)
}

// verdict describes state s at tick t. refused is the cost that did not fit, 0 if it fitted.
func (b *Bucket) verdict(s, t ticks, refused int64) Verdict {
	v := Verdict{Allowed: refused == 0, ResetAfter: b.wait(s, t)}
	debt := s.Minus(t)
	v.Remaining = int64(b.burstTicks.Minus(debt).Div(b.p))
	switch {
	case refused == 0:
	case uint64(refused) > b.quota:
		v.Reason, v.RetryAfter = ReasonCost, Never
	default:
		v.Reason = ReasonRate
		v.RetryAfter = b.wait(debt.Plus(fixed.Product(uint64(refused), b.p)), b.burstTicks)
	}
	return v
}

// Terms returns the rate in lowest terms, n tokens per p nanoseconds. In a [BucketState] one
// nanosecond is n ticks and one token p ticks. A bucket that never refills has n = 0 and p = 1.
func (b *Bucket) Terms() (n, p uint64) { return b.n, b.p }
