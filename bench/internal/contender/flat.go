package contender

import (
	"hash/maphash"
	"sync/atomic"
)

// flatSlots is the size of the flat table: a million keys fill 48 % of it.
const flatSlots = 1 << 21

// flat is the least that a limiter with many keys can be: an array of slots, each
// a fingerprint and a theoretical arrival time, found by linear probing. It never
// grows, never forgets and takes two keys with the same 64-bit hash for one.
type flat struct {
	gcra
	seed  maphash.Seed
	slots []flatSlot
}

type flatSlot struct {
	fingerprint atomic.Uint64 // 0 = free
	word        atomic.Int64
}

func newFlat(p Plan) (Limiter, error) {
	return &flat{gcra: newGCRA(p), seed: maphash.MakeSeed(), slots: make([]flatSlot, flatSlots)}, nil
}

// Allow refuses when the table is full.
func (f *flat) Allow(key string) bool {
	h := maphash.String(f.seed, key) | 1 // 0 marks a free slot
	now := f.now()
	for i := range uint64(flatSlots) {
		slot := &f.slots[(h>>20+i)%flatSlots]
		found := slot.fingerprint.Load()
		if found == 0 && slot.fingerprint.CompareAndSwap(0, h) {
			found = h
		} else if found == 0 {
			found = slot.fingerprint.Load()
		}
		if found == h {
			return f.take(&slot.word, now)
		}
	}
	return false
}

func (f *flat) Hot(key string, n int) (admitted int) {
	for range n {
		if f.Allow(key) {
			admitted++
		}
	}
	return admitted
}

func (f *flat) Spin(w *Walk, n int) (admitted int) {
	for range n {
		if f.Allow(w.Next()) {
			admitted++
		}
	}
	return admitted
}
