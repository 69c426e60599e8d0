package coordinator

import (
	"cmp"
	"slices"
	"time"

	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/limit"
)

// rotationTokens is how many tokens come in one turn. Not fewer: a move costs a round
// trip in which the rate is nobody's. Not more: the others wait that long.
const rotationTokens = 8

// minRotation bounds turns at high rates, for the same reason.
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
		return true // not a token fits: nobody keeps the depth of a former burst
	}
	if !many || !silent && (tiny || !r.saturated || !r.allBusy(wanting, places)) {
		// There is enough for all but not at once, or some ask too seldom to
		// use a turn: tokens are lent one by one to whoever asks. A silent one
		// does not ask, so it has its turn.
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

// busyRotations is how many times its part of a turn one must want to be lent all of it
// while others ask seldom. Not less: the rate would wander with each request.
const busyRotations = 8

// lendToBusy sets the targets of those who ask so often that single tokens would be
// too slow, as long as nobody else lacks one: then they have all of it.
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

// allBusy says whether each of them asks often enough to use up a turn: twice as
// often as tokens come in it. One that asks less often finds the bucket full.
func (r *resource) allBusy(wanting []*account, places int64) bool {
	for _, a := range wanting {
		if a.demand/2 < r.terms.Rate/fixed.Amount(places) {
			return false
		}
	}
	return true
}

// nextRotation begins a turn of rates.
func (r *resource) nextRotation(wanting []*account, places int, now limit.Time) {
	length := max(minRotation, time.Duration(float64(rotationTokens*places)/max(r.terms.Rate.Float(), 1e-6)*float64(time.Second)))
	r.chooseNext(wanting, places, length, now)
}

// chooseNext begins a turn of those who had least, by weight and band.
func (r *resource) chooseNext(wanting []*account, places int, length time.Duration, now limit.Time) {
	slices.SortStableFunc(wanting, func(a, b *account) int {
		return cmp.Or(cmp.Compare(b.band, a.band), cmp.Compare(a.served, b.served))
	})
	// A newcomer starts level with the one who had least, not at zero: it would
	// have every turn until it had caught up.
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
