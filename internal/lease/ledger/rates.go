package ledger

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

func (rates) demanded(_ *Account, d *lease.Demand, _ Arrival) (demand, shortfall fixed.Amount, ok bool) {
	return d.Rate, d.Shortfall, true
}

func (rates) targets(r *Resource, now limit.Time) {
	r.divide(now)
	if !r.rotate(now) {
		r.targetRates()
	}
}

func (rates) lend(r *Resource, now limit.Time) limit.Time {
	r.raise()
	r.lendTokens(now)
	return r.nextRound(now)
}

// short adds, to what accounts are short of their targets, burst for the tokens that they are
// missing now: at most one token each, since more can follow.
func (rates) short(r *Resource, of lease.Capacity) (lease.Capacity, bool) {
	for _, a := range r.accounts {
		if a.Shortfall > 0 && a.Held().Burst < a.Shortfall {
			of.Burst = fixed.SaturatingAdd(of.Burst, min(a.Shortfall, fixed.Token))
		}
	}
	return of, false
}

func (rates) suppression(*Account) bucket.Suppression { return bucket.Suppression{} }

// targetRates sets the target of each account: its share of the rate, a part of the rate
// without demand as headroom, and the burst that belongs to the rate. Accounts with Spare have
// equal parts of the rate without demand: of all of it if there are no others, else of half.
func (r *Resource) targetRates() {
	capacity, burst := r.Terms.Rate, r.Terms.Burst
	shared := fixed.Amount(0)
	active, ahead := fixed.Amount(0), fixed.Amount(0)
	for i, s := range r.shares {
		shared = fixed.SaturatingAdd(shared, s)
		if s > 0 {
			active++
			if r.accounts[i].Spare {
				ahead++
			}
		}
	}
	// Half of the rate without demand stays in the pool, from where each account can get it.
	spare := max(0, capacity-shared)
	if active > ahead || r.Contended {
		spare /= 2
	}
	least := fixed.Token
	if burst >= 2*fixed.Token*active {
		// Two tokens: with one, an arrival a moment early would find none.
		least = 2 * fixed.Token
	}
	rest := burst - least*active
	// Half of the burst that belongs to no rate is headroom as well, in equal parts, for
	// demand that is not reported yet.
	room := fixed.Amount(0)
	if active > 0 && rest > 0 && !r.Contended {
		room = (rest - rest.Scale(min(shared, capacity), max(capacity, 1))) / 2 / active / fixed.Token * fixed.Token
	}
	weights, mean := fixed.Amount(0), float64(burst)/float64(fixed.Token)/float64(max(1, active))
	for i, a := range r.accounts {
		weights += a.burstWeight(r.shares[i], mean)
	}
	for i, a := range r.accounts {
		s := r.shares[i]
		a.target = lease.Capacity{}
		if s == 0 {
			continue
		}
		a.target.Rate = s
		switch {
		case r.Contended:
		case a.Spare:
			a.target.Rate += spare / ahead
		case spare > 0 && !a.Silent && ahead == 0:
			a.target.Rate += min(s-s/4, spare.Scale(s, shared))
		}
		switch {
		case r.Contended:
			a.target.Burst = least + rest.Scale(a.burstWeight(s, mean), weights)/fixed.Token*fixed.Token
		case a.Spare && capacity > 0:
			a.target.Burst = least + rest.Scale(min(a.target.Rate, capacity), capacity)/fixed.Token*fixed.Token
		case capacity > 0:
			a.target.Burst = least + room + rest.Scale(min(s, capacity), capacity)/fixed.Token*fixed.Token
		}
		if a.site != nil {
			a.target.Rate, a.target.Burst = min(a.target.Rate, a.site.ceiling.Rate), min(a.target.Burst, a.site.ceiling.Burst)
		}
	}
}

