package ledger

import (
	"cmp"
	"slices"

	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/limit"
)

// Round divides the limit anew and moves what can be moved at once: it lends what is free to
// accounts below their target, and revokes from accounts above theirs if others are short of
// it. A panic stays within the resource: it lends nothing more until its terms change,
// and its instances are sent StatusBroken. It returns when the next round is due if no report
// comes before, or lease.Never.
func (r *Resource) Round(now limit.Time) (next limit.Time) {
	defer func() {
		if recover() != nil {
			r.Broken, next = true, lease.Never
			for _, a := range r.accounts {
				a.Pending, a.Status = true, lease.StatusBroken
			}
		}
	}()
	r.Pool.Refill(now)
	r.Supply.Reclaim(&r.Pool)
	r.divider.targets(r, now)
	next = r.divider.lend(r, now)
	r.revoke()
	return next
}

// revoke gives a cap to accounts that hold more than their target, if others are short of it
// or the limit became smaller. If no account is short, an uneven distribution is left alone.
// As few accounts as possible get a cap on their rate: first those that hold the most above
// their target, in relation to it.
func (r *Resource) revoke() {
	var short lease.Capacity
	for _, a := range r.accounts {
		short = short.SaturatingAdd(r.shortOf(a))
	}
	if r.tokenByToken {
		short.Rate = r.Terms.Rate // tokens come to the pool only where the rate is
	}
	short, whole := r.divider.short(r, short)
	owed := r.Supply.Owed()
	short.Rate = fixed.SaturatingAdd(short.Rate, owed.Rate)
	short.Burst = fixed.SaturatingAdd(max(short.Burst, -r.Pool.Burst), owed.Burst)
	if need := short.Rate - r.Pool.Rate; need > 0 {
		above := r.order[:0]
		for _, a := range r.accounts {
			if a.Held().Rate > a.target.Rate {
				above = append(above, a)
			}
		}
		r.order = above
		slices.SortStableFunc(above, func(a, b *Account) int { return cmp.Compare(b.reached(), a.reached()) })
		for i := 0; i < len(above) && need > 0; i++ {
			above[i].gives = true
			need -= above[i].Held().Rate - above[i].target.Rate
		}
	}
	for _, a := range r.accounts {
		h := a.Held()
		capRate, capBurst := fixed.MaxAmount, fixed.MaxAmount
		if over := h.Rate - a.target.Rate; over > 0 && (a.gives || short.Rate > 0 && over > a.target.Rate/lease.Hysteresis) {
			capRate = a.target.Rate
		}
		a.gives = false
		// Tokens that were lent without a rate are returned when they are used, or soon if
		// they are not.
		tokens := h.Rate == 0 && a.target.Rate == 0 && r.Pool.Burst >= 0 && !whole
		if h.Burst > a.target.Burst && short.Burst > 0 && !tokens {
			capBurst = a.target.Burst
		}
		if r.Pool.Rate >= 0 && a.CapRate < h.Rate && (capRate == fixed.MaxAmount && a.target.Rate < h.Rate || capRate != fixed.MaxAmount && fixed.Near(capRate, a.CapRate, lease.Hysteresis)) {
			capRate = a.CapRate // the cap was sent already, and the report that follows it has not arrived
		}
		if capRate == a.CapRate && capBurst == a.CapBurst {
			continue
		}
		a.caps = caps{capRate, capBurst, r.Pool.At}
		if capRate != fixed.MaxAmount || capBurst != fixed.MaxAmount {
			a.Pending = true
		}
	}
}
