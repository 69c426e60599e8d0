package limit

import (
	"math"
	"math/bits"

	"github.com/stint-io/stint/internal/fixed"
)

// SlidingCounter is the arithmetic of a sliding window counter: it estimates what
// was taken in the last Rate.Period from two aligned windows, the current one and
// the part of the previous one that still overlaps,
//
//	current + previous x (Period - elapsed) / Period
//
// which is exact when the previous window was used evenly. The estimate is
// computed in 128-bit integers and made whole as Rounding says.
//
// A SlidingCounter is a value without state, safe for concurrent use.
type SlidingCounter struct {
	quota        int64
	period       uint64
	rounding     Rounding
	countRefused bool
	unlimited    bool
}

// SlidingState is the state of one key under a [SlidingCounter]: the number of
// the current window since the Unix epoch, and the counts of it and of the one
// before. The zero value is a new key.
type SlidingState struct {
	Index, Cur, Prev int64
}

// NewSlidingCounter returns the arithmetic of a SlidingWindowCounter policy, which
// must be valid.
func NewSlidingCounter(p Policy) SlidingCounter {
	return SlidingCounter{
		quota: p.Rate.Count, period: uint64(max(p.Rate.Period, 1)), rounding: p.Rounding,
		countRefused: p.CountRefused, unlimited: p.Unlimited,
	}
}

// CountingRefused returns the arithmetic of the same limit under a policy that counts
// refused requests.
func (c SlidingCounter) CountingRefused() SlidingCounter {
	c.countRefused = true
	return c
}

// Take takes cost at now if it fits. If it does not, s changes only when the
// policy counts refused requests. cost is at least 0.
func (c *SlidingCounter) Take(s *SlidingState, now Time, cost int64) Verdict {
	if c.unlimited {
		return unlimitedVerdict()
	}
	now = max(now, 0)
	turned := c.advance(*s, now)
	fits := c.fits(turned, now, cost)
	if cost > 0 && (fits || c.countRefused) {
		turned.Cur = addCounts(turned.Cur, cost)
		*s = turned
	}
	return c.verdict(turned, now, cost, fits)
}

// Peek answers whether cost would fit and changes nothing. Its RetryAfter holds for a caller
// that has not asked yet: a refusal by Take may itself be counted.
func (c *SlidingCounter) Peek(s SlidingState, now Time, cost int64) Verdict {
	asking := *c
	asking.countRefused = false
	return asking.Take(&s, now, cost)
}

// Refuse records a request that was refused, by this limit or by another: it is
// counted if the policy counts refused requests.
func (c *SlidingCounter) Refuse(s *SlidingState, now Time, cost int64) {
	if c.countRefused && !c.unlimited && cost > 0 {
		*s = c.advance(*s, max(now, 0))
		s.Cur = addCounts(s.Cur, cost)
	}
}

// Refund gives back cost, as far as the window that is current at now holds as much. A cost of
// the previous window is not given back: its weight falls to 0 within a period.
func (c *SlidingCounter) Refund(s *SlidingState, now Time, cost int64) {
	if turned := c.advance(*s, max(now, 0)); turned.Index == s.Index {
		s.Cur = max(0, s.Cur-cost)
	}
}

// Holds reports whether what was taken at a time is counted in the present window of s, so that it can be given
// back: of the window before less and less counts.
func (c *SlidingCounter) Holds(s SlidingState, now, taken Time) bool {
	return int64(uint64(max(taken, 0))/c.period) >= c.advance(s, max(now, 0)).Index
}

// Fresh says whether s equals the state of a key that was never seen.
func (c *SlidingCounter) Fresh(s SlidingState, now Time) bool {
	now = max(now, 0)
	s = c.advance(s, now)
	return s.Cur == 0 && c.overlap(s.Prev, c.left(s, now)) == 0
}

// Convert carries s over from another policy. Under another period the estimate of what is used
// counts as taken in the present window of the new one.
func (c *SlidingCounter) Convert(s SlidingState, from *SlidingCounter, now Time) SlidingState {
	now = max(now, 0)
	if c.period == from.period {
		return s
	}
	s = from.advance(s, now)
	exact := *from
	exact.rounding = RoundUp
	used := exact.estimate(s, now)
	if used == 0 {
		return SlidingState{}
	}
	return SlidingState{Index: int64(uint64(now) / c.period), Cur: int64(min(used, math.MaxInt64))}
}

