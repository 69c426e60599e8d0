package coordinator

import (
	"maps"
	"time"

	"github.com/stint-io/stint/internal/fixed"
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
	of          map[BucketID]replicated
	prune       int // at this size it forgets those that are full by now
}

type replicated struct {
	Level
	at limit.Time // when it had the tokens
}

// minPrune is from how many buckets on a Replica looks for those that are full.
const minPrune = 1024

// NewReplica returns a replica that knows nothing of single buckets yet: others says since when they
// fill from empty; below 0 = they are full.
func NewReplica(now limit.Time, others time.Duration) *Replica {
	return &Replica{othersSince: now - limit.Time(min(max(0, others), MaxAge)), othersFull: others < 0, of: map[BucketID]replicated{}, prune: minPrune}
}

// Update takes what the coordinator said, at now or before: a bucket has filled for longer by then, and
// never for less.
func (r *Replica) Update(now limit.Time, levels []Level) {
	for i := range levels {
		l := levels[i]
		if !l.Leased && l.Fills <= l.Age {
			delete(r.of, l.Bucket)
		} else {
			r.of[l.Bucket] = replicated{l, now - limit.Time(l.Age)}
		}
	}
	if len(r.of) < r.prune {
		return
	}
	maps.DeleteFunc(r.of, func(_ BucketID, one replicated) bool { return one.full(now) })
	r.prune = max(minPrune, 2*len(r.of))
}

func (r *replicated) full(now limit.Time) bool {
	return !r.Leased && time.Duration(now-r.at) >= r.Fills
}

// Buckets is how many are known.
func (r *Replica) Buckets() int { return len(r.of) }

// Used returns what is known for the term that begins at now.
func (r *Replica) Used(now limit.Time) *Used {
	u := &Used{others: -1, of: make(map[BucketID]usedBucket, len(r.of))}
	if !r.othersFull {
		u.others = time.Duration(now - r.othersSince)
	}
	for id, one := range r.of {
		if !one.full(now) {
			u.of[id] = usedBucket{one.Tokens, time.Duration(now - one.at), one.Fills, one.Held, one.Leased}
		}
	}
	return u
}
