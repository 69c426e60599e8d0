package memory

import (
	"runtime"
	"sync/atomic"
)

type growth int

const (
	shardGrown growth = iota // there is room, or another goroutine made it: search again
	shardFull                // the budget is used up by live keys
	shardMoved               // the shard has left for the table's successor
)

// grow makes room in a shard whose array full is used up or being moved: it copies what is not
// fresh, or all with keep, to an array of the size that it needs, if the budget has room for it.
func (t *wordTable) grow(sh *wordShard, full *wordSlots, keep bool) growth {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if sh.closed {
		return shardMoved
	}
	if sh.slots.Load() != full {
		return shardGrown
	}
	if full == nil {
		return t.firstSlots(sh)
	}
	since := t.store.since()
	if since < sh.retryAt {
		return shardFull
	}
	if t.growTo(sh, full, keep) {
		return shardGrown
	}
	t.store.reclaim(since)
	if t.growTo(sh, full, keep) {
		return shardGrown
	}
	sh.retryAt = since + pause(len(full.slots))
	return shardFull
}

func (t *wordTable) growTo(sh *wordShard, full *wordSlots, keep bool) bool {
	if keep {
		return t.copyShard(sh, full, 2*len(full.slots), true)
	}
	return t.copyShard(sh, full, roomFor(t.live(full), len(full.slots)), false)
}

func (t *wordTable) firstSlots(sh *wordShard) growth {
	first := newWordSlots(minSlots)
	since := t.store.since()
	if since < sh.retryAt {
		return shardFull
	}
	if a := t.owner.account; !a.reserve(first.bytes(), a.spare()) {
		t.store.reclaim(since)
		if !a.reserve(first.bytes(), a.spare()) {
			sh.retryAt = since + pause(minSlots)
			return shardFull
		}
	}
	sh.slots.Store(first)
	return shardGrown
}

// live counts the words that are not fresh.
func (t *wordTable) live(a *wordSlots) int {
	tick, n := t.tickAt(t.store.since()), 0
	for i := range a.slots {
		if w := a.slots[i].word.Load() &^ wordLocked; w > tick {
			n++
		}
	}
	return n
}

// copyShard copies what is not fresh, or all with keep, to a new array of n slots. Where the
// budget has no room for more slots it uses as many as before, if that frees a quarter of them.
// The shard's mutex is held.
func (t *wordTable) copyShard(sh *wordShard, from *wordSlots, n int, keep bool) bool {
	account, old := t.owner.account, len(from.slots)
	spare := account.spare()
	if n <= old {
		spare = 0
	}
	bytes := int64(n)*slotBytes + slotsBytes
	if n < old {
		account.charge(bytes) // shrinking must not fail for want of budget
	} else if !account.reserve(bytes, spare) {
		if n <= old || keep || t.live(from) > old/2+old/8 {
			return false
		}
		n, bytes = old, from.bytes()
		if !account.reserve(bytes, 0) {
			return false
		}
	}
	to := newWordSlots(n)
	tick := t.tickAt(t.store.since())
	from.drain(func(h, w uint64) {
		if w <= tick && !keep {
			return
		}
		for !to.put(h, w) {
			// More keys live than were counted a moment ago.
			to = to.doubled()
		}
	})
	sh.slots.Store(to)
	account.charge(to.bytes() - bytes - from.bytes())
	return true
}

// drain closes every slot of a and passes what it held to each. From then on no Take can change
// anything in a.
func (a *wordSlots) drain(each func(h, w uint64)) {
	for i := range a.slots {
		s := &a.slots[i]
		if s.hash.CompareAndSwap(0, slotClosed) {
			continue
		}
		each(s.hash.Load(), freeze(&s.word))
	}
}

// freeze marks a word as moved, once it is unlocked, and returns its value.
func freeze(p *atomic.Uint64) uint64 {
	for {
		w := p.Load()
		if w < wordLocked && p.CompareAndSwap(w, wordMoved) {
			return w
		}
		runtime.Gosched()
	}
}

// put writes a key into an array that is not in use yet; false when that is full.
func (a *wordSlots) put(h, w uint64) bool {
	if a.used.Load() >= a.room {
		return false
	}
	for i := h; ; i++ {
		s := &a.slots[i&a.mask]
		if s.hash.Load() == 0 {
			s.hash.Store(h)
			s.word.Store(w)
			a.used.Add(1)
			return true
		}
	}
}

func (a *wordSlots) doubled() *wordSlots {
	to := newWordSlots(2 * len(a.slots))
	for i := range a.slots {
		if s := &a.slots[i]; s.hash.Load() != 0 {
			to.put(s.hash.Load(), s.word.Load())
		}
	}
	return to
}

// sweep drops fresh words from every shard that gets smaller by it.
func (t *wordTable) sweep() {
	for i := range t.shards {
		sh := &t.shards[i]
		if !sh.mu.TryLock() {
			continue
		}
		if a := sh.slots.Load(); a != nil && !sh.closed {
			if n := roomFor(t.live(a), len(a.slots)); n < len(a.slots) {
				t.copyShard(sh, a, n, false)
			}
		}
		sh.mu.Unlock()
	}
}
