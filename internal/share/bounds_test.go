package share

import (
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stint-io/stint/limit"
)

// TestAmountsAtTheirBounds: an amount may be 0 or the largest there is, in a demand, in the terms of
// a limit and as a number of tokens; one below and one above is refused, whichever it is.
func TestAmountsAtTheirBounds(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	if a, err := AmountOf(MaxAmount.Float()); a != MaxAmount || err != nil {
		t.Errorf("the largest amount is %v, %v", a, err)
	}
	if a, err := AmountOf(math.Nextafter(MaxAmount.Float(), math.Inf(1))); err == nil {
		t.Errorf("what is above the largest amount is %v", a)
	}
	if a, err := AmountOf(0); a != 0 || err != nil {
		t.Errorf("nothing is %v, %v", a, err)
	}
	most := int64(MaxAmount / Token)
	if Whole(most) != Amount(most)*Token || Whole(most+1) != MaxAmount || Whole(math.MaxInt64) != MaxAmount {
		t.Errorf("%d tokens are %v, one more %v", most, Whole(most), Whole(most+1))
	}
	for _, tt := range []struct {
		a  Amount
		ok bool
	}{{-1, false}, {0, true}, {1, true}, {MaxAmount, true}, {MaxAmount + 1, false}} {
		for i, demand := range []Demand{{Rate: tt.a}, {Burst: tt.a}} {
			d := newDesk(t, hundred)
			demand.Handle, demand.Resource = 1, theLimit
			d.report(anna, demand)
			if got := d.c.list[0].accounts[0].status == StatusOK; got != tt.ok {
				t.Errorf("a demand of %d, the %d., is taken: %v", tt.a, i, got)
			}
		}
		for i, terms := range []Terms{{Rate: tt.a, Burst: Token}, {Rate: Token, Burst: tt.a}, {Rate: Token, Burst: Token, Safe: tt.a}} {
			if i == 2 && tt.a > 0 {
				continue // a safe part is bounded by the limit
			}
			d := newDesk(t, terms)
			said := d.report(anna, asks(1))
			if got := !strings.Contains(said, "broken"); got != tt.ok {
				t.Errorf("terms with %d, the %d., are taken: %v", tt.a, i, got)
			}
		}
	}
	gauge := Terms{Burst: Token, Gauge: true, Suppress: &Suppress{}}
	if said := newDesk(t, gauge).report(anna, asks(1)); !strings.Contains(said, "broken") {
		t.Errorf("a gauge shared by suppression is answered with %s", said)
	}
}

// TestPoolOfAges: however large the rate and however long nobody looked, the pool is full and no
// more; a rate below zero, of a cut limit whose parts are still out, takes nothing away.
func TestPoolOfAges(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	r := rand.New(rand.NewPCG(1, 91))
	for range 10_000 {
		p := pool{rate: Amount(r.Int64N(int64(1) << r.IntN(63))), depth: Amount(r.Int64N(int64(1) << r.IntN(63)))}
		p.flying = Amount(r.Int64N(int64(p.depth/2 + 1)))
		p.level = Amount(r.Int64N(int64(p.room()+1))) - Amount(r.Int64N(int64(p.depth+1)))
		if r.IntN(4) == 0 {
			p.level = p.room() - 1
		}
		p.part = uint64(r.Int64N(1e9))
		if p.level == p.room() {
			p.part = 0
		}
		was, dt := p, r.Int64N(int64(1)<<r.IntN(63))
		p.accrue(limit.Time(dt))
		came := quotient(product(uint64(was.rate), uint64(dt)).Add(product(uint64(was.rate), uint64(dt)), bigOf(was.part)), bigOf(1e9), false, math.MaxUint64)
		want := was.room()
		if came < uint64(was.room()-was.level) {
			want = was.level + Amount(came)
		}
		if p.level != want || p.level == p.room() && p.part != 0 {
			t.Fatalf("%+v is %+v after %d, want a level of %d", was, p, dt, want)
		}
	}
	p := pool{rate: -5 * Token, depth: 10 * Token, level: 3 * Token}
	if p.accrue(limit.Time(time.Hour)); p.level != 3*Token || p.at != limit.Time(time.Hour) {
		t.Errorf("%+v: a rate below 0 takes something away", p)
	}
}

