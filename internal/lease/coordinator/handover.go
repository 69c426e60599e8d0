package coordinator

import (
	"time"

	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/limit"
)

// Drain has the coordinator lend nothing more, and take back what instances return: it is about to hand
// over, and what is lent then and does not arrive would be lost to all. Without On it lends again.
type Drain struct{ On bool }

func (Drain) Event() {}

// Used returns what is known of the buckets at now; nil = a successor has to count them as empty. The
// coordinator must lend nothing afterwards.
func (c *Coordinator) Used(now limit.Time) *Used {
	if c.opts.Parent != nil || c.Recovering(now) || len(c.list)+len(c.used.of) > maxUsed {
		return nil
	}
	u := &Used{others: -1, of: map[uint64]usedBucket{}}
	if c.emptySince != 0 {
		u.others = time.Duration(now - c.emptySince)
	}
	for hash, b := range c.used.of { // which nobody has opened since
		u.of[hash] = usedBucket{b.tokens, b.age + time.Duration(now-c.beganAt)}
	}
	for _, r := range c.list {
		r.Pool.Refill(now)
		hash, b := resourceHash(r.ID), usedBucket{tokens: r.Pool.Level}
		if other, ok := u.of[hash]; ok {
			b = usedBucket{min(b.tokens, other.tokens), 0}
		}
		u.of[hash] = b
	}
	return u
}

// take returns what is known of a resource that is opened, and forgets it: from here on its books say.
// known is false where every bucket counts as empty.
func (c *Coordinator) takeUsed(id lease.ResourceID) (b usedBucket, listed, known bool) {
	if c.used.of == nil {
		return usedBucket{}, false, false
	}
	hash := resourceHash(id)
	b, listed = c.used.of[hash]
	delete(c.used.of, hash)
	return b, listed, true
}
