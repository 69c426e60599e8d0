package bucket

import (
	"math"
	"math/bits"
	"sync/atomic"
	"time"

	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/limit"
)

// setting is a rate and a burst in force, with the state of the bucket in a word of its own.
// But for the word it never changes: a new rate or burst is another setting, and the word of the
// old one stays frozen, so that a goroutine that still has the old one can take nothing by it.
//
// The word is the tick, counted from begin, at which the bucket is full again (see
// limit.Bucket). A tick is a power of two of nanoseconds, and a token a whole number
// of ticks, rounded up: the bucket is never faster than its rate.
type setting struct {
	rate     fixed.Amount
	burst    uint64 // in tokens
	unleased bool   // in force whatever the deadline: no lease

	number uint64 // counts the settings of a bucket, from 1

	begin limit.Time
	span  uint64 // the moments that may be counted from begin, in nanoseconds
	scale uint64 // ticks per nanosecond; 0 when nothing refills
	down  uint   // or 2^down nanoseconds per tick

	tokenTicks, burstTicks uint64 // in ticks

	word       atomic.Uint64
	frozenWord uint64 // the word while it is frozen; under the owner's lock
}

const (
	wordFrozen = math.MaxUint64 // above every state

	// maxTicks bounds a full bucket, and the time that is counted from begin: the
	// sum of both and of one more cost fits a word.
	maxTicks = 1 << 61

	// precision is how many ticks a token has at least, where they fit: a bucket
	// is then slower than its rate by a millionth at most. Not more: the finer
	// the tick, the sooner begin has to move.
	precision = 1 << 20

	// The finest ticks: 2^-8 ns unless precision asks for more, and 2^-32 ns, at
	// which begin moves every half second.
	usualFineness, mostFineness = 8, 32

	// perNanosecond turns millionths per second into tokens per nanosecond.
	perNanosecond = 1_000_000_000 * uint64(fixed.Token)
)

// newSetting returns a setting whose word is frozen, of an empty bucket.
func newSetting(begin limit.Time, rate fixed.Amount, whole uint64) *setting {
	t := &setting{rate: rate, burst: whole, begin: begin}
	if rate == 0 {
		t.tokenTicks = min(1<<40, maxTicks/max(whole, 1))
		t.span = math.MaxInt64
	} else {
		fineness := usualFineness
		for fineness < mostFineness && !atLeast(rate, fineness, precision) {
			fineness++
		}
		var fits bool
		for t.tokenTicks, fits = tokenTicks(rate, fineness); !fits || !t.holds(); t.tokenTicks, fits = tokenTicks(rate, fineness) {
			fineness--
		}
		if fineness >= 0 {
			t.scale, t.span = 1<<fineness, maxTicks>>fineness
		} else {
			t.scale, t.down = 1, uint(-fineness)
			t.span = math.MaxInt64
			if t.down < 2 {
				t.span = maxTicks << t.down
			}
		}
	}
	t.burstTicks = t.burst * t.tokenTicks
	t.frozenWord = t.burstTicks
	t.word.Store(wordFrozen)
	return t
}

func atLeast(rate fixed.Amount, fineness int, want uint64) bool {
	token, fits := tokenTicks(rate, fineness)
	return !fits || token >= want
}

func (t *setting) holds() bool {
	hi, lo := bits.Mul64(max(t.burst, 1), t.tokenTicks)
	return hi == 0 && lo <= maxTicks
}

// tokenTicks is how many ticks of 2^-fineness ns one token is worth, rounded up.
func tokenTicks(rate fixed.Amount, fineness int) (uint64, bool) {
	if fineness >= 0 {
		hi, lo := bits.Mul64(perNanosecond, 1<<fineness)
		if hi >= uint64(rate) {
			return 0, false
		}
		q, r := bits.Div64(hi, lo, uint64(rate))
		if r > 0 {
			q++
		}
		return q, true
	}
	// Where a tick is longer than the clock's, two moments may seem one tick
	// farther apart than they are. One more tick per token makes up for it.
	hi, lo := bits.Mul64(uint64(rate), 1<<-fineness)
	if hi > 0 || lo > perNanosecond {
		return 2, true
	}
	return (perNanosecond+lo-1)/lo + 1, true
}

// moment is now as nanoseconds since begin; a time before it counts as begin.
func (t *setting) moment(now limit.Time) uint64 {
	return uint64(max(0, now-t.begin))
}

// tick is the tick of a moment within the span.
func (t *setting) tick(moment uint64) uint64 { return moment * t.scale >> (t.down & 63) }

// late is the tick of a moment that may be past the span. Time stands still at twice
// the span, when every bucket is full.
func (t *setting) late(moment uint64) uint64 { return t.tick(min(moment, 2*t.span)) }

