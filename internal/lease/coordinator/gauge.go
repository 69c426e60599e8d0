package coordinator

import (
	"cmp"
	"slices"

	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/limit"
)

// targetPlaces makes whole places of the parts. What the rounding leaves goes to those
// who want more; if they are more than there is left, in turns.
func (r *resource) targetPlaces(now limit.Time) {
	left := r.capacity()
	for i, a := range r.accounts {
		a.target = lease.Capacity{Depth: r.shares[i] / fixed.Token * fixed.Token}
		left -= a.target.Depth
	}
	wanting := r.order[:0]
	for i, a := range r.accounts {
		if a.target.Depth < a.want && r.shares[i] > 0 || a.silent && a.target.Depth < r.shares[i] {
			wanting = append(wanting, a)
		}
	}
	r.order = wanting
	places := int(max(0, left.Floor()))
	if places == 0 || len(wanting) <= places {
		r.turns = turns{on: r.turns.on[:0]}
	} else if r.turnIsOver(wanting, places, now) {
		r.chooseNext(wanting, places, shortestTurn, now)
		wanting = r.turns.on
	} else {
		wanting = r.turns.on
	}
	for _, a := range wanting[:min(places, len(wanting))] {
		a.target.Depth += fixed.Token
	}
}

// turnIsOver says whether others are to have the places, because of the time or since
// one whose turn it is does not want its place.
func (r *resource) turnIsOver(wanting []*account, places int, now limit.Time) bool {
	if now >= r.turns.until || len(r.turns.on) != places {
		return true
	}
	for _, a := range r.turns.on {
		if !slices.Contains(wanting, a) {
			return true
		}
	}
	return false
}

// raisePlaces lends free places up to the targets: those who have fewest first.
func (r *resource) raisePlaces() {
	list := r.order[:0]
	for _, a := range r.accounts {
		if a.held().Depth < a.target.Depth {
			list = append(list, a)
		}
	}
	r.order = list
	slices.SortStableFunc(list, func(a, b *account) int {
		return cmp.Or(cmp.Compare(b.band, a.band), cmp.Compare(a.held().Depth, b.held().Depth))
	})
	for _, a := range list {
		free := max(0, r.pool.depth) / fixed.Token * fixed.Token
		// Places have no tokens in them.
		a.grant(lease.Capacity{Depth: min(a.target.Depth-a.held().Depth, free)})
	}
}
