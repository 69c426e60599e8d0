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
// restart: everybody is told, claims what this one lent, and the rest is lent to nobody until
// the leases of the other one have ended.
func TestEpochsGrow(t *testing.T) {
	d := newDesk(t, hundred)
	d.report(anna, asks(40))
	d.giveBack(anna, 1, holding(40, 40, 0))
	was := d.c.list[0].accounts[0]
	claim := lease.Demand{Handle: 1, Resource: theLimit, Lease: was.lease, Claim: d.tokens[was.lease], Rate: 40 * fixed.Token, Returned: was.returned}

	d.c.Step(d.now, &lease.Report{Member: bert, Number: 1, Epoch: math.MaxUint64})
	if d.c.Epoch() != 1 || d.c.Recovering(d.now) {
		t.Fatalf("the epoch is %d, learning %v, after one that is none", d.c.Epoch(), d.c.Recovering(d.now))
	}
	told := map[lease.Member]uint64{}
	grants := d.c.Step(d.now, &lease.Report{Member: bert, Number: 2, Epoch: 7, Stamp: time.Duration(d.now), Demands: []lease.Demand{asks(100)}})
	for _, g := range grants {
		told[g.To] = g.Epoch
	}
	if d.c.Epoch() <= 7 || told[anna] != d.c.Epoch() {
		t.Fatalf("the epoch is %d after a report of 7, and told were %v", d.c.Epoch(), told)
	}
	if said := d.after(100 * time.Millisecond); strings.Contains(said, "lease") || !strings.Contains(said, "recovering") {
		t.Errorf("told %q", said)
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
