package coordinator

import (
	"time"

	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/internal/lease/pool"
)

// Used is what is known of the buckets that are not full when a term begins, so that the new coordinator
// neither lends what was spent nor withholds what was not. It holds for that moment: the predecessor
// lends nothing from then on. nil = nothing is known, and every bucket counts as empty.
type Used struct {
	// others says since when all other buckets fill from empty; below 0 = they are full.
	others time.Duration
	of     map[BucketID]usedBucket
}

// Later moves what is known to a moment that is d later, in which nothing was lent. d is at least 0.
func (u *Used) Later(d time.Duration) {
	d = min(d, MaxAge)
	if u.others >= 0 {
		u.others = min(u.others+d, MaxAge)
	}
	for id, b := range u.of {
		b.age = min(b.age+d, MaxAge)
		u.of[id] = b
	}
}

// usedBucket is one that had so many tokens that were not lent, that long before. Tokens may be below
// 0, after a limit was reduced.
type usedBucket struct {
	tokens fixed.Amount
	age    time.Duration
	fills  time.Duration // age at which it is full if nothing is lent
	held   bool          // instances may hold a part of it, so that it need not have filled since
	leased bool          // there may be leases of it, also of nothing
}

// maxUsed bounds the buckets of a record, of usedSize bytes each: they have to fit into maxRecord.
const maxUsed = 3072

// BucketID is a hash of a limit and a key that nobody finds two of.
type BucketID = pool.BucketID

// MaxAge is the longest age of a bucket that is believed, 36 years: no sum of it and of times that pass overflows.
const MaxAge = time.Duration(1 << 60)

// fills is how long a bucket with so many tokens takes to be full, with those of all caps, when nothing of
// it is lent. It is rounded up.
func fills(t *lease.Terms, tokens fixed.Amount) (longest time.Duration) {
	if t.Semaphore || t.PerInstance() {
		return 0
	}
	longest = fixed.TimeFor(t.Burst-tokens, t.Rate)
	for i := range t.Sites {
		longest = max(longest, fixed.TimeFor(t.Sites[i].Burst, t.Sites[i].Rate))
	}
	return longest
}