// burstWeight is the weight of an account with the share s of the rate in the division of a burst that is contended,
// of which there are mean tokens for each account. A bucket of burst K that is refilled at the rate s of random arrivals
// refuses s/2K of them. The sum of s/2K over all accounts, for a given sum of K, is least where K is proportional to the
// square root of s. An account with a demand d above its share has a bucket that is mostly empty: the part of the rate
// that overflows falls as (s/d)^K, so more than some 3s/(d-s) tokens are of no use to it. It weighs a half, a quarter or
// an eighth where the mean is more than that: in steps, since bursts that follow each estimate of d cost messages. A site
// divides its burst among its instances, so it weighs as much as they do together: n of them of the rate s/n each come
// to sqrt(s*n), and each needs a token of its own however little is left.
func (a *Account) burstWeight(s fixed.Amount, mean float64) fixed.Amount {
	if a.site != nil && a.site.lends {
		return fixed.Amount(math.Sqrt(float64(s) * float64(max(1, a.Weight))))
	}
	w := math.Sqrt(float64(s))
	if want := a.Demand; want-want/16 > s {
		useful := 3 * float64(s) / float64(want-s)
		for range 3 {
			if useful >= mean {
				break
			}
			w, useful = w/2, useful*2
		}
		return max(1, fixed.Amount(w)) // the least rates are a few millionths
	}
	return fixed.Amount(w)
}

// trickle is the part, 1/8, of all that accounts are short of, below which the free rate goes to
// a few of them. Not less: each of a thousand instances would be sent each small return. Not more:
// in proportion, all come up to their targets together.
const trickle = 8

// raise lends rate and burst up to the targets. When the pool has less than all accounts are
// short of, each gets in proportion. When it has next to nothing, the accounts with the least
// part of their target get it: else each small return would be a message to all.
func (r *Resource) raise() {
	p := &r.Pool
	list, short := r.order[:0], lease.Capacity{}
	for _, a := range r.accounts {
		if s := r.shortOf(a); s != (lease.Capacity{}) {
			list, short = append(list, a), short.SaturatingAdd(s)
		}
	}
	r.order = list
	rate, burst := max(0, p.Rate), p.Spare()
	few := rate < short.Rate/trickle
	if few {
		slices.SortStableFunc(list, func(a, b *Account) int {
			return cmp.Or(cmp.Compare(b.Band, a.Band), cmp.Compare(a.reached(), b.reached()))
		})
	}
	for _, a := range list {
		s := r.shortOf(a)
		g := lease.Capacity{Rate: min(s.Rate, max(0, p.Rate)), Burst: s.Burst}
		if short.Rate > rate && !few {
			g.Rate = s.Rate.Scale(rate, short.Rate)
		}
		if short.Burst > burst {
			g.Burst = s.Burst.Scale(burst, short.Burst) / fixed.Token * fixed.Token
			if g.Burst == 0 && s.Burst > 0 && a.Held().Burst == 0 {
				g.Burst = fixed.Token // a rate without burst could not be used
			}
		}
		g.Burst = min(g.Burst, p.Spare())
		if few && g.Rate < s.Rate && g.Rate < a.target.Rate/lease.Hysteresis || g.Rate > 0 && a.Held().Burst+g.Burst == 0 {
			g.Rate = 0 // too little for a message, or of no use without burst
		}
		if g.Burst > 0 {
			// A part of the burst brings its part of the tokens.
			g.Tokens = min(p.Level.Scale(g.Burst, p.Room()), g.Burst)
		}
		a.grant(a.bound(g))
	}
}

// reached is the part of its target that the account has of rate.
func (a *Account) reached() float64 { return float64(a.Held().Rate) / max(float64(a.target.Rate), 1) }

