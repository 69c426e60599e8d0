package fixed

import (
	"math"
	"math/bits"
)

// Wide is an unsigned number of 128 bits, for products and sums of 64-bit numbers.
type Wide struct{ Hi, Lo uint64 }

// Product returns a*b.
func Product(a, b uint64) Wide {
	hi, lo := bits.Mul64(a, b)
	return Wide{hi, lo}
}

// Plus returns w + v, which must fit.
func (w Wide) Plus(v Wide) Wide {
	lo, carry := bits.Add64(w.Lo, v.Lo, 0)
	hi, _ := bits.Add64(w.Hi, v.Hi, carry)
	return Wide{hi, lo}
}

// Add returns w + n, which must fit.
func (w Wide) Add(n uint64) Wide { return w.Plus(Wide{Lo: n}) }

// Minus returns w - v, or 0 if v is larger.
func (w Wide) Minus(v Wide) Wide {
	lo, borrow := bits.Sub64(w.Lo, v.Lo, 0)
	hi, borrow := bits.Sub64(w.Hi, v.Hi, borrow)
	if borrow != 0 {
		return Wide{}
	}
	return Wide{hi, lo}
}

// More reports whether w > v.
func (w Wide) More(v Wide) bool { return w.Hi > v.Hi || w.Hi == v.Hi && w.Lo > v.Lo }

// AtMost reports whether w <= n.
func (w Wide) AtMost(n uint64) bool { return w.Hi == 0 && w.Lo <= n }

// Min returns the lesser of w and n.
func (w Wide) Min(n uint64) uint64 {
	if w.AtMost(n) {
		return w.Lo
	}
	return n
}

// Div returns w/n rounded down, at most MaxUint64. n is not 0.
func (w Wide) Div(n uint64) uint64 {
	if w.Hi >= n {
		return math.MaxUint64
	}
	q, _ := bits.Div64(w.Hi, w.Lo, n)
	return q
}

// DivUp returns w/n rounded up, at most MaxUint64. n is not 0.
func (w Wide) DivUp(n uint64) uint64 {
	if w.Hi >= n {
		return math.MaxUint64
	}
	q, rest := bits.Div64(w.Hi, w.Lo, n)
	if rest != 0 && q < math.MaxUint64 {
		q++
	}
	return q
}

// shift returns w >> n, which must fit; n is at most 64.
func (w Wide) shift(n uint) uint64 { return w.Hi<<(64-n) | w.Lo>>n }

// MulDiv returns a*n/d rounded down. The result fits 64 bits, and d is not 0.
func MulDiv(a, n, d uint64) uint64 {
	hi, lo := bits.Mul64(a, n)
	q, _ := bits.Div64(hi, lo, d)
	return q
}

// MulDivUp returns a*n/d rounded up. The result fits 64 bits, and d is not 0.
func MulDivUp(a, n, d uint64) uint64 {
	hi, lo := bits.Mul64(a, n)
	q, rest := bits.Div64(hi, lo, d)
	if rest > 0 {
		q++
	}
	return q
}

// ProductAtMost reports whether a*b <= c*d.
func ProductAtMost(a, b, c, d uint64) bool { return !Product(a, b).More(Product(c, d)) }
