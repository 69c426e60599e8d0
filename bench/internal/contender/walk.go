package contender

import (
	"encoding/hex"
	"math/bits"
	"unsafe"
)

// KeyLen is the length of every key in bytes.
const KeyLen = 16

// Keys is a fixed set of distinct keys, laid end to end in one block without
// pointers, so that the keys themselves cost the collector nothing. Read-only.
type Keys struct {
	block []byte
}

// NewKeys returns n distinct keys of 16 hexadecimal digits in no order.
func NewKeys(n int) *Keys {
	k := &Keys{block: make([]byte, n*KeyLen)}
	var word [8]byte
	for i := range n {
		// splitmix64 maps distinct numbers to distinct numbers.
		x := uint64(i) * 0x9e3779b97f4a7c15
		x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
		x = (x ^ x>>27) * 0x94d049bb133111eb
		x ^= x >> 31
		for b := range word {
			word[b] = byte(x >> (8 * b))
		}
		hex.Encode(k.block[i*KeyLen:], word[:])
	}
	return k
}

// Len returns the number of keys.
func (k *Keys) Len() int { return len(k.block) / KeyLen }

// At returns the i-th key. It aliases the block: no allocation, no copy.
func (k *Keys) At(i int) string {
	return unsafe.String(&k.block[i*KeyLen], KeyLen)
}

// Walk visits keys in uniformly random order, one goroutine's at a time. The
// same seed gives the same order, so that what a run touched can be recounted
// afterwards without a counter in the loop.
type Walk struct {
	keys  *Keys
	n     uint64
	state uint64
	_     [40]byte // a cache line of its own
}

// NewWalk starts a walk. Any seed will do.
func NewWalk(k *Keys, seed uint64) *Walk {
	return &Walk{keys: k, n: uint64(k.Len()), state: seed*2 + 0x9e3779b97f4a7c15}
}

// Next returns the next key.
func (w *Walk) Next() string { return w.keys.At(w.next()) }

func (w *Walk) next() int {
	x := w.state
	x ^= x << 13
	x ^= x >> 7
	x ^= x << 17
	w.state = x
	i, _ := bits.Mul64(x, w.n)
	return int(i)
}

// Distinct walks n steps from where w stands and marks the keys it meets in
// seen, which has one entry per key. It returns how many were not marked before.
func (w *Walk) Distinct(n int64, seen []bool) (fresh int) {
	for range n {
		if i := w.next(); !seen[i] {
			seen[i] = true
			fresh++
		}
	}
	return fresh
}
