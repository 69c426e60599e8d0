package pool

import (
	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/limit"
)

// Bucket is a bucket of which nobody has a lease: it is spent token by token where it is. It takes some 100 bytes in
// a table.
type Bucket struct {
	Tokens fixed.Amount // at the time At; below 0 after a limit was reduced
	At     limit.Time
	Rate   fixed.Amount // tokens per second, of the terms at the time At
	Burst  fixed.Amount

	// Told is what replicas count with: so many tokens at the time ToldAt, and what came since.
	Told   fixed.Amount
	ToldAt limit.Time
	Must   uint64 // the number of the message that they have to know before more is taken; 0 = none
}

// Level is how many tokens there are at now.
func (b *Bucket) Level(now limit.Time) fixed.Amount {
	return b.levelOf(b.Tokens, b.At, now)
}

func (b *Bucket) levelOf(tokens fixed.Amount, at, now limit.Time) fixed.Amount {
	p := Pool{Rate: b.Rate, Burst: b.Burst, Level: tokens, At: at}
	p.Refill(now)
	p.Clip() // time may have stood still
	return p.Level
}

// Adopt puts terms in force at now, and says whether they are others. What was used stays used. By which of the
// two rates it has filled until now is not known: the lower one counts. Replicas have to be told.
func (b *Bucket) Adopt(now limit.Time, rate, burst fixed.Amount) (changed bool) {
	if b.Rate == rate && b.Burst == burst {
		return false
	}
	b.Rate = min(b.Rate, rate)
	level := b.Level(now) + burst - b.Burst
	b.Tokens, b.At, b.Rate, b.Burst = min(level, burst), now, rate, burst
	b.Told, b.ToldAt = burst, now
	return true
}

// Take takes cost at now, if there is as much. A refusal changes nothing, so that what is less than a millionth of a
// token is not lost by asking often.
func (b *Bucket) Take(now limit.Time, cost fixed.Amount) bool {
	level := b.Level(now)
	if level < cost {
		return false
	}
	b.Tokens, b.At = min(level-cost, b.Burst), now // below 0 gives back
	return true
}

// Tell returns what replicas have to be told before what was taken is used: half of what is left, so that not
// each token has to be told; ok is false where they count with no more than there is.
func (b *Bucket) Tell(now limit.Time) (tokens fixed.Amount, ok bool) {
	level := b.Level(now)
	if level >= b.levelOf(b.Told, b.ToldAt, now) {
		return 0, false
	}
	if level > 0 {
		level = level / 2 / fixed.Token * fixed.Token
	}
	b.Told, b.ToldAt = level, now
	return level, true
}

// Full says whether it is full at now.
func (b *Bucket) Full(now limit.Time) bool { return b.Level(now) >= b.Burst }
