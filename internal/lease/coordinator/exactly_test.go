package coordinator

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/internal/lease"
)

// TestGrantIsNotRepeatedAtOnce: a grant that is not acknowledged is sent again after a quarter of the time between renewals,
// and not before: its acknowledgment may be under way.
func TestGrantIsNotRepeatedAtOnce(t *testing.T) {
	for offset := time.Duration(0); offset < 250*time.Millisecond; offset += 10 * time.Millisecond {
		d := newDesk(t, hundred)
		d.after(offset)
		if said := d.report(anna, asks(100)); !strings.Contains(said, "anna: lease 1") {
			t.Fatalf("%v: said %q", offset, said)
		}
		if said := d.after(lease.DefaultRefresh/4 - 10*time.Millisecond); said != "" {
			t.Errorf("%v: repeated too soon: %q", offset, said)
		}
		if said := d.after(lease.DefaultRefresh/4 + 20*time.Millisecond); !strings.Contains(said, "anna: lease 1") {
			t.Errorf("%v: not repeated: %q", offset, said)
		}
	}
}

// TestClaimOfOnePart: a lease of which all the rate was returned, or all the burst, is claimed as what is left.
func TestClaimOfOnePart(t *testing.T) {
	for _, returned := range []lease.Capacity{capacity(100, 40, 0), capacity(40, 100, 0)} {
		d := newDesk(t, hundred)
		d.report(anna, asks(100))
		demand := lease.Demand{
			Handle: 1, Resource: theLimit, Lease: d.leases[0], Claim: slices.Clone(d.tokens[d.leases[0]]), Rate: amount(100), Returned: returned,
		}
		d.start(2, lease.DefaultLease)
		said := d.tell(anna, demand)
		if want := capacity(100, 100, 0).Sub(returned); strings.Contains(said, "bad_claim") || d.lent(anna) != want {
			t.Errorf("%+v was returned: %+v is claimed, want %+v; said %q", returned, d.lent(anna), want, said)
		}
	}
}

// TestRotationGoesOn: the next of two that want one permit has its turn after two seconds, also when nobody reports.
func TestRotationGoesOn(t *testing.T) {
	d := newDesk(t, lease.Terms{Burst: fixed.Token, Semaphore: true})
	one := lease.Demand{Handle: 1, Resource: theLimit, Shortfall: fixed.Token}
	d.report(anna, one)
	d.report(bert, one)
	if d.lent(anna).Burst != fixed.Token {
		t.Fatalf("anna holds %+v", d.lent(anna))
	}
	for range 7 {
		if said := d.after(250 * time.Millisecond); strings.Contains(said, "cap") {
			t.Fatalf("anna's turn ends early: %q", said)
		}
	}
	if said := d.after(500 * time.Millisecond); !strings.Contains(said, "anna: lease 1 0/s burst 1 tokens 0 cap burst 0") {
		t.Errorf("anna's turn does not end: %q", said)
	}
}

// TestRecoveryEndsOnTime: a coordinator lends as soon as the leases of its predecessor have ended.
func TestRecoveryEndsOnTime(t *testing.T) {
	d := newDesk(t, hundred)
	d.start(2, lease.DefaultLease)
	end := d.c.recoverUntil
	d.tell(anna, asks(100))
	d.after(time.Duration(end-d.now) - time.Nanosecond)
	if !d.c.list[0].Recovering {
		t.Error("it lends too early")
	}
	if d.after(time.Nanosecond); d.c.list[0].Recovering {
		t.Error("it does not lend when the leases have ended")
	}
}
