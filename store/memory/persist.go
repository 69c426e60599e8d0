package memory

import (
	"encoding/binary"
	"fmt"

	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/store"
)

// This file gives the states of keys away and takes them back, for a store that keeps them in a file. A
// state is written as the numbers of its type, little-endian, so that its meaning is that of package limit.

// Persistable reports whether states under a policy can be written: those of all algorithms but
// sliding_window_log, whose state has an entry for each request, and concurrency, whose permits belong to
// requests that end with the process.
func Persistable(p limit.Policy) bool {
	return !p.Unlimited && p.Algorithm != limit.SlidingWindowLog && p.Algorithm != limit.Concurrency
}

// Export appends the state of a key to dst; nothing for a key that is as good as new.
func (s *Store) Export(c store.Counters, key, dst []byte) ([]byte, error) {
	own, err := s.own(c)
	if err != nil {
		return dst, err
	}
	h := own.hash(key)
	for t := own.current(); t != nil; t = t.successor() {
		e, ok := t.(exporter)
		if !ok {
			return dst, nil
		}
		if out, ok := e.export(h, dst); ok {
			return out, nil
		}
	}
	return dst, nil
}

// Restore is Bind for counters whose states were exported under the policy from. It restores what each
// gives to put, lists the bans among it, and returns how many states it restored. Counters that are bound already are returned as they
// are: their states are newer.
func (s *Store) Restore(spec store.Spec, from limit.Policy, each func(put func(key, state []byte) error) error) (store.Counters, int, error) {
	s.mu.Lock()
	known := s.counters[spec.ID] != nil
	s.mu.Unlock()
	c, err := s.bind(spec)
	if err != nil || known || each == nil {
		return c, 0, err
	}
	n := 0
	t, ok := c.current().(exporter)
	if !ok || from.Algorithm != spec.Policy.Algorithm && !(isBucket(from) && isBucket(spec.Policy)) {
		return c, 0, nil
	}
	if err := from.Validate(); err != nil {
		return c, 0, fmt.Errorf("memory: the policy of the states of %q: %w", spec.ID, err)
	}
	restore, ended := t.restorer(from), endedUnder(from)
	now := s.time(s.since())
	err = each(func(key, state []byte) error {
		if ended(state, now) {
			return nil
		}
		h := c.hash(key)
		if err := restore(h, state); err != nil {
			return err
		}
		c.listBan(h, key)
		n++
		return nil
	})
	return c, n, err
}

// exporter is what tables of persistable policies do.
type exporter interface {
	// export appends the state of a key; false when it has moved.
	export(h uint64, dst []byte) ([]byte, bool)
	// restorer returns a function that puts states of the policy from into the table, which is not in use
	// yet.
	restorer(from limit.Policy) func(h uint64, state []byte) error
}

func (t *wordTable) export(h uint64, dst []byte) ([]byte, bool) {
	w, ok := t.seen(h)
	if !ok || w == 0 {
		return dst, ok
	}
	state := t.bucket.Unpack(w, t.beginning())
	if t.bucket.Exact().Fresh(state, t.store.time(t.store.since())) {
		return dst, true
	}
	return appendState(dst, &state), true
}

func (t *wordTable) restorer(from limit.Policy) func(uint64, []byte) error {
	arithmetic := limit.NewBucket(from)
	return func(h uint64, state []byte) error {
		var s limit.BucketState
		if err := readState(state, &s); err != nil {
			return err
		}
		t.receive(h, s, &arithmetic)
		return nil
	}
}

func (t *lockedTable[S]) export(h uint64, dst []byte) (out []byte, ok bool) {
	out = dst
	sh, ok := t.lock(h)
	if !ok {
		return out, false
	}
	defer sh.mu.Unlock()
	if s := sh.seen(h); s != nil && !t.rule.fresh(s, t.store.time(t.store.since())) {
		out = appendState(out, s)
	}
	return out, true
}

func (t *lockedTable[S]) restorer(from limit.Policy) func(uint64, []byte) error {
	arithmetic := arithmeticOf(from)
	return func(h uint64, state []byte) error {
		var s S
		if err := readState(state, &s); err != nil {
			return err
		}
		t.receive(h, s, arithmetic)
		return nil
	}
}

// Ended reports whether a state that was exported under a policy is as good as new at now. One that cannot be
// read is not.
func Ended(p limit.Policy, state []byte, now limit.Time) bool { return endedUnder(p)(state, now) }

// endedUnder is Ended for many states under one policy.
func endedUnder(p limit.Policy) func(state []byte, now limit.Time) bool {
	switch a := arithmeticOf(p).(type) {
	case *limit.FixedCounter:
		return func(state []byte, now limit.Time) bool {
			var s limit.FixedState
			return readState(state, &s) == nil && a.Fresh(s, now)
		}
	case *limit.SlidingCounter:
		return func(state []byte, now limit.Time) bool {
			var s limit.SlidingState
			return readState(state, &s) == nil && a.Fresh(s, now)
		}
	case *limit.RisingCounter:
		return func(state []byte, now limit.Time) bool {
			var s limit.SlidingState
			return readState(state, &s) == nil && a.Fresh(s, now)
		}
	case *limit.Bucket:
		return func(state []byte, now limit.Time) bool {
			var s limit.BucketState
			return readState(state, &s) == nil && a.Fresh(s, now)
		}
	}
	return func([]byte, limit.Time) bool { return false }
}

// arithmeticOf returns the arithmetic of a persistable policy, as tables of it have.
func arithmeticOf(p limit.Policy) any {
	switch p.Algorithm {
	case limit.FixedWindow:
		a := limit.NewFixedCounter(p)
		return &a
	case limit.SlidingWindowCounter:
		a := limit.NewSlidingCounter(p)
		return &a
	case limit.RisingWindow:
		a := limit.NewRisingCounter(p)
		return &a
	default:
		a := limit.NewBucket(p)
		return &a
	}
}

// appendState appends the numbers of a state.
func appendState(dst []byte, s any) []byte {
	put := func(n uint64) { dst = binary.LittleEndian.AppendUint64(dst, n) }
	switch s := s.(type) {
	case *limit.BucketState:
		put(s.Hi)
		put(s.Lo)
	case *limit.FixedState:
		put(uint64(s.Start))
		put(uint64(s.Count))
	case *limit.SlidingState:
		put(uint64(s.Index))
		put(uint64(s.Cur))
		put(uint64(s.Prev))
	}
	return dst
}

// readState is the inverse of appendState. Numbers that no state has are an error.
func readState(state []byte, s any) error {
	var n [3]uint64
	for i := range n {
		if 8*i+8 <= len(state) {
			n[i] = binary.LittleEndian.Uint64(state[8*i:])
		}
	}
	want := 16
	signed := n[:]
	switch s := s.(type) {
	case *limit.BucketState:
		*s, signed = limit.BucketState{Hi: n[0], Lo: n[1]}, nil
	case *limit.FixedState:
		*s = limit.FixedState{Start: limit.Time(n[0]), Count: int64(n[1])}
	case *limit.SlidingState:
		*s, want = limit.SlidingState{Index: int64(n[0]), Cur: int64(n[1]), Prev: int64(n[2])}, 24
	default:
		return fmt.Errorf("memory: states of type %T cannot be restored", s)
	}
	if len(state) != want {
		return fmt.Errorf("memory: a state has %d bytes, want %d", len(state), want)
	}
	for _, v := range signed {
		if int64(v) < 0 {
			return fmt.Errorf("memory: a state has the number %d, which no state has", int64(v))
		}
	}
	return nil
}
