package share

import (
	"math"
	"strings"
	"testing"
	"time"
)

// TestEpochsGrow: a coordinator that hears of a higher epoch goes above it, and begins
// anew: everybody is told, claims what this one lent, and the rest is lent to nobody until
// the leases of the other one have ended.
func TestEpochsGrow(t *testing.T) {
	d := newDesk(t, hundred)
	d.report(anna, asks(40))
	d.giveBack(anna, 1, holding(40, 40, 0))
	was := d.c.list[0].accounts[0]
	claim := Demand{Handle: 1, Resource: theLimit, Lease: was.lease, Claim: d.tokens[was.lease], Rate: 40 * Token, Returned: was.returned}

	d.c.Step(d.now, &Report{Member: bert, Number: 1, Epoch: math.MaxUint64})
	if d.c.Epoch() != 1 || d.c.Learning(d.now) {
		t.Fatalf("the epoch is %d, learning %v, after one that is none", d.c.Epoch(), d.c.Learning(d.now))
	}
	told := map[Member]uint64{}
	grants := d.c.Step(d.now, &Report{Member: bert, Number: 2, Epoch: 7, Stamp: time.Duration(d.now), Demands: []Demand{asks(100)}})
	for _, g := range grants {
		told[g.To] = g.Epoch
	}
	if d.c.Epoch() <= 7 || told[anna] != d.c.Epoch() {
		t.Fatalf("the epoch is %d after a report of 7, and told were %v", d.c.Epoch(), told)
	}
	if said := d.after(100 * time.Millisecond); strings.Contains(said, "lease") || !strings.Contains(said, "learning") {
		t.Errorf("told %q", said)
	}
	if said := d.send(Report{Member: anna, Epoch: 1, Demands: []Demand{claim}}); strings.Contains(said, "bad_claim") || d.lent(anna).Rate != 40*Token {
		t.Errorf("anna's claim was answered %q and she holds %+v", said, d.lent(anna))
	}
	if left := d.lent(bert); left != (Holding{}) {
		t.Errorf("bert holds %+v, of which the other coordinator may have lent all", left)
	}
	d.pass(DefaultLease+500*time.Millisecond, anna, bert)
	if got := d.lent(bert).Rate; got < 40*Token || d.c.Learning(d.now) {
		t.Errorf("after the leases of the other one have ended bert holds %v/s", got)
	}
	// Its own epoch, and a lower one, change nothing.
	epoch := d.c.Epoch()
	d.send(Report{Member: anna, Epoch: epoch})
	d.send(Report{Member: anna, Epoch: 1})
	if d.c.Epoch() != epoch || d.c.Learning(d.now) {
		t.Errorf("the epoch went from %d to %d", epoch, d.c.Epoch())
	}
}

// TestLowerEpoch: an instance that hears a lower epoch takes nothing, and soon tells of the
// higher one.
func TestLowerEpoch(t *testing.T) {
	b := newBench(t)
	b.epoch = 7
	bucket := NewBucket(b.h.Deadline())
	handle := b.h.Open(b.now, theLimit, LeaseOptions{}, bucket)
	b.after(20 * time.Millisecond)
	b.answer(lends(handle, 5, holding(60, 60, 60)))
	high := b.h.Epoch()
	b.after(time.Second) // nothing is due for a while
	before, held := b.h.number, b.h.State(handle).Held
	g := Grant{To: b.h.opts.Member, Epoch: high - 1, Number: 1, Echo: time.Duration(b.now), Lease: DefaultLease, Shares: []Share{lends(handle, 6, holding(100, 100, 100))}}
	b.h.Step(b.now, &g)
	if b.h.State(handle).Held != held || b.h.LowerEpoch() != high-1 || b.h.Epoch() != high {
		t.Errorf("a grant of a lower epoch: %+v, lower epoch %d", b.h.State(handle).Held, b.h.LowerEpoch())
	}
	b.after(DefaultRefresh / 4)
	if b.h.number == before || b.h.report.Epoch != high {
		t.Errorf("%d reports in %v after a lower epoch was heard, the last of epoch %d", b.h.number-before, DefaultRefresh/4, b.h.report.Epoch)
	}
	// One that never learns is not told at the rate of its answers.
	before = b.h.number
	for range 100 {
		b.h.Step(b.now, &g)
		b.after(time.Millisecond)
	}
	if n := b.h.number - before; n > 2 {
		t.Errorf("%d reports in 100 ms", n)
	}
	b.h.Step(b.now, &Grant{To: b.h.opts.Member, Epoch: high + 1, Number: 1, Echo: time.Duration(b.now), Lease: DefaultLease})
	if b.h.LowerEpoch() != 0 || b.h.Epoch() != high+1 {
		t.Errorf("after a higher epoch the lower one is %d", b.h.LowerEpoch())
	}
}
