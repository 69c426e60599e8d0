// Package gcra is the generic cell rate algorithm (ITU-T I.371), the arithmetic of a token bucket, with the state of a
// bucket in one word that many goroutines can change by compare-and-swap.
//
// Time is counted in ticks, from a beginning that the owner of the word chooses. The word is the tick at which the bucket
// is full again: what it lacks is the difference between the word and the present, so that refill takes no addition. The
// owner says how long a tick is; a token is worth a whole number of them.
//
// Package limit has the same in two words, for rates that do not fit.
package gcra

import "github.com/stint-io/stint/internal/fixed"

// Room is how many ticks a full bucket may have at most, and how many may have passed since the beginning. The sum of both
// and of one cost more, up to the quota, fits a word.
const Room = 1 << 61

// Bucket is the size and the rate of a bucket. It is a value without state, safe for concurrent use. Use [New].
type Bucket struct {
	Token uint64 // what a token is worth, in ticks
	Full  uint64 // Quota in ticks
	Quota uint64 // what a full bucket holds, in tokens
}

// New returns a bucket of quota tokens, each worth that many ticks; the product is at most [Room].
func New(quota, token uint64) Bucket { return Bucket{Quota: quota, Token: token, Full: quota * token} }

// TakeOne is Take for a cost of 1, which nearly every request has.
func (b *Bucket) TakeOne(word, tick uint64) (next uint64, fits bool) {
	next = max(word, tick) + b.Token
	return next, next-tick <= b.Full
}

// Take returns the word after cost is taken at tick, and whether it fits. A cost above the quota leaves the word as it is.
func (b *Bucket) Take(word, tick, cost uint64) (next uint64, fits bool) {
	if cost > b.Quota {
		return word, false
	}
	next = max(word, tick) + cost*b.Token
	return next, next-tick <= b.Full
}

// Owe returns the word after cost is charged at tick, whether it fits or not, but at most most.
func (b *Bucket) Owe(word, tick, cost, most uint64) uint64 {
	return fixed.Product(cost, b.Token).Add(max(word, tick)).Min(most)
}

// Free returns what the bucket holds at tick, in ticks.
func (b *Bucket) Free(word, tick uint64) uint64 {
	if word <= tick {
		return b.Full
	}
	return b.Full - min(word-tick, b.Full)
}

// Refund returns the word after cost is given back. A bucket keeps no more than it has room for.
func (b *Bucket) Refund(word, cost uint64) uint64 {
	return word - fixed.Product(cost, b.Token).Min(word)
}

// Back returns how many ticks to take off a word so that it is as it would be without a Take at tick taken that made before
// into after, as far as that is known. Without it the bucket would have been full from tick before on, or from taken on if
// it was full then. The part that would have overflowed from then until tick is not given back: tick is the latest one at which
// others have taken something.
func Back(tick, before, after, taken uint64) uint64 {
	full := max(before, taken)
	owed := after - full
	return owed - min(owed, tick-min(tick, full))
}
