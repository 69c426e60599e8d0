package fixed

import "math/bits"

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
	sofar         Wide   // parts that had their turn
	given         uint64 // to them
}

func NewApportion(amount uint64, parts Wide) Apportion {
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
