package memory

import (
	"hash/maphash"
	"math"
	"sync/atomic"

	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/store"
)

// Counters are the counters of one limit: a table from keys to states. They keep
// their identity while the policy, and with it the kind of table, changes.
type Counters struct {
	store  *Store
	id     string
	serial uint64 // the order in which Takes over several buckets lock
	seed   maphash.Seed

	policy  atomic.Pointer[limit.Policy]
	account *account // of the budget

	// The most that a key had used when the present policy came into force, which may be more
	// than its quota, and when that was. Guarded by Store.mu.
	usedBefore   int64
	usedBeforeAt uint64 // since the store's beginning

	// The table in force; nil until the first Take, so that thousands of unused limits cost
	// nothing. words is the same table if it is a wordTable with the system's clock: the hot
	// path then checks neither.
	table atomic.Pointer[installed]
	words atomic.Pointer[wordTable]

	bans atomic.Pointer[bans] // nil while the policy does not ban

	tag atomic.Pointer[any]
}

// SetTag keeps what a store around this one has to know of the counters; Tag returns it, nil if there is
// nothing. They are safe for concurrent use.
func (c *Counters) SetTag(tag any) { c.tag.Store(&tag) }

// Tag returns what SetTag has set.
func (c *Counters) Tag() any {
	if t := c.tag.Load(); t != nil {
		return *t
	}
	return nil
}

// installed makes a table of either kind fit an atomic pointer.
type installed struct{ table }

func (i *installed) get() table {
	if i == nil {
		return nil
	}
	return i.table
}

// ask is what a charge takes from one bucket.
type ask struct {
	cost   int64
	permit uint64
	counts bool  // charge the cost even if it does not fit
	quota  int64 // of a fixed window or of a bucket, if own
	own    bool
}

func askOf(c *store.Charge) ask { return ask{c.Cost, c.Permit, c.CountRefused, c.Quota, c.HasQuota} }

// costing is an ask with a cost and no options.
func costing(n int64) ask { return ask{cost: n} }

// joined is the sum of two asks on one bucket.
func (a ask) joined(b ask) ask {
	if a.cost += b.cost; a.cost < 0 {
		a.cost = math.MaxInt64 // above every quota, as the sum would be
	}
	if b.own && (!a.own || b.quota < a.quota) {
		a.quota, a.own = b.quota, true
	}
	a.counts = a.counts || b.counts
	return a
}

// table is what both kinds of table do. A method that returns false has done nothing: the key's
// state has moved to the table's successor.
type table interface {
	take(h uint64, a ask) (limit.Verdict, bool)
	peek(h uint64, a ask) (limit.Verdict, bool)
	refund(h uint64, taken limit.Time, cost int64) bool
	finish(h uint64, permit uint64, keep bool) bool
	reset(h uint64) bool

	// join finds the bucket of a key for a Take over several buckets; see takeAll. With keep it
	// drops no other key's state for it.
	join(h uint64, m *member, keep bool) bool

	successor() table  // where the states went; nil when they were dropped
	keys() int64       // with a state of their own
	sweep()            // drops fresh states and returns their bytes
	moveTo(next table) // carries all states over; next is not in use yet
	drop()             // drops all states and returns their bytes
}

// shardCount is how many shards a table has, each with its own growth. Not fewer: copying one
// shard of a table of a million keys then takes 0.1 ms. Not more: each shard of each limit costs
// 40 bytes before it holds a key.
const shardCount = 64

func shardOf(h uint64) uint64 { return h >> 58 }

func newCounters(s *Store, id string, serial uint64, p limit.Policy) *Counters {
	c := &Counters{store: s, id: id, serial: serial, seed: maphash.MakeSeed(), account: s.budget.open()}
	c.policy.Store(&p)
	return c
}

// Spec returns the identity and the policy in force.
func (c *Counters) Spec() store.Spec { return store.Spec{ID: c.id, Policy: *c.policy.Load()} }

// hash returns the hash by which tables know a key. 0 and the highest number mark slots, so no
// key has them.
func (c *Counters) hash(key []byte) uint64 { return avoidMarks(maphash.Bytes(c.seed, key)) }

func (c *Counters) hashString(key string) uint64 { return avoidMarks(maphash.String(c.seed, key)) }

func avoidMarks(h uint64) uint64 {
	if h+1 <= 1 {
		return 1 << 32
	}
	return h
}

// current returns the table in force, made now if there is none.
func (c *Counters) current() table {
	if t := c.table.Load(); t != nil {
		return t.table
	}
	c.store.mu.Lock()
	defer c.store.mu.Unlock()
	if c.table.Load() == nil {
		c.install(c.newTable(*c.policy.Load()))
	}
	return c.table.Load().table
}

