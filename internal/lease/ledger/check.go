package ledger

import (
	"fmt"

	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/internal/lease"
)

// Check returns which invariant of the books does not hold, or nil. It changes nothing.
func (r *Resource) Check() error {
	p := &r.Pool
	if p.Reserved < 0 || p.Level > p.Room() {
		return fmt.Errorf("more tokens in the pool than there is room for: %+v", *p)
	}
	sum := r.Frozen
	for _, a := range r.accounts {
		h := a.Held()
		if h.Rate < 0 || h.Burst < 0 {
			return fmt.Errorf("an instance holds %+v", h)
		}
		if a.Demand < 0 || a.Shortfall < 0 || a.refundable < 0 {
			return fmt.Errorf("demand %v, shortfall %v, refundable %v", a.Demand, a.Shortfall, a.refundable)
		}
		if s := r.Suppression(a); s.Rate < 0 || s.Burst < 0 {
			return fmt.Errorf("an instance has to refuse %+v", s)
		}
		sum = sum.Add(h)
	}
	if all := r.lendable(); sum.Rate+p.Rate != all.Rate || sum.Burst+p.Burst != all.Burst {
		return fmt.Errorf("lent are %+v and free %+v, of %+v", sum, *p, lease.Capacity{Rate: all.Rate, Burst: all.Burst})
	}
	if s := r.Supply; s != nil && (s.Held.Rate < 0 || s.Held.Burst < 0 || s.Aside.Rate < 0 || s.Aside.Burst < 0 || s.Aside.Tokens < 0) {
		return fmt.Errorf("the site holds %+v, of which %+v is to be returned", s.Held, s.Aside)
	}
	if s, ok := r.divider.(*suppression); ok {
		if b := s.bucket; !(s.reject >= 0 && s.reject <= 1) || b.Level < 0 || b.Level > fixed.SaturatingAdd(b.Burst, b.Rate) || s.spilled < 0 || s.capacity < 0 || s.demand < 0 {
			return fmt.Errorf("rejecting %v, %+v, %v spilled, %v wanted of %v", s.reject, b, s.spilled, s.demand, s.capacity)
		}
	}
	return nil
}

// Lent is the rate and the burst that all accounts hold.
func (r *Resource) Lent() lease.Capacity {
	var sum lease.Capacity
	for _, a := range r.accounts {
		sum = sum.Add(a.Held())
	}
	sum.Tokens = 0
	return sum
}

// lendable is what the pool and all accounts have together.
func (r *Resource) lendable() lease.Capacity {
	if r.Supply != nil {
		return r.Supply.Held.Sub(r.Supply.Aside)
	}
	return r.Terms.Lendable()
}
