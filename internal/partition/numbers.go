package partition

import (
	"math"
	"slices"
	"time"

	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/limit"
)

// numbers is the numbering of the tokens of a split limit, as one instance uses it. It is
// immutable.
//
// The tokens of the whole limit, n of them in p nanoseconds, are numbered from the Unix
// epoch on, and token c is due at ceil(c x p / n). Of every units tokens the instance
// owns those at offsets; its own tokens have numbers of their own, called ranks:
//
//	own(r) = r / weight x units + offsets[r mod weight]
//
// All of this is in integers of 64 and 128 bits. No sums are kept, so there is no drift.
type numbers struct {
	terms Terms

	n, p    uint64 // in lowest terms, n <= p
	units   uint64
	weight  uint64
	offsets []uint32

	window   limit.Time // 0 = none
	lifetime limit.Time // a token expires this long after it is due; 0 = when its window ends
	quota    int64      // the most own tokens that can be used together at any time
}

func newNumbers(t Terms, window limit.Time) (*numbers, error) {
	if err := t.Validate(window); err != nil {
		return nil, err
	}
	c := &numbers{terms: t, units: uint64(t.Part.Of), weight: uint64(t.Part.Weight), window: window}
	rate := limit.NewBucket(limit.Policy{Rate: t.Total})
	c.n, c.p = rate.Terms()
	if c.dry() {
		return c, nil
	}
	c.offsets = t.Part.offsets()
	if t.Burst > 0 {
		c.lifetime = limit.Time(max(1, min(fixed.Product(uint64(t.Burst), c.p).Div(c.n), math.MaxInt64)))
	}
	c.quota = c.largest()
	return c, nil
}

// dry reports whether the instance owns no tokens at all.
func (c *numbers) dry() bool { return c.n == 0 || c.weight == 0 }

// same reports whether c and d have the same numbering and own the same tokens.
func (c *numbers) same(d *numbers) bool {
	return c.n == d.n && c.p == d.p && c.terms.Part == d.terms.Part && c.lifetime == d.lifetime && c.window == d.window
}

// due returns when token number is due: rounded up, so never early.
func (c *numbers) due(number uint64) limit.Time {
	return limit.Time(min(fixed.Product(number, c.p).DivUp(c.n), math.MaxInt64))
}

// from returns the first number that is due at t or later.
func (c *numbers) from(t limit.Time) uint64 {
	if t <= 0 {
		return 0
	}
	// ceil(c p/n) >= t is c p/n > t-1.
	return fixed.MulDiv(uint64(t-1), c.n, c.p) + 1 // n <= p, so the quotient is below 2^63
}

// own returns the number of the own token of that rank.
func (c *numbers) own(rank uint64) uint64 {
	if c.weight == 1 {
		return numbered(rank, c.units, uint64(c.offsets[0]))
	}
	return numbered(rank/c.weight, c.units, uint64(c.offsets[rank%c.weight]))
}

// rank returns the rank of the first own token with that number or a higher one.
func (c *numbers) rank(number uint64) uint64 {
	whole, rest := number/c.units, uint32(number%c.units)
	if c.weight == 1 {
		if rest > c.offsets[0] {
			whole++
		}
		return whole
	}
	i, _ := slices.BinarySearch(c.offsets, rest)
	return whole*c.weight + uint64(i)
}

// rankFrom returns the rank of the first own token that is due at t or later.
func (c *numbers) rankFrom(t limit.Time) uint64 {
	if c.dry() {
		return 0
	}
	return c.rank(c.from(t))
}

// dueRank returns when the own token of that rank is due.
func (c *numbers) dueRank(rank uint64) limit.Time { return c.due(c.own(rank)) }

// start returns when the window that t is in began.
func (c *numbers) start(t limit.Time) limit.Time { return t - t%c.window }

// end returns when the window that t is in ends.
func (c *numbers) end(t limit.Time) limit.Time { return c.start(t).Add(time.Duration(c.window)) }

// open returns from when on a token that is due then may be used.
func (c *numbers) open(due limit.Time, spread int64) limit.Time {
	if c.window == 0 || due == math.MaxInt64 {
		return due
	}
	start := c.start(due)
	return start + (due-start)*limit.Time(spread)>>spreadBits
}

// lapse returns when a token that is due then expires.
func (c *numbers) lapse(due limit.Time) limit.Time {
	t := limit.Time(math.MaxInt64)
	if c.window > 0 {
		t = c.end(due)
	}
	if c.lifetime > 0 {
		t = min(t, due.Add(time.Duration(c.lifetime)))
	}
	return t
}

// live returns the rank of the first own token that has not expired at now.
func (c *numbers) live(now limit.Time) uint64 {
	t := limit.Time(0)
	if c.window > 0 {
		t = c.start(now)
	}
	if c.lifetime > 0 {
		t = max(t, now-c.lifetime+1)
	}
	return c.rankFrom(t)
}

// opened returns the rank of the first own token that is not open yet at now.
func (c *numbers) opened(now limit.Time, spread int64) uint64 {
	if c.window == 0 {
		return c.rankFrom(now.Add(1))
	}
	start := c.start(now)
	last := c.window - 1
	if spread > 0 {
		last = min(last, ((now-start+1)<<spreadBits-1)/limit.Time(spread))
	}
	return c.rankFrom(start.Add(time.Duration(last + 1)))
}

// earliest returns the first cost own tokens, from rank on, that may be used together: the rank
// of the first of them, and from when on. The cost is at most the quota.
func (c *numbers) earliest(rank, cost uint64, spread int64) (uint64, limit.Time) {
	last := c.dueRank(saturatingAdd(rank, cost-1))
	if c.window > 0 && cost > 1 && last != math.MaxInt64 {
		if end := c.end(c.dueRank(rank)); last >= end {
			rank = c.rankFrom(end)
			last = c.dueRank(saturatingAdd(rank, cost-1))
		}
	}
	return rank, c.open(last, spread)
}

// largest returns the most that can be taken at once, at any time: that many consecutive own
// tokens, where they are farthest apart, are due within the lifetime of a token, and every
// window has as many. 1 is always possible.
func (c *numbers) largest() int64 {
	fits := func(k uint64) bool {
		if c.lifetime > 0 {
			// The last is due before the first expires.
			if !fixed.ProductAtMost(gap(c.units, c.offsets, k-1), c.p, uint64(c.lifetime-1), c.n) {
				return false
			}
		}
		if c.window > 0 {
			least := fixed.MulDiv(uint64(c.window), c.n, c.p) // any window has that many tokens, or one more
			if gap(c.units, c.offsets, k) > least {
				return false
			}
		}
		return true
	}
	// At most the tokens of the whole limit in that time, or one more.
	low, high := uint64(1), uint64(limit.MaxCount)
	if c.lifetime > 0 {
		high = min(high, uint64(c.terms.Burst)+2)
	}
	if c.window > 0 {
		high = min(high, c.from(c.window)+2)
	}
	for low < high {
		middle := low + (high-low+1)/2
		if fits(middle) {
			low = middle
		} else {
			high = middle - 1
		}
	}
	return int64(low)
}

func saturatingAdd(a, b uint64) uint64 {
	if s := a + b; s >= a {
		return s
	}
	return math.MaxUint64
}

// numbered returns n*units + offset, at most MaxUint64.
func numbered(n, units, offset uint64) uint64 {
	return fixed.Product(n, units).Add(offset).Min(math.MaxUint64)
}
