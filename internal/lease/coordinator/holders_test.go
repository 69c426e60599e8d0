package coordinator

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/stint-io/stint/internal/lease"
)

// TestHoldersAreEncoded: what was included is covered after a round trip of the encoding, and
// little else.
func TestHoldersAreEncoded(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		var h Holders
		included := map[string]bool{}
		sessions, limits := 1+r.IntN(50), 1+r.IntN(10)
		for range r.IntN(100) {
			s, l := 1+r.Uint64N(uint64(sessions)), fmt.Sprint("limit", r.IntN(limits))
			h.Include(s, l)
			included[fmt.Sprint(s, l)] = true
		}
		got, err := DecodeHolders(h.Encode())
		if err != nil || got.Unknown || got.Sessions() != h.Sessions() {
			t.Fatalf("%d sessions became %d, %v", h.Sessions(), got.Sessions(), err)
		}
		for s := range uint64(sessions + 1) {
			for l := range limits {
				name := fmt.Sprint("limit", l)
				if n := len(h.of[s]); included[fmt.Sprint(s, name)] && !got.Covers(s, name) ||
					!included[fmt.Sprint(s, name)] && got.Covers(s, name) && !(n == 1 && h.of[s][0] == allLimits) {
					t.Fatalf("session %d, %s: included %v, covered %v", s, name, included[fmt.Sprint(s, name)], got.Covers(s, name))
				}
			}
		}
	}
}

// TestHoldersThatCannotBeRead are unknown: the successor then waits for everybody.
func TestHoldersThatCannotBeRead(t *testing.T) {
	var h Holders
	h.Include(7, "a")
	whole := h.Encode()
	for n := range whole {
		if n == 2 {
			continue // nobody
		}
		if got, err := DecodeHolders(whole[:n]); err == nil || !got.Unknown {
			t.Errorf("the first %d of %d bytes were read as %+v", n, len(whole), got)
		}
	}
	if got, err := DecodeHolders(append([]byte{9}, whole[1:]...)); err == nil || !got.Unknown {
		t.Errorf("another version was read as %+v", got)
	}
	for s := range uint64(maxHolders + 1) {
		h.Include(s, "a")
	}
	if got, err := DecodeHolders(h.Encode()); err != nil || !got.Unknown || !h.Covers(1<<40, "b") {
		t.Errorf("too many sessions are %+v, %v", got, err)
	}
}

// TestHoldersIntersect: what both sets say is left, and neither is changed by later changes of the other.
func TestHoldersIntersect(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for range 500 {
		var sets [2]Holders
		for i := range sets {
			if sets[i].Unknown = r.IntN(8) == 0; sets[i].Unknown {
				continue
			}
			for range r.IntN(30) {
				sets[i].Include(r.Uint64N(6), fmt.Sprint("limit", r.IntN(7)))
			}
		}
		both := sets[0].Clone()
		both.Intersect(&sets[1])
		for s := range uint64(6) {
			for l := range 7 {
				name := fmt.Sprint("limit", l)
				if want := sets[0].Covers(s, name) && sets[1].Covers(s, name); both.Covers(s, name) != want {
					t.Fatalf("session %d, %s: %v, want %v", s, name, !want, want)
				}
			}
		}
		before := string(sets[1].Encode())
		both.Include(1, "another")
		if string(sets[1].Encode()) != before {
			t.Fatal("the sets share memory")
		}
	}
}

// elect lets the coordinator of a new term begin, as a successor that read what the former one
// published, and returns the claims of Anna and Bert, who have 40/s each. Cleo has 20/s.
func (d *desk) elect() (annas, berts, cleos lease.Demand) {
	annas, berts = d.succeed() // for the claims; its coordinator is replaced
	held := Holders{}
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
