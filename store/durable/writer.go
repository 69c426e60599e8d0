package durable

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"hash/maphash"
	"os"
	"sync"
	"sync/atomic"
	"time"

	bolt "go.etcd.io/bbolt"

	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/store"
	"github.com/stint-io/stint/store/memory"
)

// A bound is divided: a write begins twice in it, and Takes wait from four fifths on, so that one that
// has just looked at the clock is in it as well.
const (
	writesInBound = 2
	waitFrom      = 0.8
	pruneEvery    = time.Hour
)

// writer writes what has changed. Its intervals are numbered: what is noted in one is on the disk when
// written is that number or above.
type writer struct {
	store    *Store
	interval atomic.Uint64
	start    time.Time
	begin    limit.Time   // start, by the wall clock
	waitFrom atomic.Int64 // since start: from then on Takes wait, as the oldest interval that is not written is as old as the bound
	overdue  atomic.Bool  // a Take has seen that it is so
	running  atomic.Bool
	kick     chan struct{}
	waits    atomic.Uint64

	mu    sync.Mutex // held while a transaction is prepared and written
	began time.Time  // of the interval that is collected; guarded by mu

	done struct {
		sync.Mutex
		written  uint64
		at       time.Time     // when the last interval that was written began
		changed  chan struct{} // closed and replaced when a write has ended
		err      error         // of the last write
		writes   uint64
		failures uint64
	}
}

func (w *writer) init(s *Store) {
	w.store = s
	w.interval.Store(1)
	w.kick = make(chan struct{}, 1)
	w.done.changed = make(chan struct{})
	w.began, w.done.at = time.Now(), time.Now()
	w.start, w.begin = w.began, limit.At(w.began)
	w.allow(w.start)
}

// allow lets Takes go on without waiting until an interval that began then is nearly as old as the bound.
func (w *writer) allow(began time.Time) {
	w.waitFrom.Store(int64(began.Sub(w.start)) + int64(waitFrom*float64(w.store.opts.Bound)))
}

// now is the clock of the store in memory, which each Take reads before it counts: the wall clock at the start,
// carried on by the monotonic one. That Takes have to wait is seen by the same reading: a timer would be late
// on a busy machine, and a second reading costs as much as the rest of what is done here.
func (w *writer) now() limit.Time {
	since := time.Since(w.start)
	if int64(since) >= w.waitFrom.Load() && !w.overdue.Load() {
		w.overdue.Store(true)
	}
	return w.begin.Add(since)
}

// late reports whether Takes have to wait.
func (w *writer) late() bool {
	if w.store.opts.Memory.Now == nil && !w.overdue.Load() {
		return false
	}
	late := int64(time.Since(w.start)) >= w.waitFrom.Load()
	if !late {
		w.overdue.Store(false) // it was before the last write ended
	}
	return late
}

// wait returns when what was noted before is as safe as the bound says.
func (w *writer) wait(ctx context.Context) error {
	if !w.store.opts.Sync && !w.late() {
		return nil
	}
	if !w.running.Load() {
		return unavailable(w.flush())
	}
	w.waits.Add(1)
	target := w.interval.Load()
	for {
		w.done.Lock()
		written, changed, err := w.done.written, w.done.changed, w.done.err
		w.done.Unlock()
		switch {
		case written >= target, !w.store.opts.Sync && !w.late():
			return nil
		case err != nil:
			return unavailable(err)
		}
		select {
		case w.kick <- struct{}{}:
		default:
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return unavailable(ctx.Err())
		}
	}
}

func unavailable(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("durable: counted, but not yet on the disk: %w: %w", store.ErrUnavailable, err)
}

// run writes at every tick, and when somebody waits.
func (w *writer) run(ctx context.Context) error {
	w.running.Store(true)
	defer w.running.Store(false)
	tick := time.NewTicker(w.store.opts.Bound / writesInBound)
	defer tick.Stop()
	prune := time.NewTicker(pruneEvery)
	defer prune.Stop()
	for {
		select {
		case <-ctx.Done():
			w.running.Store(false) // those who come now write themselves
			return w.flush()
		case <-prune.C:
			if err := w.prune(); err != nil {
				w.store.opts.Logger.Error("counts that have ended stay in the file", "file", w.store.opts.Path, "error", err)
			}
			continue
		case <-tick.C:
		case <-w.kick:
		}
		if err := w.flush(); err == nil { // a failure is logged and counted
			w.fold(ctx)
		}
	}
}

