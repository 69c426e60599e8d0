package coordinator

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/stint-io/stint/internal/bucket"
	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/limit"
)

// rates is the divider of a limit per second that all instances share.
type rates struct{}

func (rates) demanded(_ *account, d *lease.Demand, _ limit.Time) (demand, shortfall fixed.Amount, ok bool) {
	return d.Rate, d.Shortfall, true
}

func (rates) targets(r *resource, now limit.Time) {
	r.divide(now)
	if !r.rotate(now) {
		r.targetRates()
	}
}

func (rates) lend(r *resource, now limit.Time) limit.Time {
	r.raise()
	r.lendTokens(now)
	return r.nextRound(now)
}

// short adds, to what accounts are short of their targets, burst for the tokens that they are
// missing now: at most one token each, since more can follow.
func (rates) short(r *resource, of lease.Capacity) (lease.Capacity, bool) {
	for _, a := range r.accounts {
		if a.shortfall > 0 && a.held().Burst < a.shortfall {
			of.Burst = fixed.SaturatingAdd(of.Burst, min(a.shortfall, fixed.Token))
		}
	}
	return of, false
}

func (rates) suppression(*account) bucket.Suppression { return bucket.Suppression{} }

// targetRates sets the target of each account: its share of the rate, a part of the rate
// without demand as headroom, and the burst that belongs to the rate.
func (r *resource) targetRates() {
	capacity, burst := r.terms.Rate, r.terms.Burst
	shared := fixed.Amount(0)
	active := fixed.Amount(0)
	for _, s := range r.shares {
		shared = fixed.SaturatingAdd(shared, s)
		if s > 0 {
			active++
		}
	}
	// Half of the rate without demand stays in the pool, from where each account can get it.
	spare := max(0, capacity-shared) / 2
	least := fixed.Token
	if burst >= 2*fixed.Token*active {
		// Two tokens: with one, an arrival a moment early would find none.
		least = 2 * fixed.Token
	}
	rest := burst - least*active
	// Half of the burst that belongs to no rate is headroom as well, in equal parts, for
	// demand that is not reported yet.
	room := fixed.Amount(0)
	if active > 0 && rest > 0 && !r.contended {
		room = (rest - rest.Scale(min(shared, capacity), max(capacity, 1))) / 2 / active / fixed.Token * fixed.Token
	}
	weights := fixed.Amount(0)
	for i, a := range r.accounts {
		weights += burstWeight(r.shares[i], a.demand)
	}
	for i, a := range r.accounts {
		s := r.shares[i]
		a.target = lease.Capacity{}
		if s == 0 {
			continue
		}
		a.target.Rate = s
		if spare > 0 && !a.silent && !r.contended {
			a.target.Rate += min(s-s/4, spare.Scale(s, shared))
		}
		switch {
		case r.contended:
			a.target.Burst = least + rest.Scale(burstWeight(s, a.demand), weights)/fixed.Token*fixed.Token
		case capacity > 0:
			a.target.Burst = least + room + rest.Scale(min(s, capacity), capacity)/fixed.Token*fixed.Token
		}
	}
}

// burstWeight is the weight of an account in the division of a burst that is contended. A bucket
// of burst K that is refilled at the rate s of random arrivals refuses s/2K of them. The sum of
// s/2K over all accounts, for a given sum of K, is least where K is proportional to the square
// root of s. An account with far more demand than rate has an empty bucket at any burst, and
// weighs an eighth.
func burstWeight(s, want fixed.Amount) fixed.Amount {
	w := fixed.Amount(math.Sqrt(float64(s)))
	if want-want/16 > s {
		return w / 8
	}
	return w
}

// trickle is the part, 1/8, of all that accounts are short of, below which the free rate goes to
// a few of them. Not less: each of a thousand instances would be sent each small return. Not more:
// in proportion, all come up to their targets together.
const trickle = 8