// TestCoordinatorSaysHowItStands: until when it learns, what is free, which is never below
// nothing, and no more resources than are asked for.
func TestCoordinatorSaysHowItStands(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	const now = limit.Time(time.Hour)
	c := NewCoordinator(CoordinatorOptions{Epoch: 5, Learn: time.Second, Resolve: func(ResourceID) (Terms, Status) { return hundred, StatusOK }}, now)
	if !c.Learning(now) || !c.Learning(now+second-1) || c.Learning(now+second) || c.LearnedAt() != now+second {
		t.Errorf("it learns until %v, want a second", time.Duration(c.LearnedAt()-now))
	}
	if c.opts.Former != 4 || c.Epoch() != 5 {
		t.Errorf("epoch %d after %d", c.Epoch(), c.opts.Former)
	}
	d := newDesk(t, hundred)
	for handle := range uint32(3) {
		id := ResourceID{Limit: "l", Key: string(rune('a' + handle))}
		d.report(anna, Demand{Handle: handle + 1, Resource: id, Rate: 80 * Token})
	}
	seen := 0
	d.c.Each(d.now, func(r *ResourceState) bool {
		seen++
		if len(r.Leases) != 1 || r.Lent.Rate != r.Leases[0].Has.Rate || r.Lent.Rate+r.Free.Rate != hundred.Rate || r.Lent.Tokens != 0 {
			t.Errorf("%+v", r)
		}
		if l := r.Leases[0]; l.Wants != 80*Token || l.Weight != 1 || l.ExpiresIn <= 0 || l.Member != anna {
			t.Errorf("%+v", l)
		}
		return seen < 2
	})
	if seen != 2 {
		t.Errorf("%d resources were said, want 2", seen)
	}
	d.terms["l"] = Terms{Rate: 10 * Token, Burst: Token}
	d.c.Step(d.now, Reconfigure{})
	d.c.Each(d.now, func(r *ResourceState) bool {
		if r.Free.Rate != 0 || r.Free.Depth != 0 || r.Free.Tokens != 0 {
			t.Errorf("%+v is free of a limit that was cut below what is lent", r.Free)
		}
		return true
	})
	if s := d.c.Stats(); s.Instances != 1 || s.Resources != 3 || s.Learning || s.Rounds < 3 || s.Grants < 3 || s.Reports < 3 {
		t.Errorf("%+v", s)
	}
}

// TestStateOfAHandle: before an answer nothing is known of a resource; while tokens are missing and
// the answer is not there, it says that it asks; a handle that is not open stands like none.
func TestStateOfAHandle(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	f := newFleet(t, 1, 1, Terms{Rate: 100 * Token, Burst: 20 * Token})
	in := f.instances[0]
	state := func() HoldingState { return in.holder.State(in.handle) }
	if s := state(); s.Known || s.Asking || s.RoundTrip != 0 || s.Held != (Holding{}) {
		t.Errorf("before the first answer: %+v", s)
	}
	f.run(200 * time.Millisecond)
	if s := state(); !s.Known || s.Asking || s.Limit.Rate != 100*Token || s.RoundTrip < 2*f.delay {
		t.Errorf("after it: %+v", s)
	}
	f.arriveOnce(in)
	if s := state(); !s.Asking || s.Demand == 0 {
		t.Errorf("when one was refused: %+v", s)
	}
	f.run(200 * time.Millisecond)
	if s := state(); s.Asking || s.Held.Rate == 0 || s.Held.Depth == 0 || s.Held.Tokens != 0 {
		t.Errorf("when it has a lease: %+v", s)
	}
	if s := in.holder.State(in.handle + 1); s.Known || s.Asking || s.RoundTrip != 0 {
		t.Errorf("of no handle: %+v", s)
	}
}

// TestNewBucketHoldsNothing: not even room, at any time.
func TestNewBucketHoldsNothing(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	for _, now := range []limit.Time{0, 1, start, never - 1} {
		if b := NewBucket(nil); b.Depth(now) != 0 || b.Remaining(now) != 0 || b.Observe(now).Level != 0 || b.Earliest(now, 1) != limit.Never {
			t.Errorf("at %d a new bucket has %d of %d", now, b.Remaining(now), b.Depth(now))
		}
	}
}

// TestBucketAtTheEndOfItsSpan: the last moment that its terms count is as good as those before and
// after it: what comes is decided, and the level goes on.
func TestBucketAtTheEndOfItsSpan(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	for _, rate := range []Amount{1000 * Token, 8_000_000 * Token} {
		for _, off := range []limit.Time{-1, 0, 1} {
			b := bucketOf(start, rate, 100, 0)
			end := start + limit.Time(b.terms.Load().span) + off
			if h, taken, _ := b.Hold(end, 40); taken {
				b.Undo(end, h, 40)
			} else {
				t.Errorf("%v/s: 40 of 100 are not there", rate)
			}
			if ok, _ := b.Try(end, 30); !ok || !allow(t, b, end, 70) || allow(t, b, end, 1) {
				t.Errorf("%v/s: 100 are not there at the end of the span, or more", rate)
			}
			if came := b.Observe(end + second/limit.Time(rate.Floor())).Level; came < Token-2 || came > Token {
				t.Errorf("%v/s: %v come in the time of one", rate, came)
			}
		}
	}
}

