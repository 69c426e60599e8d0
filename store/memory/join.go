package memory

import "github.com/stint-io/stint/limit"

// This file is what the two kinds of table do for a Take over several buckets.

// join finds the word of a key.
func (t *wordTable) join(h uint64, m *member) bool {
	t.tick() // for its care of a far beginning: later on locks are held
	m.words, m.mu, m.held = t, nil, nil
	m.word, m.over = t.place(h)
	return m.word != nil
}

func (t *wordTable) tickAt(since uint64) uint64 { return t.bucket.Tick(since - t.begin + 1) }

// inherited is what a held word stands for. A word never written stands for the
// overflow bucket's, which this very Take may hold, so the mark on it is ignored.
func (t *wordTable) inherited(m *member) uint64 {
	if m.was != 0 || m.over {
		return m.was
	}
	o := t.overflow.Load()
	if o == wordMoved {
		return 0 // the word is held, so it has not moved, but it will
	}
	return o &^ wordLocked
}

// join finds the shard of a key.
func (t *lockedTable[S]) join(h uint64, m *member) bool {
	sh := &t.shards[shardOf(h)]
	if t.leaving.Load() {
		sh.mu.Lock()
		closed := sh.closed
		sh.mu.Unlock()
		if closed {
			return false
		}
	}
	m.held, m.mu, m.word, m.words = t, &sh.mu, nil, nil
	return true
}

func (t *lockedTable[S]) placeHeld(h, since uint64) (over, moved bool) {
	sh := &t.shards[shardOf(h)]
	if sh.closed {
		return false, true
	}
	return t.place(sh, h, since) == nil, false
}

func (t *lockedTable[S]) holdOverflow() (moved bool) {
	t.overflow.mu.Lock()
	if t.overflow.closed {
		t.overflow.mu.Unlock()
		return true
	}
	return false
}

func (t *lockedTable[S]) letGoOverflow() { t.overflow.mu.Unlock() }

func (t *lockedTable[S]) heldState(m *member) (*S, *rule[S]) {
	if m.over {
		return &t.overflow.states[0], &t.shared
	}
	return t.shards[shardOf(m.hash)].seen(m.hash), &t.rule
}

func (t *lockedTable[S]) peekHeld(m *member, now limit.Time) limit.Verdict {
	s, r := t.heldState(m)
	v := r.peek(s, now, m.cost)
	if v.Allowed && m.cost > 0 && !t.fits(s) {
		return outOfRoom(v, m.cost)
	}
	return v
}

func (t *lockedTable[S]) commitHeld(m *member, now limit.Time) (v limit.Verdict) {
	s, r := t.heldState(m)
	t.change(s, func(s *S) { v = r.take(s, now, m.charge.Permit, m.cost) })
	return v
}

func (t *lockedTable[S]) refuseHeld(m *member, now limit.Time) {
	s, r := t.heldState(m)
	if t.fits(s) {
		t.change(s, func(s *S) { r.refuse(s, now, m.cost) })
	}
	v := &m.charge.Verdict
	if v.Allowed {
		// It would have fitted: what counts is how it stands now.
		rest := r.peek(s, now, 0)
		v.Remaining, v.ResetAfter = rest.Remaining, rest.ResetAfter
	} else if after := r.peek(s, now, m.cost); !after.Allowed && v.Reason != limit.ReasonTableFull {
		*v = after
	}
}

// outOfRoom turns a verdict into the refusal of a state that cannot remember one
// more request: forgetting another instead would admit too much.
func outOfRoom(v limit.Verdict, cost int64) limit.Verdict {
	return limit.Verdict{
		Reason: limit.ReasonTableFull, Remaining: v.Remaining + cost,
		RetryAfter: v.ResetAfter, ResetAfter: v.ResetAfter,
	}
}