// raise lends rate and burst up to the targets. When the pool has less than all accounts are
// short of, each gets in proportion. When it has next to nothing, the accounts with the least
// part of their target get it: else each small return would be a message to all.
func (r *resource) raise() {
	p := &r.pool
	list, short := r.order[:0], lease.Capacity{}
	for _, a := range r.accounts {
		if s := r.shortOf(a); s != (lease.Capacity{}) {
			list, short = append(list, a), short.SaturatingAdd(s)
		}
	}
	r.order = list
	rate, burst := max(0, p.rate), p.spare()
	few := rate < short.Rate/trickle
	if few {
		slices.SortStableFunc(list, func(a, b *account) int {
			return cmp.Or(cmp.Compare(b.band, a.band), cmp.Compare(a.reached(), b.reached()))
		})
	}
	for _, a := range list {
		s := r.shortOf(a)
		g := lease.Capacity{Rate: min(s.Rate, max(0, p.rate)), Burst: s.Burst}
		if short.Rate > rate && !few {
			g.Rate = s.Rate.Scale(rate, short.Rate)
		}
		if short.Burst > burst {
			g.Burst = s.Burst.Scale(burst, short.Burst) / fixed.Token * fixed.Token
			if g.Burst == 0 && s.Burst > 0 && a.held().Burst == 0 {
				g.Burst = fixed.Token // a rate without burst could not be used
			}
		}
		g.Burst = min(g.Burst, p.spare())
		if few && g.Rate < s.Rate && g.Rate < a.target.Rate/lease.Hysteresis || g.Rate > 0 && a.held().Burst+g.Burst == 0 {
			g.Rate = 0 // too little for a message, or of no use without burst
		}
		if g.Burst > 0 {
			// A part of the burst brings its part of the tokens.
			g.Tokens = min(p.level.Scale(g.Burst, p.room()), g.Burst)
		}
		a.grant(g)
	}
}

// part is the smallest part of a token that is lent by itself: an eighth. Not smaller: each is
// a message. Not larger: so much would stay in the pool while the last request of a burst is
// refused.
const part = 8

// lendTokens lends tokens to accounts that are missing some now, first to the one that has
// been missing them for longest.
func (r *resource) lendTokens(now limit.Time) {
	list := r.order[:0]
	for _, a := range r.accounts {
		if a.expireShortfall(now); a.shortfall > 0 {
			list = append(list, a)
		}
	}
	r.order = list
	slices.SortStableFunc(list, func(a, b *account) int {
		return cmp.Or(cmp.Compare(b.band, a.band), cmp.Compare(a.shortSince, b.shortSince))
	})
	for _, a := range list {
		p := &r.pool
		h := a.held()
		// What is unacknowledged is not granted a second time. A part of a token is worth no
		// message where others are short too; where nobody is, it may be just what is missing to
		// a whole token.
		t := min(a.shortfall-a.unacked.Tokens, p.level)
		if t < min(a.shortfall, fixed.Token) && (r.contended || t < fixed.Token/part) {
			continue
		}
		// The bucket of the instance may be at its burst, so the tokens bring burst of their own.
		d := fixed.Amount(0)
		if h.Burst < a.shortfall {
			d = min((t+fixed.Token-1)/fixed.Token*fixed.Token, p.burst/fixed.Token*fixed.Token)
		}
		t = min(t, h.Burst+d)
		if h.Rate == 0 && a.target.Rate == 0 {
			// A part of a token is of no use to an account without rate.
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

// nextRound is when the next round is due if no report comes before: when the pool has the
// tokens that an account is missing, or when the rotation goes on.
func (r *resource) nextRound(now limit.Time) limit.Time {
	p, least, next := &r.pool, fixed.MaxAmount, lease.Never
	if r.rotation.until != 0 {
		next = r.rotation.until
	}
	for _, a := range r.accounts {
		if a.shortfall > 0 {
			least = min(least, max(a.shortfall, fixed.Token))
		}
	}
	if missing := min(least, p.room()) - p.level; least < fixed.MaxAmount && p.rate > 0 && missing > 0 {
		next = min(next, now.Add(max(lease.MinReportGap, time.Duration(float64(missing)/float64(p.rate)*float64(time.Second))+1)))
	}
	return next
}
