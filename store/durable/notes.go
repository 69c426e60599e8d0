package durable

import (
	"hash/maphash"
	"slices"
	"sync"
	"sync/atomic"
)

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
	last int // how many the last set had
	// set is the number of keys. It is not the writer's interval: between the end of an interval and the moment when
	// its keys are taken, a key of the next interval gets into the set of the one before, and must be noted again.
	set atomic.Uint64
}

// A limit begins with leastRecent places, and has four times as many as keys changed in one interval, or up to
// mostRecent: two megabytes for a limit of which a hundred thousand keys change in half a second.
const (
	leastRecent = 1 << 10
	mostRecent  = 1 << 18
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
	i := h & uint64(len(recent)-1)
	first, second := &recent[i], &recent[i^1] // in one cache line
	if m := mark(h, sh.set.Load()); first.Load() == m || second.Load() == m {
		return // it is in the set, and its state is read after that is taken
	}
	sh.mu.Lock()
	set := sh.set.Load()
	if sh.keys == nil {
		sh.keys = make(map[string]struct{}, sh.last)
	}
	if _, known := sh.keys[string(key)]; !known { // to look allocates nothing
		sh.keys[string(key)] = struct{}{}
	}
	sh.mu.Unlock()
	second.Store(first.Load())
	first.Store(mark(h, set))
}

func mark(hash, set uint64) uint64 { return hash ^ (set+1)*0x9E3779B97F4A7C15 }

// take returns the keys and forgets them. The interval has ended before.
func (n *notes) take() []string {
	var keys []string
	for i := range n.shards {
		sh := &n.shards[i]
		sh.mu.Lock()
		taken := sh.keys
		sh.keys, sh.last = nil, len(taken)
		sh.set.Add(1)
		sh.mu.Unlock()
		keys = slices.Grow(keys, len(taken))
		for key := range taken {
			keys = append(keys, key)
		}
	}
	places := len(*n.recent.Load())
	for places < mostRecent && len(keys) > places/4 {
		places *= 2
	}
	if places > len(*n.recent.Load()) {
		n.makeRoom(places)
	}
	return keys
}
