package spending

import (
	"context"
	"math"
	"time"

	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/limit"
)

// This file is keys that come seldom: their coordinator is asked for each request, in one round trip with others.
// A key that comes often, or of which somebody has a lease, has a lease here.

// mayAsk says whether a part can be asked for: a limit with a key, per time, that counts what it admits.
func (s *Store) mayAsk(p *part) bool {
	return s.asker != nil && !p.noAsk && len(p.to.key) > 0 && !p.to.semaphore && !p.charge.CountRefused && p.charge.Cost >= 0
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
		often := s.asker.often(s.now(), to.tableKey(room[:0], p.charge.Key))
		answered = func(a lease.Answer) {
			if a.Decided {
				s.answered(to, id.Key, a, cost, quota, often)
			}
		}
	}
	begun := time.Now()
	a, err := s.asker.decide(ctx, id, p.charge.Cost, dry, answered)
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
			p.held, p.asked = true, s.asker
			p.short = shortfall{tokens: p.own.quota - a.Tokens.Floor(), at: begun}
		}
		return true, nil
	}
	v.Reason = limit.ReasonRate
	if a.RetryAfter == math.MaxInt64 && p.charge.Cost > p.own.quota {
		v.Reason = limit.ReasonCost
	}
	return true, nil
}

// answered gets each answer about a key, in order, and opens a lease if open says so. An existing lease does not count
// yet what was taken; a lease that is opened now counts all that was used of the bucket. Either may be refunded.
func (s *Store) answered(to *lent, key string, a lease.Answer, cost, quota int64, open bool) {
	e := s.known(to, []byte(key))
	opened := e == nil
	if opened {
		if !open {
			return
		}
		var err error
		if e, err = s.get(to, []byte(key)); err != nil {
			return // the table is full of keys in use
		}
	}
	defer e.Done()
	r, ok := e.Value.charger.(*rate)
	switch {
	case !ok:
	case opened:
		r.debt.raise(shortfall{tokens: quota - a.Tokens.Floor(), at: time.Now()})
	case a.Admitted:
		r.debt.add(cost, new(limit.Result))
	}
}

// unused gets what became of the cost that a request has not used. A lease that was opened since counts it as used: the
// lease keeps it, or it is no longer used, where the coordinator has it. It reports whether there is a lease.
func (s *Store) unused(id lease.ResourceID, cost int64, kept bool) (leased bool) {
	s.mu.Lock()
	to := s.lent[id.Limit]
	s.mu.Unlock()
	if to == nil {
		return false
	}
	e := s.known(to, []byte(id.Key))
	if e == nil {
		return false
	}
	defer e.Done()
	if kept {
		e.Value.refund(cost)
	} else if r, ok := e.Value.charger.(*rate); ok {
		r.debt.add(-cost, new(limit.Result))
	}
	return true
}
