package coordinator

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/internal/lease"
)

// succeed lets a coordinator with a higher epoch begin, after the former one lent to
// Anna and Bert, and returns the claims of both. Cleo's lease, the rest, is claimed by
// nobody.
func (d *desk) succeed() (annas, berts lease.Demand) {
	d.report(anna, asks(40))
	d.report(bert, asks(40))
	d.report(cleo, asks(20))
	d.giveBack(anna, 1, capacity(40, 40, 0))
	d.giveBack(bert, 2, capacity(40, 40, 0))
	claim := func(m lease.Member, nth int) lease.Demand {
		for _, a := range d.c.list[0].accounts {
			if a.session.Member == m {
				return lease.Demand{
					Handle: 1, Resource: theLimit, Lease: d.leases[nth-1], Claim: slices.Clone(d.tokens[d.leases[nth-1]]),
					Rate: a.Demand, Returned: a.Returned,
				}
			}
		}
		d.t.Fatalf("%v holds nothing", m)
		return lease.Demand{}
	}
	annas, berts = claim(anna, 1), claim(bert, 2)
	d.start(2, lease.DefaultLease+lease.DefaultLease/lease.DriftMargin)
	return annas, berts
}

// pending sends the demands of one that does not know the epoch.
func (d *desk) tell(m lease.Member, demands ...lease.Demand) string {
	return d.send(lease.Report{Member: m, Epoch: 1, Demands: demands})
}

func TestClaim(t *testing.T) {
	d := newDesk(t, hundred)
	annas, berts := d.succeed()
	// Cleo's run is new, and nothing is known to be free.
	d.want(d.tell(lease.Member{Instance: "cleo", Session: 99}, asks(100)), "cleo: contended recovering\n")
	d.tell(anna, annas)
	if got := d.lent(anna); got.Rate < 40*fixed.Token || got.Rate > 50*fixed.Token {
		t.Errorf("anna's lease was taken as %+v", got)
	}
	// Bert does not hear of it and says it again: that is no other claim.
	d.tell(bert, berts)
	had := d.lent(bert)
	if said := d.tell(bert, berts); strings.Contains(said, "bad_claim") || d.lent(bert) != had {
		t.Errorf("bert claimed twice, holds %+v, and was sent\n%s", d.lent(bert), said)
	}
	// The two trade: what Anna returns is lent to Bert.
	more := lease.Demand{Handle: 1, Lease: d.c.list[0].accounts[2].Lease, Rate: 100 * fixed.Token, AckedGrant: d.acked[bert]}
	d.tell(bert, more)
	d.send(lease.Report{Member: bert, Epoch: 2, Demands: []lease.Demand{more}})
	number := d.c.list[0].accounts[1].Lease
	d.send(lease.Report{Member: anna, Epoch: 2, Demands: []lease.Demand{{
		Handle: 1, Lease: number, Rate: 5 * fixed.Token, AckedGrant: d.acked[anna], Returned: capacity(30, 30, 0),
	}}})
	if got := d.lent(bert); got.Rate <= had.Rate {
		t.Errorf("bert holds %+v, before anna gave back %+v", got, had)
	}
	// What no instance claimed is free once the leases of it have ended.
	if r := d.c.list[0]; !r.Recovering || r.Frozen.Rate <= 0 {
		t.Errorf("frozen is %+v", r.Frozen)
	}
	d.pass(lease.DefaultLease+500*time.Millisecond, anna, bert, lease.Member{Instance: "cleo", Session: 99})
	if r := d.c.list[0]; r.Recovering || r.Frozen != (lease.Capacity{}) || d.lent(lease.Member{Instance: "cleo", Session: 99}).Rate < 20*fixed.Token {
		t.Errorf("after the leases have ended cleo holds %+v, frozen is %+v", d.lent(lease.Member{Instance: "cleo", Session: 99}), r.Frozen)
	}
}

