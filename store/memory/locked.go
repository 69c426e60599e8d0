package memory

import (
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/stint-io/stint/limit"
)

// rule is the arithmetic of one algorithm over states of type S.
type rule[S any] struct {
	take   func(s *S, now limit.Time, a ask) limit.Verdict
	peek   func(s *S, now limit.Time, a ask) limit.Verdict
	refuse func(s *S, now limit.Time, a ask)
	refund func(s *S, now, taken limit.Time, cost int64) // taken 0 = a moment ago
	fresh  func(s *S, now limit.Time) bool

	finish func(s *S, now limit.Time, permit uint64, keep bool) // nil unless permits are held
	bytes  func(s *S) int                                       // the memory that s refers to; nil = none
	clone  func(s *S) S                                         // a copy that shares no memory; nil = assignment is enough

	// arithmetic is the value behind the functions above; convert takes that of the table from
	// which a state comes.
	arithmetic any
	convert    func(s S, from any, now limit.Time) S
}

// lockedTable is a table of states that do not fit a word: flat arrays found by
// linear probing, each shard behind its own mutex.
type lockedTable[S any] struct {
	owner  *Counters
	store  *Store
	rule   rule[S]
	shared rule[S] // of the overflow bucket

	leaving atomic.Bool // some shards are closed, or will be
	next    atomic.Pointer[installed]
	shards  [shardCount]lockedShard[S]

	// overflow holds the one state that keys without a slot share. Its mutex is
	// taken after a shard's.
	overflow lockedShard[S]
}

type lockedShard[S any] struct {
	mu      sync.Mutex
	hashes  []uint64 // 0 = vacant
	states  []S
	used    int
	retryAt uint64 // since the store's beginning
	closed  bool   // moved to the successor, or dropped
}

func newTableOf[S any](c *Counters, r rule[S]) *lockedTable[S] {
	t := &lockedTable[S]{owner: c, store: c.store, rule: r, shared: r}
	t.overflow.hashes, t.overflow.states = []uint64{overflowHash, 0}, make([]S, 2)
	t.overflow.used = 1
	return t
}

// overflowHash is the hash of no key; see avoidMarks.
const overflowHash = slotClosed

func (t *lockedTable[S]) entryBytes() int64 {
	var s S
	return int64(unsafe.Sizeof(s)) + 8
}

// find returns the index of a key, or of the vacant slot where it would go; sh.mu is held and
// there are vacant slots.
func (sh *lockedShard[S]) find(h uint64) (i int, known bool) {
	mask := uint64(len(sh.hashes) - 1)
	for at := h; ; at++ {
		switch sh.hashes[at&mask] {
		case h:
			return int(at & mask), true
		case 0:
			return int(at & mask), false
		}
	}
}

// seen returns the state of a key, or nil.
func (sh *lockedShard[S]) seen(h uint64) *S {
	if sh.used == 0 {
		return nil
	}
	if i, known := sh.find(h); known {
		return &sh.states[i]
	}
	return nil
}

// lock locks the shard of a key, unless it has moved.
func (t *lockedTable[S]) lock(h uint64) (*lockedShard[S], bool) {
	sh := &t.shards[shardOf(h)]
	sh.mu.Lock()
	if sh.closed {
		sh.mu.Unlock()
		return nil, false
	}
	return sh, true
}

// obtain returns the state of a key, making it if need be; nil when the budget is full. Fresh
// states are dropped for it if need be, unless keep. The shard is locked.
func (t *lockedTable[S]) obtain(sh *lockedShard[S], h, since uint64, keep bool) *S {
	if s := sh.seen(h); s != nil {
		return s
	}
	if sh.used >= len(sh.hashes)-len(sh.hashes)/4 && !t.grow(sh, since, keep) {
		t.owner.overflow(since)
		return nil
	}
	first, ok := t.first(since)
	if !ok {
		t.owner.overflow(since)
		return nil
	}
	i, _ := sh.find(h)
	sh.hashes[i], sh.states[i] = h, first
	sh.used++
	return &sh.states[i]
}

// first is the state that a key starts with when it gets a slot: a new one, or that of the
// overflow bucket, on which the key may have been decided until now. ok is false when the budget
// has no room for the copy.
func (t *lockedTable[S]) first(since uint64) (s S, ok bool) {
	t.overflow.mu.Lock()
	defer t.overflow.mu.Unlock()
	o := &t.overflow.states[0]
	switch {
	case t.rule.fresh(o, t.store.time(since)):
		return s, true
	case t.rule.clone == nil:
		return *o, true
	case !t.fits(o):
		return s, false
	}
	s = t.rule.clone(o)
	t.owner.account.charge(int64(t.rule.bytes(&s)))
	return s, true
}

