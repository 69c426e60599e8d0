package fairshare

import "github.com/stint-io/stint/internal/fixed"

// proportional divides as Doorman's PROPORTIONAL_SHARE does, with what all want at
// this moment in place of sums of the past, and an exact sum.
//
// In overload w*capacity/SUM w would be simpler, but then a claimant that asks for more gets
// more, without end, from those that want little. Here a weight's worth is safe from
// the wants of others, and only what one leaves of it goes by want.
func proportional(capacity uint64, claims []Claimant, shares []fixed.Amount) {
	want, weights := wanted(claims)
	if want.AtMost(capacity) {
		giveWanted(claims, shares)
		return
	}
	left := capacity
	var missing fixed.Wide
	for i := range claims {
		w, weight := claims[i].want(), claims[i].weight()
		// Those with at least their part by weight get all; the others get
		// their part rounded down, which is below what they want.
		share := min(w, fixed.MulDiv(capacity, weight, weights))
		shares[i] = fixed.Amount(share)
		left -= share
		missing = missing.Add(w - share)
	}
	// More is wanted than there is, so what is left is less than what is lacking.
	extra := fixed.NewApportion(left, missing)
	for i := range claims {
		shares[i] += fixed.Amount(extra.Next(claims[i].want() - uint64(shares[i])))
	}
}

// equal divides the whole capacity by weight.
func equal(capacity uint64, claims []Claimant, shares []fixed.Amount) {
	_, weights := wanted(claims)
	parts := fixed.NewApportion(capacity, fixed.Wide{Lo: weights})
	for i := range claims {
		shares[i] = fixed.Amount(parts.Next(claims[i].weight()))
	}
}
