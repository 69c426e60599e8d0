package limit

import (
	"math"
	"time"
)

// RisingCounter is the arithmetic of a rising window: aligned windows of Rate.Period, of which each
// admits at most
//
//	min(Rate.Count, max(Start, admitted in the window before + Rise))
//
// It bounds how fast a rate may rise, for servers that follow a gradual rise, and not a sudden one.
// What a request has charged although it was refused ([Request.CountRefused]) counts as admitted.
// A load that rises by at most Rise from window to window is never refused below Rate.Count.
//
// A RisingCounter is a value without state, safe for concurrent use. Its state is a
// [SlidingState]: the number of the window, and what it and the one before have admitted.
type RisingCounter struct {
	window       SlidingCounter // the windows
	start, rise  int64
	countRefused bool
}

// NewRisingCounter returns the arithmetic of a RisingWindow policy, which must be valid.
func NewRisingCounter(p Policy) RisingCounter {
	return RisingCounter{window: NewSlidingCounter(p), start: min(p.Start, p.Rate.Count), rise: p.Rise, countRefused: p.CountRefused}
}

// CountingRefused returns the arithmetic of the same limit under a policy that counts refused
// requests.
func (c RisingCounter) CountingRefused() RisingCounter {
	c.countRefused = true
	return c
}

// most is what the window of s admits.
func (c *RisingCounter) most(s SlidingState) int64 {
	return min(c.window.quota, max(c.start, addCounts(s.Prev, c.rise)))
}

// Take takes cost at now if it fits. If it does not, s changes only when the policy counts
// refused requests. cost is at least 0.
func (c *RisingCounter) Take(s *SlidingState, now Time, cost int64) Verdict {
	if c.window.unlimited {
		return unlimitedVerdict()
	}
	now = max(now, 0)
	turned := c.window.advance(*s, now)
	room := max(0, c.most(turned)-turned.Cur)
	fits := cost <= room
	if cost > 0 && (fits || c.countRefused) {
		turned.Cur = addCounts(turned.Cur, cost)
		*s = turned
		room = max(0, room-cost)
	}
	v := Verdict{Allowed: fits, Remaining: room, ResetAfter: c.reset(turned, now)}
	if fits {
		return v
	}
	next := c.most(SlidingState{Prev: turned.Cur})
	switch {
	case cost > c.window.quota:
		v.Reason, v.RetryAfter = ReasonCost, Never
	case cost > next: // only if more is admitted meanwhile
		v.Reason, v.RetryAfter = ReasonRising, Never
	default:
		v.Reason, v.RetryAfter = ReasonRising, waitUntil(c.window.before(turned.Index+1, 0), now)
		if turned.Cur >= c.window.quota {
			v.Reason = ReasonRate
		}
	}
	return v
}

// Peek answers whether cost would fit and changes nothing.
func (c *RisingCounter) Peek(s SlidingState, now Time, cost int64) Verdict {
	asking := *c
	asking.countRefused = false
	return asking.Take(&s, now, cost)
}

// Refuse records a request that was refused, by this limit or by another: it is counted if the
// policy counts refused requests.
func (c *RisingCounter) Refuse(s *SlidingState, now Time, cost int64) {
	if c.countRefused && !c.window.unlimited && cost > 0 {
		*s = c.window.advance(*s, max(now, 0))
		s.Cur = addCounts(s.Cur, cost)
	}
}

// Refund gives back cost, as far as the window that is current at now holds as much.
func (c *RisingCounter) Refund(s *SlidingState, now Time, cost int64) {
	c.window.Refund(s, now, cost)
}

// Holds reports whether what was taken at a time is counted in the present window of s.
func (c *RisingCounter) Holds(s SlidingState, now, taken Time) bool {
	return c.window.Holds(s, now, taken)
}

// Fresh says whether s equals the state of a key that was never seen.
func (c *RisingCounter) Fresh(s SlidingState, now Time) bool {
	s = c.window.advance(s, max(now, 0))
	return s.Cur == 0 && c.most(s) == c.most(SlidingState{})
}

// Convert carries s over from another policy. Under another period what the present window has
// admitted counts in the present window of the new one, and nothing in the one before it.
func (c *RisingCounter) Convert(s SlidingState, from *RisingCounter, now Time) SlidingState {
	now = max(now, 0)
	if c.window.period == from.window.period {
		return s
	}
	s = from.window.advance(s, now)
	if s.Cur == 0 {
		return SlidingState{}
	}
	return SlidingState{Index: int64(uint64(now) / c.window.period), Cur: s.Cur}
}

// reset is how long it takes until s is as good as new, if nothing else is taken.
func (c *RisingCounter) reset(s SlidingState, now Time) time.Duration {
	windows := int64(0)
	switch fresh := c.most(SlidingState{}); {
	case c.most(SlidingState{Prev: s.Cur}) != fresh:
		windows = 2
	case s.Cur > 0 || c.most(s) != fresh:
		windows = 1
	}
	if windows == 0 || s.Index > math.MaxInt64-2 {
		return 0
	}
	return waitUntil(c.window.before(s.Index+windows, 0), now)
}