// flush writes what was noted before.
func (w *writer) flush() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	began := time.Now()
	interval := w.interval.Add(1) - 1
	changes := w.collect()
	err := changes.unread
	if err == nil {
		err = guarded(func() error { return w.write(changes) })
	}
	w.done.Lock()
	defer w.done.Unlock()
	if err != nil {
		changes.giveBack()
		w.done.failures++
		if w.done.err == nil {
			w.store.opts.Logger.Error("counts cannot be written: they are lost if the process ends", "file", w.store.opts.Path, "error", err)
		}
	} else {
		if w.done.err != nil {
			w.store.opts.Logger.Info("counts are written again", "file", w.store.opts.Path)
		}
		w.done.written, w.done.at = interval, w.began
		w.began = began
		w.allow(began)
		if !changes.empty() {
			w.done.writes++
		}
	}
	w.done.err = err
	close(w.done.changed)
	w.done.changed = make(chan struct{})
	return err
}

// changes are what one transaction writes.
type changes struct {
	counters []*counters
	keys     [][]string // of each of counters
	states   [][]byte   // of the keys, as entries of their journals
	unread   error      // why there are none
	records  map[string]map[string]entry
	store    *Store
}

func (c *changes) empty() bool { return len(c.counters) == 0 && len(c.records) == 0 }

func (w *writer) collect() *changes {
	s := w.store
	c := &changes{store: s}
	s.mu.RLock()
	defer s.mu.RUnlock()
	s.whole.Lock()
	defer s.whole.Unlock()
	for _, one := range s.counters {
		if keys := one.noted.take(); len(keys) > 0 {
			c.counters, c.keys = append(c.counters, one), append(c.keys, keys)
		}
	}
	for i, one := range c.counters {
		states, err := s.states(one, c.keys[i])
		if err != nil {
			c.unread = err
		}
		c.states = append(c.states, states)
	}
	c.records = s.records.take()
	return c
}

// giveBack notes again what could not be written.
func (c *changes) giveBack() {
	for i, one := range c.counters {
		for _, key := range c.keys[i] {
			one.noted.add([]byte(key))
		}
	}
	c.store.records.giveBack()
}

func (w *writer) write(c *changes) error {
	if c.empty() {
		return nil
	}
	s := w.store
	err := s.db.Update(func(tx *bolt.Tx) error {
		for i, one := range c.counters {
			b := tx.Bucket(countersBucket).Bucket([]byte(one.id))
			if b == nil {
				return fmt.Errorf("the file has no place for %q", one.id)
			}
			if err := appendJournal(b, one, c.states[i]); err != nil {
				return err
			}
		}
		if err := writeRecords(tx, c.records); err != nil {
			return err
		}
		return tx.Bucket(metaBucket).Put(writtenKey, binary.BigEndian.AppendUint64(nil, uint64(time.Now().UnixNano())))
	})
	if err == nil {
		s.records.written()
	}
	return err
}

// pruned bounds what one transaction removes, so that counts wait for milliseconds.
const pruned = 10_000

// prune removes what has ended from the file.
func (w *writer) prune() error {
	for more := true; more; {
		w.mu.Lock()
		err := guarded(func() (err error) {
			return w.store.db.Update(func(tx *bolt.Tx) error { more, err = w.pruneSome(tx); return err })
		})
		w.mu.Unlock()
		if err != nil {
			return err
		}
	}
	return nil
}

