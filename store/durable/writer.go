package durable

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/store"
)

// A bound is divided: a write begins twice in it, and Takes wait from four fifths on, so that one that
// has just looked at the clock is in it as well.
const (
	writesInBound = 2
	waitFrom      = 0.8
	compactEvery  = time.Hour // what has ended leaves the file
	keptBuffer    = 8 << 20   // of a batch, so that the next one needs no other
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
	bytes    atomic.Int64 // the length of the file

	mu    sync.Mutex // held while a batch is prepared and written; guards the next fields
	file  *file
	batch []byte    // the buffer of the last batch
	began time.Time // of the interval that is collected
	retry int64     // the length of the file at which a compaction that failed is tried again
	// compacting says that batches are copied behind a snapshot, which leaves out limits without states: each has the
	// policies of its limits.
	compacting bool

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

func (w *writer) init(s *Store, f *file) {
	w.store, w.file = s, f
	w.bytes.Store(f.size)
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
	hour := time.NewTicker(compactEvery)
	defer hour.Stop()
	compacting := false
	compacted := make(chan struct{}, 1)
	for due := false; ; {
		if due && !compacting {
			due, compacting = false, true
			go func() {
				w.compactAndSay(ctx)
				compacted <- struct{}{}
			}()
		}
		select {
		case <-ctx.Done():
			if compacting {
				<-compacted
			}
			w.running.Store(false) // those who come now write themselves
			return w.flush()
		case <-hour.C:
			due = true
			continue
		case <-compacted:
			compacting = false
			continue
		case <-tick.C:
		case <-w.kick:
			// Those that the last batch has let go count once more first, and wait for this batch and not for the next.
			runtime.Gosched()
		}
		// A failure is logged and counted.
		due = w.flush() == nil && w.grown() || due
	}
}

// compactAndSay writes the file anew, and logs that it failed.
func (w *writer) compactAndSay(ctx context.Context) {
	err := w.compact(ctx)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.retry = 0
	if err != nil {
		w.retry = w.file.size + leastGrown
		w.store.opts.Logger.Error("the file grows: it cannot be written anew", "file", w.store.opts.Path, "error", err)
	}
}

// grown reports whether the file should be written anew.
func (w *writer) grown() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.file.grown() && w.file.size >= w.retry
}

// flush writes what was noted before.
func (w *writer) flush() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.flushLocked(false)
}

// flushLocked is flush with w.mu held. With freeze, records are frozen for a compaction at the moment whose states are
// written.
func (w *writer) flushLocked(freeze bool) error {
	began := time.Now()
	interval := w.interval.Add(1) - 1
	changes, err := w.collect(freeze)
	wrote := err == nil && len(changes.buf) > 0
	if wrote {
		changes.commit(began)
		err = w.file.append(changes.buf)
		w.bytes.Store(w.file.size)
	}
	w.store.records.saved(err == nil)
	if err != nil {
		changes.giveBack()
		if freeze {
			w.store.records.thaw()
		}
	} else {
		changes.saved()
	}
	if w.batch = nil; cap(changes.buf) <= keptBuffer {
		w.batch = changes.buf[:0]
	}
	w.done.Lock()
	defer w.done.Unlock()
	if err != nil {
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
		if wrote {
			w.done.writes++
		}
	}
	w.done.err = err
	close(w.done.changed)
	w.done.changed = make(chan struct{})
	return err
}

// changes are what one batch writes.
type changes struct {
	frames
	counters []*counters
	keys     [][]string // that were noted of each of counters
}

// collect takes what was noted. It returns an error, and changes to give back, if the file cannot be read.
func (w *writer) collect(freeze bool) (*changes, error) {
	s := w.store
	w.file.tried++
	c := &changes{frames: frames{buf: w.batch, number: w.file.tried}}
	s.mu.RLock()
	defer s.mu.RUnlock()
	// The keys that the file has are read before whole is held, as nothing may wait for the disk with that.
	var failed error
	all := make(map[*counters][]string)
	for _, one := range s.counters {
		if !one.rewrite {
			continue
		}
		keys, err := w.file.keys(one.id)
		if err != nil {
			failed = fmt.Errorf("the states of %q: %w", one.id, err)
		}
		all[one] = keys
	}
	s.whole.Lock()
	defer s.whole.Unlock()
	for _, one := range s.counters {
		keys := one.noted.take()
		if len(keys) > 0 || one.rewrite {
			c.counters, c.keys = append(c.counters, one), append(c.keys, keys)
		}
		known := w.file.limits[one.id]
		if known == nil && len(keys) == 0 || failed != nil {
			continue
		}
		if known == nil || one.rewrite || w.compacting {
			c.policy(one.id, one.text)
		}
		if failed = s.appendStates(c, one, union(keys, all[one])); failed != nil {
			failed = fmt.Errorf("the states of %q: %w", one.id, failed)
		}
	}
	s.records.take(&c.frames, freeze)
	return c, failed
}

// union returns the strings of both, each once.
func union(a, b []string) []string {
	if len(b) == 0 {
		return a
	}
	all := slices.Concat(a, b)
	slices.Sort(all)
	return slices.Compact(all)
}

// appendStates appends the states that keys have in memory.
func (s *Store) appendStates(to *changes, c *counters, keys []string) error {
	var state []byte
	var err error
	for i := 0; i < len(keys); {
		to.beginNamed(frameStates, c.id)
		for ; i < len(keys) && !to.long(statesFrame); i++ {
			if state, err = s.Store.Export(c.Counters, []byte(keys[i]), state[:0]); err != nil {
				return err
			}
			to.buf = appendState(to.buf, keys[i], state)
		}
		to.end()
	}
	return nil
}

// giveBack notes again what could not be written.
func (c *changes) giveBack() {
	for i, one := range c.counters {
		for _, key := range c.keys[i] {
			one.noted.add([]byte(key))
		}
	}
}

// saved says that the file has the states of the counters under their policies.
func (c *changes) saved() {
	for _, one := range c.counters {
		one.rewrite = false
	}
}

// close closes the file. Nothing is written after it.
func (w *writer) close() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.file.close()
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
	st.Bytes = w.bytes.Load()
	return st
}
