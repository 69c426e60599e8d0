package contender

import (
	"hash/maphash"
	"sync/atomic"
	"time"
)

// gcra is the arithmetic that the floors share with stint's common case: a
// theoretical arrival time in nanoseconds since a base, in one word.
type gcra struct {
	base      time.Time
	emission  int64 // ns per token
	tolerance int64 // ns that the bucket may run ahead
}

func newGCRA(p Plan) gcra {
	emission := max(int64(p.Period)/p.Count, 1)
	return gcra{base: time.Now(), emission: emission, tolerance: emission * p.Burst}
}

// now reads the monotonic clock alone, which costs half of time.Now.
func (g *gcra) now() int64 { return int64(time.Since(g.base)) }

// take charges one token on word. A refusal writes nothing.
func (g *gcra) take(word *atomic.Int64, now int64) bool {
	for {
		old := word.Load()
		next := max(old, now) + g.emission
		if next-now > g.tolerance {
			return false
		}
		if word.CompareAndSwap(old, next) {
			return true
		}
	}
}

// oneWord is a limiter with a single bucket; it ignores the key.
type oneWord struct {
	gcra
	_    [64]byte // the word must not share a line with the constants
	word atomic.Int64
	_    [64]byte
}

func newOneWord(p Plan) (Limiter, error) { return &oneWord{gcra: newGCRA(p)}, nil }

func (o *oneWord) Allow(string) bool { return o.take(&o.word, o.now()) }

func (o *oneWord) Hot(_ string, n int) (admitted int) {
	for range n {
		if o.take(&o.word, o.now()) {
			admitted++
		}
	}
	return admitted
}

func (o *oneWord) Spin(w *Walk, n int) (admitted int) {
	for range n {
		if o.Allow(w.Next()) {
			admitted++
		}
	}
	return admitted
}

// clockOnly reads the clock and refuses.
type clockOnly struct{ base time.Time }

func newClockOnly(Plan) (Limiter, error) { return &clockOnly{base: time.Now()}, nil }

func (c *clockOnly) Allow(string) bool { return time.Since(c.base) < 0 }

func (c *clockOnly) Hot(_ string, n int) (admitted int) {
	for range n {
		if time.Since(c.base) < 0 {
			admitted++
		}
	}
	return admitted
}

func (c *clockOnly) Spin(_ *Walk, n int) int { return c.Hot("", n) }

// hashOnly fetches and hashes keys and admits them all.
type hashOnly struct{ seed maphash.Seed }

func newHashOnly(Plan) (Limiter, error) { return &hashOnly{seed: maphash.MakeSeed()}, nil }

// Allow says yes unless the hash is one value in 2^64.
func (h *hashOnly) Allow(key string) bool { return maphash.String(h.seed, key) != 1 }

func (h *hashOnly) Hot(key string, n int) (admitted int) {
	for range n {
		if h.Allow(key) {
			admitted++
		}
	}
	return admitted
}

func (h *hashOnly) Spin(w *Walk, n int) (admitted int) {
	for range n {
		if h.Allow(w.Next()) {
			admitted++
		}
	}
	return admitted
}
