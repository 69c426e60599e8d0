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

// Deadline is the time at which leases expire, by the clock that their buckets are called
// with. 0, as in the zero value, has passed. An agent that renews its leases stores a later
// time, and all buckets with this deadline go on.
type Deadline struct{ atomic.Int64 }

// noEnd is the deadline of buckets without one.
func noEnd() *Deadline {
	d := &Deadline{}
	d.Store(math.MaxInt64)
	return d
}

// Bucket is a token bucket whose rate and burst change while the application takes from it.
//
// In any interval T without an Update it admits at most burst + rate x T, and Update creates
// nothing: the tokens before it and those added equal those after it and those returned, but
// for a rounding that is always down. So buckets between which rate, burst and tokens move
// admit together what one bucket would.
//
// From its deadline on a Bucket admits nothing, unless UpdateFallback put something in force. Use [NewBucket]. A Bucket is safe for concurrent use; Allow takes no lock
// and allocates nothing. Times go by the clock of the caller; one before the latest
// counts as the latest.
type Bucket struct {
	until    atomic.Pointer[Deadline]
	setting  atomic.Pointer[setting]
	shedding atomic.Pointer[shedding] // nil = nothing is suppressed

	// Each on a cache line of its own: a goroutine that only reads the setting does not wait
	// for one that counts.
	_        [64]byte
	admitted atomic.Int64 // cost
	last     atomic.Int64 // limit.Time of the last one admitted at once, to lastGrain
	_        [48]byte
	refused  tally
	_        [56]byte

	declared  atomic.Int64 // Amount
	waitUntil atomic.Int64 // limit.Time
	largest   largest

	mu      sync.Mutex // held by all but Allow
	frozen  bool
	waiting int64         // cost of the waiters
	waited  time.Duration // for how long there was a patient waiter, in all
	since   limit.Time    // waited is counted up to here; 0 = there is none
	lent    struct {
		rate  fixed.Amount
		whole uint64
	} // what Update put in force, before suppression
	random func() float64 // nil = that of math/rand
}

// NewBucket returns an empty bucket of rate 0 that may be spent until d; nil is
// without end.
func NewBucket(d *Deadline) *Bucket {
	if d == nil {
		d = noEnd()
	}
	b := &Bucket{}
	b.until.Store(d)
	t := newSetting(0, 0, 0)
	t.number = 1
	t.word.Store(t.frozenWord)
	b.setting.Store(t)
	return b
}

// Follow makes d the deadline from here on: another coordinator lends what the bucket, which has to be
// empty, gets next.
func (b *Bucket) Follow(d *Deadline) { b.until.Store(d) }

