package limit

import (
	"context"
	"fmt"
	"math"
	"time"
)

// Preparer is a [Taker] whose Take can be done in two steps, so that a request takes from
// several or from none; see [All]. Each Prepare that took something is followed by one Commit or
// one Rollback, soon: until then its tokens are missing to other requests.
//
// A Preparer decides by one limit and writes its answer to a Result of the caller's, so that a
// decision does not allocate.
type Preparer interface {
	Taker

	// Prepare takes as Take does, but so that it can be undone. It sets r.Allowed and the rest
	// of r; a Result without a name of a limit says that no limit applies to the request. With
	// req.Peek it takes nothing, and r.Remaining is what there is, not what would be left. It
	// does not wait unless wait is true; then it may wait as long as Take would. An error means
	// that nothing was decided and nothing taken.
	Prepare(ctx context.Context, req Request, wait bool, r *Result) (Prepared, error)

	// Commit makes final what was prepared.
	Commit(h Prepared)

	// Rollback gives back what was prepared. If nothing else was taken in between, the limit is
	// as if Prepare had never been called. Otherwise it never has more than that, and less at
	// most by what would have overflowed. It has no effect once the policy has changed.
	Rollback(h Prepared)

	// Shared reports whether other processes spend the same limit. Such a limit is asked after
	// those that are not shared have admitted.
	Shared() bool
}

// Prepared is what a [Preparer] took and can give back; the zero value is nothing. All fields
// but Permit and More are the Preparer's own.
type Prepared struct {
	// Permit names permits in flight, as [Decision.Permit] does; 0 = none.
	Permit uint64

	// More is set when the Preparer refused, but may admit after a wait.
	More bool

	// Cost is what was taken, Of where it was taken, and Mark what is needed to give it back.
	Cost int64
	Of   any
	Mark [6]uint64
}

// What the marks of a Limiter's Prepared are: of a fast bucket, or of a slot.
const (
	markBefore = 0 // the word before the Take
	markAfter  = 1 // the word after
	markTick   = 2 // when

	markID  = 0 // of the slot
	markGen = 1
)

var _ Preparer = (*Limiter)(nil)

// Shared implements [Preparer]: a Limiter is of this process alone.
func (l *Limiter) Shared() bool { return false }

// Prepare implements [Preparer]. The result's limit is called "limiter". A policy that
// counts refused requests, or bans, counts those that it refuses itself, and not those
// that were undone because another limit refused.
func (l *Limiter) Prepare(ctx context.Context, req Request, _ bool, r *Result) (Prepared, error) {
	if req.Cost < 0 {
		return Prepared{}, fmt.Errorf("%w, it is %d", ErrNegativeCost, req.Cost)
	}
	if err := ctx.Err(); err != nil {
		return Prepared{}, err
	}
	cost := max(1, req.Cost)
	if f := l.fast.Load(); f != nil {
		if h, decided := f.prepare(l.now(), cost, req.Peek, r); decided {
			return h, nil
		}
	}
	return l.prepareLocked(cost, req, r), nil
}

// prepare decides cost at now by the word. decided is false when the caller has to decide under
// the lock.
func (f *fastBucket) prepare(now Time, cost int64, peek bool, r *Result) (h Prepared, decided bool) {
	moment := now - f.begin
	if moment < 0 || moment > Time(PackedHorizon)/2 {
		return Prepared{}, false
	}
	tick := f.bucket.Tick(uint64(moment))
	for {
		word := f.word.Load()
		if word == wordFrozen {
			return Prepared{}, false
		}
		h, next := f.try(word, tick, cost, peek, r)
		if next == word || f.word.CompareAndSwap(word, next) {
			return h, true
		}
	}
}

// try decides cost at tick on word, and returns the word afterwards.
func (f *fastBucket) try(word, tick uint64, cost int64, peek bool, r *Result) (h Prepared, next uint64) {
	next, fits := f.bucket.Take(word, tick, cost)
	shown, refused := next, int64(0)
	switch {
	case !fits:
		shown, refused, next = word, cost, word
	case peek:
		shown, next = word, word
	default:
		h = Prepared{Cost: cost, Of: f, Mark: [6]uint64{markBefore: word, markAfter: next, markTick: tick}}
	}
	*r = Result{
		Limit: limiterName, Quota: int64(f.bucket.exact.quota), Window: f.bucket.window(),
		Cost: cost, Verdict: f.bucket.Verdict(shown, tick, refused),
	}
	return h, next
}