// shortOf returns what an account is short of its target, or nothing where that is too little to
// be worth a message.
func (r *Resource) shortOf(a *Account) lease.Capacity {
	h := a.Held()
	s := lease.Capacity{Rate: max(0, a.target.Rate-h.Rate), Burst: max(0, a.target.Burst-h.Burst)}
	least := a.target.Rate / lease.Hysteresis
	if h.Rate < a.Demand-a.Demand/lease.Hysteresis {
		least /= lease.Hysteresis // it uses all that it gets
	}
	if a.Shortfall > 0 {
		least = min(least, a.target.Rate/lease.Hysteresis/4)
		if !r.Saturated {
			least /= lease.Hysteresis // its bucket runs dry in the end, however little is missing
		}
	}
	if !r.Contended && a.Shortfall == 0 && h.Rate >= a.Demand && h.Burst >= 2*fixed.Token && (!a.Spare || h.Rate >= a.target.Rate-a.target.Rate/4) {
		return lease.Capacity{} // it has what it demands, and gets more when it asks
	}
	if s.Rate < least {
		s.Rate = 0
	}
	// An instance that has just returned burst unasked has no use for it.
	if h.Burst >= 2*fixed.Token && (s.Burst < a.target.Burst/(lease.Hysteresis/8) || !r.Saturated && a.Shortfall == 0 && r.Pool.At < a.returnedAt.Add(lease.IdleGrace)) {
		s.Burst = 0
	}
	return s
}

// part is the smallest part of a token that is lent by itself: an eighth. Not smaller: each is
// a message. Not larger: so much would stay in the pool while the last request of a burst is
// refused.
const part = 8

// lendTokens lends tokens to accounts that are missing some now, first to the one that has
// been missing them for longest.
func (r *Resource) lendTokens(now limit.Time) {
	list := r.order[:0]
	for _, a := range r.accounts {
		if a.expireShortfall(now); a.Shortfall > 0 {
			list = append(list, a)
		}
	}
	r.order = list
	slices.SortStableFunc(list, func(a, b *Account) int {
		return cmp.Or(cmp.Compare(b.Band, a.Band), cmp.Compare(a.shortSince, b.shortSince))
	})
	for _, a := range list {
		p := &r.Pool
		h := a.Held()
		// What is unacknowledged is not granted a second time. A part of a token is worth no
		// message where others are short too; else it may be what is missing to a whole token.
		t := min(a.Shortfall-a.unacked.Tokens, p.Level)
		if t < min(a.Shortfall, fixed.Token) && (r.Contended || t < fixed.Token/part) {
			continue
		}
		// The bucket of the instance may be at its burst, so the tokens bring burst of their own.
		d := fixed.Amount(0)
		if h.Burst < a.Shortfall {
			d = min((t+fixed.Token-1)/fixed.Token*fixed.Token, p.Burst/fixed.Token*fixed.Token)
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
		g := a.bound(lease.Capacity{Burst: d, Tokens: t})
		if t = g.Tokens; t <= 0 {
			continue
		}
		a.grant(g)
		a.shortSince = now // it has waited no longer than the others, however much it still wants
		if a.Shortfall -= t; a.Shortfall <= 0 || a.Shortfall < fixed.Token && a.target.Rate == 0 {
			a.Shortfall, a.shortSince = 0, 0
		}
	}
}

// nextRound is when the next round is due if no report comes before: when the pool has the
// tokens that an account is missing, or when the rotation goes on. Several tokens of a fast rate go together, unless
// the pool is full before: what is refilled then is lost.
func (r *Resource) nextRound(now limit.Time) limit.Time {
	p, least, next := &r.Pool, fixed.MaxAmount, lease.Never
	if r.Rotation.Until != 0 {
		next = r.Rotation.Until
	}
	for _, a := range r.accounts {
		if a.Shortfall > 0 {
			least = min(least, max(a.Shortfall, fixed.Token))
		}
	}
	room := p.Room() - p.Level
	if least == fixed.MaxAmount || p.Rate <= 0 || min(least-p.Level, room) <= 0 {
		return next
	}
	until := func(tokens fixed.Amount) time.Duration {
		return time.Duration(float64(tokens)/float64(p.Rate)*float64(time.Second)) + 1
	}
	return min(next, now.Add(min(until(room), max(lease.MinReportGap, until(least-p.Level)))))
}
