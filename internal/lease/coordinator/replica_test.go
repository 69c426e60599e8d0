package coordinator

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/internal/lease/holding"
	"github.com/stint-io/stint/internal/lease/pool"
	"github.com/stint-io/stint/internal/seeding"
	"github.com/stint-io/stint/limit"
)

// copied is a replica of a desk's coordinator.
type copied struct {
	*Replica     // nil = there is none
	told     int // levels
	lowered  int // steps that it had to know first
}

// step steps the coordinator, and has the replica know what that has changed.
func (d *desk) step(e lease.Event) []lease.Grant {
	grants := d.c.Step(d.now, e)
	if d.copy.Replica != nil {
		levels, number := d.c.Levels()
		d.copy.Update(d.now, levels)
		d.copy.told += len(levels)
		if slices.ContainsFunc(d.c.list, func(r *resource) bool { return r.told.must > number-uint64(len(levels)) }) {
			d.copy.lowered++
		}
	}
	return grants
}

// replicate begins with a replica.
func (d *desk) replicate() {
	levels, others, ok := d.c.Replicate(d.now)
	if !ok {
		d.t.Fatal("nothing is replicated")
	}
	d.copy.Replica = NewReplica(d.now, others)
	d.copy.Update(d.now, levels)
}

// kill has another coordinator begin by what the replica knows. The instance that holds most of a key may
// die with the leader, with what it took.
func (s *succession) kill(key string, took int64) {
	former := s.epoch
	s.epoch++
	holders := s.c.Holders()
	if took == 0 {
		holders = holding.Holders{}
	}
	u := s.replica.Used(s.now)
	s.begin(Takeover{Epoch: s.epoch, Former: former, Holders: holders, Used: u})
	for asked, least := range s.asked {
		was, left := s.left[asked], s.burst
		if known, listed := s.c.used.of[pool.IDOf(lease.ResourceID{Limit: "l", Key: asked})]; listed {
			left = (known.tokens + rounding).Floor()
		}
		if asked != key && (left > was || left < min(least, was)/2-1) {
			s.t.Fatalf("epoch %d, key %s: %d were left, and the successor knows of %d", s.epoch, asked, was, left)
		}
		s.left[asked] = min(was, left)
		if asked == key {
			s.left[asked] = was
		}
	}
	clear(s.asked)
	if took == 0 {
		return
	}
	was := s.left[key]
	known, listed := s.c.used.of[pool.IDOf(lease.ResourceID{Limit: "l", Key: key})]
	left := (known.tokens + rounding).Floor()
	if !listed || left > was-took || left < (was-took)/2-1 {
		s.t.Fatalf("epoch %d, key %s: %d were left, %d were taken, and the successor knows of %d (%v)", s.epoch, key, was, took, left, listed)
	}
	s.left[key] = left
	s.now = s.now.Add(2 * lease.DefaultLease)
	s.step(lease.Tick{})
}

// TestNothingIsLentTwiceAfterAKill: whatever random instances spend of random keys, and whoever is killed,
// each key gives what is left of it by what a replica knows, and never more. Of a key that nobody held, all
// of it.
func TestNothingIsLentTwiceAfterAKill(t *testing.T) {
	for seed := range seeding.Draw(t, 300) {
		r := rand.New(rand.NewPCG(seed, 72))
		s := newSuccession(t, r)
		s.replicate()
		for range 60 {
			switch r.IntN(8) {
			case 0:
				s.succeed(true)
			case 1:
				s.kill("", 0)
			case 2:
				key := fmt.Sprint("k", r.IntN(12))
				if s.replica == nil {
					continue // recovery goes on
				}
				_, share, got, left := s.take(key, 1+r.Int64N(s.burst))
				if s.left[key] = left; share.Lease == 0 {
					continue
				}
				s.kill(key, got)
			case 3:
				s.now = s.now.Add(time.Duration(r.Int64N(int64(10 * time.Second))))
				s.step(lease.Tick{})
			default:
				s.use(fmt.Sprint("k", r.IntN(12)), 1+r.Int64N(s.burst))
			}
		}
	}
}

