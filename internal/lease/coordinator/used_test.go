package coordinator

import (
	"fmt"
	"maps"
	"math/rand/v2"
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

// succession is a line of coordinators of one limit that refills by less than a token in all, each the successor of the one
// before, and what is left of each key's bucket as it is counted from outside.
type succession struct {
	t       *testing.T
	r       *rand.Rand
	c       *Coordinator
	now     limit.Time
	epoch   uint64
	session uint64
	burst   int64
	left    map[string]int64
	others  int64 // of a key that is not in left
	replica *Replica
	asked   map[string]int64 // of these keys, the least that was left: a replica knows half of it at least
}

func (s *succession) coordinator() *Coordinator {
	return New(Options{Epoch: 1, Resolve: func(lease.ResourceID) (lease.Terms, lease.Status) {
		return lease.Terms{Rate: fixed.Token / 1000, Burst: fixed.Whole(s.burst)}, lease.StatusOK
	}}, s.now)
}

// rounding is what the lines may lose by rounding down.
const rounding = 100 * (fixed.Token / 1_000_000)

func newSuccession(t *testing.T, r *rand.Rand) *succession {
	s := &succession{t: t, r: r, now: limit.Time(time.Hour), burst: 1 + r.Int64N(40), left: map[string]int64{}, asked: map[string]int64{}}
	s.others, s.epoch = s.burst, 1
	s.c = s.coordinator()
	return s
}

// begin begins the next term.
func (s *succession) begin(e Takeover) {
	s.c, s.replica = s.coordinator(), nil
	s.c.Step(s.now, e)
	s.replicate()
}

// replicate has a replica know what the latest step has changed.
func (s *succession) replicate() {
	if s.replica == nil {
		if levels, others, ok := s.c.Replicate(s.now); ok {
			s.replica = NewReplica(s.now, others)
			s.replica.Update(s.now, levels)
		}
		return
	}
	levels, _ := s.c.Levels()
	s.replica.Update(s.now, levels)
}

// step steps the coordinator for long enough that a round runs, and returns the last share.
func (s *succession) step(e lease.Event) (last lease.Share) {
	for range 3 {
		for _, g := range s.c.Step(s.now, e) {
			for i := range g.Shares {
				last = g.Shares[i]
			}
		}
		s.replicate()
		s.now = s.now.Add(20 * time.Millisecond)
		e = lease.Tick{}
	}
	return last
}

// use has a new instance ask for n of a key, spend some of what it gets, and leave, or asks without a lease.
func (s *succession) use(key string, n int64) {
	if s.r.IntN(2) == 0 {
		s.ask(key, n)
		return
	}
	report, share, got, left := s.take(key, n)
	spent := s.r.Int64N(got + 1)
	s.left[key] = left - spent
	report.Number++
	report.Leaving = true
	report.Demands[0] = lease.Demand{Handle: 1, Lease: share.Lease, Returned: share.Granted, AckedGrant: 1 << 60}
	report.Demands[0].Returned.Tokens = max(0, share.Granted.Tokens-fixed.Whole(spent))
	s.step(report)
}

// ask asks for n of a key without a lease, and gives some back.
func (s *succession) ask(key string, n int64) {
	left, known := s.left[key]
	if !known {
		left = s.others
	}
	one := func(cost int64, peek bool) lease.Answer {
		e := &Asked{Asks: []lease.Ask{{Resource: lease.ResourceID{Limit: "l", Key: key}, Cost: fixed.Whole(cost), Peek: peek}}}
		if cost < 0 {
			e.Asks[0].Cost = -fixed.Whole(-cost)
		}
		s.step(e)
		return e.Answers[0]
	}
	for _, peek := range []bool{true, false} {
		a := one(n, peek)
		if !a.Decided {
			return // there is a lease of it, or there may be one
		}
		if a.Admitted && !peek {
			left -= n
			if least, ok := s.asked[key]; !ok || left < least {
				s.asked[key] = left
			}
		}
		if a.Admitted != (n <= left || !peek && n <= left+n) || (a.Tokens+rounding).Floor() != left {
			s.t.Fatalf("epoch %d, key %s: %d of %d: %+v", s.epoch, key, n, left, a)
		}
		if !a.Admitted {
			break
		}
		if !peek {
			back := s.r.Int64N(n + 1)
			one(-back, false)
			left += back
		}
	}
	s.left[key] = left
}

// take has a new instance ask for n of a key, of which so many are left.
func (s *succession) take(key string, n int64) (last *lease.Report, share lease.Share, got, left int64) {
	s.session++
	id := lease.ResourceID{Limit: "l", Key: key}
	report := lease.Report{
		Member: lease.Member{Instance: fmt.Sprint("i", s.session), Session: s.session}, Version: lease.ProtocolVersion, Epoch: s.epoch, Number: 1,
		Demands: []lease.Demand{{Handle: 1, Resource: id, Rate: fixed.Whole(n), Shortfall: fixed.Whole(n)}},
	}
	left, known := s.left[key]
	if !known {
		left = s.others
	}
	share = s.step(&report)
	got = (share.Granted.Tokens + rounding).Floor()
	for range 8 { // a part of the tokens comes with a part of the burst, so it asks for the rest
		if got >= n || n > left {
			break
		}
		report.Number++
		report.Demands[0] = lease.Demand{Handle: 1, Lease: share.Lease, AckedGrant: 1 << 60, Rate: fixed.Whole(n), Shortfall: fixed.Whole(n - got)}
		if more := s.step(&report); more.Lease == share.Lease {
			share = more
		}
		got = (share.Granted.Tokens + rounding).Floor()
	}
	if got > left || got < n && n <= left {
		s.t.Fatalf("epoch %d, key %s: %d were granted for %d, while %d are left of %d", s.epoch, key, got, n, left, s.burst)
	}
	return &report, share, got, left
}

// succeed has another coordinator begin. A planned one takes over what is left, the other has to count
// every bucket as empty.
func (s *succession) succeed(planned bool) {
	former := s.epoch
	s.epoch++
	h := s.c.Holders()
	var u *Used
	if planned {
		u = s.c.Used(s.now)
	}
	last := Record{Holders: h, Used: u}
	record, err := DecodeRecord(last.Encode())
	if err != nil || planned != (record.Used != nil) {
		s.t.Fatalf("%v, %+v", err, record)
	}
	s.begin(Takeover{Epoch: s.epoch, Former: former, Holders: record.Holders, Used: record.Used})
	if !planned {
		s.left, s.others = map[string]int64{}, 0
	}
	clear(s.asked)
}

// TestNothingIsLostOrLentTwiceByAHandOver: whatever random instances spend of random keys, over random
// hand-overs each key gives what is left of it: not less, and not more. After a fail-over it gives nothing.
func TestNothingIsLostOrLentTwiceByAHandOver(t *testing.T) {
	for seed := range seeding.Draw(t, 300) {
		r := rand.New(rand.NewPCG(seed, 71))
		s := newSuccession(t, r)
		for range 60 {
			switch r.IntN(8) {
			case 0:
				s.succeed(r.IntN(10) > 0)
			case 1:
				s.now = s.now.Add(time.Duration(r.Int64N(int64(10 * time.Second))))
				s.step(lease.Tick{})
			default:
				s.use(fmt.Sprint("k", r.IntN(12)), 1+r.Int64N(s.burst))
			}
		}
	}
}

// TestHandOverOfALease: the holder of a lease claims it, and nobody is lent its part meanwhile; what was
// free is lent when it has.
func TestHandOverOfALease(t *testing.T) {
	d := newDesk(t, hundred)
	annas, berts, cleos := d.elect()
	d.whole(anna, annas)
	d.whole(bert, berts)
	cleos.Lease, cleos.Claim = 0, nil
	d.whole(cleo, cleos)
	d.after(10 * time.Millisecond)
	if u := d.c.Used(d.now); u == nil || len(u.of) != 1 || u.others != time.Duration(d.now-d.c.settled(d.now)) {
		t.Errorf("%+v", u)
	}
	d.start(3, 0)
	held := holding.Holders{}
	held.Include(anna.Session, "l")
	d.c.Step(d.now, Takeover{Epoch: 4, Former: 2, Holders: held, Used: &Used{others: -1, of: map[BucketID]usedBucket{
		pool.IDOf(theLimit): {tokens: fixed.Whole(7), fills: time.Minute, held: true, leased: true},
	}}})
	d.report(cleo, asks(100))
	if r := d.c.list[0]; !r.Recovering || d.lent(cleo) != (lease.Capacity{}) {
		t.Errorf("before anna has claimed: recovering %v, cleo holds %+v", r.Recovering, d.lent(cleo))
	}
	if said := d.send(lease.Report{Member: anna, Epoch: 2, Leaving: true}); !strings.Contains(said, "100/s burst 100 tokens 7.1") {
		t.Errorf("after anna has left it says %s", said)
	}
}

// TestHandOverThatCannotBeRead: the holders are unknown then, and nothing of the buckets is believed.
func TestHandOverThatCannotBeRead(t *testing.T) {
	var h holding.Holders
	h.Include(7, "a")
	u := &Used{others: time.Hour, of: map[BucketID]usedBucket{{1}: {5, 6, 7, false, true}, {2}: {-7, 0, limit.Never, true, false}}}
	r := Record{Holders: h, InSync: InSync{9, []uint64{10, 11}}, Used: u}
	whole := r.Encode()
	got, err := DecodeRecord(whole)
	if err != nil || !got.Holders.Covers(7, "a") || got.Holders.Unknown || got.Used.others != u.others || !maps.Equal(got.Used.of, u.of) ||
		!got.InSync.Has(9, 10) || !got.InSync.Has(9, 11) || got.InSync.Has(9, 12) || got.InSync.Has(8, 10) {
		t.Errorf("%+v, %v", got, err)
	}
	empty := 5 + len(h.Encode()) + 9 + 2*8 + 8
	for n := range whole {
		if n == empty-8 || n >= empty && (n-empty)%usedSize == 0 {
			continue // nothing of buckets, or fewer
		}
		if got, err := DecodeRecord(whole[:n]); err == nil || got.Used != nil || !got.Holders.Unknown || got.InSync.Replicas != nil {
			t.Errorf("the first %d of %d bytes were read as %+v", n, len(whole), got)
		}
	}
	u.of[BucketID{3}] = usedBucket{age: -1}
	if got, err := DecodeRecord(r.Encode()); err == nil || got.Used != nil || !got.Holders.Unknown {
		t.Errorf("a bucket of the future was read as %+v", got)
	}
}

// TestTooManyUsedBuckets are not handed over, and neither are those of a coordinator that does not know
// them itself.
func TestTooManyUsedBuckets(t *testing.T) {
	d := newDesk(t, hundred)
	d.c.used.of = map[BucketID]usedBucket{}
	for i := range maxUsed {
		d.c.used.of[pool.IDOf(lease.ResourceID{Key: fmt.Sprint(i)})] = usedBucket{fills: limit.Never}
	}
	if u := d.c.Used(d.now); u == nil || len(u.of) != maxUsed {
		t.Error("as many as can be are not handed over")
	}
	d.c.used.of[BucketID{}] = usedBucket{fills: limit.Never}
	if u := d.c.Used(d.now); u != nil {
		t.Errorf("%d are handed over", len(u.of))
	}
	d = newDesk(t, hundred)
	d.elect()
	if d.c.Used(d.now) != nil {
		t.Error("one that recovers says what is left")
	}
}

// TestUsedBucketsRefill over two hand-overs while nobody opens them, and one that was opened and is full
// again is full when it is opened the next time.
func TestUsedBucketsRefill(t *testing.T) {
	d := newDesk(t, lease.Terms{Rate: amount(2), Burst: fixed.Whole(100)})
	u := &Used{others: -1, of: map[BucketID]usedBucket{pool.IDOf(theLimit): {tokens: fixed.Whole(10), age: 3 * time.Second, fills: 45 * time.Second}}}
	for range 2 {
		d.c.Step(d.now, Takeover{Epoch: d.c.Epoch() + 1, Former: d.c.Epoch(), Used: u})
		d.after(5 * time.Second)
		u = d.c.Used(d.now)
	}
	d.c.Step(d.now, Takeover{Epoch: d.c.Epoch() + 1, Former: d.c.Epoch(), Used: u})
	if said := d.report(anna, asks(200)); !strings.Contains(said, "2/s burst 100 tokens 36.") { // 10 + 2/s in 13 s
		t.Errorf("anna was sent %s", said)
	}
	d.send(lease.Report{Member: anna, Epoch: d.c.Epoch(), Leaving: true})
	for range 60 {
		d.after(time.Second)
		d.c.Step(d.now, lease.Tick{})
	}
	if len(d.c.list) != 0 {
		t.Fatalf("%d resources are left", len(d.c.list))
	}
	if said := d.report(bert, asks(200)); !strings.Contains(said, "2/s burst 100 tokens 100") {
		t.Errorf("bert was sent %s", said)
	}
}

// TestDrainLendsNothing: what comes back stays in the pool, reports are answered, and afterwards it lends
// again.
func TestDrainLendsNothing(t *testing.T) {
	d := newDesk(t, hundred)
	d.report(anna, asks(100))
	d.report(bert, asks(100))
	before := d.lent(bert)
	d.c.Step(d.now, Drain{On: true})
	d.send(lease.Report{Member: anna, Epoch: 1, Leaving: true})
	d.after(time.Second)
	d.report(bert, asks(100))
	if d.lent(bert) != before || d.c.Next() < d.now {
		t.Errorf("bert holds %+v, and had %+v", d.lent(bert), before)
	}
	d.c.Step(d.now, Drain{})
	d.after(100 * time.Millisecond)
	d.report(bert, asks(100))
	if d.lent(bert).Rate <= before.Rate {
		t.Errorf("bert holds %+v after it, and had %+v", d.lent(bert), before)
	}
}
