package pool

import (
	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/limit"
)

// Supply is where the capacity of a site's resource comes from: a lease that its parent granted.
// The pool and the accounts of the resource divide what is held under that lease, so
//
//	pool + what the accounts hold + aside = held
//
// To give capacity back, the site first takes it out of its pool. So it returns only what no
// instance can spend, and the books of the parent and of the site together count nothing twice.
// The tokens in the pool and at the instances are together no more than one bucket of the held
// rate and burst would have, as at an instance that spends a lease itself.
type Supply struct {
	Answer
	Held    lease.Capacity // rate and burst that the parent lends, or that the site uses alone
	ceiling lease.Capacity // what Held is to come down to
	Aside   lease.Capacity // of Held: taken out of the pool, and not returned yet
	Alone   bool           // Held is not of the parent: it is what the site uses while it is cut off
	Own     lease.Terms    // the site's own limit
	Groups  Claims         // scratch of who sums up the demand
}

// Answer is what the parent says about a resource.
type Answer struct {
	Known      bool         // there was an answer
	Status     lease.Status // why nothing is lent, if not StatusOK
	Limit      lease.Terms  // the whole limit
	Safe       fixed.Amount // for the whole site
	Contended  bool
	Saturated  bool
	Recovering bool
}

// Hold puts in force what the parent lends in all. tokens of it are new; of what is above the
// ceiling the free part is taken out of the pool. It returns the tokens that are to be returned
// since they fit nowhere. Held is what the site holds from then on.
func (s *Supply) Hold(p *Pool, now limit.Time, held, ceiling lease.Capacity, tokens fixed.Amount) (surplus fixed.Amount) {
	if s.Alone {
		s.Lapse(p, now)
	}
	p.Refill(now)
	more := lease.Capacity{Rate: held.Rate - s.Held.Rate, Burst: held.Burst - s.Held.Burst, Tokens: tokens}
	p.Rate, p.Burst, p.Level = p.Rate+more.Rate, p.Burst+more.Burst, p.Level+more.Tokens
	surplus = p.Overflow()
	s.Held, s.ceiling = s.Held.Add(lease.Capacity{Rate: more.Rate, Burst: more.Burst}), ceiling
	s.Reclaim(p)
	surplus = fixed.SaturatingAdd(s.Aside.Tokens, surplus)
	s.Held = s.Held.Sub(lease.Capacity{Rate: s.Aside.Rate, Burst: s.Aside.Burst})
	s.Aside = lease.Capacity{}
	return surplus
}

// Reclaim takes what is above the ceiling out of the pool, as far as it is free there. It does
// nothing for a resource without a supply.
func (s *Supply) Reclaim(p *Pool) {
	if s == nil || s.Alone {
		return
	}
	over := s.Owed()
	rate, burst := min(max(0, p.Rate), over.Rate), min(p.Spare(), over.Burst/fixed.Token*fixed.Token)
	if rate == 0 && burst == 0 {
		return
	}
	p.Rate, p.Burst = p.Rate-rate, p.Burst-burst
	s.Aside = s.Aside.Add(lease.Capacity{Rate: rate, Burst: burst, Tokens: p.Overflow()})
}

// Owed is what instances have to return so that the site can come down to the ceiling.
func (s *Supply) Owed() lease.Capacity {
	if s == nil || s.Alone {
		return lease.Capacity{}
	}
	left := s.Held.Sub(s.Aside)
	return lease.Capacity{Rate: max(0, left.Rate-min(s.ceiling.Rate, s.Own.Rate)), Burst: max(0, left.Burst-min(s.ceiling.Burst, s.Own.Burst))}
}

// Lapse ends what the site holds: the lease of the parent has been replaced or lost, or a parent
// answers again after the site was alone. What instances still hold is below zero in the pool,
// as of a limit that became smaller.
func (s *Supply) Lapse(p *Pool, now limit.Time) {
	p.Refill(now)
	left := s.Held.Sub(s.Aside)
	p.Rate, p.Burst = p.Rate-left.Rate, p.Burst-left.Burst
	p.Level = min(p.Level, 0)
	p.Clip()
	s.Held, s.ceiling, s.Aside, s.Alone = lease.Capacity{}, lease.Capacity{}, lease.Capacity{}, false
}

// UseAlone has the site use a rate and a burst of its own, while no parent answers.
func (s *Supply) UseAlone(p *Pool, now limit.Time, rate, burst fixed.Amount) {
	s.Lapse(p, now)
	s.Held, s.Alone = lease.Capacity{Rate: rate, Burst: burst}, true
	s.ceiling = s.Held
	p.Rate, p.Burst = p.Rate+rate, p.Burst+burst
}

// Divisible is what there is to divide: what the parent lends, at most the site's own limit.
func (s *Supply) Divisible() (rate, burst fixed.Amount) {
	left := s.Held.Sub(s.Aside)
	return min(left.Rate, max(s.ceiling.Rate, 0), s.Own.Rate), min(left.Burst, max(s.ceiling.Burst, 0), s.Own.Burst)
}

// Whole is the limit as instances are told it: the smaller of the site's own and the parent's.
func (s *Supply) Whole() lease.Terms {
	t := s.Own
	if s.Known && s.Status == lease.StatusOK {
		t.Rate, t.Burst = min(t.Rate, s.Answer.Limit.Rate), min(t.Burst, s.Answer.Limit.Burst)
	}
	return t
}

// Unknown says that it is not known yet what the parent lends.
func (s *Supply) Unknown() bool { return !s.Alone && (!s.Known || s.Recovering) }
