package bucket

import (
	"math/rand/v2"

	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/limit"
)

// shedding decides at random which requests are refused. It never changes.
type shedding struct {
	pass        float64 // the fraction that is not refused, 0 to 1
	independent bool
	random      func() float64 // in [0, 1)
	rate        fixed.Amount   // in force while shedding
	burst       uint64         // in force while shedding, in tokens
}

// refuse decides on a request of cost n, at least 0, that arrives at now.
//
// Were each request drawn by itself, of N requests the number that passes would vary by the
// square root of N, and more where arrivals are random too. So the probability to pass follows
// the level of the bucket, as a control loop:
//
//	probability = pass x (1 + admitGain x (level/burst - 1/2)), at least 0
//
// At half the burst it is pass. When more has passed recently the level is lower and less
// passes, and the reverse. Which request is refused stays random: one caller with regular
// requests is not refused each second time.
func (d *shedding) refuse(t *setting, now limit.Time, n int64) bool {
	if n <= 0 {
		return false
	}
	pass := d.pass
	if !d.independent && t.Full > 0 {
		if word := t.word.Load(); word != wordFrozen {
			pass *= max(0, 1+admitGain*(float64(t.Free(word, t.late(t.moment(now))))/float64(t.Full)-0.5))
		}
	}
	return pass < 1 && d.random() >= pass
}

// admitGain is the gain of the probability on the level. Not lower: what passes would vary at
// random. Not higher: of two requests that arrive together never both would pass.
const admitGain = 8.0

// Suppress refuses the fraction s.Reject of the requests to Allow and Try from now on, and puts
// s.Rate and s.Burst in force where they are below what is lent; a Reject of 0 ends that.
// Independent draws each request by itself, and leaves what is lent in force. Waiters are
// served at the rate in force and never refused. Tokens above the burst are lost.
//
// A Reject that is not from 0 to 1 counts as the nearest that is; NaN as 0.
func (b *Bucket) Suppress(now limit.Time, s Suppression, independent bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	var next *shedding
	if s.Reject > 0 {
		next = &shedding{pass: 1 - min(s.Reject, 1), independent: independent, random: b.random}
		if next.rate, next.burst = clampSetting(s.Rate, s.Burst); independent {
			next.rate, next.burst = clampSetting(fixed.MaxAmount, fixed.MaxAmount)
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
	old := b.setting.Load()
	if rate == old.rate && whole == old.Quota {
		return
	}
	old.freeze()
	now = old.latest(now)
	setting := newSetting(max(now, old.begin), rate, whole)
	setting.unleased = old.unleased
	b.replace(now, old, setting, 0)
}

// plainShedding is what can be compared of shedding.
type plainShedding struct {
	pass        float64
	independent bool
	rate        fixed.Amount
	whole       uint64
}

func (d *shedding) plain() *plainShedding {
	return &plainShedding{d.pass, d.independent, d.rate, d.burst}
}

// lend records what is lent, and returns what of it is in force.
func (b *Bucket) lend(rate fixed.Amount, whole uint64) (fixed.Amount, uint64) {
	b.lent.rate, b.lent.whole = rate, whole
	if d := b.shedding.Load(); d != nil {
		return min(rate, d.rate), min(whole, d.burst)
	}
	return rate, whole
}

// Random sets the source of random numbers: f returns numbers in [0, 1) and is safe for concurrent use as
// far as the bucket is used concurrently; nil is that of math/rand. It is for
// simulations that have to be repeatable, and called before the bucket is used.
func (b *Bucket) Random(f func() float64) { b.random = f }
