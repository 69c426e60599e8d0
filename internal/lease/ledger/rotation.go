package ledger

import (
	"cmp"
	"slices"
	"time"

	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/limit"
)

// rotationTokens is how many tokens are refilled in one period of a rotation. Not fewer: each
// change costs a round trip in which no instance has the rate. Not more: the others wait that long.
const rotationTokens = 8

// minRotation is the shortest period of a rotation, for high rates and the same reason.
const minRotation = 2 * time.Second

// rotate sets the targets if the bucket has fewer tokens than there are accounts with demand,
// and reports whether it did.
func (r *Resource) rotate(now limit.Time) bool {
	tokens := r.Terms.Burst.Floor()
	// A rate of so few millionths cannot be divided either: some would get nothing
	// of it, for ever.
	tiny := r.Terms.Rate > 0 && r.Terms.Rate < fixed.Amount(len(r.accounts))*lease.Hysteresis
	wanting, silent := r.order[:0], false
	for i, a := range r.accounts {
		if r.shares[i] > 0 || tiny && (a.Demand > 0 || a.Silent) {
			wanting = append(wanting, a)
			silent = silent || a.Silent
		}
	}
	r.order = wanting
	r.tokenByToken = false
	many := int64(len(wanting)) > tokens
	if tokens > 0 && !many && (!tiny || len(wanting) < 2) {
		r.Rotation = Rotation{Members: r.Rotation.Members[:0]}
		return false
	}
	for _, a := range r.accounts {
		a.target = lease.Capacity{}
	}
	if tokens == 0 {
		r.Rotation = Rotation{Members: r.Rotation.Members[:0]}
		return true // not a token fits: every account returns the burst of former terms
	}
	if !many || !silent && (tiny || !r.Saturated || !r.allBusy(wanting, tokens)) {
		// The rate is enough for all but the burst is not, or some have too little demand to use
		// up their period: tokens are lent one by one, on demand. A silent instance reports no
		// demand, so it has its period.
		r.Rotation, r.tokenByToken = Rotation{Members: r.Rotation.Members[:0]}, true
		if many && !tiny {
			r.lendToBusy(wanting, tokens, now)
		}
		return true
	}
	if now >= r.Rotation.Until || int64(len(r.Rotation.Members)) != tokens {
		r.nextRotation(wanting, int(tokens), now)
	}
	share := r.Terms.Rate / fixed.Amount(tokens)
	for _, a := range r.Rotation.Members {
		a.target = lease.Capacity{Rate: share, Burst: fixed.Token}
	}
	return true
}

// busyRotations is how many times its part of the rate the demand of an account must be to hold
// all of it while others have little demand. Not less: the rate would move with each request.
const busyRotations = 8

// lendToBusy sets the targets of accounts with so much demand that single tokens would be
// too slow: they have all of the rate, as long as no other account is missing a token.
func (r *Resource) lendToBusy(wanting []*Account, tokens int64, now limit.Time) {
	busy := int64(0)
	for _, a := range wanting {
		switch {
		case a.Demand/busyRotations >= r.Terms.Rate/fixed.Amount(tokens):
			busy++
		case a.Shortfall > 0 && now < a.shortUntil:
			return
		}
	}
	if busy == 0 || busy > tokens {
		return
	}
	for _, a := range wanting {
		if a.Demand/busyRotations >= r.Terms.Rate/fixed.Amount(tokens) {
			a.target = lease.Capacity{Rate: r.Terms.Rate / fixed.Amount(busy), Burst: fixed.Whole(tokens / busy)}
		}
	}
}

// allBusy says whether each account has enough demand to use up a period: twice the rate that
// it holds then. With less demand the bucket would be full for a part of the period.
func (r *Resource) allBusy(wanting []*Account, tokens int64) bool {
	for _, a := range wanting {
		if a.Demand/2 < r.Terms.Rate/fixed.Amount(tokens) {
			return false
		}
	}
	return true
}

// nextRotation begins a period of a rotation of rates.
func (r *Resource) nextRotation(wanting []*Account, tokens int, now limit.Time) {
	length := max(minRotation, time.Duration(float64(rotationTokens*tokens)/max(r.Terms.Rate.Float(), 1e-6)*float64(time.Second)))
	r.chooseNext(wanting, tokens, length, now)
}

// chooseNext begins a period, for the accounts that were served least, by band and weight.
func (r *Resource) chooseNext(wanting []*Account, tokens int, length time.Duration, now limit.Time) {
	slices.SortStableFunc(wanting, func(a, b *Account) int {
		return cmp.Or(cmp.Compare(b.Band, a.Band), cmp.Compare(a.served, b.served))
	})
	// A new account starts level with the one that was served least. From zero it would be in
	// every period until it had caught up.
	least := wanting[0].served
	for _, a := range wanting {
		if a.served > 0 {
			least = a.served
			break
		}
	}
	r.Rotation.Members = append(r.Rotation.Members[:0], wanting[:tokens]...)
	for _, a := range r.Rotation.Members {
		a.served = max(a.served, least) + fixed.Amount(length.Seconds()*float64(fixed.Token))/fixed.Amount(max(1, a.Weight))
	}
	r.Rotation.Until = now.Add(length)
}
