package memory

import (
	"runtime"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/stint-io/stint/limit"
)

// A word holds the state of a key ([limit.PackedBucket]) and two marks above it.
const (
	// wordLocked is set while a Take over several buckets decides, which takes a few
	// nanoseconds.
	wordLocked = 1 << 63
	// wordMoved says that the state is in another array of slots.
	wordMoved = ^uint64(0)
	// A word of 0 was never written. It stands for the overflow bucket's word: a key that was
	// decided there and gets a slot now must not start full.
)

// slotClosed, in place of a hash, marks a vacant slot of an array that has moved.
const slotClosed = ^uint64(0)

// wordTable is a table of packed buckets: flat arrays of 16-byte slots, found by linear probing,
// changed by compare-and-swap. A slot's hash is written once; slots are freed only by copying
// live words to another array, so a Take can never change a slot that belongs to another key by
// then.
type wordTable struct {
	owner  *Counters
	store  *Store
	bucket limit.PackedBucket
	counts bool      // the policy counts refused requests
	begin  uint64    // nanoseconds from the store's beginning to tick 0
	start  time.Time // the moment of begin, for the hot path

	overflow atomic.Uint64 // the word that keys without a slot share
	parted   atomic.Uint64 // the value of overflow when it moved
	next     atomic.Pointer[installed]
	shards   [shardCount]wordShard
}

type wordShard struct {
	slots atomic.Pointer[wordSlots] // nil until the first key

	mu      sync.Mutex // held while slots is replaced
	retryAt uint64     // time since the store's beginning before which a full shard is not swept; guarded by mu
	closed  bool       // guarded by mu: the shard has moved to the successor
}

type wordSlots struct {
	slots []wordSlot // a power of two, never full
	mask  uint64
	room  int64 // how many may be used: three quarters, so that probes stay short
	used  atomic.Int64
}

type wordSlot struct {
	hash atomic.Uint64
	word atomic.Uint64
}

const (
	slotBytes  = int64(unsafe.Sizeof(wordSlot{}))
	slotsBytes = int64(unsafe.Sizeof(wordSlots{}))
	minSlots   = 8
)

func newWordTable(c *Counters, b limit.PackedBucket) *wordTable {
	begin := c.store.since()
	start := c.store.start.Add(time.Duration(begin - 1))
	return &wordTable{owner: c, store: c.store, bucket: b, begin: begin, start: start}
}

func newWordSlots(n int) *wordSlots {
	return &wordSlots{slots: make([]wordSlot, n), mask: uint64(n - 1), room: int64(n - n/4)}
}

func (a *wordSlots) bytes() int64 { return int64(len(a.slots))*slotBytes + slotsBytes }

// rebaseAfter is the age at which a table gets a later beginning, in nanoseconds.
// Not later: Takes go on while it does.
const rebaseAfter = uint64(limit.PackedHorizon) * 3 / 4

// moment is the table's age plus one nanosecond, so that no word of a key that took something is
// 0. A time before the table's beginning counts as its beginning.
func (t *wordTable) moment(since uint64) uint64 { return max(since, t.begin) - t.begin + 1 }

func (t *wordTable) tickAt(since uint64) uint64 { return t.bucket.Tick(t.moment(since)) }

// tick reads the clock. A Take reads it after it has found the key's slot. On an existing word
// an older tick could only refuse more; but a state that was dropped before the slot was found
// was full by a later tick than one read before the search.
func (t *wordTable) tick() uint64 {
	moment := t.moment(t.store.since())
	if moment > rebaseAfter {
		t.owner.rebase(t)
	}
	return t.bucket.Tick(moment)
}

