package memory

import (
	"cmp"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/store"
)

// member is one bucket in a Take over several; the charges on it add up.
type member struct {
	charge *store.Charge // the first of them, whose permit is used
	same   *member       // the member that decides for this one, when it is not the first on its bucket
	ask
	shadow bool
	once   bool // as in store.Charge

	// A bucket is either a word, or behind a mutex.
	words *wordTable
	word  *atomic.Uint64
	was   uint64 // the value of the word while it is locked

	held heldTable
	mu   *sync.Mutex // of the shard
	rank uint64      // serial of the counters and number of the shard: the order of locking
	hash uint64

	over     bool // it is an overflow bucket
	overHeld bool // and its mutex is locked
}

// heldTable is a table whose shards, and the overflow bucket if a member is on it, are locked by
// the caller.
type heldTable interface {
	obtainHeld(h, since uint64, keep bool) (over, moved bool)
	lockOverflow() (moved bool)
	unlockOverflow()
	makeRoomHeld(m *member)
	peekHeld(m *member, now limit.Time) limit.Verdict
	commitHeld(m *member, now limit.Time) limit.Verdict
	refuseHeld(m *member, now limit.Time)
}

var scratch = sync.Pool{New: func() any { return new([]member) }}

// takeAll decides charges over several buckets as one. It finds all buckets, locks them in one
// order that all Takes share (mutexes first, by counters and shard, then words, by address),
// checks all, then takes. While it holds a word it waits only for other words, in order, and
// does not sweep, which would lock words: so there is no deadlock. When a bucket has moved it
// unlocks everything and begins again.
func (s *Store) takeAll(charges []store.Charge) bool {
	pooled := scratch.Get().(*[]member)
	defer scratch.Put(pooled)
	members := slices.Grow((*pooled)[:0], len(charges))[:len(charges)]
	defer func() { clear(members); *pooled = members[:0] }()
	for again := false; ; again = true {
		for i := range charges {
			members[i] = newMember(&charges[i])
			// Making the state of one key may have dropped that of another, which was fresh.
			members[i].find(again)
		}
		slices.SortFunc(members, inLockOrder)
		merge(members)
		if lockAll(members, s.since()) {
			break
		}
		s.conflicts.Add(1)
		runtime.Gosched()
	}
	allowed := s.decide(members, s.since())
	unlockAll(members)
	return allowed
}

// peekAll answers as takeAll would. It locks nothing and makes no state for a key.
func peekAll(charges []store.Charge) bool {
	pooled := scratch.Get().(*[]member)
	defer scratch.Put(pooled)
	members := slices.Grow((*pooled)[:0], len(charges))[:len(charges)]
	defer func() { clear(members); *pooled = members[:0] }()
	for i := range charges {
		members[i] = newMember(&charges[i])
	}
	slices.SortFunc(members, inLockOrder)
	merge(members)
	allowed := true
	for i := range members {
		if m := &members[i]; m.same == nil {
			v := m.charge.Counters.(*Counters).peek(m.hash, m.ask)
			m.charge.Verdict = v
			allowed = allowed && (v.Allowed || m.shadow)
		}
	}
	for i := range members {
		m := &members[i]
		if v := &m.charge.Verdict; m.same == nil && !allowed && v.Allowed && m.cost > 0 {
			untouched(v, m.charge.Counters.(*Counters).peek(m.hash, m.withoutCost()))
		}
	}
	answerSame(members)
	return allowed
}

func newMember(c *store.Charge) member {
	own := c.Counters.(*Counters)
	h := own.hash(c.Key)
	return member{charge: c, ask: askOf(c), shadow: c.Shadow, once: c.Once, hash: h, rank: own.serial*shardCount + shardOf(h)}
}

func (m *member) find(keep bool) {
	t := m.charge.Counters.(*Counters).current()
	for t != nil && !t.join(m.hash, m, keep) {
		t = t.successor()
	}
}

func inLockOrder(a, b member) int {
	if d := cmp.Compare(b.lockKind(), a.lockKind()); d != 0 {
		return d
	}
	if d := cmp.Compare(uintptr(unsafe.Pointer(a.word)), uintptr(unsafe.Pointer(b.word))); d != 0 {
		return d
	}
	if d := cmp.Compare(a.rank, b.rank); d != 0 {
		return d
	}
	return cmp.Compare(a.hash, b.hash)
}

// lockKind orders mutexes before words before members that need no lock.
func (m *member) lockKind() int {
	switch {
	case m.mu != nil:
		return 2
	case m.word != nil:
		return 1
	}
	return 0
}

// merge lets the first of several charges on one bucket decide for all, with their costs added
// up. If one of them is enforced, the whole is.
func merge(members []member) {
	for i := 1; i < len(members); i++ {
		m, before := &members[i], &members[i-1]
		if before.same != nil {
			before = before.same
		}
		if m.word != nil && m.word == before.word || m.word == nil && m.mu == before.mu && m.rank == before.rank && m.hash == before.hash {
			m.joins(before)
		}
	}
}

func (m *member) joins(first *member) {
	m.same = first
	first.ask = first.joined(m.ask)
	first.shadow = first.shadow && m.shadow
}

// lockAll locks every bucket, or none when one of them has moved.
func lockAll(members []member, since uint64) bool {
	for i := range members {
		m := &members[i]
		if m.mu == nil || m.same != nil {
			continue
		}
		first := i == 0 || members[i-1].mu != m.mu
		if first {
			m.mu.Lock()
		}
		var moved bool
		if m.over, moved = m.held.obtainHeld(m.hash, since, !first); moved {
			unlockAll(members[:i+1])
			return false
		}
	}
	if !lockOverflows(members) {
		return false
	}
	for i := range members {
		if m := &members[i]; m.mu != nil && m.same == nil && m.cost > 0 {
			m.held.makeRoomHeld(m)
		}
	}
	return lockWords(members)
}

