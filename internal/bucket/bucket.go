package bucket

import (
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stint-io/stint/internal/demand"
	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/limit"
)

// Deadline is until when leases may be spent, as a [limit.Time] of the clock that
// their spenders are asked with. 0, as in the zero value, is a time that has passed.
// Whoever renews a lease stores a later time, and all spenders of the deadline go on.
type Deadline struct{ atomic.Int64 }

// noEnd is the deadline of spenders without one.
func noEnd() *Deadline {
	d := &Deadline{}
	d.Store(math.MaxInt64)
	return d
}

// Bucket is a token bucket whose rate and depth change while it is spent from: what
// one instance may spend of a limit. It is a [Spender].
//
// In any interval T in which nothing is amended it admits at most depth + rate x T,
// and Amend creates nothing: the tokens before it and those added are those after it
// and those returned, but for a rounding that is always down. So buckets between
// which rate, depth and tokens move admit together what one bucket would.
//
// From its deadline on a Bucket admits nothing, unless AmendFallback put something in
// force. Use [NewBucket]. A Bucket is safe for concurrent use; Allow takes no lock
// and allocates nothing. Times go by the clock of the caller; one before the latest
// counts as the latest.
type Bucket struct {
	until    *Deadline
	terms    atomic.Pointer[terms]
	shedding atomic.Pointer[shedding] // nil = nothing is suppressed

	// Each on a cache line of its own: who only reads the terms is not to wait for
	// those who count.
	_        [64]byte
	admitted atomic.Int64 // cost
	last     atomic.Int64 // limit.Time of the last one admitted at once, to lastGrain
	_        [48]byte
	refused  tally
	_        [56]byte

	declared  atomic.Int64 // Amount
	waitUntil atomic.Int64 // limit.Time
	largest   largest

	mu      sync.Mutex // of everything but Allow
	frozen  bool
	waiting int64         // cost of those in line
	waited  time.Duration // for how long somebody patient was in line, in all
	since   limit.Time    // that is counted up to; 0 = nobody is
	lent    struct {
		rate  fixed.Amount
		whole uint64
	} // in force but for what is suppressed
	random func() float64 // nil = that of math/rand
}

// NewBucket returns an empty bucket of rate 0 that may be spent until d; nil is
// without end.
func NewBucket(d *Deadline) *Bucket {
	if d == nil {
		d = noEnd()
	}
	b := &Bucket{until: d}
	t := newTerms(0, 0, 0)
	t.word.Store(t.frozenWord)
	b.terms.Store(t)
	return b
}

// Allow takes n at now if it is there. A negative n is refused and not counted. It
// does not decide, and counts nothing, while the bucket is frozen.
func (b *Bucket) Allow(now limit.Time, n int64) (allowed, decided bool) {
	b.largest.note(n)
	t := b.terms.Load()
	if d := b.shedding.Load(); d != nil && d.refuse(t, now, n) {
		b.refused.Add(n)
		return false, true
	}
	if int64(now) < b.until.Load() {
		moment := t.moment(now)
		word := t.word.Load()
		if moment <= t.span && word != wordFrozen && n >= 0 {
			next, fits := t.take(word, t.tick(moment), n)
			if !fits {
				b.refused.Add(n)
				return false, true
			}
			if t.word.CompareAndSwap(word, next) {
				b.admit(now, n)
				return true, true
			}
		}
	}
	return b.retry(now, n)
}

// retry is Allow for when something came in between, time has to be counted from
// a later beginning, or the deadline has passed.
func (b *Bucket) retry(now limit.Time, n int64) (allowed, decided bool) {
	allowed, decided = b.try(now, n)
	if decided && !allowed && n > 0 {
		b.refused.Add(n)
	}
	return allowed, decided
}

// Try is Allow that does not count what it refuses: the caller goes on with Join or
// with Refuse.
func (b *Bucket) Try(now limit.Time, n int64) (allowed, decided bool) {
	if n < 0 {
		return false, true
	}
	b.largest.note(n)
	if d := b.shedding.Load(); d != nil && d.refuse(b.terms.Load(), now, n) {
		return false, true
	}
	return b.try(now, n)
}

// try is Try of one that was not drawn to be refused.
func (b *Bucket) try(now limit.Time, n int64) (allowed, decided bool) {
	for {
		t := b.terms.Load()
		if !b.open(t, now) {
			return false, true
		}
		moment := t.moment(now)
		if moment > t.span {
			b.rebase(now)
			continue
		}
		word := t.word.Load()
		if word == wordFrozen {
			if b.terms.Load() != t {
				continue // it was amended just now
			}
			return false, false
		}
		next, fits := t.take(word, t.tick(moment), n)
		if !fits {
			return false, true
		}
		if t.word.CompareAndSwap(word, next) {
			b.admit(now, n)
			return true, true
		}
	}
}

