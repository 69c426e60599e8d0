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
	var room [usualKey]byte
	if !dry && s.asking.Often(s.now(), p.to.tableKey(room[:0], p.charge.Key)) {
		to, quota := p.to, p.own.quota
		answered = func(a lease.Answer) {
			if a.Decided {
				s.lease(to, id.Key, quota-a.Tokens.Floor())
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

// lease opens a lease for the requests that come next, unless there is one. So much of the bucket was used, and may be
// refunded.
func (s *Store) lease(to *lent, key string, used int64) {
	if e := s.known(to, []byte(key)); e != nil {
		e.Done()
		return
	}
	e, err := s.get(to, []byte(key))
	if err != nil {
		return // the table is full of keys in use
	}
	if r, ok := e.Value.charger.(*rate); ok {
		r.debt.add(max(0, used), new(limit.Result))
	}
	e.Done()
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