func TestBadClaims(t *testing.T) {
	other := func(f func(*lease.Demand)) func(lease.Demand) (lease.Member, lease.Demand) {
		return func(d lease.Demand) (lease.Member, lease.Demand) {
			f(&d)
			return anna, d
		}
	}
	for name, bad := range map[string]func(lease.Demand) (lease.Member, lease.Demand){
		"forged":           other(func(d *lease.Demand) { d.Claim[0] ^= 1 }),
		"forged seal":      other(func(d *lease.Demand) { d.Claim[len(d.Claim)-1] ^= 1 }),
		"truncated":        other(func(d *lease.Demand) { d.Claim = d.Claim[:len(d.Claim)-1] }),
		"longer":           other(func(d *lease.Demand) { d.Claim = append(d.Claim, 0) }),
		"other lease":      other(func(d *lease.Demand) { d.Lease++ }),
		"other resource":   other(func(d *lease.Demand) { d.Resource.Key = "k" }),
		"gave back more":   other(func(d *lease.Demand) { d.Returned.Rate = 101 * fixed.Token }),
		"gave back less":   other(func(d *lease.Demand) { d.Returned.Rate -= fixed.Token }),
		"gave less than 0": other(func(d *lease.Demand) { d.Returned.Burst = -fixed.Token }),
		"other instance":   func(d lease.Demand) (lease.Member, lease.Demand) { return bert, d },
		"other run": func(d lease.Demand) (lease.Member, lease.Demand) {
			return lease.Member{Instance: anna.Instance, Session: 999}, d
		},
		"one epoch before": other(func(*lease.Demand) {}),
	} {
		d := newDesk(t, hundred)
		annas, berts := d.succeed()
		if name == "one epoch before" {
			d.start(3, lease.DefaultLease)
		} else {
			d.tell(bert, berts)
		}
		who, demand := bad(annas)
		if who == bert {
			demand.Handle = 7
			d.send(lease.Report{Member: bert, Epoch: 1, Leaving: true})
		}
		frozen := lease.Capacity{}
		if len(d.c.list) > 0 {
			frozen = d.c.list[0].Frozen
		}
		said := d.tell(who, demand)
		if !strings.Contains(said, "bad_claim") {
			t.Errorf("%s: answered %q", name, said)
		}
		if len(d.c.list) > 0 && frozen != (lease.Capacity{}) && d.c.list[0].Frozen != frozen {
			t.Errorf("%s: what the former leases hold went from %+v to %+v", name, frozen, d.c.list[0].Frozen)
		}
	}
}

// TestReplayedClaim: one lease is claimed once, whatever became of the first claim.
// Otherwise what others still hold would be taken to be free.
func TestReplayedClaim(t *testing.T) {
	for name, end := range map[string]func(*desk){
		"left": func(d *desk) { d.send(lease.Report{Member: anna, Epoch: 2, Leaving: true}) },
		"closed": func(d *desk) {
			d.send(lease.Report{Member: anna, Epoch: 2, Demands: []lease.Demand{{Handle: 1, Lease: d.c.list[0].accounts[0].Lease, Closed: true, AckedGrant: d.acked[anna]}}})
		},
		"gave up": func(d *desk) {
			d.send(lease.Report{Member: anna, Epoch: 2, Demands: []lease.Demand{{Handle: 1, Rate: fixed.Token, AckedGrant: d.acked[anna]}}})
		},
	} {
		d := newDesk(t, hundred)
		annas, _ := d.succeed()
		d.tell(anna, annas)
		frozen := d.c.list[0].Frozen
		end(d)
		// An instance that gave up has another lease, and its answer says so.
		if said := d.tell(anna, annas); !strings.Contains(said, "bad_claim") && name != "gave up" {
			t.Errorf("%s: answered %q", name, said)
		}
		if got := d.c.list[0].Frozen; got != frozen {
			t.Errorf("%s: former leases hold %+v, and %+v after the claim came again", name, frozen, got)
		}
	}
}

// TestClaimOfWhatWasReturned: the token of a lease that its holder returned long ago is worth nothing to a
// coordinator that knows who holds something.
func TestClaimOfWhatWasReturned(t *testing.T) {
	d := newDesk(t, hundred)
	d.report(anna, asks(100))
	number, old := d.leases[0], slices.Clone(d.tokens[d.leases[0]])
	d.send(lease.Report{Member: anna, Epoch: 1, Demands: []lease.Demand{{Handle: 1, Lease: number, Closed: true, AckedGrant: d.acked[anna], Returned: capacity(100, 100, 100)}}})
	d.pass(time.Second, anna)
	d.report(bert, asks(100))
	d.pass(time.Second, anna, bert)
	held := d.c.Holders()
	if held.Covers(anna.Session, "l") || !held.Covers(bert.Session, "l") {
		t.Fatalf("%+v", held)
	}
	d.start(1, 0)
	d.c.Step(d.now, Takeover{Epoch: 2, Former: 1, Holders: held})
	d.whole(anna, lease.Demand{Handle: 9, Resource: theLimit, Lease: number, Claim: old, Rate: amount(100)})
	if d.lent(anna) != (lease.Capacity{}) {
		t.Errorf("anna is lent %+v for the second time", d.lent(anna))
	}
}
