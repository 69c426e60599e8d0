package bucket

import (
	"math"
	"math/bits"
	"sync/atomic"
	"time"

	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/internal/gcra"
	"github.com/stint-io/stint/limit"
)

// setting is a rate and a burst in force, with the state of the bucket in a word of its own.
// But for the word it never changes: a new rate or burst is another setting, and the word of the
// old one stays frozen, so that a goroutine that still has the old one can take nothing by it.
//
// The word is that of a [gcra.Bucket], counted from begin. A tick is a power of two of
// nanoseconds, and a token a whole number of ticks, rounded up: the bucket is never faster
// than its rate.
type setting struct {
	gcra.Bucket // burst, in tokens and ticks
	rate        fixed.Amount
	unleased    bool // in force whatever the deadline: no lease

	number uint64 // counts the settings of a bucket, from 1

	begin limit.Time
	span  uint64 // the moments that may be counted from begin, in nanoseconds
	scale uint64 // ticks per nanosecond; 0 when nothing refills
	down  uint   // or 2^down nanoseconds per tick

	word       atomic.Uint64
	frozenWord uint64 // the word while it is frozen; under the owner's lock
}

const (
	wordFrozen = math.MaxUint64 // above every state

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
	t := &setting{rate: rate, begin: begin}
	if rate == 0 {
		t.Bucket = gcra.New(whole, min(1<<40, gcra.Room/max(whole, 1)))
		t.span = math.MaxInt64
	} else {
		fineness := usualFineness
		for fineness < mostFineness && !atLeast(rate, fineness, precision) {
			fineness++
		}
		token, fits := tokenTicks(rate, fineness)
		for !fits || !fixed.Product(max(whole, 1), token).AtMost(gcra.Room) {
			fineness--
			token, fits = tokenTicks(rate, fineness)
		}
		t.Bucket = gcra.New(whole, token)
		if fineness >= 0 {
			t.scale, t.span = 1<<fineness, gcra.Room>>fineness
		} else {
			t.scale, t.down = 1, uint(-fineness)
			t.span = math.MaxInt64
			if t.down < 2 {
				t.span = gcra.Room << t.down
			}
		}
	}
	t.frozenWord = t.Full
	t.word.Store(wordFrozen)
	return t
}

func atLeast(rate fixed.Amount, fineness int, want uint64) bool {
	token, fits := tokenTicks(rate, fineness)
	return !fits || token >= want
}

// tokenTicks is how many ticks of 2^-fineness ns one token is worth, rounded up.
func tokenTicks(rate fixed.Amount, fineness int) (uint64, bool) {
	if fineness >= 0 {
		token := fixed.Product(perNanosecond, 1<<fineness).DivUp(uint64(rate))
		return token, token < math.MaxUint64
	}
	// Where a tick is longer than the clock's, two moments may seem one tick
	// farther apart than they are. One more tick per token makes up for it.
	each := fixed.Product(uint64(rate), 1<<-fineness).Min(perNanosecond)
	return (perNanosecond+each-1)/each + 1, true
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
	free := t.Free(word, tick)
	return t.amount(free/t.Token, free%t.Token)
}

// latest is now, or the moment at which the bucket was seen to be empty, if that is
// later: the caller that took last may have read the clock later. Counting on from
// before that moment would let the time in between refill the bucket twice.
func (t *setting) latest(now limit.Time) limit.Time {
	moment := t.moment(now)
	tick := t.late(moment)
	word := t.current()
	if word <= tick+t.Full || t.scale == 0 {
		return now
	}
	ahead := (word-tick-t.Full+t.scale-1)/t.scale<<t.down + 1
	return max(now, t.begin).Add(time.Duration(min(ahead, uint64(limit.Never))))
}

// receive fills the bucket, which begins, with free ticks of from and with add, and
// returns what does not fit. A negative add is taken out, as far as there is
// something, and is returned too. Every rounding is down: it loses up to two ticks.
func (t *setting) receive(free uint64, from *setting, add fixed.Amount) (surplus fixed.Amount) {
	whole, part := free/from.Token, fixed.MulDiv(free%from.Token, t.Token, from.Token)
	if add > 0 {
		whole += uint64(add / fixed.Token)
		part += fixed.MulDiv(uint64(add%fixed.Token), t.Token, uint64(fixed.Token))
		if part >= t.Token {
			whole, part = whole+1, part-t.Token
		}
	}
	if add < 0 {
		level := t.amount(whole, part)
		surplus = min(-add, level)
		level -= surplus
		whole = uint64(level / fixed.Token)
		part = fixed.MulDiv(uint64(level%fixed.Token), t.Token, uint64(fixed.Token))
	}
	if whole >= t.Quota {
		surplus += t.amount(whole-t.Quota, part)
		whole, part = t.Quota, 0
	}
	t.frozenWord = t.Full - (whole*t.Token + part)
	return surplus
}

// amount is whole tokens and part ticks, rounded down.
func (t *setting) amount(whole, part uint64) fixed.Amount {
	return fixed.Amount(whole)*fixed.Token + fixed.Amount(fixed.MulDiv(part, uint64(fixed.Token), t.Token))
}

// until is how long after tick the bucket has filled by n in all, from word: n may
// be more than fits at once, as the cost of waiters that are served one after another.
func (t *setting) until(word, tick uint64, n int64) time.Duration {
	lack := fixed.Product(uint64(n), t.Token).Minus(fixed.Wide{Lo: t.Free(word, tick)})
	switch {
	case lack == fixed.Wide{}:
		return 0
	case t.scale == 0:
		return limit.Never
	case t.down == 0:
		return time.Duration(min(lack.DivUp(t.scale), uint64(limit.Never)))
	case lack.Hi > 0 || bits.Len64(lack.Lo)+int(t.down) > 62:
		return limit.Never
	}
	return time.Duration(lack.Lo << t.down)
}
