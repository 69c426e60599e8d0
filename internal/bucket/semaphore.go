package bucket

import (
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/limit"
)

// Semaphore bounds the requests in flight in one instance: it has a number of permits, which
// changes while they are acquired and released.
//
// When Update sets fewer permits than are in use, those in use stay counted as held, and none
// can be acquired until enough are released. From its deadline on none can be acquired, unless
// UpdateFallback put something in force.
//
// Use [NewSemaphore]. It is safe for concurrent use; Acquire and Release take no
// lock unless frozen, and allocate nothing.
type Semaphore struct {
	until   atomic.Pointer[Deadline]
	permits atomic.Pointer[permits]

	admitted, refused atomic.Int64
	declared          atomic.Int64 // Amount
	waitUntil         atomic.Int64 // limit.Time
	largest           largest

	mu      sync.Mutex
	frozen  bool
	waiting int64
}

// permits is a number of permits in force, with those in use in a word of its own, as a
// [setting] of a Bucket has it.
type permits struct {
	asked   int64 // the number in force
	anytime bool  // in force whatever the deadline: no lease
	used    atomic.Int64
	was     int64 // used while it is frozen; under the lock
}

const usedFrozen = math.MinInt64

// NewSemaphore returns a semaphore without permits, with a deadline; nil is without end.
func NewSemaphore(d *Deadline) *Semaphore {
	if d == nil {
		d = noEnd()
	}
	p := &Semaphore{}
	p.until.Store(d)
	p.permits.Store(&permits{})
	return p
}

// Follow makes d the deadline from here on: see [Bucket.Follow].
func (p *Semaphore) Follow(d *Deadline) { p.until.Store(d) }

// Acquire takes n permits if they are free at now. It refuses a negative n, and while the
// semaphore is frozen.
func (p *Semaphore) Acquire(now limit.Time, n int64) bool {
	acquired, _ := p.Try(now, n)
	if !acquired && n > 0 {
		p.refused.Add(n)
	}
	return acquired
}

// Try is Acquire that does not count what it refuses, and does not decide while the
// semaphore is frozen: the caller goes on with Join or with Refuse.
func (p *Semaphore) Try(now limit.Time, n int64) (acquired, decided bool) {
	if n < 0 {
		return false, true
	}
	p.largest.note(n)
	for {
		r := p.permits.Load()
		used := r.used.Load()
		if used == usedFrozen {
			if p.permits.Load() != r {
				continue // it was updated just now
			}
			return false, false
		}
		if n > p.available(r, now)-used {
			return false, true
		}
		if r.used.CompareAndSwap(used, used+n) {
			p.admitted.Add(n)
			return true, true
		}
	}
}

// available is how many permits are in force at now, in use or not.
func (p *Semaphore) available(r *permits, now limit.Time) int64 {
	if r.anytime || int64(now) < p.until.Load().Load() {
		return r.asked
	}
	return 0
}

