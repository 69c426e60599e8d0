package coordinator

import (
	"cmp"
	"slices"
	"time"

	"github.com/stint-io/stint/internal/fairshare"
	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/limit"
)

// resource is one limit under one key, with the accounts of all instances that have a part
// of it.
type resource struct {
	id       lease.ResourceID
	terms    lease.Terms
	status   lease.Status // other than StatusOK while its limit is gone
	broken   bool         // a round panicked; nothing is lent until the terms change
	pool     pool
	accounts []*account
	alloc    fairshare.Allocator

	rotation     rotation
	tokenByToken bool         // tokens are lent one by one
	suppressed   *suppression // nil = it is not shared by suppression

	load
	recovery
	schedule
	scratch
}

// schedule is when the next round of a resource is due.
type schedule struct {
	dirty  bool       // there is one
	due    limit.Time // when, if dirty
	queued bool       // the resource is in the coordinator's list of rounds to run
}

// scratch is memory that a round uses again. Nothing in it outlives the round.
type scratch struct {
	claims []fairshare.Claimant
	parts  []fixed.Amount // what each claim was allocated
	shares []fixed.Amount // what each account was allocated
	order  []*account
}

func newResource(id lease.ResourceID, terms lease.Terms, now limit.Time, frozen bool) *resource {
	r := &resource{id: id}
	r.pool.at = now
	r.setTerms(terms, now)
	switch {
	case frozen && terms.PerInstance():
		// Nobody takes anything from anybody, so newcomers need not wait.
		r.frozen = lease.Capacity{Rate: lease.Unlimited / 2 / fixed.Token * fixed.Token, Burst: lease.Unlimited / 2 / fixed.Token * fixed.Token}
		r.pool.lend(r.frozen)
		r.pool.level, r.recovering = r.pool.burst, true
	case frozen:
		r.frozen = terms.Lendable()
		r.pool.lend(r.frozen)
		r.pool.level, r.recovering = 0, true
	default:
		// Nothing was taken yet, so the bucket is full.
		r.pool.level = r.pool.burst
	}
	return r
}

// setTerms puts terms in force. What is out counts, so a smaller capacity leaves the
// pool below zero until enough has come back; what was used stays used, so a change and
// its way back bring nothing, and what a larger burst adds is there at once.
func (r *resource) setTerms(t lease.Terms, now limit.Time) {
	r.pool.refill(now)
	more := t.Lendable().Sub(r.terms.Lendable())
	r.pool.resize(more.Rate, more.Burst)
	if r.recovering {
		// The former coordinator may have lent of terms that were larger still.
		r.freeze(max(more.Rate, -r.frozen.Rate), max(more.Burst, -r.frozen.Burst))
	}
	if t.PerInstance() {
		r.pool.level = r.pool.burst
	}
	r.pool.clip()
	for _, a := range r.accounts {
		a.setOwn(r.terms, t)
	}
	r.terms = t
	r.alloc.Kind, r.alloc.Guarantees = t.Allocation, t.Guarantees
	r.alloc.BusyTolerance, r.alloc.BusyChange = t.BusyTolerance, t.BusyChange
	r.setSuppress(now)
}

// capacity is what is divided: the rate, or the places of a gauge.
func (r *resource) capacity() fixed.Amount {
	if r.terms.Semaphore {
		return r.terms.Burst
	}
	return r.terms.Rate
}

// round divides the capacity anew and moves what can be moved at once: it asks those
// who hold more than their part to come down, if somebody needs it, and lends what
// is free to those who hold less.
func (r *resource) round(now limit.Time) {
	r.pool.refill(now)
	r.dirty = false
	if r.suppressed != nil {
		r.suppress(now)
		r.lend(now)
		r.revoke()
		return
	}
	r.divide(now)
	if r.terms.PerInstance() {
		r.targetOwn()
	} else if r.terms.Semaphore {
		r.targetPermits(now)
	} else if !r.rotate(now) {
		r.targetRates()
	}
	r.lend(now)
	r.revoke()
	if at := r.wake(now); at != lease.Never {
		r.dirty, r.due = true, at
	}
	if n := r.rotation.until; n != 0 && (!r.dirty || n < r.due) {
		r.dirty, r.due = true, n
	}
}