// advance returns s with the window that is current at now. A now before the window of s is in
// that window.
func (c *SlidingCounter) advance(s SlidingState, now Time) SlidingState {
	switch index := int64(uint64(now) / c.period); {
	case index <= s.Index:
		return s
	case index == s.Index+1:
		return SlidingState{Index: index, Prev: s.Cur}
	default:
		return SlidingState{Index: index}
	}
}

// left is how much of the previous window overlaps, in nanoseconds: the period at the current
// window's beginning, one nanosecond at its end.
func (c *SlidingCounter) left(s SlidingState, now Time) uint64 {
	if int64(uint64(now)/c.period) < s.Index {
		return c.period
	}
	return c.period - uint64(now)%c.period
}

// overlap is prev x left / period, made whole.
func (c *SlidingCounter) overlap(prev int64, left uint64) uint64 {
	hi, lo := bits.Mul64(uint64(prev), left)
	q, rem := bits.Div64(hi, lo, c.period)
	switch {
	case c.rounding == RoundUp && rem != 0, c.rounding == RoundNearest && rem >= c.period-rem:
		q++
	}
	return q
}

// estimate is what was used in the last period. It fits in 64 bits: both summands are below
// 2^63.
func (c *SlidingCounter) estimate(s SlidingState, now Time) uint64 {
	return uint64(s.Cur) + c.overlap(s.Prev, c.left(s, now))
}

func (c *SlidingCounter) fits(s SlidingState, now Time, cost int64) bool {
	return cost <= c.quota && c.estimate(s, now) <= uint64(c.quota-cost)
}

func (c *SlidingCounter) verdict(s SlidingState, now Time, cost int64, fits bool) Verdict {
	used := c.estimate(s, now)
	v := Verdict{Allowed: fits, ResetAfter: waitUntil(c.earliest(s, now, c.quota), now)}
	if used < uint64(c.quota) {
		v.Remaining = c.quota - int64(used)
	}
	switch {
	case fits:
	case cost > c.quota:
		v.Reason, v.RetryAfter = ReasonCost, Never
	default:
		v.Reason, v.RetryAfter = ReasonRate, waitUntil(c.earliest(s, now, cost), now)
	}
	return v
}

// earliest returns the first time from now on at which cost, at most the quota, fits if nothing
// else is taken. The estimate only falls, so that is when the overlap is small enough, in this
// window or in the next.
func (c *SlidingCounter) earliest(s SlidingState, now Time, cost int64) Time {
	room := c.quota - cost
	if c.estimate(s, now) <= uint64(room) {
		return now
	}
	if s.Cur <= room {
		if left := c.mostLeft(s.Prev, room-s.Cur); left > 0 {
			return c.before(s.Index+1, left)
		}
	}
	return c.before(s.Index+2, c.mostLeft(s.Cur, room))
}

// before returns the time left nanoseconds before window index begins.
func (c *SlidingCounter) before(index int64, left uint64) Time {
	return Time(fixed.Product(uint64(index), c.period).Minus(fixed.Wide{Lo: left}).Min(math.MaxInt64))
}

// mostLeft returns the largest left, at most the period, with overlap(prev, left)
// <= room.
func (c *SlidingCounter) mostLeft(prev, room int64) uint64 {
	if prev <= room {
		return c.period
	}
	// room < prev, so every quotient below is less than the period.
	by := uint64(prev)
	switch c.rounding {
	case RoundDown: // prev*left < (room+1)*period
		return lessThan(fixed.Product(uint64(room)+1, c.period), by)
	case RoundNearest: // 2*prev*left < (2*room+1)*period
		return lessThan(fixed.Product(2*uint64(room)+1, c.period), 2*by)
	default: // prev*left <= room*period
		return fixed.MulDiv(uint64(room), c.period, by)
	}
}

// lessThan returns the largest q with q*by < w, for w > 0 and a quotient that fits.
func lessThan(w fixed.Wide, by uint64) uint64 { return w.Minus(fixed.Wide{Lo: 1}).Div(by) }
