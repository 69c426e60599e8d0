package bucket

import (
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/limit"
)

// Semaphore are the places of a gauge: how many may be in flight at once in one
// instance, of those that a limit has for all. It is a [Spender].
//
// Who is in flight stays when the places become fewer: those that are in use above
// the number asked for stay counted as held, and nobody gets in until they are fewer.
// From its deadline on nobody gets in, unless AmendFallback put something in force.
//
// Use [NewPlaces]. Places are safe for concurrent use; Acquire and Release take no
// lock unless frozen, and allocate nothing.
type Semaphore struct {
	until   *Deadline
	permits atomic.Pointer[permits]

	admitted, refused atomic.Int64
	declared          atomic.Int64 // Amount
	waitUntil         atomic.Int64 // limit.Time
	largest           largest

	mu      sync.Mutex
	frozen  bool
	waiting int64
}

// permits is a number of places in force, with those in use in a word of its own, as
// in terms.
type permits struct {
	asked   int64 // who wants to get in must fit these
	anytime bool  // in force whatever the deadline: no lease
	used    atomic.Int64
	was     int64 // used while it is frozen; under the lock
}

const usedFrozen = math.MinInt64

// NewSemaphore returns no places, which may be acquired until d; nil is without end.
func NewSemaphore(d *Deadline) *Semaphore {
	if d == nil {
		d = noEnd()
	}
	p := &Semaphore{until: d}
	p.permits.Store(&permits{})
	return p
}

// Acquire takes n places if they are free at now. It refuses a negative n, and while
// the places are frozen.
func (p *Semaphore) Acquire(now limit.Time, n int64) bool {
	acquired, _ := p.Try(now, n)
	if !acquired && n > 0 {
		p.refused.Add(n)
	}
	return acquired
}

// Try is Acquire that does not count what it refuses, and does not decide while the
// available are frozen: the caller goes on with Join or with Refuse.
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
				continue // it was amended just now
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

// available is how many there are for those who want to get in at now.
func (p *Semaphore) available(r *permits, now limit.Time) int64 {
	if r.anytime || int64(now) < p.until.Load() {
		return r.asked
	}
	return 0
}

// Release gives n acquired places back. It reports whether the places are frozen, so
// that somebody may wait for them. Releasing more than is in use releases all.
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

// Update puts depth, in whole places rounded down, in force. It returns as held the
// available that count as lent: depth, or those in use where they are more. These come
// down as places are released, at the next Amend. The rate means nothing; add is
// returned as surplus, for places have no tokens.
func (p *Semaphore) Update(_ limit.Time, _, depth, add fixed.Amount) (surplus, held fixed.Amount) {
	asked := min(max(depth, 0), fixed.MaxAmount).Floor()
	return max(add, 0), fixed.Whole(p.replace(asked, false))
}

// UpdateFallback puts in force how many may be in flight without a lease, whatever the
// deadline, until the next Amend; those who got in before count. No coordinator keeps
// account of them.
func (p *Semaphore) UpdateFallback(_ limit.Time, _, depth fixed.Amount) {
	p.replace(min(max(depth, 0), fixed.MaxAmount).Floor(), true)
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

// Observe says how the places stand.
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

// Declare says how many places the application wants; 0 says nothing.
func (p *Semaphore) Declare(places fixed.Amount) { p.declared.Store(int64(max(places, 0))) }

// MaxCost is how many places there are at now, in use or not.
func (p *Semaphore) MaxCost(now limit.Time) int64 { return p.available(p.permits.Load(), now) }

// Remaining is how many could be acquired at now.
func (p *Semaphore) Remaining(now limit.Time) int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	r := p.permits.Load()
	return max(0, p.available(r, now)-r.current())
}

// Earliest is 0 if n places are free at now. Else nobody knows when they will be:
// [limit.Never].
func (p *Semaphore) Earliest(now limit.Time, n int64) time.Duration {
	if n <= p.Remaining(now) {
		return 0
	}
	return limit.Never
}

// Freeze stops Acquire, for somebody waits: nobody passes those in line.
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

// Join says that n waits in line from here on.
func (p *Semaphore) Join(n int64) {
	p.largest.note(n)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.waiting += n
}

// Serve acquires n, which joined, if they are free at now. The places are frozen.
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

// WaitUntil says when the last of those in line goes away, by the clock that Observe is
// asked with; 0 = somebody waits without end, or nobody waits.
func (p *Semaphore) WaitUntil(t limit.Time) { p.waitUntil.Store(int64(t)) }

// Leave says that n, which joined, waits no longer and was not served.
func (p *Semaphore) Leave(n int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.waiting -= n
	p.refused.Add(n)
}

// Refuse counts n as asked for and refused, where nothing else has counted it.
func (p *Semaphore) Refuse(n int64) { p.refused.Add(n) }