// divide finds the part of each account and how the demand stands to the capacity.
func (r *resource) divide(now limit.Time) {
	capacity := r.capacity()
	r.claims, r.parts, r.shares = r.claims[:0], r.parts[:0], r.shares[:0]
	wanted, silent := fixed.Amount(0), fixed.Amount(0)
	for _, a := range r.accounts {
		c := fairshare.Claimant{Want: a.demand, Has: a.held().Rate, Used: a.demand, Weight: a.weight, Band: a.band}
		if r.terms.Semaphore {
			c.Has = a.held().Burst
		}
		c.Used = min(c.Used, c.Has)
		if a.silent {
			// It enforces an equal part whatever the others do.
			silent += r.equalPart()
			continue
		}
		wanted = fixed.SaturatingAdd(wanted, c.Want)
		r.claims, r.parts = append(r.claims, c), append(r.parts, 0)
	}
	silent = min(silent, capacity)
	if r.terms.Allocation == fairshare.MaxMin && !r.terms.Semaphore && wanted > capacity+capacity/lease.Hysteresis {
		// Measured demand is never exact, and one who gets a little less than it
		// needs runs dry, where others who want far more would not miss it.
		for i := range r.claims {
			r.claims[i].Want = fixed.SaturatingAdd(r.claims[i].Want, r.claims[i].Want/lease.Headroom)
		}
	}
	r.alloc.Allocate(capacity-silent, r.claims, r.parts)
	r.measure(fixed.SaturatingAdd(wanted, silent), capacity, now)
	next := 0
	for _, a := range r.accounts {
		if a.silent {
			r.shares = append(r.shares, min(r.equalPart(), capacity))
			continue
		}
		r.shares = append(r.shares, r.parts[next])
		next++
	}
}

// equalPart is the share of an instance that does not report its demand.
func (r *resource) equalPart() fixed.Amount {
	n := fixed.Amount(max(1, len(r.accounts)))
	if r.terms.Semaphore {
		return r.capacity() / n / fixed.Token * fixed.Token
	}
	return r.capacity() / n
}

// lend raises accounts to their targets as far as the pool has it.
func (r *resource) lend(now limit.Time) {
	if r.terms.Allocation == fairshare.Static && !r.terms.Semaphore {
		r.lendOwn()
		return
	}
	r.raise()
	for _, a := range r.shortAccounts(now) {
		if a.shortfall <= 0 || r.terms.Semaphore {
			continue
		}
		p := &r.pool
		h := a.held()
		// What is under way to it need not be sent again. A part of a token is worth
		// no message where others lack it too; where nobody does it may be just
		// what is missing to a whole one.
		t := min(a.shortfall-a.unacked.Tokens, p.level)
		if t < min(a.shortfall, fixed.Token) && (r.contended || t < fixed.Token/part) {
			continue
		}
		// The depth that the account has may be full, so the tokens bring their own.
		d := fixed.Amount(0)
		if h.Burst < a.shortfall {
			d = min((t+fixed.Token-1)/fixed.Token*fixed.Token, p.burst/fixed.Token*fixed.Token)
		}
		t = min(t, h.Burst+d)
		if h.Rate == 0 && a.target.Rate == 0 {
			// A part of a token is of no use to one who has no rate.
			t = t / fixed.Token * fixed.Token
			d = min(d, max(0, t-h.Burst))
		}
		if t <= 0 {
			continue
		}
		a.grant(lease.Capacity{Burst: d, Tokens: t})
		if a.shortfall -= t; a.shortfall <= 0 || a.shortfall < fixed.Token && a.target.Rate == 0 {
			a.shortfall, a.shortSince = 0, 0
		}
	}
}

// remainder is the smallest part of a token that is lent by itself: an eighth. Not smaller:
// each is a message. Not larger: so much would lie with the coordinator while the last
// one of a burst is refused.
const part = 8

