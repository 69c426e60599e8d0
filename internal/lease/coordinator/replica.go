package coordinator

import (
	"time"

	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/internal/lease/pool"
	"github.com/stint-io/stint/limit"
)

// Level is what is left of one bucket at least.
type Level struct {
	Bucket BucketID
	Tokens fixed.Amount  // not lent; below 0 after a limit was reduced
	Held   bool          // instances hold a part of it
	Leased bool          // they have leases, also of nothing
	Age    time.Duration // if it is not held: how long ago it had the tokens
	Fills  time.Duration // the age at which it is full if nothing is held
}

// Replica is what another member knows of the buckets of a coordinator. Make it with [NewReplica]. It is not
// safe for concurrent use.
type Replica struct {
	othersSince limit.Time // all other buckets fill from empty since then
	othersFull  bool       // or are full
	of          pool.Table[replicated, *replicated]
	sweepAt     limit.Time
}

// replicated is a Level and when it had the tokens.
type replicated struct {
	tokens       fixed.Amount
	at           limit.Time
	fills        time.Duration
	held, leased bool
}

// sweepReplica is how often a Replica forgets some of those that are full. Not more often: it takes up to a millisecond.
const sweepReplica = 250 * time.Millisecond

// NewReplica returns a replica that knows nothing of single buckets yet: others says since when they
// fill from empty; below 0 = they are full.
func NewReplica(now limit.Time, others time.Duration) *Replica {
	return &Replica{othersSince: now - limit.Time(min(max(0, others), MaxAge)), othersFull: others < 0, sweepAt: now}
}

// Update takes what the coordinator said, at now or before: a bucket has filled for longer by then, and
// never for less.
func (r *Replica) Update(now limit.Time, levels []Level) {
	for i := range levels {
		l := &levels[i]
		if !l.Leased && l.Fills <= l.Age {
			r.of.Delete(l.Bucket)
		} else {
			r.of.Put(l.Bucket, replicated{l.Tokens, now - limit.Time(l.Age), l.Fills, l.Held, l.Leased})
		}
	}
	if now >= r.sweepAt {
		r.sweepAt = now.Add(sweepReplica)
		r.of.Sweep(now)
	}
}

// Full implements pool.Filling.
func (b *replicated) Full(now limit.Time) bool {
	return !b.leased && time.Duration(now-b.at) >= b.fills
}

// Buckets is how many are known.
func (r *Replica) Buckets() int { return r.of.Len() }

// Used returns what is known for the term that begins at now.
func (r *Replica) Used(now limit.Time) *Used {
	u := &Used{others: -1, of: make(map[BucketID]usedBucket, r.of.Len())}
	if !r.othersFull {
		u.others = time.Duration(now - r.othersSince)
	}
	r.of.Each(now, func(id BucketID, b *replicated) {
		u.of[id] = usedBucket{b.tokens, time.Duration(now - b.at), b.fills, b.held, b.leased}
	})
	return u
}
