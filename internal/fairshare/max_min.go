package fairshare

import "github.com/stint-io/stint/internal/fixed"

// contender takes part in a division by levels.
type contender struct {
	amount uint64 // what it wants
	weight uint64
	index  int // of its claim
}

// band is what is known of the claims of one priority.
type band struct {
	want  fixed.Wide
	count int
	start int    // among the contenders
	share uint64 // of the band as a whole
}

// maxMin divides by weighted max-min fairness within a band, and from band to band by
// priority and guarantees.
//
// A band's whole share needs only the sum of what its members want. Serving first the
// guarantee and then the rest by max-min within the band comes to the same as
// dividing both at once: the level just rises on.
func (a *Allocator) maxMin(capacity uint64, claims []Claimant, shares []fixed.Amount) {
	if len(claims) == 0 {
		return
	}
	want, _ := wanted(claims)
	if want.AtMost(capacity) {
		giveWanted(claims, shares)
		return
	}
	oneBand := true
	for i := range claims {
		if claims[i].Band != claims[0].Band {
			oneBand = false
			break
		}
	}
	if oneBand {
		// A guarantee could only give the band what it gets anyway.
		group := a.contenders[:0]
		for i := range claims {
			group = append(group, contender{claims[i].want(), claims[i].weight(), i})
		}
		a.contenders = group
		fill(group, capacity, shares)
		return
	}
	a.group(claims)
	a.shareBands(capacity)
	for i := range a.bands {
		if b := &a.bands[i]; b.count > 0 {
			fill(a.contenders[b.start:b.start+b.count], b.share, shares)
		}
	}
}

// group sorts the claims by band, in one pass over them for each of counting and
// placing.
func (a *Allocator) group(claims []Claimant) {
	if a.bands == nil {
		a.bands = make([]band, 256)
	}
	clear(a.bands)
	for i := range claims {
		b := &a.bands[claims[i].Band]
		b.want = b.want.Add(claims[i].want())
		b.count++
	}
	start := 0
	for i := range a.bands {
		b := &a.bands[i]
		b.start = start
		start += b.count
		b.count = 0
	}
	if cap(a.contenders) < len(claims) {
		a.contenders = make([]contender, len(claims))
	}
	a.contenders = a.contenders[:len(claims)]
	for i := range claims {
		b := &a.bands[claims[i].Band]
		a.contenders[b.start+b.count] = contender{claims[i].want(), claims[i].weight(), i}
		b.count++
	}
}

// shareBands finds the share of each band: the guarantees from the highest band down,
// then what is left from the highest band down.
func (a *Allocator) shareBands(capacity uint64) {
	var guarantees [256]uint64
	for _, g := range a.Guarantees {
		guarantees[g.Band] = fixed.Clamp(g.Amount)
	}
	for i := len(a.bands) - 1; i >= 0; i-- {
		b := &a.bands[i]
		b.share = min(b.want.Min(guarantees[i]), capacity)
		capacity -= b.share
	}
	for i := len(a.bands) - 1; i >= 0; i-- {
		b := &a.bands[i]
		more := min(b.want.Min(b.share+capacity)-b.share, capacity)
		b.share += more
		capacity -= more
	}
}

// fill divides an amount: it raises one level, in amount per weight, until the amount
// is used up, and no claimant gets more than it wants. It uses the group up.
//
// The level amount/weights is never above the final one, so a claimant that wants no more than
// that is served in full and leaves; what it leaves over raises the level for the
// others, at once, within the same pass. When a pass serves none, the rest share what
// is left by weight.
//
// Nothing is sorted: the few passes that demands need, each over those that are left
// only, take less than a tenth of the time of a sort of 10,000. There are no demands
// that need a pass for each claim: from pass to pass the level rises by no more than
// the last rise times the weight that left over the weight that stayed, so a pass sheds
// a third of the weight or halves the rise, and the rise ends at the resolution.
func fill(group []contender, amount uint64, shares []fixed.Amount) {
	var weights uint64
	for i := range group {
		weights += group[i].weight
	}
	for served := true; served; {
		rest := group[:0]
		for _, c := range group {
			if fixed.ProductAtMost(c.amount, weights, amount, c.weight) {
				shares[c.index] = fixed.Amount(c.amount)
				amount -= c.amount
				weights -= c.weight
			} else {
				rest = append(rest, c)
			}
		}
		served = len(rest) < len(group)
		group = rest
	}
	byWeight(group, amount, weights, shares)
}

// byWeight divides the whole amount by weight.
func byWeight(group []contender, amount, weights uint64, shares []fixed.Amount) {
	parts := fixed.NewApportion(amount, fixed.Wide{Lo: weights})
	for i := range group {
		shares[group[i].index] = fixed.Amount(parts.Next(group[i].weight))
	}
}
