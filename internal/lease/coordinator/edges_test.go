package coordinator

import (
	"testing"
	"time"

	"github.com/stint-io/stint/internal/fairshare"
	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/limit"
)

// TestLateReportsAreSeenAsSuch: what a report was under way for longer than the least is late, and
// the least follows clocks that drift apart, by 1/256 of that with each report.
func TestLateReportsAreSeenAsSuch(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	s := &session{}
	at := func(under time.Duration) time.Duration {
		s.transit(limit.Time(time.Hour).Add(under), 0)
		return s.late
	}
	if first, second := at(20*time.Millisecond), at(10*time.Millisecond); first != 0 || second != 0 {
		t.Errorf("the first is late by %v, an earlier one by %v", first, second)
	}
	if late := at(266 * time.Millisecond); late != 256*time.Millisecond {
		t.Errorf("late by %v, want 256ms", late)
	}
	if late := at(266 * time.Millisecond); late != 255*time.Millisecond {
		t.Errorf("another is late by %v, want 255ms", late)
	}
	if late := at(5 * time.Millisecond); late != 0 || at(6*time.Millisecond) != time.Millisecond {
		t.Errorf("an earlier one is late by %v", late)
	}
}

// TestHighestEpoch: a coordinator goes above the epoch of a report, up to the highest epoch that
// counts, and not above one that is beyond it.
func TestHighestEpoch(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	for _, tt := range []struct{ reported, want uint64 }{{4, 5}, {5, 5}, {6, 7}, {MaxEpoch, MaxEpoch + 1}, {MaxEpoch + 1, 5}} {
		d := newDesk(t, hundred)
		d.start(5, 0)
		d.send(lease.Report{Member: anna, Epoch: tt.reported, Demands: []lease.Demand{asks(10)}})
		if got := d.c.Epoch(); got != tt.want {
			t.Errorf("epoch %d after a report of %d, want %d", got, tt.reported, tt.want)
		}
	}
}

// TestLimitOfNothing: of a limit without rate and burst nothing is lent, also where it is each
// instance's own; with one of the two it is a limit.
func TestLimitOfNothing(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	for _, tt := range []struct {
		terms lease.Terms
		lends bool
	}{
		{lease.Terms{Allocation: fairshare.Static}, false},
		{lease.Terms{Allocation: fairshare.None}, false},
		{lease.Terms{}, false},
		{lease.Terms{Allocation: fairshare.Static, Rate: fixed.Token}, true},
		{lease.Terms{Allocation: fairshare.Static, Burst: fixed.Token}, true},
		{lease.Terms{Allocation: fairshare.Static, Burst: 1}, true},
		{lease.Terms{Allocation: fairshare.Static, Rate: 1}, true},
	} {
		if got := tt.terms.Lendable() != (lease.Capacity{}); got != tt.lends {
			t.Errorf("%+v lends %+v", tt.terms, tt.terms.Lendable())
		}
	}
}

// TestAccountsAreBounded: when instances hold as many accounts as there may be, another is refused and
// none is forgotten; each one that is closed, left or expired makes room for one.
func TestAccountsAreBounded(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	d := newDesk(t, hundred)
	d.c.opts.MaxAccounts, d.c.opts.MaxResources = 3, 100
	open := func(m lease.Member, handle uint32) (ok bool) {
		d.report(m, lease.Demand{Handle: handle, Resource: lease.ResourceID{Limit: "l", Key: string(rune('a' + handle))}, Rate: fixed.Token})
		return d.c.sessions[m] != nil && d.c.sessions[m].accounts[handle] != nil
	}
	fill := func(when string) {
		for handle := range uint32(8) {
			open(anna, handle+1)
			open(bert, handle+1)
		}
		held := 0
		for _, r := range d.c.list {
			held += len(r.accounts)
		}
		if held != 3 || d.c.accounts != 3 {
			t.Errorf("%s: %d accounts, counted as %d, want 3", when, held, d.c.accounts)
		}
	}
	fill("at first")
	d.report(anna, lease.Demand{Handle: 1, Closed: true})
	if d.c.accounts != 2 {
		t.Errorf("%d accounts after one was closed", d.c.accounts)
	}
	fill("after one was closed")
	d.send(lease.Report{Member: anna, Epoch: 1, Leaving: true})
	fill("after an instance left")
	d.after(time.Minute)
	if d.c.accounts != 0 {
		t.Errorf("%d accounts after all have expired", d.c.accounts)
	}
	fill("after all have expired")
}
