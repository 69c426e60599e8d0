package spending

import (
	"context"
	"fmt"

	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/store"
)

// owe charges a part whether it fits or not. A key that comes seldom is asked for first. An error says that it could not
// be charged: no lease can be had.
func (s *Store) owe(ctx context.Context, p *part) error {
	c := p.charge
	if !c.Shadow { // its refusal stands
		defer func(v limit.Verdict, failed bool) { c.Verdict, c.Failed = v, failed }(c.Verdict, c.Failed)
	}
	c.Failed, c.Verdict = false, limit.Verdict{Allowed: true, Remaining: p.own.quota}
	if p.entry == nil {
		p.entry = s.known(p.to, c.Key)
	}
	if p.entry == nil && s.asker != nil && len(p.to.key) > 0 && !p.to.semaphore {
		id, to, quota, cost := p.id(), p.to, p.own.quota, c.Cost
		a, err := s.asker.decide(ctx, id, cost, false, func(a lease.Answer) {
			if a.Decided {
				s.answered(to, id.Key, a, cost, quota, !a.Admitted)
			}
		})
		if err == nil && a.Admitted {
			c.Verdict.Remaining, c.Verdict.ResetAfter = max(0, a.Tokens.Floor()), a.ResetAfter
			return nil
		}
	}
	if err := s.reach(p, take); err != nil {
		c.Failed = true
		return fmt.Errorf("spending: limit %q is not charged, there is no lease: %w: %w", p.to.name, err, store.ErrUnavailable)
	}
	p.entry.Value.owe(c.Cost)
	c.Failed = p.entry.Value.peek(p) != nil
	return nil
}
