package share

import "math/bits"

// sum is a sum of 64-bit numbers that cannot overflow.
type sum struct{ hi, lo uint64 }

func (s sum) plus(n uint64) sum {
	lo, carry := bits.Add64(s.lo, n, 0)
	return sum{s.hi + carry, lo}
}

// plusProduct returns s + n*m.
func (s sum) plusProduct(n, m uint64) sum {
	hi, lo := bits.Mul64(n, m)
	s = s.plus(lo)
	s.hi += hi
	return s
}

// over returns s/n rounded down, at most MaxAmount. n is not 0.
func (s sum) over(n uint64) uint64 {
	if s.hi >= n {
		return uint64(MaxAmount)
	}
	q, _ := bits.Div64(s.hi, s.lo, n)
	return min(q, uint64(MaxAmount))
}

// atMost reports whether s <= n.
func (s sum) atMost(n uint64) bool { return s.hi == 0 && s.lo <= n }

// least returns the lesser of s and n.
func (s sum) least(n uint64) uint64 {
	if s.atMost(n) {
		return s.lo
	}
	return n
}

// shift returns s >> n, of which the caller knows that it fits; n is at most 64.
func (s sum) shift(n uint) uint64 { return s.hi<<(64-n) | s.lo>>n }

// apportion hands out an amount in proportion to parts. It gives each the difference
// between what is due to all up to it and what is due to all before it, both rounded
// down: so each gets its exact part rounded down or up, and all get the amount.
//
// The amount is at most 2^63. Where the sum of the parts is above 2^64 its lowest bits
// are disregarded: a part may then be off by 2^-63 of the amount, their sum is exact
// as ever. When the amount is at most the sum, nobody gets more than its part.
type apportion struct {
	amount, whole uint64 // whole is the sum of all parts, shifted
	shift         uint
	sofar         sum    // parts that had their turn
	given         uint64 // to them
}

func newApportion(amount uint64, parts sum) apportion {
	a := apportion{amount: amount, shift: uint(bits.Len64(parts.hi))}
	a.whole = parts.shift(a.shift)
	return a
}

// next returns what is due to a part. All parts together are not above the sum that
// was announced.
func (a *apportion) next(part uint64) uint64 {
	if part == 0 {
		return 0
	}
	a.sofar = a.sofar.plus(part)
	due := scale(a.amount, a.sofar.shift(a.shift), a.whole)
	got := due - a.given
	a.given = due
	return got
}

// scale returns a*n/d rounded down. The result fits 64 bits, and d is not 0.
func scale(a, n, d uint64) uint64 {
	hi, lo := bits.Mul64(a, n)
	q, _ := bits.Div64(hi, lo, d)
	return q
}

// scaleUp returns a*n/d rounded up. The result fits 64 bits, and d is not 0.
func scaleUp(a, n, d uint64) uint64 {
	hi, lo := bits.Mul64(a, n)
	q, rest := bits.Div64(hi, lo, d)
	if rest > 0 {
		q++
	}
	return q
}

// productAtMost reports whether a*b <= c*d.
func productAtMost(a, b, c, d uint64) bool {
	h1, l1 := bits.Mul64(a, b)
	h2, l2 := bits.Mul64(c, d)
	return h1 < h2 || h1 == h2 && l1 <= l2
}
