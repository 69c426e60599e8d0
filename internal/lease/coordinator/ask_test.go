package coordinator

import (
	"fmt"
	"testing"
	"time"

	"github.com/stint-io/stint/internal/fairshare"
	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/internal/lease/holding"
	"github.com/stint-io/stint/internal/lease/pool"
	"github.com/stint-io/stint/limit"
)

// one asks for n of a bucket without a lease.
func (d *desk) one(id lease.ResourceID, n float64) lease.Answer {
	e := &Asked{Asks: []lease.Ask{{Resource: id, Cost: fixed.Amount(n * 1e6)}}}
	d.step(e)
	return e.Answers[0]
}

// TestAnswers: what an answer says, of a bucket of 10 that refills by 2 a second.
func TestAnswers(t *testing.T) {
	d := newDesk(t, lease.Terms{Rate: amount(2), Burst: fixed.Whole(10)})
	tokens := func(n float64) fixed.Amount { return fixed.Amount(n * 1e6) }
	for i, c := range []struct {
		after time.Duration
		cost  float64
		want  lease.Answer
	}{
		{0, 4, lease.Answer{Decided: true, Admitted: true, Tokens: tokens(6), ResetAfter: 2 * time.Second}},
		{0, 7, lease.Answer{Decided: true, Tokens: tokens(6), RetryAfter: 500 * time.Millisecond, ResetAfter: 2 * time.Second}},
		{500 * time.Millisecond, 7, lease.Answer{Decided: true, Admitted: true, ResetAfter: 5 * time.Second}},
		{0, 0, lease.Answer{Decided: true, Admitted: true, ResetAfter: 5 * time.Second}},
		{0, 11, lease.Answer{Decided: true, RetryAfter: limit.Never, ResetAfter: 5 * time.Second}},
		{0, -3, lease.Answer{Decided: true, Admitted: true, Tokens: tokens(3), ResetAfter: 3500 * time.Millisecond}},
		{0, -30, lease.Answer{Decided: true, Admitted: true, Tokens: tokens(10)}},
		{time.Hour, 10, lease.Answer{Decided: true, Admitted: true, ResetAfter: 5 * time.Second}},
	} {
		d.now = d.now.Add(c.after)
		if got := d.one(theLimit, c.cost); got != c.want {
			t.Errorf("question %d: %+v, want %+v", i, got, c.want)
		}
	}
	if d.c.Stats().Resources != 0 {
		t.Error("there is a resource")
	}
}

// TestAskOfALease: what somebody has a lease of is not decided without one, and when it is given back the bucket is
// where it was; nor is anything decided of a limit that is no one bucket for all, or while nothing is lent.
func TestAskOfALease(t *testing.T) {
	d := newDesk(t, lease.Terms{Rate: fixed.Token / 1000, Burst: fixed.Whole(10)})
	if a := d.one(theLimit, 3); !a.Admitted {
		t.Fatalf("%+v", a)
	}
	d.want(d.report(anna, asks(100)), "anna: lease 1 0.001/s burst 10 tokens 7.000001 contended saturated\n")
	if a := d.one(theLimit, 1); a.Decided {
		t.Errorf("%+v beside a lease", a)
	}
	d.send(lease.Report{Member: anna, Epoch: 1, Leaving: true})
	for range 3 {
		d.after(300 * time.Millisecond)
	}
	if a := d.one(theLimit, 1); !a.Decided || a.Admitted {
		t.Errorf("%+v, want none left, since she spent all", a)
	}
	d.step(Drain{On: true})
	if a := d.one(theLimit, 0); a.Decided {
		t.Errorf("%+v before a hand-over", a)
	}
	d.step(Drain{})
	for what, terms := range map[string]lease.Terms{
		"permits":    {Burst: fixed.Whole(10), Semaphore: true},
		"static":     {Rate: amount(1), Burst: fixed.Whole(10), Allocation: fairshare.Static},
		"equal":      {Rate: amount(1), Burst: fixed.Whole(10), Allocation: fairshare.Equal},
		"suppressed": {Rate: amount(1), Burst: fixed.Whole(10), Suppress: &lease.Suppress{Report: time.Second, Window: time.Second}},
		"guarantees": {Rate: amount(1), Burst: fixed.Whole(10), Guarantees: []fairshare.Guarantee{{Band: 1, Amount: amount(1)}}},
		"sites":      {Rate: amount(1), Burst: fixed.Whole(10), Sites: []lease.SiteCap{{Name: "x", Rate: amount(1), Burst: fixed.Token}}},
	} {
		d.terms["l"] = terms
		if a := d.one(theLimit, 1); a.Decided {
			t.Errorf("%s: %+v", what, a)
		}
	}
	if a := d.one(lease.ResourceID{Limit: "nobody's"}, 1); a.Decided {
		t.Errorf("%+v of no limit", a)
	}
}

