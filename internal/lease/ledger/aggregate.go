package ledger

import (
	"github.com/stint-io/stint/internal/fairshare"
	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/internal/lease/pool"
	"github.com/stint-io/stint/limit"
)

// Aggregate is what the instances of a site ask for together, and what the site has free of what
// its parent lends.
type Aggregate struct {
	Permits    bool           // the limit is a semaphore
	Demand     fixed.Amount   // per second; of a semaphore, permits
	Shortfall  fixed.Amount   // tokens that instances are missing and the pool does not have
	ShortUntil limit.Time     // from when on they are of no use; lease.Never = not known
	Claims     []lease.Claim  // the parts of Demand; valid until the next call
	Weight     uint32         // of all with demand
	Band       uint8          // the highest with demand
	Most       lease.Capacity // the site's own limit
	Free       lease.Capacity
	Room       fixed.Amount // the tokens that the pool can have
	Lent       lease.Capacity
}

// Aggregate sums up what the instances of a site ask for.
func (r *Resource) Aggregate(now limit.Time) Aggregate {
	p := &r.Pool
	p.Refill(now)
	sum := Aggregate{
		Free: lease.Capacity{Rate: max(0, p.Rate), Burst: p.Spare(), Tokens: max(0, p.Level)}, Room: max(0, p.Room()),
		ShortUntil: now, Permits: r.Supply.Own.Semaphore, Most: lease.Capacity{Rate: r.Supply.Own.Rate, Burst: r.Supply.Own.Burst},
	}
	r.Supply.Groups = r.Supply.Groups[:0]
	whole := r.Whole()
	for _, a := range r.accounts {
		sum.Lent = sum.Lent.Add(a.Held())
		if missing := a.Shortfall - a.unacked.Tokens; missing > 0 && now < a.shortUntil && !r.Terms.Semaphore {
			sum.Shortfall = fixed.SaturatingAdd(sum.Shortfall, missing)
			sum.ShortUntil = max(sum.ShortUntil, a.shortUntil)
		}
		want := a.Demand
		if a.Silent {
			want = whole.Amount() // an instance that reports no demand gets an equal part
		}
		r.claims, r.parts = r.claims[:0], r.parts[:0]
		r.addClaims(a, fairshare.Claimant{Want: min(want, a.most()), Weight: a.Weight, Band: a.Band})
		for _, c := range r.claims {
			r.Supply.Groups = r.Supply.Groups.Add(lease.Claim{Rate: c.Want, Weight: c.Weight, Band: c.Band})
		}
	}
	sum.Lent.Tokens = 0
	sum.Claims = r.Supply.Groups
	for _, c := range r.Supply.Groups {
		sum.Demand = fixed.SaturatingAdd(sum.Demand, c.Rate)
		sum.Weight = pool.AddWeight(sum.Weight, c.Weight)
		sum.Band = max(sum.Band, c.Band)
	}
	sum.Shortfall = max(0, min(sum.Shortfall, r.Whole().Burst)-sum.Free.Tokens)
	return sum
}
