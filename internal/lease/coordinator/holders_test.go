package coordinator

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/internal/lease/holding"
)

// elect lets the coordinator of a new term begin, as a successor that read what the former one
// published, and returns the claims of Anna and Bert, who have 40/s each. Cleo has 20/s.
func (d *desk) elect() (annas, berts, cleos lease.Demand) {
	annas, berts = d.succeed() // for the claims; its coordinator is replaced
	held := holding.Holders{}
	for _, m := range []lease.Member{anna, bert, cleo} {
		held.Include(m.Session, "l")
	}
	cleos = lease.Demand{Handle: 1, Resource: theLimit, Lease: d.leases[2], Claim: d.tokens[d.leases[2]], Rate: amount(20)}
	d.start(1, 0)
	d.c.Step(d.now, Takeover{Epoch: 2, Former: 1, Holders: held})
	return annas, berts, cleos
}

func (d *desk) whole(m lease.Member, demands ...lease.Demand) string {
	return d.send(lease.Report{Member: m, Epoch: 1, Complete: true, Demands: demands})
}

// TestRecoveryEndsWithTheLastHolder: when every session that can hold a lease has reported all
// that it holds, the rest is free at once.
func TestRecoveryEndsWithTheLastHolder(t *testing.T) {
	d := newDesk(t, hundred)
	annas, berts, cleos := d.elect()
	d.whole(anna, annas)
	d.whole(bert, berts)
	if r := d.c.list[0]; !r.Recovering || !d.c.Recovering(d.now) || d.lent(anna).Rate+d.lent(bert).Rate < amount(80) {
		t.Fatalf("before cleo has reported: recovering %v, anna %+v, bert %+v", r.Recovering, d.lent(anna), d.lent(bert))
	}
	// Cleo's lease has expired there. It says that it holds nothing.
	cleos.Lease, cleos.Claim = 0, nil
	begun := d.now
	d.whole(cleo, cleos)
	if r := d.c.list[0]; r.Recovering || d.c.Recovering(d.now) || d.lent(cleo).Rate < amount(20) || time.Duration(d.now-begun) > 100*time.Millisecond {
		t.Errorf("after all have reported: recovering %v, cleo holds %+v after %v", r.Recovering, d.lent(cleo), time.Duration(d.now-begun))
	}
}

// TestClaimingEnds when every holder has claimed, and was sent a lease of this coordinator for what it claimed.
func TestClaimingEnds(t *testing.T) {
	d := newDesk(t, hundred)
	annas, berts, cleos := d.elect()
	for i, m := range []lease.Member{anna, bert, cleo} {
		if !d.c.Claiming(d.now) {
			t.Fatalf("%d of 3 have claimed, and no claim is awaited", i)
		}
		claim := []lease.Demand{annas, berts, cleos}[i]
		granted := slices.ContainsFunc(d.c.Step(d.now, &lease.Report{
			Member: m, Epoch: 1, Number: 1, Stamp: time.Duration(d.now), Complete: true, Demands: []lease.Demand{claim},
		}), func(g lease.Grant) bool { return len(g.Shares) > 0 && g.Shares[0].Lease != 0 })
		if granted {
			t.Fatalf("%s is granted a lease before a round", m.Instance)
		}
	}
	if d.c.Recovering(d.now) || !d.c.Claiming(d.now) {
		t.Errorf("all have claimed: recovering %v, claims that are not answered yet %v", d.c.Recovering(d.now), d.c.Claiming(d.now))
	}
	d.pass(100 * time.Millisecond)
	if d.c.Claiming(d.now) {
		t.Error("all were granted what they claimed, and claims are awaited")
	}
}

// TestRecoveryWaits for each holder whose leases are not known for sure.
func TestRecoveryWaits(t *testing.T) {
	for name, last := range map[string]func(d *desk, cleos lease.Demand){
		"silent":               func(*desk, lease.Demand) {},
		"incomplete":           func(d *desk, cleos lease.Demand) { cleos.Lease, cleos.Claim = 0, nil; d.tell(cleo, cleos) },
		"claim is refused":     func(d *desk, cleos lease.Demand) { cleos.Claim = []byte("forged"); d.whole(cleo, cleos) },
		"claims nothing of it": func(d *desk, cleos lease.Demand) { cleos.Claim = nil; d.whole(cleo, cleos) },
		"another run": func(d *desk, cleos lease.Demand) {
			cleos.Lease, cleos.Claim = 0, nil
			d.whole(lease.Member{Instance: "cleo", Session: 99}, cleos)
		},
	} {
		d := newDesk(t, hundred)
		annas, berts, cleos := d.elect()
		d.whole(anna, annas)
		d.whole(bert, berts)
		last(d, cleos)
		d.pass(lease.DefaultLease, anna, bert)
		if r := d.c.list[0]; !r.Recovering || r.Frozen.Rate < amount(19) || d.lent(anna).Rate+d.lent(bert).Rate > amount(81) {
			t.Errorf("%s: recovering %v with %+v frozen, anna %+v, bert %+v", name, r.Recovering, r.Frozen, d.lent(anna), d.lent(bert))
		}
		d.pass(lease.DefaultLease/(lease.DriftMargin/2)+time.Second, anna, bert)
		if r := d.c.list[0]; r.Recovering {
			t.Errorf("%s: it recovers after the leases have ended", name)
		}
	}
}

