package limit

import (
	"time"

	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/internal/gcra"
)

// PackedBucket is [Bucket] with the state of a key in one word, for tables that
// change it by compare-and-swap. It answers exactly what Bucket answers; only
// rates that fit can be packed.
//
// A word is the tick at which the bucket is full again, counted from a beginning that the table
// chooses. It is below 2^62: two bits are left to the table. Moments are nanoseconds since that
// beginning.
//
// A PackedBucket is a value without state, safe for concurrent use.
type PackedBucket struct {
	n     uint64 // ticks per nanosecond
	word  gcra.Bucket
	exact Bucket
}

// PackedHorizon is how long after its beginning a table may use packed words:
// 2^53 nanoseconds, 104 days; then it converts them to a later beginning. Not
// longer: each doubling halves the rates that fit. Not shorter: a conversion
// visits every key.
const PackedHorizon time.Duration = 1 << 53

// Pack returns the one-word form of b, and whether b fits: n is at most 256 and
// a full bucket at most 2^61 ticks. Nearly all rates that people write have such
// terms (100/s, 5/minute, 250/h, 60000/s); 999983/s has not.
func (b *Bucket) Pack() (PackedBucket, bool) {
	fits := b.n <= gcra.Room/uint64(PackedHorizon) && b.burstTicks.AtMost(gcra.Room)
	return PackedBucket{n: b.n, word: gcra.New(b.quota, b.p), exact: *b}, fits
}

// WithQuota returns the arithmetic of the same rate for a bucket that holds quota, from 0 to [MaxCount], or as much
// as can be packed if that is less.
func (b PackedBucket) WithQuota(quota int64) PackedBucket {
	b.word.Quota = min(uint64(quota), gcra.Room/b.word.Token)
	b.word.Full = b.word.Quota * b.word.Token
	b.exact.quota, b.exact.burstTicks = b.word.Quota, ticks{Lo: b.word.Full} // short enough to be inlined
	return b
}

// Holds reports whether a word has room for that much used. It can be above the quota where a
// former policy had a larger one.
func (b *PackedBucket) Holds(used int64) bool {
	return fixed.Product(uint64(max(used, 0)), b.word.Token).AtMost(gcra.Room)
}

// Tick returns the tick of a moment. Time stands still after [PackedHorizon].
func (b *PackedBucket) Tick(moment uint64) uint64 {
	return min(moment, uint64(PackedHorizon)) * b.n
}

// TickWithin is Tick for a moment that is known to be at most [PackedHorizon].
func (b *PackedBucket) TickWithin(moment uint64) uint64 { return moment * b.n }

// TakeOne returns the word after one token is taken at tick t, and whether it
// fits. It is Take for the cost that nearly every request has, small enough for
// the compiler to inline.
func (b *PackedBucket) TakeOne(word, t uint64) (uint64, bool) { return b.word.TakeOne(word, t) }

// Take returns the word after cost is taken at tick t, and whether it fits.
func (b *PackedBucket) Take(word, t uint64, cost int64) (uint64, bool) {
	return b.word.Take(word, t, uint64(cost))
}

// packedMost is the highest word. A bucket whose debt would be higher owes that much: 104 days
// of refill at 256 ticks per nanosecond, and far more at most rates.
const packedMost = 1<<62 - 1

// Owe returns the word after cost is charged at tick t, whether it fits or not.
func (b *PackedBucket) Owe(word, t uint64, cost int64) uint64 {
	return b.word.Owe(word, t, uint64(cost), packedMost)
}

// Refund returns the word after cost is given back.
func (b *PackedBucket) Refund(word uint64, cost int64) uint64 {
	return b.word.Refund(word, uint64(cost))
}

// Undo returns word, at tick t, as it would be without a Take at tick taken that made before
// into after, as far as that is known. Without it the bucket would have been full from tick
// before on, or from taken on if it was full then, and what would have overflowed from then
// until t is not given back: t is the latest tick at which others have taken something.
func (b *PackedBucket) Undo(word, t, before, after, taken uint64) uint64 {
	return word - min(word, gcra.Back(t, before, after, taken))
}

// Verdict describes word at tick t: refused is the cost that did not fit, or 0.
func (b *PackedBucket) Verdict(word, t uint64, refused int64) Verdict {
	return b.exact.verdict(ticks{Lo: word}, ticks{Lo: t}, refused)
}

// Delay is how long a request that finds the word at tick t is held back; 0 unless the bucket is
// leaky.
func (b *PackedBucket) Delay(word, t uint64) time.Duration {
	if !b.exact.paces {
		return 0
	}
	return b.exact.wait(ticks{Lo: word}, ticks{Lo: t})
}

// Exact returns the arithmetic in its two-word form.
func (b *PackedBucket) Exact() *Bucket { return &b.exact }

// Unpack returns word, counted from beginning, as the state of [Bucket]. 0 is a bucket that was
// full before the beginning.
func (b *PackedBucket) Unpack(word uint64, beginning Time) BucketState {
	if word == 0 {
		return BucketState{}
	}
	return BucketState(b.exact.at(beginning).Add(word))
}

// Repack returns the state s as a word counted from beginning. A state before it, which is full
// by then, becomes 0; one that no word can hold (see [PackedBucket.Holds]) the highest word.
func (b *PackedBucket) Repack(s BucketState, beginning Time) uint64 {
	return ticks(s).Minus(b.exact.at(beginning)).Min(packedMost)
}
