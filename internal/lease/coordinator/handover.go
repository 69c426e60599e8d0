package coordinator

import (
	"time"

	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/internal/lease/pool"
	"github.com/stint-io/stint/limit"
)

// Drain has the coordinator lend nothing more, and take back what instances return: it is about to hand
// over, and what is lent then and does not arrive would be lost to all. Without On it lends again.
type Drain struct{ On bool }

func (Drain) Event() {}

// Used returns what is known of the buckets at now; nil = a successor has to count them as empty. The
// coordinator must lend nothing afterwards.
func (c *Coordinator) Used(now limit.Time) *Used {
	recovering := c.Recovering(now)
	if c.opts.Parent != nil || recovering && c.used.of == nil || len(c.list)+len(c.used.of)+c.unlent.Len() > maxUsed {
		return nil
	}
	u := &Used{others: -1, of: map[BucketID]usedBucket{}}
	if since := c.othersEmptySince(now); since != 0 {
		u.others = time.Duration(now - since)
	}
	if recovering { // leases of the former coordinator may not be claimed yet
		for id, b := range c.used.of {
			if !b.held {
				b.age = time.Duration(now - c.fillsSince(&b, now))
			}
			u.of[id] = b
		}
	} else {
		c.unopened(now, func(id BucketID, b usedBucket) { u.of[id] = b })
	}
	c.unlent.Each(now, func(id BucketID, b *pool.Bucket) {
		level := b.Level(now)
		u.of[id] = usedBucket{tokens: level, fills: fixed.TimeFor(b.Burst-level, b.Rate)}
	})
	for _, r := range c.list {
		r.Pool.Refill(now)
		tokens := r.Pool.Level + r.Kept()
		u.of[pool.IDOf(r.ID)] = usedBucket{tokens: tokens, fills: fills(r.Terms, tokens), held: r.held(), leased: r.leased()}
	}
	return u
}

// unopened calls f with the buckets of the predecessor that nobody has opened since and that are not full.
// It is called after recovery: nothing of them is lent any more.
func (c *Coordinator) unopened(now limit.Time, f func(BucketID, usedBucket)) {
	for id, b := range c.used.of {
		b.age, b.held, b.leased = time.Duration(now-c.fillsSince(&b, now)), false, false
		if b.age < b.fills {
			f(id, b)
		} else {
			delete(c.used.of, id)
		}
	}
}

// othersEmptySince is since when buckets that neither this coordinator nor the predecessor knows fill
// from empty; 0 = they are full.
func (c *Coordinator) othersEmptySince(now limit.Time) limit.Time {
	if c.emptySince == 0 || c.used.of != nil {
		return c.emptySince
	}
	return c.settled(now)
}

// fillsSince is since when a bucket of the predecessor fills. What instances may still have had of it
// they may have used up to the end of recovery, with the rate.
func (c *Coordinator) fillsSince(b *usedBucket, now limit.Time) limit.Time {
	if b.held {
		return c.settled(now)
	}
	return c.beganAt - limit.Time(b.age)
}

// takeUsed returns what is known of a resource that is opened, and forgets it: from here on its books say.
// known is false where every bucket counts as empty.
func (c *Coordinator) takeUsed(id lease.ResourceID) (b usedBucket, listed, known bool) {
	if c.used.of == nil {
		return usedBucket{}, false, false
	}
	bucket := pool.IDOf(id)
	b, listed = c.used.of[bucket]
	delete(c.used.of, bucket)
	return b, listed, true
}

// begun is the bucket of a resource that nobody has opened in this term; ok is false while it may be lent by a
// former coordinator.
func (c *Coordinator) begun(now limit.Time, id lease.ResourceID, t *lease.Terms) (b pool.Bucket, ok bool) {
	was, listed := c.used.of[pool.IDOf(id)]
	if c.recovering(now, id.Limit) && (was.leased || c.used.of == nil) {
		return b, false
	}
	b = pool.Bucket{Tokens: t.Burst, At: now, Rate: t.Rate, Burst: t.Burst}
	switch {
	case listed:
		b.Tokens, b.At = was.tokens, c.fillsSince(&was, now)
	case c.emptySince != 0:
		b.Tokens, b.At = 0, c.othersEmptySince(now)
	}
	b.Told, b.ToldAt = b.Level(now), now // replicas know it as this coordinator does
	return b, true
}
