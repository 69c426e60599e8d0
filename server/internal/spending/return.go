package spending

import (
	"context"

	"github.com/stint-io/stint/store"
)

// Peek implements store.Store. A lease that is short is asked for more, as Take would,
// and what comes stays here for a moment: a peek costs no token.
func (s *Store) Peek(ctx context.Context, charges []store.Charge) (bool, error) {
	if plain(charges) {
		return behind(ctx, charges, s.BanKeeper.Peek)
	}
	return again(func() (bool, error) { return s.peekOnce(ctx, charges) })
}

func (s *Store) peekOnce(ctx context.Context, charges []store.Charge) (bool, error) {
	w := s.sort(charges)
	defer s.release(w)
	allowed := true
	for i := range w.leased {
		p := &w.leased[i]
		p.dry = true
		err := s.do(ctx, p, take)
		if p.rollback(); err != nil {
			return false, err
		}
		allowed = allowed && (p.charge.Shadow || p.charge.Verdict.Allowed)
	}
	if len(w.exact) > 0 {
		ok, err := s.BanKeeper.Peek(ctx, w.exact)
		if err != nil {
			return false, err
		}
		allowed = allowed && ok
	}
	w.answers(charges)
	return allowed, nil
}

// Refund implements store.Store. What was taken of a lease goes back to the lease, if
// it is still there; permits only end by Finish.
func (s *Store) Refund(ctx context.Context, charges []store.Charge) error {
	return s.back(ctx, charges, s.BanKeeper.Refund, func(p *part) bool {
		p.entry.Value.refund(p.charge.Cost)
		return true
	}, func(p *part) {
		if p.charge.Cost > 0 {
			s.asker.giveBack(p.id(), min(p.charge.Cost, p.to.most.Load()), shortfall{})
		}
	})
}

// Finish implements store.Store.
func (s *Store) Finish(ctx context.Context, charges []store.Charge) error {
	return s.back(ctx, charges, s.BanKeeper.Finish, func(p *part) bool {
		return p.entry.Value.finish(p.charge.Permit, p.charge.Keep)
	}, nil)
}

// Reset implements store.Store. Of a lease it renews what is held here: what others
// spend is theirs.
func (s *Store) Reset(ctx context.Context, charges []store.Charge) error {
	return s.back(ctx, charges, s.BanKeeper.Reset, func(p *part) bool {
		p.entry.Value.reset()
		return false
	}, func(p *part) { s.asker.giveBack(p.id(), p.to.most.Load(), shortfall{}) })
}

// back calls f for the charges on leases that there are, and the store behind for
// those that are not on leases, or that f says it has not done: a permit may have been
// taken before the limit became leased. It calls asked for keys without a lease.
func (s *Store) back(ctx context.Context, charges []store.Charge, behind func(context.Context, []store.Charge) error, f func(*part) bool, asked func(*part)) error {
	w := s.sort(charges)
	defer s.release(w)
	for i := range w.leased {
		p := &w.leased[i]
		done := false
		if p.entry = s.known(p.to, p.charge.Key); p.entry != nil {
			done = f(p)
		} else if asked != nil && s.mayAsk(p) {
			asked(p)
		}
		if !done && p.to.semaphore {
			w.exact = append(w.exact, *p.charge)
			w.exact[len(w.exact)-1].Counters = p.own.exact
		}
	}
	if len(w.exact) == 0 {
		return nil
	}
	return behind(ctx, w.exact)
}
