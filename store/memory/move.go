package memory

import (
	"github.com/stint-io/stint/limit"
)

// This file carries states from one table to another when a policy changes. It
// goes shard by shard: a shard's keys are in the new table before the old shard is
// closed, and only then do Takes follow to the new one. The overflow bucket goes
// first, so that a key that gets a place in the new table starts from it.

func (t *wordTable) moveTo(next table) {
	receive := t.receiver(next)
	if over := t.partOverflow(); over != 0 {
		receive(overflowHash, over)
	}
	t.leave(receive, next)
}

// partOverflow marks the overflow bucket as moved and returns its word. Keys that get a slot
// here before their shard moves still start from that.
func (t *wordTable) partOverflow() uint64 {
	over, _ := lockWord(&t.overflow)
	t.parted.Store(over)
	t.overflow.Store(wordMoved)
	return over
}

func (t *wordTable) drop() { t.leave(func(uint64, uint64) {}, nil) }

func (t *wordTable) leave(receive func(h, w uint64), next table) {
	if next != nil {
		t.next.Store(&installed{next})
	}
	for i := range t.shards {
		sh := &t.shards[i]
		sh.mu.Lock()
		if a := sh.slots.Load(); a != nil {
			a.drain(func(h, w uint64) {
				if w != 0 {
					receive(h, w)
				}
			})
			t.owner.account.charge(-a.bytes())
			sh.slots.Store(nil)
		}
		sh.closed = true
		sh.mu.Unlock()
	}
}

// beginning is tick 0 as a Time; see moment.
func (t *wordTable) beginning() limit.Time { return t.store.time(t.begin) - 1 }

func (t *wordTable) receiver(next table) func(h, w uint64) {
	from, beginning := t.bucket.Exact(), t.beginning()
	switch next := next.(type) {
	case *wordTable:
		return func(h, w uint64) { next.receive(h, t.bucket.Unpack(w, beginning), from) }
	case *lockedTable[limit.BucketState]:
		return func(h, w uint64) { next.receive(h, t.bucket.Unpack(w, beginning), from) }
	}
	return func(uint64, uint64) {}
}

// receive puts the state of a key of another bucket into a shard that is not in use yet.
func (t *wordTable) receive(h uint64, s limit.BucketState, from *limit.Bucket) {
	s = t.bucket.Exact().Convert(s, from, t.store.time(t.store.since()))
	w := t.bucket.Repack(s, t.beginning())
	if h == overflowHash {
		t.overflow.Store(w)
		return
	}
	if w == 0 {
		return
	}
	sh := &t.shards[shardOf(h)]
	a := sh.slots.Load()
	if a == nil {
		a = newWordSlots(minSlots)
		t.owner.account.charge(a.bytes())
	}
	for !a.put(h, w) {
		more := a.doubled()
		t.owner.account.charge(more.bytes() - a.bytes())
		a = more
	}
	sh.slots.Store(a)
}

func (t *lockedTable[S]) moveTo(next table) {
	receive := t.receiver(next)
	t.overflow.mu.Lock()
	t.overflow.closed = true
	// A copy: keys that get a slot here before their shard moves still start from this state.
	over := t.overflow.states[0]
	if t.rule.clone != nil {
		over = t.rule.clone(&over)
	}
	receive(overflowHash, over)
	t.overflow.mu.Unlock()
	t.leave(receive, next)
}

func (t *lockedTable[S]) drop() { t.leave(func(uint64, S) {}, nil) }

func (t *lockedTable[S]) leave(receive func(uint64, S), next table) {
	t.leaving.Store(true)
	if next != nil {
		t.next.Store(&installed{next})
	}
	for i := range t.shards {
		sh := &t.shards[i]
		sh.mu.Lock()
		for i, h := range sh.hashes {
			if h != 0 {
				t.release(&sh.states[i])
				receive(h, sh.states[i])
			}
		}
		t.owner.account.charge(-int64(len(sh.hashes)) * t.entryBytes())
		sh.hashes, sh.states, sh.used, sh.closed = nil, nil, 0, true
		sh.mu.Unlock()
	}
	t.overflow.mu.Lock()
	defer t.overflow.mu.Unlock()
	t.change(&t.overflow.states[0], func(s *S) { *s = *new(S) })
}

func (t *lockedTable[S]) receiver(next table) func(uint64, S) {
	switch next := next.(type) {
	case *lockedTable[S]:
		return func(h uint64, s S) { next.receive(h, s, t.rule.arithmetic) }
	case *wordTable:
		if from, ok := t.rule.arithmetic.(*limit.Bucket); ok {
			return func(h uint64, s S) { next.receive(h, any(s).(limit.BucketState), from) }
		}
	}
	return func(uint64, S) {}
}

func (t *lockedTable[S]) receive(h uint64, s S, from any) {
	s = t.rule.convert(s, from, t.store.time(t.store.since()))
	if t.rule.bytes != nil {
		t.owner.account.charge(int64(t.rule.bytes(&s)))
	}
	if h == overflowHash {
		t.overflow.states[0] = s
		return
	}
	sh := &t.shards[shardOf(h)]
	if n := len(sh.hashes); sh.used >= n-n/4 {
		more := max(2*n, minSlots)
		t.owner.account.charge(int64(more) * t.entryBytes())
		t.rebuild(sh, more, t.store.since(), false)
	}
	sh.put(h, s)
}