// TestReplicaIsNeverAbove: at every moment of random histories of a busy limit a replica knows of no more
// tokens than the pool has, whatever instances ask for, return, or lose, and however the limit changes; and
// what it does not know is told before a grant is sent.
func TestReplicaIsNeverAbove(t *testing.T) {
	asked := 0
	for seed := range seeding.Draw(t, 200) {
		r := rand.New(rand.NewPCG(seed, 73))
		terms := lease.Terms{Rate: amount(float64(1 + r.IntN(50))), Burst: fixed.Whole(1 + r.Int64N(60))}
		d := newDesk(t, terms)
		d.most = terms.Burst // of which a part may be used before there is a lease
		d.start(1, 0)
		d.replicate()
		for range 300 {
			d.now = d.now.Add(time.Duration(r.Int64N(int64(200 * time.Millisecond))))
			who := []lease.Member{anna, bert, cleo}[r.IntN(3)]
			switch r.IntN(12) {
			case 0:
				d.send(lease.Report{Member: who, Epoch: 1, Leaving: true})
			case 1:
				terms.Burst = fixed.Whole(1 + r.Int64N(60))
				d.terms["l"] = terms
				d.most = max(d.most, terms.Burst)
				d.step(Reconfigure{})
			case 2:
				d.now = d.now.Add(2 * lease.DefaultLease)
				d.step(lease.Tick{})
			case 3, 4, 5:
				cost := fixed.Whole(1 + r.Int64N(6))
				if r.IntN(8) == 0 {
					cost = -cost
				}
				d.step(&Asked{Asks: []lease.Ask{{Resource: theLimit, Cost: cost}, {Resource: theLimit, Cost: cost / 2}}})
			default:
				d.report(who, asks([]float64{0, 1, 5, 100}[r.IntN(4)]))
			}
			u := d.copy.Used(d.now)
			d.c.unlent.Each(d.now, func(id BucketID, bucket *pool.Bucket) {
				b, listed := u.of[id]
				if !listed {
					b = usedBucket{tokens: terms.Burst}
				}
				if bucket.Burst != terms.Burst {
					return // nobody has asked since the terms are others
				}
				known := min(bucket.Burst, b.tokens+bucket.Rate.Scale(fixed.Amount(b.age), fixed.Amount(time.Second)))
				if have := bucket.Level(d.now); b.held || b.leased || known > have+rounding {
					t.Fatalf("seed %d: the replica knows of %v tokens (held %v, leased %v), without a lease there are %v", seed, known, b.held, b.leased, have)
				}
				asked++
			})
			for _, res := range d.c.list {
				res.Pool.Refill(d.now)
				b, listed := u.of[pool.IDOf(res.ID)]
				if !listed {
					b = usedBucket{tokens: res.Terms.Burst}
				}
				have := res.Pool.Level
				if !b.held {
					b.tokens = min(res.Terms.Burst, b.tokens+res.Terms.Rate.Scale(fixed.Amount(b.age), fixed.Amount(time.Second)))
				}
				if b.tokens > have+rounding || !b.held && res.held() || !b.leased && res.leased() {
					t.Fatalf("seed %d: the replica knows of %v tokens (held %v, leased %v), the pool has %v (held %v, leased %v)", seed, b.tokens, b.held, b.leased, have, res.held(), res.leased())
				}
			}
		}
		if seed == 199 && asked < 500 {
			t.Errorf("%d times there was a bucket without a lease", asked)
		}
		if d.copy.told == 0 || d.copy.told > 600 {
			t.Errorf("seed %d: %d levels were told in 300 events", seed, d.copy.told)
		}
	}
}

// TestLoweredGoesFirst: a step that lends more than a replica knows to be gone says so, a few times for a whole
// bucket, and one that only gives back does not.
func TestLoweredGoesFirst(t *testing.T) {
	d := newDesk(t, lease.Terms{Rate: amount(1), Burst: fixed.Whole(64)})
	d.replicate()
	for i := range 40 {
		known := fixed.Whole(64)
		if i > 0 {
			known = d.c.list[0].told.tokens
		}
		before := d.copy.lowered
		d.report(anna, asks(64))
		if d.c.list[0].Pool.Level < known && d.copy.lowered == before {
			t.Errorf("%v are left, replicas knew of %v, and nobody waits for them", d.c.list[0].Pool.Level, known)
		}
	}
	if d.copy.lowered == 0 || d.copy.lowered > 8 {
		t.Errorf("%d steps had to wait for replicas, want one for each half of the bucket at most", d.copy.lowered)
	}
	before := d.copy.lowered
	d.send(lease.Report{Member: anna, Epoch: 1, Leaving: true})
	if d.copy.lowered != before || d.c.list[0].told.as != toldIdle {
		t.Errorf("after anna has left: %+v, %d steps more had to wait", d.c.list[0].told, d.copy.lowered-before)
	}
}

