// Package keytable has the values of the keys that are in use, such as the leases of a limit with a
// key. A value is opened at the first use of its key and closed when nobody has used it for a while.
// The number of keys is bounded: a full table closes a key that has not been used recently to make
// room for a new one. Times are by the clock of the caller.
package keytable

import (
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stint-io/stint/limit"
)

// ErrFull says that a table is full of keys in use.
var ErrFull = errors.New("keytable: the table is full")

const (
	// LeastIdle is how long a key must not have been used to be evicted by a new one. Not longer:
	// strangers choose keys. Not shorter: a key in use would lose its value over and over.
	LeastIdle = time.Second
	// sampled is among how many keys the one to evict is chosen. Not more: the table is locked
	// meanwhile. Not fewer: an idle one should be among them.
	sampled = 64
)

// Value is what a key has while it is in use.
type Value interface {
	// Idle says whether nothing keeps the value open at now, such as waiters or permits in use.
	// It is called under the table's lock.
	Idle(now limit.Time) bool
	// Close ends the value, under the table's lock.
	Close()
}

// Table has a value for each key in use. It is safe for concurrent use; New makes one.
type Table[V Value] struct {
	max         int
	idle, grain limit.Time

	mu      sync.RWMutex
	entries map[string]*Entry[V]
	closed  error // why no key is opened any more
}

// Entry is the place of one key.
type Entry[V Value] struct {
	Value V
	used  atomic.Int64 // limit.Time
	calls atomic.Int64 // under way; rises only under the table's lock
}

// New returns a table of at most max keys, each of which is closed when it has not been used for
// the time idle.
func New[V Value](max int, idle time.Duration) *Table[V] {
	return &Table[V]{max: max, idle: limit.Time(idle), grain: limit.Time(min(idle, LeastIdle) / 10), entries: map[string]*Entry[V]{}}
}

// Find returns the entry of a key, or nil. It stays open until [Entry.Done].
func (t *Table[V]) Find(key []byte) *Entry[V] {
	t.mu.RLock()
	e := t.entries[string(key)] // does not allocate
	if e != nil {
		e.calls.Add(1)
	}
	t.mu.RUnlock()
	return e
}

// Get is Find of a key that is used at now. It opens the value if need be, under the table's lock.
// Its errors are [ErrFull], that of open, and that of Close.
func (t *Table[V]) Get(now limit.Time, key []byte, open func(key string) (V, error)) (*Entry[V], error) {
	if e := t.Find(key); e != nil {
		t.Use(now, e)
		return e, nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed != nil {
		return nil, t.closed
	}
	e := t.entries[string(key)]
	if e == nil {
		if len(t.entries) >= t.max && !t.evict(now) {
			return nil, ErrFull
		}
		name := string(key)
		v, err := open(name)
		if err != nil {
			return nil, err
		}
		e = &Entry[V]{Value: v}
		t.entries[name] = e
	}
	e.calls.Add(1)
	e.used.Store(int64(now))
	return e, nil
}

// Use notes that an entry is used at now. It writes at most ten times in the time after which a
// key may be closed: the number is shared by all processors.
func (t *Table[V]) Use(now limit.Time, e *Entry[V]) {
	if now-limit.Time(e.used.Load()) > t.grain {
		e.used.Store(int64(now))
	}
}

// Done ends a call on an entry that Find or Get returned.
func (e *Entry[V]) Done() { e.calls.Add(-1) }

// idle says whether an entry may be closed at now if it has not been used for d, under the lock.
func (e *Entry[V]) idle(now, d limit.Time) bool {
	return now-limit.Time(e.used.Load()) >= d && e.calls.Load() == 0 && e.Value.Idle(now)
}

// evict closes the key that was used the longest ago, among some.
func (t *Table[V]) evict(now limit.Time) bool {
	var oldest string
	var found *Entry[V]
	n := 0
	for key, e := range t.entries {
		if (found == nil || e.used.Load() < found.used.Load()) && e.idle(now, limit.Time(LeastIdle)) {
			oldest, found = key, e
		}
		if n++; n == sampled {
			break
		}
	}
	if found != nil {
		delete(t.entries, oldest)
		found.Value.Close()
	}
	return found != nil
}

// Sweep closes the keys that have been idle.
func (t *Table[V]) Sweep(now limit.Time) {
	var old []string
	t.mu.RLock()
	for key, e := range t.entries {
		if e.idle(now, t.idle) {
			old = append(old, key)
		}
	}
	t.mu.RUnlock()
	if len(old) == 0 {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, key := range old {
		if e := t.entries[key]; e != nil && e.idle(now, t.idle) {
			delete(t.entries, key)
			e.Value.Close()
		}
	}
}

// Each calls f for each value, under the table's lock.
func (t *Table[V]) Each(f func(V)) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	for _, e := range t.entries {
		f(e.Value)
	}
}

// Drop closes the values for which f holds, in use or not.
func (t *Table[V]) Drop(f func(V) bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.drop(f)
}

func (t *Table[V]) drop(f func(V) bool) {
	for key, e := range t.entries {
		if f(e.Value) {
			delete(t.entries, key)
			e.Value.Close()
		}
	}
}

// Len is how many keys have a value.
func (t *Table[V]) Len() int {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return len(t.entries)
}

// Close closes all values. Get returns err from then on.
func (t *Table[V]) Close(err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.closed = err
	t.drop(func(V) bool { return true })
}
