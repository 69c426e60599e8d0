package sim

import (
	"math"
	"math/big"

	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/limit"
)

// window finds the worst sliding window of one length: (t-span, t] at every admission.
type window struct {
	span  int64
	ring  []entry // a power of two long
	head  int     // the oldest
	count int
	sum   int64

	worst float64 // largest sum over what the limit lets through
	bare  float64 // the same without its burst
	most  int64   // largest sum
}

type entry struct{ at, cost int64 }

func (w *window) add(now, cost int64, limits timeline) {
	for w.count > 0 && w.ring[w.head].at <= now-w.span {
		w.sum -= w.ring[w.head].cost
		w.head = (w.head + 1) & (len(w.ring) - 1)
		w.count--
	}
	w.sum += cost
	last := (w.head + w.count - 1) & (len(w.ring) - 1)
	if w.count > 0 && w.ring[last].at == now {
		w.ring[last].cost += cost
	} else {
		if w.count == len(w.ring) {
			w.grow()
		}
		w.ring[(w.head+w.count)&(len(w.ring)-1)] = entry{now, cost}
		w.count++
	}
	w.most = max(w.most, w.sum)
	burst, flow := limits.budget(now-w.span, now)
	w.worst = max(w.worst, ratio(float64(w.sum), float64(burst)+flow))
	w.bare = max(w.bare, ratio(float64(w.sum), flow))
}

func (w *window) grow() {
	ring := make([]entry, max(64, 2*len(w.ring)))
	n := copy(ring, w.ring[w.head:])
	copy(ring[n:], w.ring[:w.head])
	w.ring, w.head = ring, 0
}

// ratio is a/b, where nothing of nothing is nothing.
func ratio(a, b float64) float64 {
	switch {
	case a <= 0:
		return 0
	case b <= 0:
		return math.Inf(1)
	default:
		return a / b
	}
}

// central is the bucket of one limiter at the protected side, which every admission
// goes through and which may go into debt: the largest debt is how far the fleet was over.
// It counts in the ticks of [limit.Bucket], exactly.
type central struct {
	n, p    uint64     // n tokens per p nanoseconds
	burst   fixed.Wide // in ticks
	quota   int64
	full    fixed.Wide // the tick at which the bucket is full
	over    fixed.Wide // the largest debt beyond the burst under this limit
	overall float64
}

func newCentral(l Limit) *central {
	c := &central{}
	c.set(l)
	return c
}

func (c *central) set(l Limit) {
	b := limit.NewBucket(limit.Policy{Rate: l.Rate, Burst: l.Burst})
	if c.n, c.p = b.Terms(); c.n == 0 {
		c.p = 1 << 32 // a bucket that never refills can hold parts of tokens too
	}
	c.quota = l.Burst
	c.burst = fixed.Product(uint64(l.Burst), c.p)
}

func (c *central) tick(now int64) fixed.Wide { return fixed.Product(uint64(now)+uint64(origin), c.n) }

// admit takes cost at now, fit or not.
func (c *central) admit(now, cost int64) {
	t := c.tick(now)
	if t.More(c.full) {
		c.full = t
	}
	c.full = c.full.Plus(fixed.Product(uint64(cost), c.p))
	if debt := c.full.Minus(t.Plus(c.burst)); debt.More(c.over) {
		c.over = debt
	}
}

// change puts another limit in force. What was used stays used, up to the whole of the
// new burst: what a fleet admitted under the old one is no fault under the new one.
func (c *central) change(now int64, l Limit) {
	c.settle()
	used := bigOf(c.full.Minus(c.tick(now)))
	old := new(big.Int).SetUint64(c.p)
	c.set(l)
	// Rounded down: a part of a tick must not make a fleet guilty.
	used.Mul(used, new(big.Int).SetUint64(c.p)).Quo(used, old)
	debt := c.burst
	if used.Cmp(bigOf(c.burst)) < 0 {
		lo := new(big.Int).And(used, new(big.Int).SetUint64(math.MaxUint64))
		debt = fixed.Wide{Hi: new(big.Int).Rsh(used, 64).Uint64(), Lo: lo.Uint64()}
	}
	c.full = c.tick(now).Plus(debt)
}

// settle counts the debt under the present limit.
func (c *central) settle() {
	if c.over != (fixed.Wide{}) {
		f := new(big.Float).SetInt(bigOf(c.over))
		f.Quo(f, new(big.Float).SetUint64(c.p))
		tokens, _ := f.Float64()
		c.overall = max(c.overall, tokens)
	}
	c.over = fixed.Wide{}
}

func bigOf(w fixed.Wide) *big.Int {
	x := new(big.Int).SetUint64(w.Hi)
	return x.Lsh(x, 64).Or(x, new(big.Int).SetUint64(w.Lo))
}