// TestAskInRecovery: of a bucket that is not known, or that was lent, nothing is decided until the leases of the
// former coordinator have ended; then it has what it can have. One that nobody had is decided at once.
func TestAskInRecovery(t *testing.T) {
	lent, idle, other := lease.ResourceID{Limit: "l", Key: "lent"}, lease.ResourceID{Limit: "l", Key: "idle"}, lease.ResourceID{Limit: "l", Key: "other"}
	for _, known := range []bool{false, true} {
		d := newDesk(t, lease.Terms{Rate: fixed.Token / 1000, Burst: fixed.Whole(10)})
		var holders holding.Holders
		holders.Include(7, "l")
		e := Takeover{Epoch: 2, Former: 1, Holders: holders}
		if known {
			e.Used = &Used{others: -1, of: map[BucketID]usedBucket{
				pool.IDOf(lent): {tokens: fixed.Whole(4), fills: limit.Never, held: true, leased: true},
				pool.IDOf(idle): {tokens: fixed.Whole(6), fills: limit.Never},
			}}
		}
		d.step(e)
		want := func(when string, id lease.ResourceID, decided bool, tokens int64) {
			t.Helper()
			if a := d.one(id, 0); a.Decided != decided || decided && (a.Tokens+rounding).Floor() != tokens {
				t.Errorf("%s, known %v, %s: %+v, want %d", when, known, id.Key, a, tokens)
			}
		}
		want("at once", lent, false, 0)
		want("at once", idle, known, 6)
		want("at once", other, known, 10)
		if known && (!d.one(idle, 2).Admitted || len(d.c.used.of) != 1) {
			t.Error("it is known twice")
		}
		d.now = d.now.Add(2 * lease.DefaultLease)
		d.step(lease.Tick{})
		if known {
			want("later", lent, true, 4)
			want("later", idle, true, 4)
			want("later", other, true, 10)
			continue
		}
		for _, id := range []lease.ResourceID{lent, idle, other} {
			want("later", id, true, 0)
		}
	}
}

// TestAskedInTwoTerms: a coordinator that goes above a higher epoch counts what was asked for as used, as all else.
func TestAskedInTwoTerms(t *testing.T) {
	d := newDesk(t, lease.Terms{Rate: fixed.Token / 1000, Burst: fixed.Whole(10)})
	d.one(theLimit, 3)
	d.send(lease.Report{Member: anna, Epoch: 5})
	if a := d.one(theLimit, 1); a.Decided {
		t.Errorf("%+v", a)
	}
	d.now = d.now.Add(2 * lease.DefaultLease)
	d.step(lease.Tick{})
	if a := d.one(theLimit, 1); !a.Decided || a.Admitted || a.Tokens > fixed.Token/10 {
		t.Errorf("%+v", a)
	}
}

// TestRefusedAfterAChange: an ask that finds a smaller limit, and is refused, has replicas know what is left by it.
func TestRefusedAfterAChange(t *testing.T) {
	d := newDesk(t, lease.Terms{Rate: fixed.Token / 1000, Burst: fixed.Whole(10)})
	d.replicate()
	d.one(theLimit, 8)
	d.terms["l"] = lease.Terms{Rate: fixed.Token / 1000, Burst: fixed.Whole(5)}
	d.step(Reconfigure{})
	if a := d.one(theLimit, 1); a.Admitted || a.Tokens != fixed.Whole(-3) || a.ResetAfter < 8000*time.Second {
		t.Errorf("%+v, want 3 that are owed", a)
	}
	if u := d.copy.Used(d.now); u.of[pool.IDOf(theLimit)].tokens != fixed.Whole(-3) {
		t.Errorf("a replica knows of %v", u.of[pool.IDOf(theLimit)].tokens)
	}
}

// TestManyAsks: however many keys are asked for, those that have refilled are forgotten, and a resource of which
// nobody has a lease any more is kept as a bucket alone.
func TestManyAsks(t *testing.T) {
	d := newDesk(t, lease.Terms{Rate: amount(1), Burst: fixed.Whole(10)})
	id := func(i int) lease.ResourceID { return lease.ResourceID{Limit: "l", Key: fmt.Sprint(i)} }
	for i := range 1000 {
		if a := d.one(id(i), 5); !a.Admitted {
			t.Fatalf("%d: %+v", i, a)
		}
	}
	if n := d.c.unlent.Len(); n != 1000 {
		t.Errorf("%d buckets", n)
	}
	for range 100 {
		d.after(250 * time.Millisecond)
	}
	if n := d.c.unlent.Len(); n != 0 {
		t.Errorf("%d buckets that are full", n)
	}
}

// TestAskBehindALevelThatIsNotKnownYet: what replicas have to know of a bucket before more of it is spent they have to
// know whether the next one asks for it, opens a lease, or asks when the lease has ended; and an ask that lowers
// nothing waits for one that did.
func TestAskBehindALevelThatIsNotKnownYet(t *testing.T) {
	d := newDesk(t, lease.Terms{Rate: fixed.Token / 1000, Burst: fixed.Whole(100)})
	d.replicate()
	must := func(n int64) uint64 {
		e := &Asked{Asks: []lease.Ask{{Resource: theLimit, Cost: fixed.Whole(n)}, {Resource: theLimit}}}
		d.step(e)
		return e.Must
	}
	_, began := d.c.Levels()
	first := must(10)
	if first <= began {
		t.Fatalf("an ask waits for %d, after %d", first, began)
	}
	if again := must(10); again != first {
		t.Errorf("an ask that lowers nothing waits for %d, want %d", again, first)
	}
	nothing := &Asked{Asks: []lease.Ask{{Resource: theLimit, Cost: fixed.Token, Peek: true}, {Resource: theLimit, Cost: fixed.Whole(200)}}}
	if d.step(nothing); nothing.Must != 0 {
		t.Errorf("what takes nothing waits for %d", nothing.Must)
	}
	d.report(anna, asks(100))
	second := d.c.list[0].told.must
	if second <= first {
		t.Errorf("a lease waits for %d, want more than %d", second, first)
	}
	d.send(lease.Report{Member: anna, Epoch: 1, Leaving: true})
	d.after(600 * time.Millisecond)
	if d.c.unlent.Len() != 1 {
		t.Fatalf("%d buckets", d.c.unlent.Len())
	}
	if b, _ := d.c.unlent.Get(pool.IDOf(theLimit)); b.Must != second {
		t.Errorf("after the lease %d have to be known, want %d", b.Must, second)
	}
}