// TestRateOfAFormerLeaseIsNotCountedTwice: an instance that is cut off spends its lease to the end, with the
// rate. A bucket that is opened after that has filled only since then, and one that is opened after the
// instance has said that it holds nothing, since that.
func TestRateOfAFormerLeaseIsNotCountedTwice(t *testing.T) {
	const lasts = lease.DefaultLease + lease.DefaultLease/(lease.DriftMargin/2)
	for _, tt := range []struct {
		name  string
		used  *Used
		leave time.Duration // when anna says that she holds nothing; 0 = never
		want  string
	}{
		{"nothing is known", nil, 0, "10/s burst 100 tokens 10."},
		{"a part was held", &Used{others: -1, of: map[BucketID]usedBucket{pool.IDOf(theLimit): {fills: limit.Never, held: true, leased: true}}}, 0, "10/s burst 100 tokens 10."},
		{"nothing was held", &Used{others: -1, of: map[BucketID]usedBucket{pool.IDOf(theLimit): {fills: limit.Never}}}, 0, "10/s burst 100 tokens 60."},
		{"nothing is known, and she reports", nil, 2 * time.Second, "10/s burst 100 tokens 40."},
	} {
		d := newDesk(t, lease.Terms{Rate: amount(10), Burst: fixed.Whole(100)})
		d.start(3, 0)
		held := holding.Holders{}
		held.Include(anna.Session, "l")
		d.c.Step(d.now, Takeover{Epoch: 4, Former: 3, Holders: held, Used: tt.used})
		end := d.now.Add(lasts + time.Second)
		if tt.leave != 0 {
			d.now = d.now.Add(tt.leave)
			d.send(lease.Report{Member: anna, Epoch: 4, Leaving: true})
		}
		d.now = end
		d.c.Step(d.now, lease.Tick{})
		if said := d.report(bert, asks(200)); !strings.Contains(said, tt.want) {
			t.Errorf("%s: bert is sent %s, want %s", tt.name, said, tt.want)
		}
	}
}

// TestRefilledPoolIsToldNowAndThen: replicas learn that a pool of which a part is lent has more, once a second
// and not with each token.
func TestRefilledPoolIsToldNowAndThen(t *testing.T) {
	d := newDesk(t, lease.Terms{Rate: amount(1000), Burst: fixed.Whole(1000)})
	d.report(anna, asks(100))
	d.c.list[0].Pool.Level = 0
	d.replicate()
	before := d.copy.told
	for i := range 300 {
		d.now = d.now.Add(8 * time.Millisecond)
		d.report(anna, asks(float64(100+i%2)))
	}
	if told := d.copy.told - before; told < 1 || told > 4 {
		t.Errorf("%d levels were told in 3.9 s", told)
	}
	if u := d.copy.Used(d.now); u.of[pool.IDOf(theLimit)].tokens < d.c.list[0].Pool.Level/4 {
		t.Errorf("the replica knows of %v, the pool has %v", u.of[pool.IDOf(theLimit)].tokens, d.c.list[0].Pool.Level)
	}
}

// TestHalfIsTold: a bucket from which tokens are taken one by one is told a few times, not each time.
func TestHalfIsTold(t *testing.T) {
	d := newDesk(t, lease.Terms{Rate: fixed.Token / 1000, Burst: fixed.Whole(64)})
	d.replicate()
	for i := range 64 {
		d.report(anna, lease.Demand{Handle: 1, Resource: theLimit, Shortfall: fixed.Whole(int64(1 + i)), AckedGrant: d.acked[anna]})
	}
	if d.copy.lowered < 3 || d.copy.lowered > 9 {
		t.Errorf("%d of 64 steps had to wait for replicas, want some log2(64)", d.copy.lowered)
	}
}

// TestReplicaForgetsFullBuckets so that it does not grow with the keys that were ever used.
func TestReplicaForgetsFullBuckets(t *testing.T) {
	r := NewReplica(0, -1)
	now := limit.Time(0)
	for i := range 60_000 {
		now = now.Add(time.Millisecond)
		r.Update(now, []Level{{Bucket: pool.IDOf(lease.ResourceID{Key: fmt.Sprint(i)}), Fills: time.Second}})
	}
	if r.Buckets() > 18_000 { // those of 16 s, in which it has looked at all
		t.Errorf("%d buckets are kept, of which 1000 are not full", r.Buckets())
	}
	if u := r.Used(now); len(u.of) != 1000 {
		t.Errorf("%d buckets count as used, want 1000", len(u.of))
	}
}
