package fairshare

import "github.com/stint-io/stint/internal/fixed"

const (
	usualTolerance = 0.1
	usualChange    = 0.01
	// maxTolerance keeps what one at rest holds, 1/(1 - 2*tolerance) of what it
	// uses, within 64 bits.
	maxTolerance = 0.4
	maxChange    = 0.5
)

// busy divides by the max-rate rule of Hermes: claimants that leave a part of their share
// unused give to those that use all of theirs.
//
//  1. More is held than the capacity, as after a cut: all shares shrink in proportion.
//  2. A claimant is busy when it uses more than 1 - tolerance of its share, or when it
//     joins: it holds nothing and wants something. When none is busy, all shares grow in
//     proportion into what is free, and nothing else changes.
//  3. A claimant that is not busy and uses the part u of its share keeps 2u/(1+u) of it,
//     and at least what makes it use 1 - 2*tolerance. That is the hysteresis: after giving
//     it is not busy, so it takes nothing back, and at rest it gives nothing more.
//  4. When the busy claimants together still have less than their part of the capacity by
//     weight, those that are not busy and above their own part give too. Otherwise a
//     claimant that joins a fleet at rest would get nothing.
//  5. When a busy claimant is farther than the change that is worth a move from the equal
//     part of all busy ones, those above it give.
//  6. What was given and what was free goes to the other busy claimants, to those with the
//     least per weight first. So one that joins is served from what is free and from those
//     that are not busy, and by the busy ones only in the steps by which they become equal
//     anyway. No share is reset.
//
// In 4 and 5 a claimant gives m/2 * (1-s)/(1+s) of its share m, where s is its part of the
// whole, at least the change and at most what it is above.
//
// Why it settles while demands stay: giving by 3 happens once, because a claimant at rest
// does not become busy by it; giving by 4 and 5 goes down to an equal part and not below
// it, and receiving goes up to it and not above, so the distances only shrink, by at least
// the change in each step.
//
// There is no floor: a share may be any number of millionths, so limits below the number
// of instances work, and a limit of 0 gives 0.
func (a *Allocator) busy(capacity uint64, claims []Claimant, shares []fixed.Amount) {
	var held fixed.Sum
	for i := range claims {
		has := fixed.Clamp(claims[i].Has)
		shares[i] = fixed.Amount(has)
		held = held.Add(has)
	}
	if !held.AtMost(capacity) {
		stretch(capacity, held, shares)
		held = fixed.Sum{Lo: capacity}
	}
	tolerance := fixed.Fraction(a.BusyTolerance, usualTolerance, maxTolerance)
	change := fixed.Fraction(a.BusyChange, usualChange, maxChange)

	group := a.contenders[:0]
	var weights, had uint64 // of the busy
	for i := range claims {
		if m := uint64(shares[i]); isBusy(&claims[i], m, tolerance) {
			group = append(group, contender{m, claims[i].weight(), i})
			weights += claims[i].weight()
			had += m
		}
	}
	a.contenders = group
	if len(group) == 0 {
		if held.Lo > 0 {
			stretch(capacity, held, shares)
		}
		return
	}
	free := capacity - held.Lo
	free += takeUnused(claims, shares, tolerance, change)
	_, all := wanted(claims)
	if part := fixed.MulDiv(capacity, weights, all); had+free < part-fixed.MulDiv(part, change, uint64(fixed.Token)) {
		free += takeAbove(capacity, all, claims, shares, tolerance, change)
	}
	balance(group, weights, had+free, free, shares, change)
}

// isBusy reports whether a claim that holds m is busy.
func isBusy(c *Claimant, m, tolerance uint64) bool {
	used := fixed.Clamp(c.Used)
	if m == 0 {
		return used > 0 || c.want() > 0
	}
	return !fixed.ProductAtMost(used, uint64(fixed.Token), m, uint64(fixed.Token)-tolerance)
}

// takeUnused takes from claimants that are not busy what they do not use.
func takeUnused(claims []Claimant, shares []fixed.Amount, tolerance, change uint64) (given uint64) {
	for i := range claims {
		m, used := uint64(shares[i]), fixed.Clamp(claims[i].Used)
		if m == 0 || isBusy(&claims[i], m, tolerance) {
			continue
		}
		resting := fixed.MulDivUp(used, uint64(fixed.Token), uint64(fixed.Token)-2*tolerance)
		keeps := max(fixed.MulDiv(m, 2*used, m+used), resting)
		if keeps < m && m-keeps > fixed.MulDiv(m, change, uint64(fixed.Token)) {
			shares[i] = fixed.Amount(keeps)
			given += m - keeps
		}
	}
	return given
}

// takeAbove takes from claimants that are not busy and hold more than their part of the
// capacity by weight.
func takeAbove(capacity, weights uint64, claims []Claimant, shares []fixed.Amount, tolerance, change uint64) (given uint64) {
	for i := range claims {
		m := uint64(shares[i])
		if isBusy(&claims[i], m, tolerance) {
			continue
		}
		step := above(m, fixed.MulDivUp(capacity, claims[i].weight(), weights), capacity, change)
		shares[i] -= fixed.Amount(step)
		given += step
	}
	return given
}

// balance divides what the busy have, and what is free, among them. It uses the group
// up. Together that is pool.
func balance(group []contender, weights, pool, free uint64, shares []fixed.Amount, change uint64) {
	uneven := false
	for _, c := range group {
		low, high := fixed.MulDiv(pool, c.weight, weights), fixed.MulDivUp(pool, c.weight, weights)
		// A unit is what rounding makes of equal parts.
		worth := max(1, fixed.MulDiv(low, change, uint64(fixed.Token)))
		if c.amount+worth < low || c.amount > high+worth {
			uneven = true
			break
		}
	}
	if !uneven && free == 0 {
		return
	}
	rest := group[:0]
	for _, c := range group {
		given := uint64(0)
		if uneven {
			given = above(c.amount, fixed.MulDivUp(pool, c.weight, weights), pool, change)
		}
		if given == 0 {
			rest = append(rest, c)
			continue
		}
		shares[c.index] = fixed.Amount(c.amount - given)
		free += given
	}
	if free > 0 {
		raise(rest, free, shares)
	}
}

// above is what one gives that holds m, which may be above its part of the whole. The
// part is rounded up.
func above(m, part, whole, change uint64) uint64 {
	if m <= part {
		return 0
	}
	step := fixed.MulDiv(m, whole-m, whole+m) / 2
	return min(m-part, max(step, fixed.MulDiv(m, change, uint64(fixed.Token)), 1))
}

// stretch makes the shares, which sum to held, sum to capacity, in proportion.
func stretch(capacity uint64, held fixed.Sum, shares []fixed.Amount) {
	parts := fixed.NewApportion(capacity, held)
	for i := range shares {
		shares[i] = fixed.Amount(parts.Next(uint64(shares[i])))
	}
}
