package memory

import "github.com/stint-io/stint/limit"

// This file has what the two kinds of table do for a Take over several buckets.

// join finds the word of a key.
func (t *wordTable) join(h uint64, m *member, keep bool) bool {
	m.words, m.mu, m.held = t, nil, nil
	for {
		if m.word, m.over = t.obtain(h, keep); m.word == nil {
			return false
		}
		tick := t.tick()
		switch w, ok := settled(m.word); {
		case !ok && m.over:
			t.store.awaitMove()
		case !ok:
			t.shards[shardOf(h)].isClosed() // waits until the shard has moved
		case w != 0 || m.over:
			return true
		// A word that was never written stands for the overflow bucket's. Write that now:
		// while words are locked, Takes must not wait for the overflow bucket.
		case m.word.CompareAndSwap(0, max(t.effective(0), tick)):
			return true
		}
	}
}

// join finds the shard of a key.
func (t *lockedTable[S]) join(h uint64, m *member, _ bool) bool {
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

func (t *lockedTable[S]) obtainHeld(h, since uint64, keep bool) (over, moved bool) {
	sh := &t.shards[shardOf(h)]
	if sh.closed {
		return false, true
	}
	return t.obtain(sh, h, since, keep) == nil, false
}

func (t *lockedTable[S]) lockOverflow() (moved bool) {
	t.overflow.mu.Lock()
	if t.overflow.closed {
		t.overflow.mu.Unlock()
		return true
	}
	return false
}

func (t *lockedTable[S]) unlockOverflow() { t.overflow.mu.Unlock() }

func (t *lockedTable[S]) heldState(m *member) (*S, *rule[S]) {
	if m.over {
		return &t.overflow.states[0], &t.shared
	}
	return t.shards[shardOf(m.hash)].seen(m.hash), &t.rule
}

func (t *lockedTable[S]) makeRoomHeld(m *member) {
	if s, _ := t.heldState(m); !t.fits(s) {
		t.store.reclaim(t.store.since())
	}
}

func (t *lockedTable[S]) peekHeld(m *member, now limit.Time) limit.Verdict {
	s, r := t.heldState(m)
	v := r.peek(s, now, m.ask)
	if v.Allowed && m.cost > 0 && !t.fits(s) {
		return outOfRoom(v, m.cost)
	}
	return v
}

func (t *lockedTable[S]) commitHeld(m *member, now limit.Time) (v limit.Verdict) {
	s, r := t.heldState(m)
	t.change(s, func(s *S) { v = r.take(s, now, m.ask) })
	return v
}

func (t *lockedTable[S]) refuseHeld(m *member, now limit.Time) {
	s, r := t.heldState(m)
	if t.fits(s) {
		t.change(s, func(s *S) { r.refuse(s, now, m.ask) })
	}
	v := &m.charge.Verdict
	if v.Allowed {
		untouched(v, r.peek(s, now, m.withoutCost()))
	} else if after := r.peek(s, now, m.ask); !after.Allowed && v.Reason != limit.ReasonTableFull {
		*v = after
	}
}

// outOfRoom turns a verdict into a refusal, for a state that has no room to record one more
// request: dropping an older entry instead would admit too much.
func outOfRoom(v limit.Verdict, cost int64) limit.Verdict {
	return limit.Verdict{
		Reason: limit.ReasonTableFull, Remaining: v.Remaining + cost,
		RetryAfter: v.ResetAfter, ResetAfter: v.ResetAfter,
	}
}

// untouched corrects v, the verdict of a cost that would have fitted and was not taken: it shows
// the bucket without that cost.
func untouched(v *limit.Verdict, rest limit.Verdict) {
	v.Remaining, v.ResetAfter, v.Delay = rest.Remaining, rest.ResetAfter, 0
}
