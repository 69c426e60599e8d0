package leased

import (
	"context"
	"math"

	"github.com/stint-io/stint/limit"
)

// This file is keys that come seldom: their coordinator is asked for each request, in one round trip with others.
// A key that comes often, or of which somebody has a lease, has a lease here.

// mayAsk says whether a part can be asked for: a limit with a key, per time, that counts what it admits.
func (s *Store) mayAsk(p *part) bool {
	return s.asking.Asks() && !p.noAsk && len(p.to.key) > 0 && !p.to.semaphore && !p.charge.CountRefused && p.charge.Cost >= 0
}

// ask decides a part without a lease, if that can be; done is false where it has to have one.
func (s *Store) ask(ctx context.Context, p *part, how way) (done bool, err error) {
	if p.entry != nil || !s.mayAsk(p) {
		return false, nil
	}
	if p.entry = s.known(p.to, p.charge.Key); p.entry != nil {
		return false, nil
	}
	dry := how == peek || p.dry
	id := p.id()
	a, err := s.asking.Decide(ctx, id, p.charge.Cost, dry)
	switch {
	case ctx.Err() != nil:
		return true, ctx.Err()
	case err != nil, !a.Decided:
		p.noAsk = true // by a lease, as after any fail-over
		return false, nil
	}
	var room [usualKey]byte
	if !dry && s.asking.Often(s.now(), p.to.tableKey(room[:0], p.charge.Key)) {
		s.lease(p, p.own.quota-a.Tokens.Floor())
	}
	v := &p.charge.Verdict
	*v = limit.Verdict{Allowed: a.Admitted, Remaining: max(0, a.Tokens.Floor()), RetryAfter: a.RetryAfter, ResetAfter: a.ResetAfter}
	if a.Admitted {
		if !dry && p.charge.Cost > 0 {
			p.held, p.asked = true, &s.asking
		}
		return true, nil
	}
	v.Reason = limit.ReasonRate
	if a.RetryAfter == math.MaxInt64 && p.charge.Cost > p.own.quota {
		v.Reason = limit.ReasonCost
	}
	return true, nil
}

// lease opens a lease for the requests that come next. So much of the bucket was used, and may be refunded.
func (s *Store) lease(p *part, used int64) {
	e, err := s.get(p.to, p.charge.Key)
	if err != nil {
		return // the table is full of keys in use
	}
	if r, ok := e.Value.charger.(*rate); ok {
		r.debt.add(max(0, used), new(limit.Result))
	}
	e.Done()
}
