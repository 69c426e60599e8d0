package usage

import (
	"crypto/rand"
	"encoding/base64"
	"sync"
	"sync/atomic"

	"github.com/stint-io/stint/limit"
)

const (
	hour   = 3600 // seconds
	shards = 32
)

// counts are what one slot has counted since the table began. In a file they are in the mapped memory.
type counts struct{ taken, returned atomic.Uint64 }

// slot is one key of one limit in one hour.
type slot struct {
	limit, subject string
	start          int64 // of the hour in the limit's time zone, in seconds since the epoch
	n              *counts
	// reported is what every reader of marks has; the reporter alone uses it.
	reported struct{ taken, returned uint64 }
}

// table has the slots of one hour of UTC. Slots are only added. Once it is closed nothing changes.
type table struct {
	hour   int64 // since the epoch
	origin string
	file   *journal // nil = in memory alone

	shards [shards]struct {
		sync.RWMutex // held for reading while a slot is counted up
		closed       bool
		slots        map[string]*slot
	}
	size atomic.Int64

	mu    sync.Mutex
	slots []*slot // in the order in which they were made
}

func newTable(hour int64, file *journal) *table {
	t := &table{hour: hour, file: file, origin: newOrigin()}
	if file != nil {
		t.origin = file.origin
	}
	for i := range t.shards {
		t.shards[i].slots = make(map[string]*slot)
	}
	return t
}

// newOrigin returns a name that no other table has: 88 random bits, which a million tables an hour for ten
// years share with a probability below 1e-5.
func newOrigin() string {
	var b [11]byte
	_, _ = rand.Read(b[:]) // it never fails
	return base64.RawURLEncoding.EncodeToString(b[:])
}

// all returns the slots that there are.
func (t *table) all() []*slot {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.slots[:len(t.slots):len(t.slots)]
}

// close makes every count that follows fail, and returns when none is under way.
func (t *table) close() {
	for i := range t.shards {
		s := &t.shards[i]
		s.Lock()
		s.closed = true
		s.Unlock()
	}
}

// count adds to the slot of key, and reports whether it did: a closed table does not. make returns the slot of
// a new key, with its limit and subject alone; it may be called in vain.
func (t *table) count(key []byte, taken, returned int64, make func() *slot) bool {
	s := &t.shards[fnv(key)%shards]
	s.RLock()
	at, closed := s.slots[string(key)], s.closed
	if at != nil && !closed {
		at.add(taken, returned)
	}
	s.RUnlock()
	if closed || at != nil {
		return !closed
	}
	made := make()
	s.Lock()
	defer s.Unlock()
	if s.closed {
		return false
	}
	if at = s.slots[string(key)]; at == nil {
		at = made
		t.mu.Lock()
		t.file.place(at)
		t.slots = append(t.slots, at)
		t.mu.Unlock()
		s.slots[string(key)] = at
		t.size.Add(1)
	}
	at.add(taken, returned)
	return true
}

func (s *slot) add(taken, returned int64) {
	if taken > 0 {
		s.n.taken.Add(uint64(taken))
	}
	if returned > 0 {
		s.n.returned.Add(uint64(returned))
	}
}

func fnv(key []byte) uint32 {
	h := uint32(2166136261)
	for _, b := range key {
		h = (h ^ uint32(b)) * 16777619
	}
	return h
}

// hourOf returns the hour of UTC that now is in, since the epoch.
func hourOf(now limit.Time) int64 { return int64(max(now, 0)) / (hour * 1e9) }
