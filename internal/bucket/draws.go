package bucket

import (
	"math/rand/v2"

	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/limit"
)

// shedding say at random which requests are refused. They never change.
type shedding struct {
	pass        float64 // the part that is not refused, 0 to 1
	independent bool
	random      func() float64 // in [0, 1)
	rate        fixed.Amount   // what may be used meanwhile
	burst       uint64         // and how deep
}

// refuse draws a request of cost n, at least 0, that comes at now to a bucket with
// these terms.
//
// Drawn one by one, the number that passes of many varies around what it should
// be, by its square root, and more where arrivals are random as well. So the part
// that passes goes by what the bucket holds: half full it is the part that was told;
// where more has passed of late the bucket holds less and less passes, and where less
// has passed more does. Which request it is stays random: one who asks at regular times is
// not refused at each second.
//
// steep is how much the part changes from an empty bucket to a full one. Not less: what
// passes would swing at random. Not more: two that come together would never both pass.
func (d *shedding) refuse(t *terms, now limit.Time, n int64) bool {
	if n <= 0 {
		return false
	}
	pass := d.pass
	if !d.independent && t.burstTicks > 0 {
		if word := t.word.Load(); word != wordFrozen {
			pass *= max(0, 1+steep*(float64(t.free(word, t.late(t.moment(now))))/float64(t.burstTicks)-0.5))
		}
	}
	return pass < 1 && d.random() >= pass
}

const steep = 8.0

// Suppress refuses the part s.Reject of what Allow and Try are asked from here on, and
// puts s.Rate and s.Depth in force where they are below what is lent; a Reject of 0 ends
// that. Independent refuses each by itself, and leaves what is lent in force.
// Those in line are let go at the rate that is in force: nothing is drawn for them. What
// does not fit the depth is lost.
//
// A Reject that is not from 0 to 1 counts as the nearest that is; NaN as 0.
func (b *Bucket) Suppress(now limit.Time, s Suppression, independent bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	var next *shedding
	if s.Reject > 0 {
		next = &shedding{pass: 1 - min(s.Reject, 1), independent: independent, random: b.random}
		if next.rate, next.burst = clampTerms(s.Rate, s.Burst); independent {
			next.rate, next.burst = clampTerms(fixed.MaxAmount, fixed.MaxAmount)
		}
		if next.random == nil {
			next.random = rand.Float64
		}
	}
	was := b.shedding.Load()
	if was == nil && next == nil || was != nil && next != nil && *was.plain() == *next.plain() {
		return
	}
	b.shedding.Store(next)
	rate, whole := b.lend(b.lent.rate, b.lent.whole)
	old := b.terms.Load()
	if rate == old.rate && whole == old.burst {
		return
	}
	old.freeze()
	now = old.latest(now)
	terms := newTerms(max(now, old.begin), rate, whole)
	terms.unleased = old.unleased
	b.replace(now, old, terms, 0)
}

// plainDraws are draws without what cannot be compared.
type plainDraws struct {
	pass        float64
	independent bool
	rate        fixed.Amount
	whole       uint64
}

func (d *shedding) plain() *plainDraws {
	return &plainDraws{d.pass, d.independent, d.rate, d.burst}
}

// lend takes note of what is lent, and returns what of it is in force.
func (b *Bucket) lend(rate fixed.Amount, whole uint64) (fixed.Amount, uint64) {
	b.lent.rate, b.lent.whole = rate, whole
	if d := b.shedding.Load(); d != nil {
		return min(rate, d.rate), min(whole, d.burst)
	}
	return rate, whole
}

// Random draws by f, which returns numbers in [0, 1) and is safe for concurrent use as
// far as the bucket is used concurrently; nil is that of math/rand. It is for
// simulations that have to be repeatable, and called before the bucket is used.
func (b *Bucket) Random(f func() float64) { b.random = f }
