// Package memory keeps the state of limits in this process.
//
// A key's state is dropped only when it equals that of a key that was never seen, a full bucket
// or an ended window, so dropping it loses nothing. All tables together stay within a byte
// budget. When it is full of live keys, new keys of a limit share one overflow bucket, and a key
// that gets a slot of its own later starts from that bucket's state. A flood of keys therefore
// never frees a limited or banned one.
//
// Token and leaky buckets whose rate can be packed live in a flat table of 16
// bytes per slot, changed by compare-and-swap: a refusal writes nothing, a Take
// allocates nothing. All other algorithms live in tables behind short locks.
//
// Keys are distinguished by a 64-bit hash with a secret seed for each limit: two given keys
// share a bucket with probability 2^-64, and nobody outside the process can search for such a
// pair.
//
// The package starts no goroutine. It will not persist state or share it with
// other processes.
package memory

import (
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/store"
)

// DefaultMaxBytes is the default byte budget: 256 MiB, room for some five million live keys. Not
// smaller: a flood would reach it within seconds. Not larger: the process needs memory for other
// things.
const DefaultMaxBytes = 256 << 20

// MinMaxBytes is the least byte budget: 64 KiB, room for some thousand live keys. Not
// less: the tables' first arrays would not fit.
const MinMaxBytes = 64 << 10

// Options configure a [Store]. The zero value is ready to use.
type Options struct {
	// MaxBytes bounds the memory of all tables together; 0 = DefaultMaxBytes. A value below
	// MinMaxBytes counts as that. Half of it is divided equally among the limits, so that a
	// flood of keys on one leaves room to the others; the other half goes to the tables that
	// grow first.
	MaxBytes int64

	// Logger gets one line when a flood of keys has used up what a limit may have, with the
	// limit's ID and never a key. Nil = none.
	Logger *slog.Logger

	// Now replaces the clock: it returns nanoseconds since the Unix epoch and
	// must be safe for concurrent use. Nil = the system's wall clock at the
	// start, carried on by its monotonic clock, so that stepping the wall clock
	// changes nothing.
	Now func() limit.Time
}

// Store is a [store.Store] in this process. It is safe for concurrent use. Use
// [New]; the zero value is not ready.
type Store struct {
	start time.Time  // carries the monotonic clock
	begin limit.Time // start as a Time
	now   func() limit.Time

	budget budget
	logger *slog.Logger

	mu       sync.Mutex
	counters map[string]*Counters
	serial   uint64 // orders the locks of tables; see take.go

	overflowed int64 // Takes on overflow buckets of counters that were unbound

	reclaimAt atomic.Uint64 // time since the store's beginning before which a full budget is not swept
	banning   atomic.Bool   // some policy bans, or did
	conflicts atomic.Int64  // Takes over several buckets that began again because a table moved
}

var _ store.Store = (*Store)(nil)

// New returns an empty store.
func New(o Options) *Store {
	if o.MaxBytes == 0 {
		o.MaxBytes = DefaultMaxBytes
	}
	now := time.Now()
	s := &Store{start: now, begin: limit.At(now), now: o.Now, logger: o.Logger, counters: make(map[string]*Counters)}
	if s.now != nil {
		s.begin = s.now()
	}
	s.budget.max = max(o.MaxBytes, MinMaxBytes)
	return s
}

// since returns the nanoseconds since the store began, on its clock, at least 0.
func (s *Store) since() uint64 {
	if s.now == nil {
		return uint64(time.Since(s.start))
	}
	return uint64(max(s.now()-s.begin, 0))
}

func (s *Store) time(since uint64) limit.Time { return s.begin + limit.Time(since) }

// Bind returns the counters called spec.ID: those known, with the policy changed
// if it differs, or new ones. It returns an error for a policy that is not valid
// and for an empty ID.
func (s *Store) Bind(spec store.Spec) (store.Counters, error) { return s.bind(spec) }

func (s *Store) bind(spec store.Spec) (*Counters, error) {
	if spec.ID == "" {
		return nil, errors.New("memory: counters need an ID")
	}
	if err := spec.Policy.Validate(); err != nil {
		return nil, fmt.Errorf("memory: counters %q: %w", spec.ID, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.counters[spec.ID]
	if c == nil {
		s.serial++
		c = newCounters(s, spec.ID, s.serial, spec.Policy)
		s.counters[spec.ID] = c
	}
	c.setPolicy(spec.Policy)
	c.keepBans(spec.Policy)
	return c, nil
}

// Unbind drops the counters and all their state. A Take that still holds them is admitted.
func (s *Store) Unbind(c store.Counters) error {
	own, err := s.own(c)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.counters[own.id] == own {
		s.drop(own)
	}
	return nil
}

// Close drops all state.
func (s *Store) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.counters {
		s.drop(c)
	}
	return nil
}

// drop forgets counters. s.mu is held.
func (s *Store) drop(c *Counters) {
	delete(s.counters, c.id)
	c.drop()
	c.keepBans(limit.Policy{})
	c.account.close()
	s.overflowed += c.account.overflowed.Load()
}

// awaitMove waits until no table is being moved to its successor. The caller holds no lock.
func (s *Store) awaitMove() {
	s.mu.Lock()
	defer s.mu.Unlock()
}

func (s *Store) own(c store.Counters) (*Counters, error) {
	own, ok := c.(*Counters)
	if !ok || own == nil || own.store != s {
		return nil, fmt.Errorf("memory: counters %v were bound by another store", c)
	}
	return own, nil
}

// Stats describes a store at one moment.
type Stats struct {
	Keys       int64 // keys with a state of their own, those that may be dropped included
	Bytes      int64 // what the tables occupy
	MaxBytes   int64 // their budget
	Overflowed int64 // Takes decided on an overflow bucket since the start, because the budget was full
	Limits     int   // counters bound

	// Overflows are these Takes by the IDs of counters, without those of counters that were
	// unbound. Nil = none.
	Overflows map[string]int64
}

// Bytes is the memory of the tables.
func (s *Store) Bytes() int64 { return s.budget.used.Load() }

// Stats counts what the store holds.
func (s *Store) Stats() Stats {
	st := Stats{Bytes: s.budget.used.Load(), MaxBytes: s.budget.max}
	s.mu.Lock()
	defer s.mu.Unlock()
	st.Limits, st.Overflowed = len(s.counters), s.overflowed
	for _, c := range s.counters {
		if n := c.account.overflowed.Load(); n > 0 {
			st.Overflowed += n
			if st.Overflows == nil {
				st.Overflows = map[string]int64{}
			}
			st.Overflows[c.id] = n
		}
		if t := c.table.Load().get(); t != nil {
			st.Keys += t.keys()
		}
	}
	return st
}

// reclaim drops the fresh states of all tables when the budget is full: room that one limit no
// longer needs goes to another. It runs at most ten times a second, and for at most a fiftieth
// of the time, so that a flood does not pay for it with each key.
func (s *Store) reclaim(since uint64) {
	const every = uint64(100 * time.Millisecond)
	at := s.reclaimAt.Load()
	if since < at || !s.reclaimAt.CompareAndSwap(at, since+every) || !s.mu.TryLock() {
		return
	}
	tables := make([]table, 0, len(s.counters))
	for _, c := range s.counters {
		if t := c.table.Load().get(); t != nil {
			tables = append(tables, t)
		}
	}
	s.mu.Unlock()
	for _, t := range tables {
		t.sweep()
	}
	took := s.since() - since
	s.reclaimAt.Store(since + max(every, 50*took))
}