// lockOverflows locks the overflow buckets of tables behind mutexes, after all shards:
// everywhere a shard is locked before its table's overflow bucket. Members of one table that are
// both on it become one bucket.
func lockOverflows(members []member) bool {
	var first *member
	for i := range members {
		m := &members[i]
		if m.mu == nil || m.same != nil || !m.over {
			continue
		}
		if first != nil && first.held == m.held {
			m.joins(first)
			continue
		}
		first = m
		if moved := m.held.lockOverflow(); moved {
			unlockAll(mutexed(members))
			return false
		}
		m.overHeld = true
	}
	return true
}

// mutexed returns the members behind mutexes, which come first.
func mutexed(members []member) []member {
	n := 0
	for n < len(members) && members[n].mu != nil {
		n++
	}
	return members[:n]
}

func lockWords(members []member) bool {
	for i := range members {
		m := &members[i]
		if m.word == nil || m.same != nil {
			continue
		}
		var ok bool
		if m.was, ok = lockWord(m.word); !ok {
			unlockAll(members[:i])
			return false
		}
	}
	for i := range members {
		if m := &members[i]; m.word != nil && m.over && m.words.hasSlot(m.hash) {
			unlockAll(members)
			return false
		}
	}
	return true
}

// lockWord waits until the word is unlocked and locks it; false when it has moved.
func lockWord(p *atomic.Uint64) (uint64, bool) {
	for {
		w, ok := settled(p)
		if !ok {
			return 0, false
		}
		if p.CompareAndSwap(w, w|wordLocked) {
			return w, true
		}
	}
}

func unlockAll(members []member) {
	for i := len(members) - 1; i >= 0; i-- {
		m := &members[i]
		switch {
		case m.word != nil && m.same == nil:
			m.word.Store(m.was)
		case m.mu != nil:
			if m.overHeld {
				m.held.unlockOverflow()
			}
			if i == 0 || members[i-1].mu != m.mu {
				m.mu.Unlock()
			}
		}
	}
}

// decide checks every bucket, then takes from those that fit if the request is admitted, or else
// charges those that count refused requests, unless the Take was made before.
func (s *Store) decide(members []member, since uint64) bool {
	now := s.time(since)
	allowed, repeated := true, false
	for i := range members {
		m := &members[i]
		if m.same == nil {
			m.charge.Verdict = m.check(since, now)
			allowed = allowed && (m.charge.Verdict.Allowed || m.shadow)
			repeated = repeated || m.once && !m.shadow && !m.charge.Verdict.Allowed
		}
	}
	for i := range members {
		m := &members[i]
		switch {
		case m.same != nil:
		case repeated:
			m.leave(since, now)
		case allowed && m.charge.Verdict.Allowed:
			m.commit(since, now)
		default:
			m.refuse(since, now)
		}
	}
	answerSame(members)
	return allowed
}

// withoutCost is the member's ask with a cost of 0.
func (m *member) withoutCost() ask {
	a := m.ask
	a.cost = 0
	return a
}

// answerSame copies the verdicts to charges that another member decided.
func answerSame(members []member) {
	for i := range members {
		if m := &members[i]; m.same != nil {
			m.charge.Verdict = m.first().charge.Verdict
		}
	}
}

func (m *member) first() *member {
	for m.same != nil {
		m = m.same
	}
	return m
}

func (m *member) check(since uint64, now limit.Time) limit.Verdict {
	switch {
	case m.mu != nil:
		v := m.held.peekHeld(m, now)
		if m.over {
			tableFull(&v)
		}
		return v
	case m.word != nil:
		t := m.words
		tick := t.tickAt(since)
		b := t.by(m.ask)
		if m.once && m.over {
			// The overflow bucket must stay full: the keys that get a slot later begin as it is, and were never taken.
			return limit.Verdict{Reason: limit.ReasonTableFull, RetryAfter: time.Second}
		}
		next, fits := b.Take(m.was, tick, m.cost)
		if !fits {
			return refusal(b, m.was, tick, m.cost, m.over)
		}
		v := b.Verdict(next, tick, 0)
		v.Delay = t.bucket.Delay(m.was, tick)
		return v
	}
	return unlimited
}

func (m *member) commit(since uint64, now limit.Time) {
	switch {
	case m.cost == 0:
	case m.mu != nil:
		m.charge.Verdict = m.held.commitHeld(m, now)
	case m.word != nil:
		m.was, _ = m.words.by(m.ask).Take(m.was, m.words.tickAt(since), m.cost)
	}
}

// leave leaves the bucket as it is and corrects the verdict of a cost that would have fitted.
func (m *member) leave(since uint64, now limit.Time) {
	if v := &m.charge.Verdict; m.cost > 0 && v.Allowed {
		rest := *m
		rest.ask = m.withoutCost()
		untouched(v, rest.check(since, now))
	}
}

// refuse leaves the bucket as it is, unless it counts refused requests, and updates the verdict.
func (m *member) refuse(since uint64, now limit.Time) {
	switch v := &m.charge.Verdict; {
	case m.cost == 0:
	case m.mu != nil:
		m.held.refuseHeld(m, now)
	case m.word != nil:
		t, tick := m.words, m.words.tickAt(since)
		if m.counts || t.counts {
			m.was = t.bucket.Owe(m.was, tick, m.cost)
		}
		if v.Allowed {
			untouched(v, t.by(m.ask).Verdict(m.was, tick, 0))
		} else {
			*v = refusal(t.by(m.ask), m.was, tick, m.cost, m.over)
		}
	}
}