// TestBadDemandWantsNothing: of one whose demand is not taken nothing stays, not a millionth.
func TestBadDemandWantsNothing(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	d := newDesk(t, hundred)
	d.report(anna, asks(50))
	d.report(anna, Demand{Handle: 1, Resource: theLimit, Lease: d.c.list[0].accounts[0].lease, Rate: -1, Heard: d.heard[anna]})
	d.c.Each(d.now, func(r *ResourceState) bool {
		if r.Leases[0].Wants != 0 || r.Wanted != 0 {
			t.Errorf("after a bad demand %v is wanted, %v in all", r.Leases[0].Wants, r.Wanted)
		}
		return true
	})
}

// TestLeaseOfAnother: who has heard of its lease and names another has none; as long as it may not
// have heard of it, it is waited for.
func TestLeaseOfAnother(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	for _, heard := range []bool{false, true} {
		d := newDesk(t, hundred)
		d.report(anna, asks(50))
		a := d.c.list[0].accounts[0]
		other := Demand{Handle: 1, Resource: theLimit, Lease: a.lease + 1, Rate: 50 * Token, Heard: a.born}
		if !heard {
			other.Heard--
		}
		if said := d.report(anna, other); strings.Contains(said, "lease_gone") != heard {
			t.Errorf("heard %v: %s", heard, said)
		}
	}
}

// TestTakeoverTellsEverybody: at once, under the next epoch and with a number that nobody takes for
// an old one.
func TestTakeoverTellsEverybody(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	d := newDesk(t, hundred)
	last := map[Member]uint64{}
	for _, m := range []Member{cleo, anna, bert} {
		d.report(m, asks(20))
		last[m] = d.heard[m]
	}
	d.now = d.now.Add(time.Second)
	was := d.c.Epoch()
	grants := d.c.Step(d.now, Takeover{})
	var to []Member
	for _, g := range grants {
		to = append(to, g.To)
		if g.Epoch != was+1 || g.Number <= last[g.To] || g.Lease != DefaultLease || g.Refresh != DefaultRefresh || g.Age < time.Second {
			t.Errorf("%+v after number %d of epoch %d", g, last[g.To], was)
		}
	}
	if !slices.Equal(to, []Member{anna, bert, cleo}) || d.c.Epoch() != was+1 || !d.c.Learning(d.now.Add(DefaultLease)) || d.c.Learning(d.now.Add(DefaultLease+DefaultLease/64)) {
		t.Errorf("%v are told; epoch %d; it learns until %v", to, d.c.Epoch(), time.Duration(d.c.LearnedAt()-d.now))
	}
}

// TestDefaultAdjuster: intervals of 5 s; it slows down above 5 % of failures, a fifth each time, speeds up from
// 1 % down, a fifth of the way; 1/s when slow, 1/min as a heartbeat. Totals below 0 count as 0.
func TestDefaultAdjuster(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	a, err := NewAdjuster(AdjusterOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if a.Next() != 0 {
		t.Errorf("the first interval ends at %v before it began", a.Next())
	}
	now, good, failed := start, int64(0), int64(0)
	a.Observe(now, -7, -9)
	const lease = 1000 * Token
	for i, step := range []struct {
		good, failed int64
		changed      bool
		rate         Amount
	}{
		{95, 5, false, 1000 * Token},
		{949, 51, true, 800 * Token},
		{980, 20, false, 800 * Token},
		{989, 11, false, 800 * Token},
		{990, 10, true, 840 * Token},
		{0, 0, false, 840 * Token},
		{10, 10, true, 672 * Token},
		{10, 11, true, Token},
		{11, 10, false, Token},
		{10, 11, true, Token / 60},
		{5, 1, false, Token / 60},
		{5, 0, true, Token},
		{1, 1, false, Token},
		{1, 0, true, Token},
		{1, 0, true, 200 * Token},
	} {
		now, good, failed = now.Add(5*time.Second), good+step.good, failed+step.failed
		if a.Next() != now || a.Observe(now-1, good, failed) {
			t.Fatalf("step %d: the interval ends at %v, want 5 s", i, time.Duration(a.Next()-now))
		}
		if changed := a.Observe(now, good, failed); changed != step.changed || a.Rate(lease) != step.rate {
			t.Errorf("step %d: %d of %d failed: changed %v to %v/s, want %v to %v/s", i, step.failed, step.good+step.failed, changed, a.Rate(lease), step.changed, step.rate)
		}
		if want := step.rate.Float() / lease.Float(); a.Factor(lease) != want {
			t.Errorf("step %d: factor %v, want %v", i, a.Factor(lease), want)
		}
	}
}