// setPolicy puts p in force and carries over the state of every key. Store.mu is held, so there
// is one change at a time. Takes go on meanwhile: those of a shard that has moved continue at
// the successor.
func (c *Counters) setPolicy(p limit.Policy) {
	old := c.policy.Swap(&p)
	if t := c.table.Load(); t != nil && *old != p {
		c.replace(t.table, *old, p)
	}
}

// replace carries all states from a table under one policy to a new one under another.
func (c *Counters) replace(old table, from, p limit.Policy) {
	c.usedBefore = c.mostUsed(from)
	next := c.newTable(p)
	old.moveTo(next)
	c.usedBeforeAt = c.store.since()
	c.install(next)
}

// mostUsed is the most that a key has used under p, which is in force: its quota, or what refill
// has left of usedBefore.
func (c *Counters) mostUsed(p limit.Policy) int64 {
	if p.Unlimited || !isBucket(p) {
		return 0
	}
	// A bucket that holds as much as was used, and was empty then.
	var s limit.BucketState
	b := limit.NewBucket(p).WithQuota(c.usedBefore)
	b.Take(&s, limit.Time(c.usedBeforeAt), c.usedBefore)
	now := max(c.store.since(), c.usedBeforeAt)
	return max(p.Quota(), c.usedBefore-b.Peek(s, limit.Time(now), 0).Remaining)
}

func isBucket(p limit.Policy) bool {
	return p.Algorithm == limit.TokenBucket || p.Algorithm == limit.LeakyBucket
}

// rebase gives a table of words a later beginning before its ticks no longer fit.
func (c *Counters) rebase(old *wordTable) {
	c.store.mu.Lock()
	defer c.store.mu.Unlock()
	if c.table.Load().get() == table(old) {
		c.replace(old, *c.policy.Load(), *c.policy.Load())
	}
}

func (c *Counters) install(t table) {
	words, _ := t.(*wordTable)
	if c.store.now != nil || words != nil && words.counts {
		words = nil // the hot path reads the system's clock, and counts what it admits
	}
	c.table.Store(&installed{t})
	c.words.Store(words)
}

// drop forgets all states. Takes that still hold c are admitted: its limit does not exist any
// more.
func (c *Counters) drop() {
	t := c.table.Load().get()
	c.install(admitsAll{})
	if t != nil {
		t.drop()
	}
}

// overflow records a Take that is decided on the overflow bucket.
func (c *Counters) overflow(since uint64) {
	if c.account.overflow(since) && c.store.logger != nil {
		c.store.logger.Warn("limit has more live keys than its room: new keys share one bucket until there is room again",
			"limit", c.id, "bytes", c.account.used.Load(), "all_bytes", c.store.budget.used.Load(), "max_bytes", c.store.budget.max)
	}
}

// newTable returns an empty table of the kind that suits p.
func (c *Counters) newTable(p limit.Policy) table {
	if isBucket(p) {
		bucket := limit.NewBucket(p)
		// A bucket that never refills has only one tick: a word could not distinguish a full
		// bucket from a key that was never seen.
		if packed, ok := bucket.Pack(); ok && packed.Holds(c.usedBefore) && !p.Unlimited && p.Rate.Count > 0 {
			t := newWordTable(c, packed)
			t.counts = p.CountRefused
			return t
		}
	}
	return newLockedTable(c, p)
}

// The methods below act on the table in force, or on its successor if the state of the key moved
// meanwhile. Counters that were unbound admit everything: their limit does not exist any more.

func (c *Counters) take(h uint64, a ask) limit.Verdict {
	for t := c.current(); t != nil; t = t.successor() {
		if v, done := t.take(h, a); done {
			return v
		}
	}
	return unlimited
}

func (c *Counters) peek(h uint64, a ask) limit.Verdict {
	for t := c.current(); t != nil; t = t.successor() {
		if v, done := t.peek(h, a); done {
			return v
		}
	}
	return unlimited
}

func (c *Counters) refund(h uint64, taken limit.Time, cost int64) {
	for t := c.current(); t != nil && !t.refund(h, taken, cost); {
		t = t.successor()
	}
}

func (c *Counters) finish(h uint64, permit uint64, keep bool) {
	for t := c.current(); t != nil && !t.finish(h, permit, keep); {
		t = t.successor()
	}
}

func (c *Counters) reset(h uint64) {
	for t := c.current(); t != nil && !t.reset(h); {
		t = t.successor()
	}
}
