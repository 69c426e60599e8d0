package coordinator

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

// rotate sets the targets if the bucket is too small for everybody who wants a
// remainder, and reports whether it did.
func (r *resource) rotate(now limit.Time) bool {
	places := r.terms.Burst.Floor()
	// A rate of so few millionths cannot be divided either: some would get nothing
	// of it, for ever.
	tiny := r.terms.Rate > 0 && r.terms.Rate < fixed.Amount(len(r.accounts))*lease.Hysteresis
	wanting, silent := r.order[:0], false
	for i, a := range r.accounts {
		if r.shares[i] > 0 || tiny && (a.demand > 0 || a.silent) {
			wanting = append(wanting, a)
			silent = silent || a.silent
		}
	}
	r.order = wanting
	r.tokenByToken = false
	many := int64(len(wanting)) > places
	if places > 0 && !many && (!tiny || len(wanting) < 2) {
		r.rotation = rotation{members: r.rotation.members[:0]}
		return false
	}
	for _, a := range r.accounts {
		a.target = lease.Capacity{}
	}
	if places == 0 {
		r.rotation = rotation{members: r.rotation.members[:0]}
		return true // not a token fits: every account returns the burst of former terms
	}
	if !many || !silent && (tiny || !r.saturated || !r.allBusy(wanting, places)) {
		// The rate is enough for all but the burst is not, or some have too little demand to use
		// up their period: tokens are lent one by one, on demand. A silent instance reports no
		// demand, so it has its period.
		r.rotation, r.tokenByToken = rotation{members: r.rotation.members[:0]}, true
		if many && !tiny {
			r.lendToBusy(wanting, places, now)
		}
		return true
	}
	if now >= r.rotation.until || int64(len(r.rotation.members)) != places {
		r.nextRotation(wanting, int(places), now)
	}
	share := r.terms.Rate / fixed.Amount(places)
	for _, a := range r.rotation.members {
		a.target = lease.Capacity{Rate: share, Burst: fixed.Token}
	}
	return true
}

// busyRotations is how many times its part of the rate the demand of an account must be to hold
// all of it while others have little demand. Not less: the rate would move with each request.
const busyRotations = 8

// lendToBusy sets the targets of accounts with so much demand that single tokens would be
// too slow: they have all of the rate, as long as no other account is missing a token.
func (r *resource) lendToBusy(wanting []*account, places int64, now limit.Time) {
	busy := int64(0)
	for _, a := range wanting {
		switch {
		case a.demand/busyRotations >= r.terms.Rate/fixed.Amount(places):
			busy++
		case a.shortfall > 0 && now < a.shortUntil:
			return
		}
	}
	if busy == 0 || busy > places {
		return
	}
	for _, a := range wanting {
		if a.demand/busyRotations >= r.terms.Rate/fixed.Amount(places) {
			a.target = lease.Capacity{Rate: r.terms.Rate / fixed.Amount(busy), Burst: fixed.Whole(places / busy)}
		}
	}
}

// allBusy says whether each account has enough demand to use up a period: twice the rate that
// it holds then. With less demand the bucket would be full for a part of the period.
func (r *resource) allBusy(wanting []*account, places int64) bool {
	for _, a := range wanting {
		if a.demand/2 < r.terms.Rate/fixed.Amount(places) {
			return false
		}
	}
	return true
}

// nextRotation begins a period of a rotation of rates.
func (r *resource) nextRotation(wanting []*account, places int, now limit.Time) {
	length := max(minRotation, time.Duration(float64(rotationTokens*places)/max(r.terms.Rate.Float(), 1e-6)*float64(time.Second)))
	r.chooseNext(wanting, places, length, now)
}

// chooseNext begins a period, for the accounts that were served least, by band and weight.
func (r *resource) chooseNext(wanting []*account, places int, length time.Duration, now limit.Time) {
	slices.SortStableFunc(wanting, func(a, b *account) int {
		return cmp.Or(cmp.Compare(b.band, a.band), cmp.Compare(a.served, b.served))
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
	r.rotation.members = append(r.rotation.members[:0], wanting[:places]...)
	for _, a := range r.rotation.members {
		a.served = max(a.served, least) + fixed.Amount(length.Seconds()*float64(fixed.Token))/fixed.Amount(max(1, a.weight))
	}
	r.rotation.until = now.Add(length)
}
