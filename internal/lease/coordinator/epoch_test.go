package coordinator

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/internal/lease"
)

// TestEpochsGrow: a coordinator that hears of a higher epoch goes above it, and begins
// anew: every instance is notified and claims what this one lent, and the rest is not lent until
// the leases of the other one have ended.
func TestEpochsGrow(t *testing.T) {
	d := newDesk(t, hundred)
	d.report(anna, asks(40))
	d.giveBack(anna, 1, capacity(40, 40, 0))
	was := d.c.list[0].accounts[0]
	claim := lease.Demand{Handle: 1, Resource: theLimit, Lease: was.Lease, Claim: d.tokens[was.Lease], Rate: 40 * fixed.Token, Returned: was.Returned}

	d.c.Step(d.now, &lease.Report{Member: bert, Number: 1, Epoch: math.MaxUint64})
	if d.c.Epoch() != 1 || d.c.Recovering(d.now) {
		t.Fatalf("the epoch is %d, recovering %v, after one that is none", d.c.Epoch(), d.c.Recovering(d.now))
	}
	sent := map[lease.Member]uint64{}
	grants := d.c.Step(d.now, &lease.Report{Member: bert, Number: 2, Epoch: 7, Stamp: time.Duration(d.now), Demands: []lease.Demand{asks(100)}})
	for _, g := range grants {
		sent[g.To] = g.Epoch
	}
	if d.c.Epoch() <= 7 || sent[anna] != d.c.Epoch() {
		t.Fatalf("the epoch is %d after a report of 7, and sent were %v", d.c.Epoch(), sent)
	}
	if said := d.after(100 * time.Millisecond); strings.Contains(said, "lease") || !strings.Contains(said, "recovering") {
		t.Errorf("sent %q", said)
	}
	if said := d.send(lease.Report{Member: anna, Epoch: 1, Demands: []lease.Demand{claim}}); strings.Contains(said, "bad_claim") || d.lent(anna).Rate != 40*fixed.Token {
		t.Errorf("anna's claim was answered %q and she holds %+v", said, d.lent(anna))
	}
	if left := d.lent(bert); left != (lease.Capacity{}) {
		t.Errorf("bert holds %+v, of which the other coordinator may have lent all", left)
	}
	d.pass(lease.DefaultLease+500*time.Millisecond, anna, bert)
	if got := d.lent(bert).Rate; got < 40*fixed.Token || d.c.Recovering(d.now) {
		t.Errorf("after the leases of the other one have ended bert holds %v/s", got)
	}
	// Its own epoch, and a lower one, change nothing.
	epoch := d.c.Epoch()
	d.send(lease.Report{Member: anna, Epoch: epoch})
	d.send(lease.Report{Member: anna, Epoch: 1})
	if d.c.Epoch() != epoch || d.c.Recovering(d.now) {
		t.Errorf("the epoch went from %d to %d", epoch, d.c.Epoch())
	}
}

// TestNewIsAboveItsPredecessor: instances ignore grants whose epoch is below one that they have heard of, so a coordinator
// does not begin with such an epoch, as after a clock that was set back.
func TestNewIsAboveItsPredecessor(t *testing.T) {
	for _, epoch := range []uint64{1, 8, 9} {
		c := New(Options{Epoch: epoch, Former: 9, Resolve: func(lease.ResourceID) (lease.Terms, lease.Status) {
			return lease.Terms{}, lease.StatusUnknownLimit
		}}, 1)
		if c.Epoch() <= 9 {
			t.Errorf("began with epoch %d after epoch 9: %d", epoch, c.Epoch())
		}
	}
}