// ledgerWord is the word of the state in a ledger. ok is false for a state that no word can
// hold: one far ahead, because of a time that a caller chose, and one before the beginning,
// unless the bucket is full at all times.
func (f *fastBucket) ledgerWord(l *ledger) (word uint64, ok bool) {
	if l.bucket == (BucketState{}) {
		return 0, true
	}
	s := ticks(l.bucket).Minus(f.bucket.Exact().at(f.begin))
	return s.Lo, s.Hi == 0 && 0 < s.Lo && s.Lo < 1<<62
}

// window is [Policy.Window].
func (b *PackedBucket) window() time.Duration {
	if b.n == 0 {
		return 0
	}
	return time.Duration((b.word.Full + b.n - 1) / b.n)
}

// prepareLocked is Prepare under the lock.
func (l *Limiter) prepareLocked(cost int64, req Request, r *Result) (h Prepared) {
	peek := req.Peek
	l.lock()
	defer l.unlock()
	now := l.now()
	l.settle(&l.meter, now)
	defer l.arm()
	if f := l.fast.Load(); f != nil && len(l.slots) == 0 && now-f.begin <= Time(PackedHorizon)/2 {
		if word, ok := f.ledgerWord(&l.state); ok {
			h, next := f.try(word, f.bucket.Tick(uint64(max(now, l.state.last)-f.begin)), cost, peek, r)
			l.state.bucket = f.bucket.Unpack(next, f.begin)
			return h
		}
	}
	p := &l.meter.policy
	var v Verdict
	if l.pending > 0 {
		v = l.takeBehind(now, cost, true)
	} else {
		v = l.meter.peek(&l.state, now, cost)
	}
	switch {
	case peek:
		if v.Allowed {
			v.Remaining = addCounts(v.Remaining, cost)
		}
	case req.CountRefused && !v.Allowed: // the caller counts it once all limits have decided
	case !v.Allowed && l.pending == 0 && (p.CountRefused || p.Ban > 0):
		v = l.takeAt(now, cost)
	case v.Allowed && !p.Unlimited:
		if s, ok := l.enter(&l.meter, now, slot{kind: slotPromised, cost: cost, from: now, latest: math.MaxInt64}); ok {
			v.Delay = time.Duration(max(0, s.act-now))
			h = Prepared{Cost: cost, Of: l, Mark: [6]uint64{markID: s.id, markGen: s.gen}}
		}
	}
	*r = Result{Limit: limiterName, Algorithm: p.Algorithm, Quota: l.meter.quota, Window: p.Window(), Cost: cost, Verdict: v}
	return h
}

// Commit implements [Preparer].
func (l *Limiter) Commit(h Prepared) {
	if h.Of != any(l) {
		return // taken from a fast bucket, which needs no commit, or nothing
	}
	l.lock()
	defer l.unlock()
	i := l.find(h.Mark[markID], h.Mark[markGen])
	if i == l.acted && l.slots[i].act < math.MaxInt64 {
		// A leaky bucket holds it back and its place is charged: the next request need not
		// queue behind it.
		l.slots[i].act = l.slots[i].take
		l.settle(&l.meter, l.now())
		i = l.find(h.Mark[markID], h.Mark[markGen])
	}
	if i >= 0 && i < l.acted {
		l.slots[i].kind = slotGranted
		l.trim(&l.meter, journal)
	}
	l.arm()
}

// Rollback implements [Preparer].
func (l *Limiter) Rollback(h Prepared) {
	switch of := h.Of.(type) {
	case *fastBucket:
		l.undo(of, h)
	case *Limiter:
		if of == l {
			Reservation{limiter: l, id: h.Mark[markID], gen: h.Mark[markGen], ok: true}.Cancel()
		}
	}
}

// undo gives back what was taken from f. If nothing else was taken in between, the word is
// restored. Otherwise what others took has to be known, which takes the lock.
func (l *Limiter) undo(f *fastBucket, h Prepared) {
	if f.word.CompareAndSwap(h.Mark[markAfter], h.Mark[markBefore]) {
		return
	}
	l.lock()
	defer l.unlock()
	if l.fast.Load() != f {
		return // another policy is in force
	}
	now, ledger := l.now(), &l.state
	if len(l.slots) > 0 {
		ledger = &l.base // it was taken before the first slot
	}
	word, ok := f.ledgerWord(ledger)
	if !ok {
		return
	}
	// The latest at which others have taken something is now.
	tick := f.bucket.Tick(uint64(max(0, max(now, l.state.last)-f.begin)))
	ledger.bucket = f.bucket.Unpack(f.bucket.Undo(word, tick, h.Mark[markBefore], h.Mark[markAfter], h.Mark[markTick]), f.begin)
	if len(l.slots) > 0 {
		l.rewind(&l.meter, now)
		l.settle(&l.meter, now)
		l.arm()
	}
}
