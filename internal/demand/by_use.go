package demand

import "github.com/stint-io/stint/internal/fixed"

// usualReserve is the part of what is held that may be unused while more may be wanted. It
// is the tolerance of the max-rate rule, so that both judge an instance alike.
const usualReserve = 0.1

// WantedByUse estimates what an instance wants when only what it was admitted is known,
// per second, out of what it held. One that uses more than 1 - tolerance of it wants
// growth times as much, or what it was admitted if that is more; another wants as much
// as makes what it uses 1 - tolerance of it. An instance that is given what it wants is not busy after it
// unless it uses more, so it does not swing. One that holds nothing wants nothing,
// however long it waits: its caller has to know better.
//
// A tolerance that is not above 0 and at most 1 counts as 0.1; a growth that is not above
// 1 counts as 1.5, and is at most 1,000. The result is at most [fixed.MaxAmount].
func WantedByUse(held, admitted fixed.Amount, tolerance, growth float64) fixed.Amount {
	if !(growth > 1) {
		growth = 1.5
	}
	one := uint64(fixed.Token)
	used := one - min(fixed.Fraction(tolerance, usualReserve, 1), one-1)
	h, a := fixed.Clamp(held), fixed.Clamp(admitted)
	if !fixed.ProductAtMost(a, one, h, used) {
		grown := fixed.Amount(h).Scale(fixed.Amount(min(growth, 1000)*float64(one)), fixed.Token)
		return max(grown, fixed.Amount(a))
	}
	// Rounded up, so that a use that stays is not above the tolerance after it. It
	// is not above what is held.
	return fixed.Amount(fixed.MulDivUp(a, one, used))
}