// admit counts n.
func (b *Bucket) admit(now limit.Time, n int64) {
	b.admitted.Add(n)
	if int64(now)-b.last.Load() >= int64(demand.ArrivalGrain) {
		b.last.Store(int64(now))
	}
}

// open says whether t may be spent at now.
func (b *Bucket) open(t *terms, now limit.Time) bool {
	return t.unleased || int64(now) < b.until.Load()
}

// rebase counts time from now on, in terms that have used up theirs.
func (b *Bucket) rebase(now limit.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.settle(now)
}

// settle returns the terms in force, which can count now.
func (b *Bucket) settle(now limit.Time) *terms {
	t := b.terms.Load()
	if t.moment(now) <= t.span {
		return t
	}
	t.freeze()
	now = t.latest(now)
	next := newTerms(now, t.rate, t.burst)
	next.unleased = t.unleased
	b.replace(now, t, next, 0)
	return next
}

// replace puts next in force, with what is in old.
func (b *Bucket) replace(now limit.Time, old, next *terms, add fixed.Amount) (surplus fixed.Amount) {
	old.freeze()
	surplus = next.receive(old.free(old.frozenWord, old.late(old.moment(now))), old, add)
	b.put(next)
	return surplus
}

func (b *Bucket) put(t *terms) {
	if !b.frozen {
		t.word.Store(t.frozenWord)
	}
	b.terms.Store(t)
}

// Update puts rate and depth in force and adds tokens. The depth counts in whole
// tokens, rounded down, and is returned as held. What does not fit it is taken out
// and returned as surplus, in millionths, rounded down. A negative add takes out up
// to that much, which is then part of surplus. Terms that stay as they are with
// nothing to add change nothing.
//
// What AmendFallback put in force ends, and the tokens that came by it are gone: they
// were not lent. Negative rates and depths count as 0.
func (b *Bucket) Update(now limit.Time, rate, depth, add fixed.Amount) (surplus, held fixed.Amount) {
	rate, whole := clampTerms(rate, depth)
	add = min(max(add, -fixed.MaxAmount), fixed.MaxAmount)
	held = fixed.Amount(whole) * fixed.Token
	b.mu.Lock()
	defer b.mu.Unlock()
	rate, whole = b.lend(rate, whole)
	old := b.terms.Load()
	if add == 0 && rate == old.rate && whole == old.burst && !old.unleased {
		return 0, held
	}
	old.freeze()
	now = old.latest(now)
	next := newTerms(max(now, old.begin), rate, whole)
	if old.unleased {
		surplus = next.receive(0, old, add)
		b.put(next)
		return surplus, held
	}
	return b.replace(now, old, next, add), held
}

// UpdateFallback puts in force what may be spent without a lease, whatever the
// deadline, until the next Amend: before the first lease, or when one has run out. No
// coordinator keeps account of it. The bucket starts full, and what was in it is gone;
// but if something was in force without a lease already, that stays, up to the depth.
// So until the next Amend at most depth + rate x T is admitted.
func (b *Bucket) UpdateFallback(now limit.Time, rate, depth fixed.Amount) {
	rate, whole := clampTerms(rate, depth)
	b.mu.Lock()
	defer b.mu.Unlock()
	rate, whole = b.lend(rate, whole)
	old := b.terms.Load()
	if old.unleased && old.rate == rate && old.burst == whole {
		return
	}
	old.freeze()
	now = old.latest(now)
	next := newTerms(max(now, old.begin), rate, whole)
	next.unleased = true
	if old.unleased {
		b.replace(now, old, next, 0)
		return
	}
	next.frozenWord = 0
	b.put(next)
}

func clampTerms(rate, depth fixed.Amount) (fixed.Amount, uint64) {
	return min(max(rate, 0), fixed.MaxAmount), uint64(min(max(depth, 0), fixed.MaxAmount).Floor())
}

