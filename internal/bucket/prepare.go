package bucket

import (
	"math"
	"math/bits"
	"time"

	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/internal/gcra"
	"github.com/stint-io/stint/limit"
)

// Prepared is a cost that was taken tentatively. It counts as neither admitted nor refused until
// it is committed.
type Prepared struct {
	At            limit.Time
	Setting       uint64       // the number of the setting that it was taken from; 0 = not known, which counts as the one before
	Rate          fixed.Amount // of it
	Before, After uint64       // the word
}

// Prepare is Try that can be rolled back: each that has taken something is followed by one Commit
// or Rollback.
func (b *Bucket) Prepare(now limit.Time, n int64) (h Prepared, taken, decided bool) {
	if n < 0 {
		return Prepared{}, false, true
	}
	b.largest.note(n)
	if d := b.shedding.Load(); d != nil && d.refuse(b.setting.Load(), now, n) {
		return Prepared{}, false, true
	}
	for {
		t := b.setting.Load()
		if !b.open(t, now) {
			return Prepared{}, false, true
		}
		moment := t.moment(now)
		if moment > t.span {
			b.rebase(now)
			continue
		}
		word := t.word.Load()
		if word == wordFrozen {
			if b.setting.Load() != t {
				continue // it was updated just now
			}
			return Prepared{}, false, false
		}
		next, fits := t.Take(word, t.tick(moment), uint64(n))
		if !fits {
			return Prepared{}, false, true
		}
		if t.word.CompareAndSwap(word, next) {
			return Prepared{At: now, Setting: t.number, Rate: t.rate, Before: word, After: next}, true, true
		}
	}
}

// Commit makes final that n was taken, and counts it as admitted. [Bucket.Arrived] says when.
func (b *Bucket) Commit(n int64) { b.admitted.Add(n) }

// longestPrepared bounds the time after which a Prepared is given back under the next setting. Not longer: more could have
// overflowed in it than is worth counting. Not shorter: a goroutine may have to wait for a processor in between.
const longestPrepared = limit.Time(5 * time.Millisecond)

// Rollback gives n back, which h took. If nothing else was taken since, the bucket is as if n had
// never been taken. Else its level is at most that: what would have overflowed since is not
// given back, nor what is above the burst of a new setting. After two new settings nothing is: it
// is not known at which rate tokens came under the one in between.
func (b *Bucket) Rollback(now limit.Time, h Prepared, n int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	t := b.settle(now)
	if !b.open(t, now) || n <= 0 {
		return
	}
	same := t.number == h.Setting
	var back uint64
	switch {
	case same:
		back = gcra.Back(t.tick(t.moment(now)), h.Before, h.After, t.tick(t.moment(h.At)))
	case h.Setting == 0, t.number == h.Setting+1:
		back = min(uint64(n), t.Quota) * t.Token
		back -= min(back, t.brought(max(h.Rate, t.rate), now-h.At))
	default:
		return
	}
	for {
		word := t.current()
		next := word - min(word, back)
		if same && word == h.After {
			next = h.Before
		}
		if b.frozen {
			t.frozenWord = next
			return
		}
		if t.word.CompareAndSwap(word, next) {
			return
		}
	}
}

// brought is what a rate refills in d, in ticks, rounded up; MaxUint64 if that is long.
func (t *setting) brought(rate fixed.Amount, d limit.Time) uint64 {
	hi, lo := bits.Mul64(uint64(rate), uint64(max(d, 0)))
	if d > longestPrepared || hi >= perNanosecond {
		return math.MaxUint64
	}
	tokens, part := bits.Div64(hi, lo, perNanosecond)
	whole := fixed.Product(tokens, t.Token)
	if !whole.AtMost(gcra.Room) {
		return math.MaxUint64
	}
	return whole.Lo + fixed.MulDivUp(part, t.Token, perNanosecond)
}

// Prepare is Try that can be rolled back; see [Bucket.Prepare].
func (p *Semaphore) Prepare(now limit.Time, n int64) (h Prepared, taken, decided bool) {
	if n < 0 {
		return Prepared{}, false, true
	}
	p.largest.note(n)
	for {
		r := p.permits.Load()
		used := r.used.Load()
		if used == usedFrozen {
			if p.permits.Load() != r {
				continue // it was updated just now
			}
			return Prepared{}, false, false
		}
		if n > p.available(r, now)-used {
			return Prepared{}, false, true
		}
		if r.used.CompareAndSwap(used, used+n) {
			return Prepared{}, true, true
		}
	}
}

// Commit makes final that n permits were taken, and counts them as admitted.
func (p *Semaphore) Commit(n int64) { p.admitted.Add(n) }

// Arrived does nothing: the demand of a semaphore does not depend on the time of arrivals.
func (p *Semaphore) Arrived(limit.Time) {}
