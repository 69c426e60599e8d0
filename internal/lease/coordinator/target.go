package coordinator

import (
	"math"

	"github.com/stint-io/stint/internal/fairshare"
	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/internal/lease"
)

// targetOwn gives each account a limit of its own.
func (r *resource) targetOwn() {
	for i, a := range r.accounts {
		a.target = lease.Capacity{}
		if r.terms.Allocation == fairshare.Static {
			// One that wants nothing keeps what it has: nobody else can lack it.
			h := a.held()
			a.target = lease.Capacity{Rate: min(h.Rate, r.terms.Rate), Burst: min(h.Burst, r.terms.Burst)}
		}
		if r.shares[i] > 0 && r.terms.Semaphore {
			a.target.Burst = (r.shares[i] + fixed.Token - 1) / fixed.Token * fixed.Token
		} else if r.shares[i] > 0 {
			// One that wants everything must not take what stands for no limit.
			a.target = lease.Capacity{Rate: min(r.shares[i], lease.Unlimited>>16), Burst: r.terms.Burst}
			if r.terms.Allocation == fairshare.Static {
				// All of it at once: nobody else can lack it.
				a.target.Rate = r.terms.Rate
			}
		}
	}
	r.contended, r.saturated = false, false
}

// lendOwn lends each account what it lacks of a limit of its own, with the tokens that are
// left of it.
func (r *resource) lendOwn() {
	for _, a := range r.accounts {
		if a.own == nil {
			continue
		}
		a.refillOwn()
		h, p := a.held(), a.own
		g := lease.Capacity{Rate: max(0, min(a.target.Rate-h.Rate, p.rate)), Burst: max(0, min(a.target.Burst-h.Burst, p.spare()))}
		if g.Burst > 0 {
			g.Tokens = max(0, min(p.level, g.Burst))
		}
		a.grant(g)
	}
}

// targetRates gives each account its part of the rate, some of what nobody wants as
// head-room, and the depth that belongs to the rate.
func (r *resource) targetRates() {
	capacity, burst := r.terms.Rate, r.terms.Burst
	shared := fixed.Amount(0)
	active := fixed.Amount(0)
	for _, s := range r.shares {
		shared = fixed.SaturatingAdd(shared, s)
		if s > 0 {
			active++
		}
	}
	// Half of what nobody wants stays in the pool, where it is nearest to all.
	spare := max(0, capacity-shared) / 2
	least := fixed.Token
	if burst >= 2*fixed.Token*active {
		// Two tokens: with one, an arrival a moment early would find none.
		least = 2 * fixed.Token
	}
	rest := burst - least*active
	// What depth the rates leave is head-room as well: half of it, in equal parts,
	// for demand that is not known yet.
	room := fixed.Amount(0)
	if active > 0 && rest > 0 && !r.contended {
		room = (rest - rest.Scale(min(shared, capacity), max(capacity, 1))) / 2 / active / fixed.Token * fixed.Token
	}
	weights := fixed.Amount(0)
	for i, a := range r.accounts {
		weights += burstWeight(r.shares[i], a.demand)
	}
	for i, a := range r.accounts {
		s := r.shares[i]
		a.target = lease.Capacity{}
		if s == 0 {
			continue
		}
		a.target.Rate = s
		if spare > 0 && !a.silent && !r.contended {
			a.target.Rate += min(s-s/4, spare.Scale(s, shared))
		}
		switch {
		case r.contended:
			a.target.Burst = least + rest.Scale(burstWeight(s, a.demand), weights)/fixed.Token*fixed.Token
		case capacity > 0:
			a.target.Burst = least + room + rest.Scale(min(s, capacity), capacity)/fixed.Token*fixed.Token
		}
	}
}

// burstWeight is how much depth is worth to an account when there is little. A bucket
// of depth K that is fed as fast as random arrivals ask it loses one part in 2K
// of its rate s, so the sum of losses is least where depth goes by the square root of
// the rate. One who wants far more than it gets has its bucket empty whatever its
// burst.
func burstWeight(s, want fixed.Amount) fixed.Amount {
	w := fixed.Amount(math.Sqrt(float64(s)))
	if want-want/16 > s {
		return w / 8
	}
	return w
}