// TestLeavingEndsRecovery: a holder that leaves holds nothing.
func TestLeavingEndsRecovery(t *testing.T) {
	d := newDesk(t, hundred)
	annas, berts, _ := d.elect()
	d.whole(anna, annas)
	d.whole(bert, berts)
	d.send(lease.Report{Member: cleo, Epoch: 1, Leaving: true})
	if r := d.c.list[0]; r.Recovering {
		t.Error("it recovers after the last holder has left")
	}
}

// TestLimitsThatNobodyHeld do not wait for the holders of others, and their buckets, which may
// have been used up, begin empty with the term.
func TestLimitsThatNobodyHeld(t *testing.T) {
	d := newDesk(t, hundred)
	d.terms["other"] = hundred
	d.elect()
	d.after(250 * time.Millisecond)
	said := d.report(lease.Member{Instance: "dora", Session: 14}, lease.Demand{Handle: 1, Resource: lease.ResourceID{Limit: "other"}, Rate: amount(100)})
	if !strings.Contains(said, "100/s burst 100 tokens 25") || strings.Contains(said, "recovering") {
		t.Errorf("dora was sent %s", said)
	}
	// Where there was no coordinator before, nothing was used.
	d.start(3, 0)
	d.c.Step(d.now, Takeover{Epoch: 4})
	if said := d.report(anna, asks(100)); !strings.Contains(said, "100/s burst 100 tokens 100") {
		t.Errorf("anna was sent %s", said)
	}
}

// TestHoldersOfACoordinator are those that have a lease, and those of the former one that have not
// reported.
func TestHoldersOfACoordinator(t *testing.T) {
	d := newDesk(t, hundred)
	annas, _, _ := d.elect()
	d.whole(anna, annas)
	d.report(lease.Member{Instance: "dora", Session: 14}, asks(1))
	h := d.c.Holders()
	for _, c := range []struct {
		m    lease.Member
		want bool
	}{{anna, true}, {bert, true}, {cleo, true}, {lease.Member{Session: 14}, false}} {
		if h.Covers(c.m.Session, "l") != c.want {
			t.Errorf("%v is a holder: %v", c.m, !c.want)
		}
	}
	d.pass(lease.DefaultLease+time.Second, anna, lease.Member{Instance: "dora", Session: 14})
	if h = d.c.Holders(); h.Covers(bert.Session, "l") || !h.Covers(anna.Session, "l") || !h.Covers(14, "l") || h.Covers(14, "m") {
		t.Errorf("after the leases of the former term: %+v", h)
	}
}

// TestEndAfterAClaim: a coordinator that ends between a claim and the grant that answers it leaves a bucket that is
// lent. Its successor waits for the lease.
func TestEndAfterAClaim(t *testing.T) {
	d := newDesk(t, hundred)
	d.report(anna, asks(100))
	d.after(time.Second)
	claim := lease.Demand{Handle: 1, Resource: theLimit, Lease: d.leases[0], Claim: slices.Clone(d.tokens[d.leases[0]]), Rate: amount(100)}
	held, used := d.c.Holders(), d.c.Used(d.now)
	d.start(1, 0)
	d.c.Step(d.now, Takeover{Epoch: 2, Former: 1, Holders: held, Used: used})
	d.c.Step(d.now, &lease.Report{Member: anna, Epoch: 1, Number: 9, Stamp: time.Duration(d.now), Complete: true, Demands: []lease.Demand{claim}})
	if held, used = d.c.Holders(), d.c.Used(d.now); used == nil || !held.Covers(anna.Session, "l") {
		t.Fatalf("it ends with %+v and the holders %+v", used, held)
	}
	d.start(1, 0)
	d.c.Step(d.now, Takeover{Epoch: 3, Former: 2, Holders: held, Used: used})
	d.report(bert, asks(100))
	d.pass(time.Second, bert)
	if got := d.lent(bert); got != (lease.Capacity{}) {
		t.Errorf("bert is lent %+v while anna may spend what she had", got)
	}
}

// TestPredecessorHadRisen: the clock that makes the epoch of a term may be behind that of a member whose epoch the
// predecessor went above. Instances ignore what is not above it.
func TestPredecessorHadRisen(t *testing.T) {
	d := newDesk(t, hundred)
	d.c.Step(d.now, Takeover{Epoch: 5, Former: 68, Holders: holding.Holders{Unknown: true}})
	if epoch := d.c.Epoch(); epoch <= 68 || !d.c.Knows(68) || d.c.Knows(epoch+1) {
		t.Errorf("it begins with epoch %d", epoch)
	}
}
