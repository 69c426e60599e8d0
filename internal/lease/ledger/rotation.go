package ledger

import (
	"cmp"
	"slices"
	"time"

	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/limit"
)

// rotationTrips is how many round trips one period of a rotation has. Each change costs one, in which no instance has
// the rate, so 20 leave 0.95 of it; and the other instances wait that long.
const rotationTrips = 20

// minRotation is the shortest period of a rotation of permits, and that of rates until a round trip was measured.
const minRotation = 2 * time.Second

// longestPermits bounds the period of a rotation of permits: what is measured as a trip has some of the time for which a
// permit was still in use.
const longestPermits = 5 * minRotation

// shortestRotation is the shortest period of a rotation of rates: each change is some messages for each token of the burst.
const shortestRotation = 250 * time.Millisecond

// mostSingleTokens is up to how many tokens per second an instance is lent single tokens, each with messages of its own.
const mostSingleTokens = 4 * fixed.Token

// roundTrip is from a grant to its acknowledgment, or from a cap until the instance has come down to it: the shortest
// of late, since an acknowledgment may wait for something else to report. Of permits it is from a cap alone: a site
// acknowledges at once, and returns a permit after a trip for each level below it.
type roundTrip time.Duration

func (t *roundTrip) observe(d time.Duration) {
	if *t == 0 || d < time.Duration(*t) {
		*t = roundTrip(max(d, time.Microsecond))
	}
	*t += (roundTrip(d) - *t) / 64
}

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
	if !many || !silent && (tiny || !r.Saturated || r.singleTokens(tokens) || !r.allBusy(wanting, tokens)) {
		// The rate is enough for all but the burst is not, tokens are so few that single ones cost next to nothing, or
		// some have too little demand to use up their period: tokens are lent one by one, on demand. A silent instance
		// reports no demand, so it has its period.
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

// singleTokens says whether tokens come so seldom that each can be lent by itself: its burst is missing here for a round
// trip.
func (r *Resource) singleTokens(tokens int64) bool {
	share := r.Terms.Rate / fixed.Amount(tokens)
	return share <= mostSingleTokens && share.Float()*time.Duration(r.trip).Seconds()*rotationTrips <= 1
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
	length := rotationTrips * time.Duration(r.trip)
	if r.trip == 0 {
		length = minRotation
	}
	// One token more, so that each instance has one in its turn at least.
	length = max(shortestRotation, length+time.Duration(float64(tokens)/max(r.Terms.Rate.Float(), 1e-6)*float64(time.Second)))
	r.chooseNext(wanting, tokens, length, now)
}

// turn is one period of a rotation in Account.served, which is divided by weights. Turns are counted and not their
// length, which varies: those with shorter ones would come back sooner, and others wait for two rounds.
const turn = fixed.Amount(1) << 32

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
		a.served = max(a.served, least) + turn/fixed.Amount(max(1, a.Weight))
	}
	r.Rotation.Until = now.Add(length)
}