func (w *writer) pruneSome(tx *bolt.Tx) (more bool, err error) {
	now := limit.At(time.Now())
	if w.store.opts.Memory.Now != nil {
		now = w.store.opts.Memory.Now()
	}
	left := pruned
	root := tx.Bucket(countersBucket)
	err = root.ForEachBucket(func(id []byte) error {
		b := root.Bucket(id)
		p, ok, err := readPolicy(b)
		states := b.Bucket(statesKey)
		if err != nil || !ok || states == nil {
			return err
		}
		left, err = removeIf(states, left, func(state []byte) bool { return memory.Ended(p, state, now) })
		return err
	})
	if err != nil {
		return false, err
	}
	root = tx.Bucket(recordsBucket)
	err = root.ForEachBucket(func(table []byte) error {
		left, err = removeIf(root.Bucket(table), left, func(value []byte) bool {
			e, ok := readEntry(value)
			return ok && e.ended(now)
		})
		return err
	})
	return left == 0, err
}

// removeIf removes at most left entries and returns how many more it might have.
func removeIf(b *bolt.Bucket, left int, ended func(value []byte) bool) (int, error) {
	var keys [][]byte
	c := b.Cursor()
	for key, value := c.First(); key != nil && len(keys) < left; key, value = c.Next() {
		if ended(value) {
			keys = append(keys, bytes.Clone(key))
		}
	}
	for _, key := range keys {
		if err := b.Delete(key); err != nil {
			return left, err
		}
	}
	return left - len(keys), nil
}

func (w *writer) stats() Stats {
	w.done.Lock()
	defer w.done.Unlock()
	st := Stats{
		Writes: w.done.writes, Failures: w.done.failures, Behind: time.Since(w.done.at),
		Waits: w.waits.Load(), Bound: w.store.opts.Bound,
	}
	if w.store.opts.Sync {
		st.Bound = 0
	}
	if w.done.err != nil {
		st.LastError = w.done.err.Error()
	}
	if info, err := os.Stat(w.store.opts.Path); err == nil {
		st.Bytes = info.Size()
	}
	return st
}

// notes are the keys of one limit whose states have changed since they were written. A key that is noted
// again before its set is taken costs a look at recent.
type notes struct {
	seed   maphash.Seed
	recent atomic.Pointer[[]atomic.Uint64] // hashes of keys that were noted, mixed with the number of their set
	shards [16]noteShard
}

type noteShard struct {
	mu   sync.Mutex
	keys map[string]struct{}
	// set is the number of keys. It is not the writer's interval: between the end of an interval and the moment when
	// its keys are taken, a key of the next interval gets into the set of the one before, and must be noted again.
	set atomic.Uint64
}

// A limit begins with leastRecent places, which are doubled while it has more keys in one interval than a quarter
// of them, up to mostRecent: a megabyte for a limit of which a hundred thousand keys change in a second.
const (
	leastRecent = 1 << 10
	mostRecent  = 1 << 17
)

func (n *notes) init() {
	n.seed = maphash.MakeSeed()
	n.makeRoom(leastRecent)
}

func (n *notes) makeRoom(places int) {
	recent := make([]atomic.Uint64, places)
	n.recent.Store(&recent)
}

// add notes a key whose state has changed before.
func (n *notes) add(key []byte) {
	h := maphash.Bytes(n.seed, key)
	sh := &n.shards[h>>60]
	recent := *n.recent.Load()
	place := &recent[h&uint64(len(recent)-1)]
	if place.Load() == mark(h, sh.set.Load()) {
		return // it is in the set, and its state is read after that is taken
	}
	sh.mu.Lock()
	set := sh.set.Load()
	if sh.keys == nil {
		sh.keys = make(map[string]struct{})
	}
	sh.keys[string(key)] = struct{}{}
	sh.mu.Unlock()
	place.Store(mark(h, set))
}

func mark(hash, set uint64) uint64 { return hash ^ (set+1)*0x9E3779B97F4A7C15 }

// take returns the keys and forgets them. The interval has ended before.
func (n *notes) take() []string {
	var keys []string
	for i := range n.shards {
		sh := &n.shards[i]
		sh.mu.Lock()
		taken := sh.keys
		sh.keys = nil
		sh.set.Add(1)
		sh.mu.Unlock()
		for key := range taken {
			keys = append(keys, key)
		}
	}
	if places := len(*n.recent.Load()); len(keys) > places/4 && places < mostRecent {
		n.makeRoom(2 * places)
	}
	return keys
}