// Release gives n acquired permits back. It reports whether the semaphore is frozen, so that
// there may be a waiter for them. Releasing more than is in use releases all.
func (p *Semaphore) Release(n int64) (frozen bool) {
	if n <= 0 {
		return false
	}
	for {
		r := p.permits.Load()
		used := r.used.Load()
		if used == usedFrozen {
			break
		}
		if r.used.CompareAndSwap(used, max(0, used-n)) {
			return false
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	r := p.permits.Load()
	if p.frozen {
		r.was = max(0, r.was-n)
		return true
	}
	for {
		used := r.used.Load()
		if r.used.CompareAndSwap(used, max(0, used-n)) {
			return false
		}
	}
}

// Update puts burst, in permits rounded down, in force. It returns as held the permits that
// count as lent: burst, or those in use where they are more; the next Update returns fewer as
// permits are released. The rate means nothing; add is returned as surplus, for a semaphore has
// no tokens.
func (p *Semaphore) Update(_ limit.Time, _, burst, add fixed.Amount) (surplus, held fixed.Amount) {
	asked := min(max(burst, 0), fixed.MaxAmount).Floor()
	return max(add, 0), fixed.Whole(p.replace(asked, false))
}

// UpdateFallback puts in force how many requests may be in flight without a lease, whatever the
// deadline, until the next Update; permits in use count. No coordinator counts them.
func (p *Semaphore) UpdateFallback(_ limit.Time, _, burst fixed.Amount) {
	p.replace(min(max(burst, 0), fixed.MaxAmount).Floor(), true)
}

func (p *Semaphore) replace(asked int64, anytime bool) (held int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	r := p.permits.Load()
	r.hold()
	next := &permits{asked: asked, anytime: anytime, was: r.was}
	next.used.Store(usedFrozen)
	if !p.frozen {
		next.used.Store(next.was)
	}
	p.permits.Store(next)
	return max(asked, next.was)
}

func (r *permits) hold() {
	if used := r.used.Swap(usedFrozen); used != usedFrozen {
		r.was = used
	}
}

func (r *permits) current() int64 {
	if used := r.used.Load(); used != usedFrozen {
		return used
	}
	return r.was
}

// Observe returns free and used permits, totals and waiters at now.
func (p *Semaphore) Observe(now limit.Time) Reading {
	p.mu.Lock()
	defer p.mu.Unlock()
	r := p.permits.Load()
	used, admitted := r.current(), p.admitted.Load()
	return Reading{
		Level:     fixed.Whole(max(0, r.asked-used)),
		InUse:     fixed.Whole(used),
		Attempted: fixed.Whole(admitted + p.refused.Load() + p.waiting),
		Admitted:  fixed.Whole(admitted),
		Waiting:   fixed.Whole(p.waiting),
		WaitUntil: limit.Time(p.waitUntil.Load()),
		Largest:   p.largest.at(now, p.waiting),
		Declared:  fixed.Amount(p.declared.Load()),
	}
}

// Declare sets the demand that the application declares, in permits; 0 = none declared.
func (p *Semaphore) Declare(permits fixed.Amount) { p.declared.Store(int64(max(permits, 0))) }

// MaxCost is how many permits there are at now, in use or not.
func (p *Semaphore) MaxCost(now limit.Time) int64 { return p.available(p.permits.Load(), now) }

// Remaining is how many could be acquired at now.
func (p *Semaphore) Remaining(now limit.Time) int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	r := p.permits.Load()
	return max(0, p.available(r, now)-r.current())
}

// Earliest is 0 if n permits are free at now, else [limit.Never]: it is not known when they are
// released.
func (p *Semaphore) Earliest(now limit.Time, n int64) time.Duration {
	if n <= p.Remaining(now) {
		return 0
	}
	return limit.Never
}

// Freeze stops Acquire while there are waiters, so that no request overtakes them.
func (p *Semaphore) Freeze() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.frozen = true
	p.permits.Load().hold()
}

// Thaw lets Acquire decide again.
func (p *Semaphore) Thaw() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.frozen {
		return
	}
	p.frozen = false
	r := p.permits.Load()
	r.used.Store(r.was)
}

// Join counts a waiter for n permits.
func (p *Semaphore) Join(n int64) {
	p.largest.note(n)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.waiting += n
}

// Serve acquires n for a waiter, which joined, if they are free at now. The semaphore is frozen.
func (p *Semaphore) Serve(now limit.Time, n int64) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	r := p.permits.Load()
	if !p.frozen || n > p.available(r, now)-r.was {
		return false
	}
	r.was += n
	p.waiting -= n
	p.admitted.Add(n)
	return true
}

// WaitUntil sets when the last waiter gives up, by the clock of Observe; 0 = one waits without
// end, or there is none.
func (p *Semaphore) WaitUntil(t limit.Time) { p.waitUntil.Store(int64(t)) }

// Leave ends the wait for n, which joined, without serving it.
func (p *Semaphore) Leave(n int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.waiting -= n
	p.refused.Add(n)
}

// Refuse counts n as attempted and refused, where nothing else has counted it.
func (p *Semaphore) Refuse(n int64) { p.refused.Add(n) }
