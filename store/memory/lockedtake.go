package memory

import "github.com/stint-io/stint/limit"

// with runs f on the state of a key, made if need be, under its locks. over says that it is the
// overflow bucket's. with returns false when the key has moved.
func (t *lockedTable[S]) with(h uint64, f func(s *S, now limit.Time, over bool)) bool {
	for {
		sh, ok := t.lock(h)
		if !ok {
			return false
		}
		since := t.store.since()
		if s := t.obtain(sh, h, since, false); s != nil {
			f(s, t.store.time(since), false)
			sh.mu.Unlock()
			return true
		}
		t.overflow.mu.Lock()
		moved := t.overflow.closed
		if !moved {
			f(&t.overflow.states[0], t.store.time(since), true)
		}
		t.overflow.mu.Unlock()
		sh.mu.Unlock()
		if !moved {
			return true
		}
		t.store.awaitMove() // the overflow bucket has moved; the shard will follow
	}
}

// observe runs f on the state of a key, or on the overflow bucket's for a key without one.
func (t *lockedTable[S]) observe(h uint64, f func(s *S, now limit.Time)) bool {
	sh, ok := t.lock(h)
	if !ok {
		return false
	}
	defer sh.mu.Unlock()
	now := t.store.time(t.store.since())
	if s := sh.seen(h); s != nil {
		f(s, now)
		return true
	}
	t.overflow.mu.Lock()
	defer t.overflow.mu.Unlock()
	f(&t.overflow.states[0], now)
	return true
}

// touch runs f on the state of a key that has one.
func (t *lockedTable[S]) touch(h uint64, f func(s *S, now limit.Time)) bool {
	sh, ok := t.lock(h)
	if !ok {
		return false
	}
	defer sh.mu.Unlock()
	if s := sh.seen(h); s != nil {
		t.change(s, func(s *S) { f(s, t.store.time(t.store.since())) })
	}
	return true
}

func (t *lockedTable[S]) take(h uint64, a ask) (v limit.Verdict, done bool) {
	done = t.with(h, func(s *S, now limit.Time, over bool) {
		switch {
		case a.cost == 0:
			v = t.rule.peek(s, now, a)
		case over:
			v = t.takeHeld(&t.shared, s, now, a, over)
			tableFull(&v)
		default:
			v = t.takeHeld(&t.rule, s, now, a, over)
		}
	})
	return v, done
}

// takeHeld takes from a state whose locks are held. With over, the caller has recorded the
// overflow already.
func (t *lockedTable[S]) takeHeld(r *rule[S], s *S, now limit.Time, a ask, over bool) (v limit.Verdict) {
	if !t.fits(s) {
		t.store.reclaim(t.store.since())
	}
	if !t.fits(s) {
		if !over {
			t.owner.overflow(t.store.since())
		}
		v = r.peek(s, now, a)
		if v.Allowed {
			v = outOfRoom(v, a.cost)
		}
		return v
	}
	t.change(s, func(s *S) { v = r.take(s, now, a) })
	return v
}

func tableFull(v *limit.Verdict) {
	if v.Reason == limit.ReasonRate || v.Reason == limit.ReasonConcurrency {
		v.Reason = limit.ReasonTableFull
	}
}

func (t *lockedTable[S]) peek(h uint64, a ask) (v limit.Verdict, done bool) {
	done = t.observe(h, func(s *S, now limit.Time) { v = t.rule.peek(s, now, a) })
	return v, done
}

func (t *lockedTable[S]) refund(h uint64, taken limit.Time, cost int64) bool {
	return t.touch(h, func(s *S, now limit.Time) { t.rule.refund(s, now, taken, cost) })
}

func (t *lockedTable[S]) reset(h uint64) bool {
	return t.touch(h, func(s *S, _ limit.Time) {
		var none S
		*s = none
	})
}

func (t *lockedTable[S]) finish(h, permit uint64, keep bool) bool {
	if t.rule.finish == nil {
		return true
	}
	if !t.touch(h, func(s *S, now limit.Time) { t.rule.finish(s, now, permit, keep) }) {
		return false
	}
	// A permit that was granted while the table was full is in the overflow bucket.
	t.overflow.mu.Lock()
	moved := t.overflow.closed
	if !moved {
		t.change(&t.overflow.states[0], func(s *S) { t.rule.finish(s, t.store.time(t.store.since()), permit, keep) })
	}
	t.overflow.mu.Unlock()
	if moved {
		t.store.awaitMove()
	}
	return !moved
}