// wake is when the pool has a token for one who lacks it.
func (r *resource) wake(now limit.Time) limit.Time {
	p := &r.pool
	if r.terms.Semaphore || p.rate <= 0 || p.level >= p.room() {
		return lease.Never
	}
	least := fixed.MaxAmount
	for _, a := range r.accounts {
		if a.shortfall > 0 {
			least = min(least, max(a.shortfall, fixed.Token))
		}
	}
	if least == fixed.MaxAmount || p.level >= least {
		return lease.Never
	}
	missing := min(least, p.room()) - p.level
	if missing <= 0 {
		return lease.Never
	}
	return now.Add(max(lease.MinReportGap, time.Duration(float64(missing)/float64(p.rate)*float64(time.Second))+1))
}

// trickle is the part of all that is lacking below which the free rate goes to a few.
// Not less: among a thousand instances each would be told of each bit. Not more: in
// proportion those who wait come up together.
const trickle = 8

// raise lends rate and depth up to the targets. When the pool has less than all lack,
// each gets in proportion. But when it has next to nothing, those get it who have the
// least part of their rate: else each bit that comes back would be a message to all.
func (r *resource) raise() {
	if r.terms.Semaphore {
		r.raisePermits()
		return
	}
	p := &r.pool
	list, short := r.order[:0], lease.Capacity{}
	for _, a := range r.accounts {
		if s := r.shortfallOf(a); s != (lease.Capacity{}) {
			list, short = append(list, a), short.SaturatingAdd(s)
		}
	}
	r.order = list
	rate, depth := max(0, p.rate), p.spare()
	few := rate < short.Rate/trickle
	if few {
		slices.SortStableFunc(list, func(a, b *account) int {
			return cmp.Or(cmp.Compare(b.band, a.band), cmp.Compare(a.reached(), b.reached()))
		})
	}
	for _, a := range list {
		s := r.shortfallOf(a)
		g := lease.Capacity{Rate: min(s.Rate, max(0, p.rate)), Burst: s.Burst}
		if short.Rate > rate && !few {
			g.Rate = s.Rate.Scale(rate, short.Rate)
		}
		if short.Burst > depth {
			g.Burst = s.Burst.Scale(depth, short.Burst) / fixed.Token * fixed.Token
			if g.Burst == 0 && s.Burst > 0 && a.held().Burst == 0 {
				g.Burst = fixed.Token // or a rate without depth would be lost
			}
		}
		g.Burst = min(g.Burst, p.spare())
		if few && g.Rate < s.Rate && g.Rate < a.target.Rate/lease.Hysteresis || g.Rate > 0 && a.held().Burst+g.Burst == 0 {
			g.Rate = 0 // too little for a message, or lost without depth
		}
		if g.Burst > 0 {
			// A part of the bucket goes with what is in it.
			g.Tokens = min(p.level.Scale(g.Burst, p.room()), g.Burst)
		}
		a.grant(g)
	}
}

// reached is the part of its rate that the account has.
func (a *account) reached() float64 { return float64(a.held().Rate) / max(float64(a.target.Rate), 1) }

// shortfallOf is what an account lacks of its target, if it is enough to be moved.
func (r *resource) shortfallOf(a *account) lease.Capacity {
	h := a.held()
	s := lease.Capacity{Rate: max(0, a.target.Rate-h.Rate), Burst: max(0, a.target.Burst-h.Burst)}
	least := a.target.Rate / lease.Hysteresis
	if h.Rate < a.demand-a.demand/lease.Hysteresis {
		least /= lease.Hysteresis // it uses whatever there is
	}
	if a.shortfall > 0 {
		least = min(least, a.target.Rate/lease.Hysteresis/4)
		if !r.saturated {
			least /= lease.Hysteresis // it runs dry in the end, however little it lacks
		}
	}
	if !r.contended && a.shortfall == 0 && h.Rate >= a.demand && h.Burst >= 2*fixed.Token {
		return lease.Capacity{} // it has what it wants, and there is more when it asks
	}
	if s.Rate < least {
		s.Rate = 0
	}
	// One who gave depth back of its own accord has no use for it so soon.
	if h.Burst >= 2*fixed.Token && (s.Burst < a.target.Burst/(lease.Hysteresis/8) || !r.saturated && a.shortfall == 0 && r.pool.at < a.returnedAt.Add(lease.IdleGrace)) {
		s.Burst = 0
	}
	return s
}

