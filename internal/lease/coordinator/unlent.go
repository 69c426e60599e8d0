package coordinator

import (
	"time"

	"github.com/stint-io/stint/internal/fairshare"
	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/internal/lease/pool"
	"github.com/stint-io/stint/limit"
)

// This file is the buckets of which nobody has a lease: servers ask for tokens of them one by one. It serves keys
// that come seldom, at a tenth of the memory and the work of a lease.

// maxUnlent bounds these buckets: at some 100 bytes each they are 400 MB. Of more, keys are had by a lease.
const maxUnlent = 1 << 22

// askable says whether the terms let a bucket be spent without a lease: it is one bucket for all.
func askable(t *lease.Terms) bool {
	return !t.Semaphore && t.Allocation == fairshare.MaxMin && t.Suppress == nil && len(t.Guarantees) == 0 && len(t.Sites) == 0
}

// tellUnlent has replicas told what is left of a bucket, if they count with more.
func (c *Coordinator) tellUnlent(now limit.Time, id BucketID, b *pool.Bucket) {
	if !c.replicating {
		return
	}
	if tokens, ok := b.Tell(now); ok {
		c.number++
		b.Must = c.number
		c.levels = append(c.levels, Level{Bucket: id, Tokens: tokens, Fills: fixed.TimeFor(b.Burst-tokens, b.Rate)})
	}
}

// lendUnlent makes a resource that is opened what its bucket was without a lease.
func (c *Coordinator) lendUnlent(now limit.Time, r *resource) (was bool) {
	id := pool.IDOf(r.ID)
	b, ok := c.unlent.Get(id)
	if !ok {
		return false
	}
	c.unlent.Delete(id)
	if !r.Terms.Semaphore && !r.Terms.PerInstance() {
		b.Adopt(now, r.Terms.Rate, r.Terms.Burst)
		r.Begin(b.Tokens, b.At, now)
	}
	r.told = told{as: toldOther} // replicas have to be told before any of it is granted
	return true
}

// forgets says whether a resource need not be kept as one: it is idle, or its bucket is kept without it.
func (c *Coordinator) forgets(now limit.Time, r *resource) bool {
	if r.dirty || r.Idle(now) {
		return !r.dirty
	}
	if len(r.accounts) > 0 || r.Recovering || r.Supply != nil || r.Status != lease.StatusOK || !askable(r.Terms) || c.unlent.Len() >= maxUnlent {
		return false
	}
	// Replicas have been told exactly what there is, when the last account was removed.
	b := pool.Bucket{Tokens: r.Pool.Level, At: now, Rate: r.Terms.Rate, Burst: r.Terms.Burst, Told: r.Pool.Level, ToldAt: now, Must: r.told.must}
	c.unlent.Put(pool.IDOf(r.ID), b)
	return true
}

// replicateUnlent returns what a new replica has to know of these buckets.
func (c *Coordinator) replicateUnlent(now limit.Time, levels []Level) []Level {
	c.unlent.Each(now, func(id BucketID, b *pool.Bucket) {
		if !c.replicating {
			b.Told, b.ToldAt = b.Level(now), now
		}
		levels = append(levels, Level{Bucket: id, Tokens: b.Told, Age: time.Duration(now - b.ToldAt), Fills: fixed.TimeFor(b.Burst-b.Told, b.Rate)})
	})
	return levels
}