// obtain finds the word of a key and makes one if there is none. over says that it is the
// overflow bucket's. A nil word says that the shard has moved. Fresh words are dropped for it if
// need be, unless keep.
func (t *wordTable) obtain(h uint64, keep bool) (word *atomic.Uint64, over bool) {
	sh := &t.shards[shardOf(h)]
	for {
		a := sh.slots.Load()
		if s, vacant := a.find(h); s != nil && !vacant {
			return &s.word, false
		} else if s != nil && a.used.Load() < a.room {
			// Counted first: if two goroutines took the last free slots at once, probing
			// would not end.
			if a.used.Add(1) <= a.room && s.hash.CompareAndSwap(0, h) {
				return &s.word, false
			}
			a.used.Add(-1)
			continue
		}
		switch t.grow(sh, a, keep) {
		case shardFull:
			t.owner.overflow(t.store.since())
			return &t.overflow, true
		case shardMoved:
			return nil, false
		}
	}
}

// find returns the slot of a key, or the vacant slot where it would go; nil when there is no
// array or it is being moved.
func (a *wordSlots) find(h uint64) (s *wordSlot, vacant bool) {
	if a == nil {
		return nil, false
	}
	for i := h; ; i++ {
		s := &a.slots[i&a.mask]
		switch s.hash.Load() {
		case h:
			return s, false
		case 0:
			return s, true
		case slotClosed:
			return nil, false
		}
	}
}

// seen returns the word of a key without making one: 0 for a key without a slot.
func (t *wordTable) seen(h uint64) (word uint64, ok bool) {
	sh := &t.shards[shardOf(h)]
	for {
		a := sh.slots.Load()
		if a == nil {
			return 0, !sh.isClosed()
		}
		if s, vacant := a.find(h); vacant {
			return 0, true
		} else if s != nil {
			if w, ok := settled(&s.word); ok {
				return w, true
			}
		}
		if sh.isClosed() {
			return 0, false
		}
	}
}

// isClosed waits until the shard is not being moved and reports whether it has left.
func (sh *wordShard) isClosed() bool {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	return sh.closed
}

// settled waits until the word is unlocked and returns it; false when it has moved.
func settled(p *atomic.Uint64) (uint64, bool) {
	for {
		w := p.Load()
		if w == wordMoved {
			return 0, false
		}
		if w < wordLocked {
			return w, true
		}
		runtime.Gosched() // the goroutine that locked it may wait for this processor
	}
}

// effective returns the word that w stands for: one never written stands for the overflow
// bucket's, which is 0 unless the budget was full.
func (t *wordTable) effective(w uint64) uint64 {
	if w != 0 {
		return w
	}
	if o, ok := settled(&t.overflow); ok {
		return o
	}
	return t.parted.Load()
}

// hasSlot reports whether a key has a slot by now. The overflow bucket is locked, so a key that
// gets one later starts from what is decided there now.
func (t *wordTable) hasSlot(h uint64) bool {
	s, vacant := t.shards[shardOf(h)].slots.Load().find(h)
	return s != nil && !vacant
}

// by returns the arithmetic for an ask, which may bring its own quota.
func (t *wordTable) by(a ask) *limit.PackedBucket {
	if !a.own {
		return &t.bucket
	}
	b := t.bucket.WithQuota(a.quota)
	return &b
}

// after is the word after an ask at a tick, and whether the ask fits. One that does not fit and
// is not counted leaves the word as it is.
func (t *wordTable) after(b *limit.PackedBucket, word, tick uint64, a ask) (next uint64, fits bool) {
	next, fits = b.Take(word, tick, a.cost)
	switch {
	case fits:
	case a.cost > 0 && (a.counts || t.counts):
		next = t.bucket.Owe(word, tick, a.cost)
	default:
		next = word
	}
	return next, fits
}

func (t *wordTable) take(h uint64, a ask) (limit.Verdict, bool) {
	b := t.by(a)
	for {
		p, over := t.obtain(h, false)
		if p == nil {
			return limit.Verdict{}, false
		}
		tick := t.tick()
		if over {
			if v, decided := t.takeShared(h, tick, a); decided {
				return v, true
			}
			continue
		}
		for w, ok := settled(p); ok; w, ok = settled(p) {
			was := t.effective(w)
			next, fits := t.after(b, was, tick, a)
			switch {
			case fits && (a.cost == 0 || p.CompareAndSwap(w, next)):
				return admission(b, was, next, tick), true
			case !fits && (next == was || p.CompareAndSwap(w, next)):
				return refusal(b, next, tick, a.cost, false), true
			}
		}
		t.shards[shardOf(h)].isClosed() // waits until the shard has moved
	}
}