// revoke asks accounts that hold more than their target to come down, when others
// are short of it or the capacity was cut. Where nobody needs it, an uneven
// distribution is left alone.
func (r *resource) revoke() {
	var short lease.Capacity
	for _, a := range r.accounts {
		short = short.SaturatingAdd(r.shortfallOf(a))
		if a.shortfall > 0 && !r.terms.Semaphore && a.held().Burst < a.shortfall {
			short.Burst = fixed.SaturatingAdd(short.Burst, min(a.shortfall, fixed.Token))
		}
	}
	if r.tokenByToken || r.suppressed != nil {
		// Tokens come to the pool only where the rate is; and who cannot refuse a part
		// must not have more than its own.
		short.Rate = r.terms.Rate
	}
	if r.terms.Allocation == fairshare.Static {
		short.Rate, short.Burst = max(1, r.terms.Rate), max(1, r.terms.Burst) // nobody may have more than its own
	}
	short.Burst = max(short.Burst, -r.pool.burst)
	r.mostAbove(short.Rate - r.pool.rate)
	for _, a := range r.accounts {
		h := a.held()
		keepRate, keepDepth := fixed.MaxAmount, fixed.MaxAmount
		if over := h.Rate - a.target.Rate; over > 0 && (a.gives || short.Rate > 0 && over > a.target.Rate/lease.Hysteresis) {
			keepRate = a.target.Rate
		}
		a.gives = false
		// Tokens that were lent by themselves come back when they are used, or
		// soon if they are not.
		lent := h.Rate == 0 && a.target.Rate == 0 && r.pool.burst >= 0 && !r.terms.Semaphore
		if h.Burst > a.target.Burst && short.Burst > 0 && !lent {
			keepDepth = a.target.Burst
		}
		if r.pool.rate >= 0 && a.capRate < h.Rate && (keepRate == fixed.MaxAmount && a.target.Rate < h.Rate || keepRate != fixed.MaxAmount && fixed.Near(keepRate, a.capRate, lease.Hysteresis)) {
			keepRate = a.capRate // it has been told, and the answer is under way
		}
		if keepRate == a.capRate && keepDepth == a.capBurst {
			continue
		}
		a.capRate, a.capBurst = keepRate, keepDepth
		if keepRate != fixed.MaxAmount || keepDepth != fixed.MaxAmount {
			a.pending = true
			a.session.cut(a)
		}
	}
}

// mostAbove marks those who give a rate that others are short of: first who holds the
// most above its target, for its size, so that as few as can be are asked to come down.
func (r *resource) mostAbove(need fixed.Amount) {
	if need <= 0 {
		return
	}
	above := r.order[:0]
	for _, a := range r.accounts {
		if a.held().Rate > a.target.Rate {
			above = append(above, a)
		}
	}
	r.order = above
	slices.SortStableFunc(above, func(a, b *account) int { return cmp.Compare(b.reached(), a.reached()) })
	for _, a := range above {
		if need <= 0 {
			break
		}
		a.gives = true
		need -= a.held().Rate - a.target.Rate
	}
}

// safe is what each instance may use when it cannot reach the coordinator.
func (r *resource) safe() fixed.Amount {
	if r.terms.Safe > 0 {
		return r.terms.Safe
	}
	return r.equalPart()
}

func (r *resource) delay() time.Duration {
	// One part for what arrives together, one for the work of a large round: at
	// 10,000 instances a round takes some milliseconds, and rounds must not
	// follow each other without a pause.
	return time.Millisecond + time.Duration(len(r.accounts))*2*time.Microsecond
}