// Observe says how the bucket stands at now. Level is what it holds, whether its
// deadline has passed or not.
func (b *Bucket) Observe(now limit.Time) Reading {
	b.mu.Lock()
	defer b.mu.Unlock()
	t := b.settle(now)
	admitted := b.admitted.Load()
	until := limit.Time(b.waitUntil.Load())
	b.stopWatch(now)
	patient := b.waiting > 0 && (until == 0 || until >= now.Add(patience))
	if patient {
		b.since = max(now, 1)
	}
	return Reading{
		Waited:    b.waited,
		Patient:   patient,
		Level:     t.level(t.current(), t.tick(t.moment(now))),
		Attempted: fixed.Whole(admitted + b.refused.Load() + b.waiting),
		Admitted:  fixed.Whole(admitted),
		Last:      limit.Time(b.last.Load()),
		Waiting:   fixed.Whole(b.waiting),
		WaitUntil: until,
		Largest:   b.largest.at(now, b.waiting),
		Declared:  fixed.Amount(b.declared.Load()),
	}
}

// patience is how long one waits who asks again when it has been served and not before,
// such as a loop of Wait. Not shorter: those who give up soon come whatever they get. Not
// longer: it is what a caller waits for who has nothing else to do.
const patience = time.Second

// stopWatch counts how long somebody waited.
func (b *Bucket) stopWatch(now limit.Time) {
	if b.since != 0 && now > b.since {
		b.waited += time.Duration(now - b.since)
	}
	b.since = 0
}

// Declare says how much the application wants per second; 0 says nothing.
func (b *Bucket) Declare(perSecond fixed.Amount) { b.declared.Store(int64(max(perSecond, 0))) }

// MaxCost is the largest cost that fits at now, in whole tokens, if the bucket is full.
func (b *Bucket) MaxCost(now limit.Time) int64 {
	t := b.terms.Load()
	if !b.open(t, now) {
		return 0
	}
	return int64(t.burst)
}

// Remaining is how much could be taken at now.
func (b *Bucket) Remaining(now limit.Time) int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	t := b.settle(now)
	if !b.open(t, now) {
		return 0
	}
	return int64(t.free(t.current(), t.tick(t.moment(now))) / t.tokenTicks)
}

// Earliest is how long after now n will have come if the terms stay and nobody else
// takes: [limit.Never] if they do not bring it. n may be above the depth, as the
// cost of all who wait in line; it is at least 0.
func (b *Bucket) Earliest(now limit.Time, n int64) time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	t := b.settle(now)
	if !b.open(t, now) {
		return limit.Never
	}
	return t.until(t.current(), t.tick(t.moment(now)), n)
}

// Freeze stops Allow, for somebody waits: nobody passes those in line.
func (b *Bucket) Freeze() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.frozen = true
	b.terms.Load().freeze()
}

// Thaw lets Allow decide again.
func (b *Bucket) Thaw() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.frozen {
		return
	}
	b.frozen = false
	t := b.terms.Load()
	t.word.Store(t.frozenWord)
}

// Join says that n, at least 0, waits in line from here on.
func (b *Bucket) Join(n int64) {
	b.largest.note(n)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.waiting += n
}

// Serve takes n, which joined, if it is there at now, frozen or not.
func (b *Bucket) Serve(now limit.Time, n int64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	t := b.settle(now)
	if !b.open(t, now) {
		return false
	}
	was := t.current()
	next, fits := t.take(was, t.tick(t.moment(now)), n)
	if !fits {
		return false
	}
	if b.frozen {
		t.frozenWord = next
	} else if !t.word.CompareAndSwap(was, next) {
		return false // an Allow came first; whoever serves a line has frozen it
	}
	b.waiting -= n
	b.admit(now, n)
	if b.waiting == 0 {
		b.stopWatch(now)
	}
	return true
}

// WaitUntil says when the last of those in line goes away, by the clock that Observe is
// asked with; 0 = somebody waits without end, or nobody waits.
func (b *Bucket) WaitUntil(t limit.Time) { b.waitUntil.Store(int64(t)) }

// Leave says that n, which joined, waits no longer and was not served.
func (b *Bucket) Leave(n int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.waiting -= n
	b.refused.Add(n)
	if b.waiting == 0 {
		b.since = 0
	}
}

// Refuse counts n as asked for and refused, where nothing else has counted it.
func (b *Bucket) Refuse(n int64) { b.refused.Add(n) }

// Refund puts back n that was taken and not used, as far as it fits.
func (b *Bucket) Refund(now limit.Time, n int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	t := b.settle(now)
	if !b.open(t, now) || n <= 0 {
		return
	}
	back := uint64(min(uint64(n), t.burst)) * t.tokenTicks
	for {
		word := t.current()
		next := word - min(word, back)
		if b.frozen {
			t.frozenWord = next
			return
		}
		if t.word.CompareAndSwap(word, next) {
			return
		}
	}
}
