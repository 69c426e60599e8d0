package memory

import (
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stint-io/stint/limit"
)

// A word holds the state of a key ([limit.PackedBucket]) and two marks above it.
const (
	// wordLocked is set while a Take over several buckets decides: it holds
	// the word for the few nanoseconds that this takes.
	wordLocked = 1 << 63
	// wordMoved says that the state went to another array of slots.
	wordMoved = ^uint64(0)
	// A word of 0 was never written. It counts as the overflow bucket's: a key
	// that was decided there and gets a slot now must not start full.
)

// slotClosed, in place of a hash, says that a free slot is free no more: its
// array has moved.
const slotClosed = ^uint64(0)

// wordTable is a table of packed buckets: flat arrays of 16-byte slots, found by
// linear probing, changed by compare-and-swap. A slot's hash is written once; slots
// are freed only by copying what lives to another array, so a Take can never
// change a slot that meanwhile belongs to another key.
type wordTable struct {
	owner  *Counters
	store  *Store
	bucket limit.PackedBucket
	begin  uint64    // nanoseconds from the store's beginning to tick 0
	start  time.Time // the moment of begin, for the hot path

	overflow atomic.Uint64 // a word: what keys without a slot share
	next     atomic.Pointer[installed]
	shards   [shardCount]wordShard
}

type wordShard struct {
	slots atomic.Pointer[wordSlots] // nil until the first key

	mu      sync.Mutex // held while slots is replaced
	retryAt uint64     // since the store's beginning; guarded by mu: a full shard is not swept before
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

const slotBytes, slotsBytes, minSlots = 16, 64, 8

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

// tick reads the clock. Reading it first is what keeps a Take exact under
// contention: an old tick can only refuse more, and the time it stands for lies
// within the call.
func (t *wordTable) tick() uint64 {
	moment := t.store.since() - t.begin + 1
	if moment > rebaseAfter {
		t.owner.rebase(t)
	}
	return t.bucket.Tick(moment)
}

// place finds the word of a key and makes one if there is none. over says that it
// is the overflow bucket's. A nil word says that the shard has moved.
func (t *wordTable) place(h uint64) (word *atomic.Uint64, over bool) {
	sh := &t.shards[shardOf(h)]
	for {
		a := sh.slots.Load()
		if s, vacant := a.find(h); s != nil && !vacant {
			return &s.word, false
		} else if s != nil && a.used.Load() < a.room {
			// Counted first: two that both see the last place free may not
			// both have it, or probing would not end.
			if a.used.Add(1) <= a.room && s.hash.CompareAndSwap(0, h) {
				return &s.word, false
			}
			a.used.Add(-1)
			continue
		}
		switch t.grow(sh, a) {
		case shardFull:
			t.store.budget.overflowed.Add(1)
			return &t.overflow, true
		case shardMoved:
			return nil, false
		}
	}
}

// find returns the slot of a key or the vacant slot where it would go; nil when
// the array is none or is being moved.
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

// isClosed waits until the shard does not move and says whether it has left.
func (sh *wordShard) isClosed() bool {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	return sh.closed
}

// settled waits until nobody holds the word and returns it; false when it moved.
func settled(p *atomic.Uint64) (uint64, bool) {
	for {
		w := p.Load()
		if w == wordMoved {
			return 0, false
		}
		if w < wordLocked {
			return w, true
		}
		runtime.Gosched() // the holder may wait for this processor
	}
}

// effective returns what a word stands for: a word never written stands for the
// overflow bucket's, which is 0 unless the budget was full.
func (t *wordTable) effective(w uint64) uint64 {
	if w != 0 {
		return w
	}
	o, ok := settled(&t.overflow)
	if !ok {
		return 0 // moving: the word moves as well, and its change will fail
	}
	return o
}

func (t *wordTable) take(h uint64, cost int64, _ uint64) (limit.Verdict, bool) {
	for {
		tick := t.tick()
		p, over := t.place(h)
		if p == nil {
			return limit.Verdict{}, false
		}
		for w, ok := settled(p); ok; w, ok = settled(p) {
			was := t.effective(w)
			next, fits := t.bucket.Take(was, tick, cost)
			if !fits {
				return t.refusal(was, tick, cost, over), true
			}
			if cost == 0 || p.CompareAndSwap(w, next) {
				return t.admission(was, next, tick), true
			}
		}
		if over {
			// The overflow bucket has moved on; the shard will.
			for sh := &t.shards[shardOf(h)]; !sh.isClosed(); {
				runtime.Gosched()
			}
			return limit.Verdict{}, false
		}
	}
}

func (t *wordTable) admission(was, next, tick uint64) limit.Verdict {
	v := t.bucket.Verdict(next, tick, 0)
	v.Delay = t.bucket.Delay(was, tick)
	return v
}

func (t *wordTable) refusal(w, tick uint64, cost int64, over bool) limit.Verdict {
	v := t.bucket.Verdict(w, tick, cost)
	if over && v.Reason == limit.ReasonRate {
		v.Reason = limit.ReasonTableFull
	}
	return v
}

func (t *wordTable) peek(h uint64, cost int64) (limit.Verdict, bool) {
	tick := t.tick()
	w, ok := t.seen(h)
	if !ok {
		return limit.Verdict{}, false
	}
	was := t.effective(w)
	if next, fits := t.bucket.Take(was, tick, cost); fits {
		return t.admission(was, next, tick), true
	}
	return t.bucket.Verdict(was, tick, cost), true
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

func (t *wordTable) refund(h uint64, cost int64) bool {
	return t.change(h, func(w uint64) uint64 {
		if w == 0 {
			return 0
		}
		return max(t.bucket.Refund(w, cost), 1) // 0 would mean never written
	})
}

func (t *wordTable) reset(h uint64) bool {
	return t.change(h, func(uint64) uint64 { return 1 })
}

func (t *wordTable) finish(uint64, uint64) bool { return true }

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

// pause is how long a full shard is not swept again. A sweep visits each slot for one
// to ten nanoseconds, and a flood meets every shard, so this bounds what it spends on
// sweeping to some hundredths of a processor. Not longer: a shard of a million keys'
// table notices that keys have drained after a quarter of a second.
func pause(slots int) uint64 { return uint64(time.Millisecond) + 8_000*uint64(slots) }