// free is what the bucket holds at tick, in ticks.
func (t *setting) free(word, tick uint64) uint64 {
	if word <= tick {
		return t.burstTicks
	}
	return t.burstTicks - min(word-tick, t.burstTicks)
}

// take returns the word after n is taken at tick, and whether it fits.
func (t *setting) take(word, tick uint64, n int64) (uint64, bool) {
	next := max(word, tick) + uint64(n)*t.tokenTicks
	return next, uint64(n) <= t.burst && next-tick <= t.burstTicks
}

// freeze freezes the word, under the owner's lock.
func (t *setting) freeze() {
	if word := t.word.Swap(wordFrozen); word != wordFrozen {
		t.frozenWord = word
	}
}

// current is the word, frozen or not, under the owner's lock.
func (t *setting) current() uint64 {
	if word := t.word.Load(); word != wordFrozen {
		return word
	}
	return t.frozenWord
}

// level is the tokens in the bucket, in millionths, rounded down.
func (t *setting) level(word, tick uint64) fixed.Amount {
	free := t.free(word, tick)
	return fixed.Amount(free/t.tokenTicks)*fixed.Token + amountOfTicks(free%t.tokenTicks, t.tokenTicks)
}

// latest is now, or the moment at which the bucket was seen to be empty, if that is
// later: the caller that took last may have read the clock later. Counting on from
// before that moment would let the time in between refill the bucket twice.
func (t *setting) latest(now limit.Time) limit.Time {
	moment := t.moment(now)
	tick := t.late(moment)
	word := t.current()
	if word <= tick+t.burstTicks || t.scale == 0 {
		return now
	}
	ahead := (word-tick-t.burstTicks+t.scale-1)/t.scale<<t.down + 1
	return max(now, t.begin).Add(time.Duration(min(ahead, uint64(limit.Never))))
}

// receive fills the bucket, which begins, with free ticks of from and with add, and
// returns what does not fit. A negative add is taken out, as far as there is
// something, and is returned too. Every rounding is down: it loses up to two ticks.
func (t *setting) receive(free uint64, from *setting, add fixed.Amount) (surplus fixed.Amount) {
	whole := free / from.tokenTicks
	hi, lo := bits.Mul64(free%from.tokenTicks, t.tokenTicks)
	part, _ := bits.Div64(hi, lo, from.tokenTicks)
	if add > 0 {
		whole += uint64(add / fixed.Token)
		hi, lo = bits.Mul64(uint64(add%fixed.Token), t.tokenTicks)
		more, _ := bits.Div64(hi, lo, uint64(fixed.Token))
		part += more
		if part >= t.tokenTicks {
			whole, part = whole+1, part-t.tokenTicks
		}
	}
	if add < 0 {
		level := fixed.Amount(whole)*fixed.Token + amountOfTicks(part, t.tokenTicks)
		surplus = min(-add, level)
		whole = uint64((level - surplus) / fixed.Token)
		hi, lo = bits.Mul64(uint64((level-surplus)%fixed.Token), t.tokenTicks)
		part, _ = bits.Div64(hi, lo, uint64(fixed.Token))
	}
	if whole >= t.burst {
		surplus += fixed.Amount(whole-t.burst)*fixed.Token + amountOfTicks(part, t.tokenTicks)
		whole, part = t.burst, 0
	}
	t.frozenWord = t.burstTicks - (whole*t.tokenTicks + part)
	return surplus
}

// amountOfTicks is a part of a token, rounded down.
func amountOfTicks(part, token uint64) fixed.Amount {
	hi, lo := bits.Mul64(part, uint64(fixed.Token))
	q, _ := bits.Div64(hi, lo, token)
	return fixed.Amount(q)
}

// until is how long after tick the bucket has filled by n in all, from word: n may
// be more than fits at once, as the cost of waiters that are served one after another.
func (t *setting) until(word, tick uint64, n int64) time.Duration {
	hi, lo := bits.Mul64(uint64(n), t.tokenTicks)
	lo, borrow := bits.Sub64(lo, t.free(word, tick), 0)
	if hi < borrow || hi == borrow && lo == 0 {
		return 0
	}
	hi -= borrow
	if t.scale == 0 {
		return limit.Never
	}
	if t.down > 0 {
		if hi > 0 || bits.Len64(lo)+int(t.down) > 62 {
			return limit.Never
		}
		return time.Duration(lo << t.down)
	}
	lo, carry := bits.Add64(lo, t.scale-1, 0)
	hi += carry
	if hi >= t.scale {
		return limit.Never
	}
	q, _ := bits.Div64(hi, lo, t.scale)
	return time.Duration(min(q, math.MaxInt64))
}