// grow makes room in a shard: it drops fresh states, unless keep, and doubles the shard when
// more than half of its slots live. The shard is locked.
func (t *lockedTable[S]) grow(sh *lockedShard[S], since uint64, keep bool) bool {
	if since < sh.retryAt {
		return false
	}
	live := sh.used
	if !keep {
		live = t.live(sh, since)
	}
	n, ok := t.reserve(sh, live)
	if !ok {
		t.clean(sh, since)
		t.store.reclaim(since)
		n, ok = t.reserve(sh, live)
	}
	if !ok {
		sh.retryAt = since + pause(len(sh.hashes))
		return false
	}
	t.rebuild(sh, n, since, keep)
	return true
}

// reserve reserves the bytes for the slots that suit a full shard with live keys, or for as many
// slots as now if copying frees a quarter of them. It returns how many.
func (t *lockedTable[S]) reserve(sh *lockedShard[S], live int) (n int, ok bool) {
	old := len(sh.hashes)
	if old == 0 {
		return minSlots, t.owner.account.reserve(minSlots*t.entryBytes(), t.owner.account.spare())
	}
	if n = roomFor(live, old); n > old {
		if t.owner.account.reserve(int64(n)*t.entryBytes(), t.owner.account.spare()) {
			return n, true
		}
		if live > old/2+old/8 {
			return 0, false
		}
		n = old
	}
	return n, t.owner.account.reserve(int64(n)*t.entryBytes(), 0)
}

// roomFor returns how many slots suit live keys in a shard of n slots: at most half of them
// used, so that the next copy is as many new keys away; and no halving unless less than an
// eighth lives, so that a shard does not shrink and grow again and again.
func roomFor(live, n int) int {
	switch {
	case live > n/2:
		return 2 * n
	case live < n/8 && n > minSlots:
		return n / 2
	}
	return n
}

func (t *lockedTable[S]) live(sh *lockedShard[S], since uint64) int {
	now, live := t.store.time(since), 0
	for i, h := range sh.hashes {
		if h != 0 && !t.rule.fresh(&sh.states[i], now) {
			live++
		}
	}
	return live
}

// rebuild copies the states that are not fresh, or all with keep, to n slots whose bytes are
// reserved, and releases the old slots.
func (t *lockedTable[S]) rebuild(sh *lockedShard[S], n int, since uint64, keep bool) {
	now := t.store.time(since)
	hashes, states := sh.hashes, sh.states
	sh.hashes, sh.states, sh.used = make([]uint64, n), make([]S, n), 0
	for i, h := range hashes {
		if h == 0 {
			continue
		}
		if !keep && t.rule.fresh(&states[i], now) {
			t.release(&states[i])
			continue
		}
		sh.put(h, states[i])
	}
	t.owner.account.charge(-int64(len(hashes)) * t.entryBytes())
}

func (sh *lockedShard[S]) put(h uint64, s S) {
	i, _ := sh.find(h)
	sh.hashes[i], sh.states[i] = h, s
	sh.used++
}

func (t *lockedTable[S]) release(s *S) {
	if t.rule.bytes != nil {
		t.owner.account.charge(-int64(t.rule.bytes(s)))
	}
}

// change applies f to a state and accounts for its growth.
func (t *lockedTable[S]) change(s *S, f func(*S)) {
	if t.rule.bytes == nil {
		f(s)
		return
	}
	before := t.rule.bytes(s)
	f(s)
	t.owner.account.charge(int64(t.rule.bytes(s) - before))
}

// fits reports whether the budget has room for the growth of a state in one change: it may
// double.
func (t *lockedTable[S]) fits(s *S) bool {
	if t.rule.bytes == nil {
		return true
	}
	const firstEntries = 256
	return t.owner.account.fits(2*int64(t.rule.bytes(s))+firstEntries, 0)
}

func (t *lockedTable[S]) successor() table { return t.next.Load().get() }

func (t *lockedTable[S]) keys() int64 {
	var n int64
	for i := range t.shards {
		sh := &t.shards[i]
		sh.mu.Lock()
		n += int64(sh.used)
		sh.mu.Unlock()
	}
	return n
}

func (t *lockedTable[S]) sweep() {
	since := t.store.since()
	for i := range t.shards {
		sh := &t.shards[i]
		if !sh.mu.TryLock() {
			continue
		}
		if old := len(sh.hashes); old > 0 && !sh.closed {
			t.clean(sh, since)
			if n := roomFor(t.live(sh, since), old); n < old {
				// Shrinking must not fail for want of budget: a policy with larger states
				// may have brought the table above it.
				t.owner.account.charge(int64(n) * t.entryBytes())
				t.rebuild(sh, n, since, false)
			}
		}
		sh.mu.Unlock()
	}
}

// clean makes fresh states give up the memory that they refer to.
func (t *lockedTable[S]) clean(sh *lockedShard[S], since uint64) {
	if t.rule.bytes == nil {
		return
	}
	now := t.store.time(since)
	for i, h := range sh.hashes {
		if s := &sh.states[i]; h != 0 && t.rule.fresh(s, now) {
			t.change(s, func(s *S) { *s = *new(S) })
		}
	}
}
