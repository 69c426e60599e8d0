package coordinator

import (
	"slices"
	"time"

	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/internal/lease/pool"
	"github.com/stint-io/stint/limit"
)

// This file is what a coordinator tells replicas, so that its successor knows what is left of each bucket
// also where it does not get to write its last record. A replica is told a lower bound of what the
// pool has. While instances hold a part of a bucket, its pool need not fill, so the bound holds as it is;
// when they hold nothing any more, the pool fills by the rate, and replicas are told what it has.
//
// While they do, the bound is half of what the pool has: not all, since each grant would have to be told before it is
// sent; not nothing, since a successor lends no more.

// tellMore is how often replicas are told at most that a bucket of which a part is lent has more than they
// know. Not shorter: a pool that is drained all the time would be told all the time. Not
// longer: what they do not know is lost by a fail-over.
const tellMore = time.Second

// held says whether an instance may hold a part of the resource. Tokens that came without burst are no
// part of it: they are not in the pool, and do not keep it from filling.
func (r *resource) held() bool {
	if r.Recovering {
		return true
	}
	for _, a := range r.accounts {
		if h := a.Held(); h.Rate != 0 || h.Burst != 0 {
			return true
		}
	}
	return false
}

// leased says whether an instance may have a lease of the resource, which the successor waits for: also one that it
// has claimed and that has no number yet.
func (r *resource) leased() bool {
	return r.Recovering || slices.ContainsFunc(r.accounts, func(a *account) bool { return a.Lease != 0 || a.Held() != (lease.Capacity{}) })
}

// standing is how the bucket of r is.
func (r *resource) standing() toldAs {
	switch {
	case r.held():
		return toldHeld
	case r.leased():
		return toldLeased
	case fills(r.Terms, r.Pool.Level) == 0:
		return toldFull
	}
	return toldIdle
}

// tell has replicas told what is left of the bucket of r, if they know less or more than there is.
func (c *Coordinator) tell(r *resource, now limit.Time) {
	if !c.replicating {
		return
	}
	r.Pool.Refill(now)
	level, t, as, must := r.Pool.Level, &r.told, r.standing(), r.told.must
	switch {
	case as == t.as && as != toldHeld, as == toldFull && t.as == toldIdle:
		return // it has more meanwhile, as they know
	case as != toldHeld:
		*t = told{as: as, must: must}
	case t.as == toldHeld && level >= t.tokens && (level/4 <= t.tokens || now < t.at.Add(tellMore)):
		return
	default:
		if level > 0 {
			level = level / 2 / fixed.Token * fixed.Token
		}
		if t.as != toldHeld || level < t.tokens {
			must = c.number + 1
		}
		*t = told{toldHeld, level, now, must}
	}
	c.number++
	c.levels = append(c.levels, r.level(level))
}

// level is what replicas are told of r, which has so many tokens.
func (r *resource) level(tokens fixed.Amount) Level {
	as := r.told.as
	return Level{
		Bucket: pool.IDOf(r.ID), Tokens: tokens, Held: as == toldHeld, Leased: as == toldHeld || as == toldLeased, Fills: fills(r.Terms, tokens),
	}
}

// Levels returns what the latest Step has changed for replicas, and the number of the last of them: they are
// counted. It is valid until the next Step.
func (c *Coordinator) Levels() (levels []Level, number uint64) { return c.levels, c.number }

// MustKnow returns the number of the Level that replicas have to know before g is sent; 0 = it may go at once. It
// is not always of the Step of g: what an earlier one has lowered they may not know yet.
func (c *Coordinator) MustKnow(g *lease.Grant) (number uint64) {
	s := c.sessions[g.To]
	if !c.replicating || s == nil {
		return 0
	}
	for i := range g.Shares {
		if a := s.accounts[g.Shares[i].Handle]; a != nil && g.Shares[i].Lease != 0 {
			number = max(number, a.resource.told.must)
		}
	}
	return number
}

// Replicate has every Step from here on say in [Coordinator.Levels] what replicas have to know, and returns
// what one that begins now has to know: of each bucket that is not full, and since when all others fill from
// empty; below 0 = they are full. ok is false in recovery, and for the coordinator of a site, whose
// capacity its parent knows: there is nothing to replicate.
func (c *Coordinator) Replicate(now limit.Time) (levels []Level, others time.Duration, ok bool) {
	if c.opts.Parent != nil || c.Recovering(now) {
		return nil, 0, false
	}
	others = -1
	if since := c.othersEmptySince(now); since != 0 {
		others = time.Duration(now - since)
	}
	changed, number := len(c.levels), c.number
	for _, r := range c.list {
		if !c.replicating {
			r.told = told{as: toldOther}
		}
	}
	levels = c.replicateUnlent(now, levels)
	c.replicating = true
	c.unopened(now, func(id BucketID, b usedBucket) {
		levels = append(levels, Level{Bucket: id, Tokens: b.tokens, Age: b.age, Fills: b.fills})
	})
	for _, r := range c.list {
		c.tell(r, now)
		tokens := r.Pool.Level
		if r.told.as == toldHeld {
			tokens = r.told.tokens
		}
		levels = append(levels, r.level(tokens))
		r.told.must = min(r.told.must, number) // it begins with that
	}
	c.levels, c.number = c.levels[:changed], number
	return levels, others, true
}

// EndReplicating has Levels say nothing more.
func (c *Coordinator) EndReplicating() { c.replicating = false }