// takeShared takes from the overflow bucket. decided is false when that has moved, or when the
// key got a slot in between: from then on its Takes are counted there.
func (t *wordTable) takeShared(h, tick uint64, a ask) (v limit.Verdict, decided bool) {
	b := t.by(a)
	for w, ok := settled(&t.overflow); ok; w, ok = settled(&t.overflow) {
		next, fits := t.after(b, w, tick, a)
		switch {
		case !fits && next == w:
			return refusal(b, w, tick, a.cost, true), true
		case a.cost == 0:
			return admission(b, w, next, tick), true
		case !t.overflow.CompareAndSwap(w, w|wordLocked):
			continue
		case t.hasSlot(h):
			t.overflow.Store(w)
			return v, false
		}
		t.overflow.Store(next)
		if !fits {
			return refusal(b, next, tick, a.cost, true), true
		}
		return admission(b, w, next, tick), true
	}
	t.store.awaitMove()
	return v, false
}

func admission(b *limit.PackedBucket, was, next, tick uint64) limit.Verdict {
	v := b.Verdict(next, tick, 0)
	v.Delay = b.Delay(was, tick)
	return v
}

func refusal(b *limit.PackedBucket, w, tick uint64, cost int64, over bool) limit.Verdict {
	v := b.Verdict(w, tick, cost)
	if over && v.Reason == limit.ReasonRate {
		v.Reason = limit.ReasonTableFull
	}
	return v
}

func (t *wordTable) peek(h uint64, a ask) (limit.Verdict, bool) {
	tick := t.tick()
	w, ok := t.seen(h)
	if !ok {
		return limit.Verdict{}, false
	}
	was := t.effective(w)
	b := t.by(a)
	if next, fits := b.Take(was, tick, a.cost); fits {
		return admission(b, was, next, tick), true
	}
	return b.Verdict(was, tick, a.cost), true
}

// change applies f to the word of a key that has one.
func (t *wordTable) change(h uint64, f func(uint64) uint64) bool {
	sh := &t.shards[shardOf(h)]
	for {
		a := sh.slots.Load()
		s, vacant := a.find(h)
		if vacant {
			return true
		}
		if s != nil {
			w, ok := settled(&s.word)
			for ok && !s.word.CompareAndSwap(w, f(w)) {
				w, ok = settled(&s.word)
			}
			if ok {
				return true
			}
		}
		if sh.isClosed() {
			return false
		}
		if a == nil {
			return true
		}
	}
}

func (t *wordTable) refund(h uint64, _ limit.Time, cost int64) bool {
	return t.change(h, func(w uint64) uint64 {
		if w == 0 {
			return 0
		}
		return max(t.bucket.Refund(w, cost), 1) // 0 would mean never written
	})
}

func (t *wordTable) reset(h uint64) bool {
	tick := t.tick()
	return t.change(h, func(uint64) uint64 { return tick }) // full as of now
}

func (t *wordTable) finish(uint64, uint64, bool) bool { return true }

func (t *wordTable) successor() table { return t.next.Load().get() }

func (t *wordTable) keys() int64 {
	var n int64
	for i := range t.shards {
		if a := t.shards[i].slots.Load(); a != nil {
			n += a.used.Load()
		}
	}
	return n
}

// pause is how long a full shard is not swept again, in nanoseconds. A sweep visits each slot
// for one to ten nanoseconds, and a flood meets every shard, so this bounds sweeping to some
// hundredths of a processor. Not longer: a shard of a table of a million keys notices after a
// quarter of a second that keys have become fresh.
func pause(slots int) uint64 { return uint64(time.Millisecond) + 8_000*uint64(slots) }