// Allow takes n at now if the level is that high. A negative n is refused and not counted. It
// does not decide, and counts nothing, while the bucket is frozen.
func (b *Bucket) Allow(now limit.Time, n int64) (allowed, decided bool) {
	b.largest.note(n)
	t := b.setting.Load()
	if d := b.shedding.Load(); d != nil && d.refuse(t, now, n) {
		b.refused.Add(n)
		return false, true
	}
	if int64(now) < b.until.Load().Load() {
		moment := t.moment(now)
		word := t.word.Load()
		if moment <= t.span && word != wordFrozen && n >= 0 {
			next, fits := t.Take(word, t.tick(moment), uint64(n))
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

// retry is Allow after another goroutine changed the word, or when time has to be counted
// from a later beginning, or the deadline has passed.
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
	if d := b.shedding.Load(); d != nil && d.refuse(b.setting.Load(), now, n) {
		return false, true
	}
	return b.try(now, n)
}

// try is Try of a request that suppression does not refuse.
func (b *Bucket) try(now limit.Time, n int64) (allowed, decided bool) {
	for {
		t := b.setting.Load()
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
			if b.setting.Load() != t {
				continue // it was updated just now
			}
			return false, false
		}
		next, fits := t.Take(word, t.tick(moment), uint64(n))
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
	b.Arrived(now)
}

// Arrived notes that a request that is admitted arrived at now.
func (b *Bucket) Arrived(now limit.Time) {
	if int64(now)-b.last.Load() >= int64(demand.ArrivalGrain) {
		b.last.Store(int64(now))
	}
}

// open says whether tokens may be taken at now.
func (b *Bucket) open(t *setting, now limit.Time) bool {
	return t.unleased || int64(now) < b.until.Load().Load()
}

// rebase counts time from now on, when the setting has used up its span.
func (b *Bucket) rebase(now limit.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.settle(now)
}

// settle returns the setting in force, with now within its span.
func (b *Bucket) settle(now limit.Time) *setting {
	t := b.setting.Load()
	if t.moment(now) <= t.span {
		return t
	}
	t.freeze()
	now = t.latest(now)
	next := newSetting(now, t.rate, t.Quota)
	next.unleased = t.unleased
	b.replace(now, t, next, 0)
	return next
}

// replace puts next in force, with the tokens of old.
func (b *Bucket) replace(now limit.Time, old, next *setting, add fixed.Amount) (surplus fixed.Amount) {
	old.freeze()
	surplus = next.receive(old.Free(old.frozenWord, old.late(old.moment(now))), old, add)
	b.put(next)
	return surplus
}

func (b *Bucket) put(t *setting) {
	t.number = b.setting.Load().number + 1
	if !b.frozen {
		t.word.Store(t.frozenWord)
	}
	b.setting.Store(t)
}

// Update puts a rate and a burst in force and adds tokens. The burst is rounded down to whole
// tokens and returned as held. Tokens above it are taken out and returned as surplus, in
// millionths, rounded down. A negative add takes out up to that much, as a part of surplus.
// The rate and burst that are in force, with nothing to add, change nothing.
//
// It ends what UpdateFallback put in force, and its tokens are dropped: they were not lent.
// Negative rates and bursts count as 0.
func (b *Bucket) Update(now limit.Time, rate, burst, add fixed.Amount) (surplus, held fixed.Amount) {
	rate, whole := clampSetting(rate, burst)
	add = min(max(add, -fixed.MaxAmount), fixed.MaxAmount)
	held = fixed.Amount(whole) * fixed.Token
	b.mu.Lock()
	defer b.mu.Unlock()
	rate, whole = b.lend(rate, whole)
	old := b.setting.Load()
	if add == 0 && rate == old.rate && whole == old.Quota && !old.unleased {
		return 0, held
	}
	old.freeze()
	now = old.latest(now)
	next := newSetting(max(now, old.begin), rate, whole)
	if old.unleased {
		surplus = next.receive(0, old, add)
		b.put(next)
		return surplus, held
	}
	return b.replace(now, old, next, add), held
}

// UpdateFallback puts in force what may be spent without a lease, whatever the deadline, until
// the next Update: before the first lease, or after expiry. No coordinator counts it. The
// bucket starts full, and its tokens are dropped; but the level of an earlier fallback stays,
// up to the burst. So until the next Update at most burst + rate x T is admitted.
func (b *Bucket) UpdateFallback(now limit.Time, rate, burst fixed.Amount) {
	rate, whole := clampSetting(rate, burst)
	b.mu.Lock()
	defer b.mu.Unlock()
	rate, whole = b.lend(rate, whole)
	old := b.setting.Load()
	if old.unleased && old.rate == rate && old.Quota == whole {
		return
	}
	old.freeze()
	now = old.latest(now)
	next := newSetting(max(now, old.begin), rate, whole)
	next.unleased = true
	if old.unleased {
		b.replace(now, old, next, 0)
		return
	}
	next.frozenWord = 0
	b.put(next)
}

func clampSetting(rate, burst fixed.Amount) (fixed.Amount, uint64) {
	return min(max(rate, 0), fixed.MaxAmount), uint64(min(max(burst, 0), fixed.MaxAmount).Floor())
}

// Observe returns level, totals and waiters at now. The level does not depend on the deadline.
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

// patience is how long a waiter waits at least to count as patient: as one of a loop around
// Wait, which sends its next request when this one is served. Not shorter: callers that give up
// soon send requests whatever the answers. Not longer: such loops do wait a second.
const patience = time.Second

// stopWatch adds the time since which there is a patient waiter.
func (b *Bucket) stopWatch(now limit.Time) {
	if b.since != 0 && now > b.since {
		b.waited += time.Duration(now - b.since)
	}
	b.since = 0
}

// Declare sets the demand that the application declares, per second; 0 = none declared.
func (b *Bucket) Declare(perSecond fixed.Amount) { b.declared.Store(int64(max(perSecond, 0))) }

// MaxCost is the largest cost that fits at now, in whole tokens, if the bucket is full.
func (b *Bucket) MaxCost(now limit.Time) int64 {
	t := b.setting.Load()
	if !b.open(t, now) {
		return 0
	}
	return int64(t.Quota)
}

// Remaining is how much could be taken at now.
func (b *Bucket) Remaining(now limit.Time) int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	t := b.settle(now)
	if !b.open(t, now) {
		return 0
	}
	return int64(t.Free(t.current(), t.tick(t.moment(now))) / t.Token)
}

// Earliest is how long after now n tokens are refilled if the setting stays and nothing else is
// taken; [limit.Never] if they never are. n may be above the burst, as the cost of all
// waiters; it is at least 0.
func (b *Bucket) Earliest(now limit.Time, n int64) time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	t := b.settle(now)
	if !b.open(t, now) {
		return limit.Never
	}
	return t.until(t.current(), t.tick(t.moment(now)), n)
}

