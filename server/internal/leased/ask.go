package leased

import (
	"context"
	"math"

	"github.com/stint-io/stint/internal/lease"
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
	var answered func(lease.Answer)
	if !dry {
		var room [usualKey]byte
		to, quota, cost := p.to, p.own.quota, p.charge.Cost
		often := s.asking.Often(s.now(), to.tableKey(room[:0], p.charge.Key))
		answered = func(a lease.Answer) {
			if a.Decided {
				s.answered(to, id.Key, a, cost, quota, often)
			}
		}
	}
	a, err := s.asking.Decide(ctx, id, p.charge.Cost, dry, answered)
	switch {
	case ctx.Err() != nil:
		return true, ctx.Err()
	case err != nil, !a.Decided:
		p.noAsk = true // by a lease, as after any fail-over
		return false, nil
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

// answered is told each answer about a key, in order, and opens a lease if it is to. A lease that there was before does not
// count yet what was taken; one that is opened now counts all that was used of the bucket. Either may be refunded.
func (s *Store) answered(to *lent, key string, a lease.Answer, cost, quota int64, open bool) {
	used := int64(0)
	if a.Admitted {
		used = cost
	}
	e := s.known(to, []byte(key))
	if e == nil {
		if !open {
			return
		}
		var err error
		if e, err = s.get(to, []byte(key)); err != nil {
			return // the table is full of keys in use
		}
		used = quota - a.Tokens.Floor()
	}
	defer e.Done()
	if r, ok := e.Value.charger.(*rate); ok {
		r.debt.add(max(0, used), new(limit.Result))
	}
}

// unused is told what became of what a request has not used. A lease that was opened since counts it as used: there it is
// kept, or it is not used any more, where the coordinator has it.
func (s *Store) unused(id lease.ResourceID, cost int64, kept bool) {
	s.mu.Lock()
	to := s.lent[id.Limit]
	s.mu.Unlock()
	if to == nil {
		return
	}
	e := s.known(to, []byte(id.Key))
	if e == nil {
		return
	}
	defer e.Done()
	if kept {
		e.Value.refund(cost)
	} else if r, ok := e.Value.charger.(*rate); ok {
		r.debt.add(-cost, new(limit.Result))
	}
}
