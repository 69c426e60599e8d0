package fixed

import "math/bits"

// Sum is a sum of 64-bit numbers that cannot overflow.
type Sum struct{ Hi, Lo uint64 }

// Add returns s + n.
func (s Sum) Add(n uint64) Sum {
	lo, carry := bits.Add64(s.Lo, n, 0)
	return Sum{s.Hi + carry, lo}
}

// AddProduct returns s + n*m.
func (s Sum) AddProduct(n, m uint64) Sum {
	hi, lo := bits.Mul64(n, m)
	s = s.Add(lo)
	s.Hi += hi
	return s
}

// Div returns s/n rounded down, at most MaxAmount. n is not 0.
func (s Sum) Div(n uint64) uint64 {
	if s.Hi >= n {
		return uint64(MaxAmount)
	}
	q, _ := bits.Div64(s.Hi, s.Lo, n)
	return min(q, uint64(MaxAmount))
}

// AtMost reports whether s <= n.
func (s Sum) AtMost(n uint64) bool { return s.Hi == 0 && s.Lo <= n }

// least returns the lesser of s and n.
func (s Sum) Min(n uint64) uint64 {
	if s.AtMost(n) {
		return s.Lo
	}
	return n
}

// shift returns s >> n, of which the caller knows that it fits; n is at most 64.
func (s Sum) shift(n uint) uint64 { return s.Hi<<(64-n) | s.Lo>>n }

// Apportion hands out an amount in proportion to parts. It gives each the difference
// between what is due to all up to it and what is due to all before it, both rounded
// down: so each gets its exact part rounded down or up, and all get the amount.
//
// The amount is at most 2^63. Where the sum of the parts is above 2^64 its lowest bits
// are disregarded: a part may then be off by 2^-63 of the amount, their sum is exact
// as ever. When the amount is at most the sum, nobody gets more than its part.
type Apportion struct {
	amount, whole uint64 // whole is the sum of all parts, shifted
	shift         uint
	sofar         Sum    // parts that had their turn
	given         uint64 // to them
}

func NewApportion(amount uint64, parts Sum) Apportion {
	a := Apportion{amount: amount, shift: uint(bits.Len64(parts.Hi))}
	a.whole = parts.shift(a.shift)
	return a
}

// Next returns what is due to a part. All parts together are not above the sum that
// was announced.
func (a *Apportion) Next(part uint64) uint64 {
	if part == 0 {
		return 0
	}
	a.sofar = a.sofar.Add(part)
	due := MulDiv(a.amount, a.sofar.shift(a.shift), a.whole)
	got := due - a.given
	a.given = due
	return got
}

// scale returns a*n/d rounded down. The result fits 64 bits, and d is not 0.
func MulDiv(a, n, d uint64) uint64 {
	hi, lo := bits.Mul64(a, n)
	q, _ := bits.Div64(hi, lo, d)
	return q
}

// scaleUp returns a*n/d rounded up. The result fits 64 bits, and d is not 0.
func MulDivUp(a, n, d uint64) uint64 {
	hi, lo := bits.Mul64(a, n)
	q, rest := bits.Div64(hi, lo, d)
	if rest > 0 {
		q++
	}
	return q
}

// ProductAtMost reports whether a*b <= c*d.
func ProductAtMost(a, b, c, d uint64) bool {
	h1, l1 := bits.Mul64(a, b)
	h2, l2 := bits.Mul64(c, d)
	return h1 < h2 || h1 == h2 && l1 <= l2
}