// Freeze stops Allow while there are waiters, so that no request overtakes them.
func (b *Bucket) Freeze() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.frozen = true
	b.setting.Load().freeze()
}

// Thaw lets Allow decide again.
func (b *Bucket) Thaw() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.frozen {
		return
	}
	b.frozen = false
	t := b.setting.Load()
	t.word.Store(t.frozenWord)
}

// Join counts a waiter of cost n, at least 0.
func (b *Bucket) Join(n int64) {
	b.largest.note(n)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.waiting += n
}

// Serve takes n for a waiter, which joined, if the level is that high, frozen or not.
func (b *Bucket) Serve(now limit.Time, n int64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	t := b.settle(now)
	if !b.open(t, now) {
		return false
	}
	was := t.current()
	next, fits := t.Take(was, t.tick(t.moment(now)), uint64(n))
	if !fits {
		return false
	}
	if b.frozen {
		t.frozenWord = next
	} else if !t.word.CompareAndSwap(was, next) {
		return false // an Allow came first; a wait line freezes the bucket before it serves
	}
	b.waiting -= n
	b.admit(now, n)
	if b.waiting == 0 {
		b.stopWatch(now)
	}
	return true
}

// WaitUntil sets when the last waiter gives up, by the clock of Observe; 0 = one waits without
// end, or there is none.
func (b *Bucket) WaitUntil(t limit.Time) { b.waitUntil.Store(int64(t)) }

// Leave ends the wait of n, which joined, without serving it.
func (b *Bucket) Leave(n int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.waiting -= n
	b.refused.Add(n)
	if b.waiting == 0 {
		b.since = 0
	}
}

// Refuse counts n as attempted and refused, where nothing else has counted it.
func (b *Bucket) Refuse(n int64) { b.refused.Add(n) }

// Refund puts back n that was taken and not used, as far as it fits.
func (b *Bucket) Refund(now limit.Time, n int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	t := b.settle(now)
	if !b.open(t, now) || n <= 0 {
		return
	}
	for {
		word := t.current()
		next := t.Refund(word, min(uint64(n), t.Quota))
		if b.frozen {
			t.frozenWord = next
			return
		}
		if t.word.CompareAndSwap(word, next) {
			return
		}
	}
}
