package coordinator

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/internal/lease/agent"
	"github.com/stint-io/stint/limit"
)

// TestCoordinatorSaysHowItStands: until when it recovers, what is free, which is never below
// nothing, and no more resources than are asked for.
func TestCoordinatorSaysHowItStands(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	const now = limit.Time(time.Hour)
	c := New(Options{Epoch: 5, Recovery: time.Second, Resolve: func(lease.ResourceID) (lease.Terms, lease.Status) { return hundred, lease.StatusOK }}, now)
	if !c.Recovering(now) || !c.Recovering(now+second-1) || c.Recovering(now+second) || c.RecoveredAt() != now+second {
		t.Errorf("it recovers until %v, want a second", time.Duration(c.RecoveredAt()-now))
	}
	if c.opts.Former != 4 || c.Epoch() != 5 {
		t.Errorf("epoch %d after %d", c.Epoch(), c.opts.Former)
	}
	d := newDesk(t, hundred)
	for handle := range uint32(3) {
		id := lease.ResourceID{Limit: "l", Key: string(rune('a' + handle))}
		d.report(anna, lease.Demand{Handle: handle + 1, Resource: id, Rate: 80 * fixed.Token})
	}
	seen := 0
	d.c.Each(d.now, func(r *ResourceState) bool {
		seen++
		if len(r.Leases) != 1 || r.Lent.Rate != r.Leases[0].Capacity.Rate || r.Lent.Rate+r.Free.Rate != hundred.Rate || r.Lent.Tokens != 0 {
			t.Errorf("%+v", r)
		}
		if l := r.Leases[0]; l.Demand != 80*fixed.Token || l.Weight != 1 || l.ExpiresIn <= 0 || l.Member != anna {
			t.Errorf("%+v", l)
		}
		return seen < 2
	})
	if seen != 2 {
		t.Errorf("%d resources were said, want 2", seen)
	}
	d.terms["l"] = lease.Terms{Rate: 10 * fixed.Token, Burst: fixed.Token}
	d.c.Step(d.now, Reconfigure{})
	d.c.Each(d.now, func(r *ResourceState) bool {
		if r.Free.Rate != 0 || r.Free.Burst != 0 || r.Free.Tokens != 0 {
			t.Errorf("%+v is free of a limit that was cut below what is lent", r.Free)
		}
		return true
	})
	if s := d.c.Stats(); s.Instances != 1 || s.Resources != 3 || s.Recovering || s.Rounds < 3 || s.Grants < 3 || s.Reports < 3 {
		t.Errorf("%+v", s)
	}
}

// TestStateOfAHandle: before an answer nothing is known of a resource; while tokens are missing and
// the answer is not there, it says that it asks; a handle that is not open stands like none.
func TestStateOfAHandle(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	f := newFleet(t, 1, 1, lease.Terms{Rate: 100 * fixed.Token, Burst: 20 * fixed.Token})
	in := f.instances[0]
	state := func() agent.State { return in.agent.State(in.handle) }
	if s := state(); s.Known || s.Asking || s.RoundTrip != 0 || s.Held != (lease.Capacity{}) {
		t.Errorf("before the first answer: %+v", s)
	}
	f.run(200 * time.Millisecond)
	if s := state(); !s.Known || s.Asking || s.Limit.Rate != 100*fixed.Token || s.RoundTrip < 2*f.delay {
		t.Errorf("after it: %+v", s)
	}
	f.arriveOnce(in)
	if s := state(); !s.Asking || s.Demand == 0 {
		t.Errorf("when one was refused: %+v", s)
	}
	f.run(200 * time.Millisecond)
	if s := state(); s.Asking || s.Held.Rate == 0 || s.Held.Burst == 0 || s.Held.Tokens != 0 {
		t.Errorf("when it has a lease: %+v", s)
	}
	if s := in.agent.State(in.handle + 1); s.Known || s.Asking || s.RoundTrip != 0 {
		t.Errorf("of no handle: %+v", s)
	}
}

// TestBadDemandWantsNothing: of one whose demand is not taken nothing stays, not a millionth.
func TestBadDemandWantsNothing(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	d := newDesk(t, hundred)
	d.report(anna, asks(50))
	d.report(anna, lease.Demand{Handle: 1, Resource: theLimit, Lease: d.c.list[0].accounts[0].Lease, Rate: -1, AckedGrant: d.acked[anna]})
	d.c.Each(d.now, func(r *ResourceState) bool {
		if r.Leases[0].Demand != 0 || r.Demand != 0 {
			t.Errorf("after a bad demand %v is wanted, %v in all", r.Leases[0].Demand, r.Demand)
		}
		return true
	})
}

// TestLeaseOfAnother: an instance that has acknowledged its lease and names another has none; until it
// has acknowledged it, the coordinator waits.
func TestLeaseOfAnother(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	for _, acked := range []bool{false, true} {
		d := newDesk(t, hundred)
		d.report(anna, asks(50))
		a := d.c.list[0].accounts[0]
		other := lease.Demand{Handle: 1, Resource: theLimit, Lease: a.Lease + 1, Rate: 50 * fixed.Token, AckedGrant: a.Born}
		if !acked {
			other.AckedGrant--
		}
		if said := d.report(anna, other); strings.Contains(said, "lease_gone") != acked {
			t.Errorf("acknowledged %v: %s", acked, said)
		}
	}
}

// TestTakeoverNotifiesEveryInstance: at once, under the next epoch and with a number that no instance takes for
// an old one.
func TestTakeoverNotifiesEveryInstance(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	d := newDesk(t, hundred)
	last := map[lease.Member]uint64{}
	for _, m := range []lease.Member{cleo, anna, bert} {
		d.report(m, asks(20))
		last[m] = d.acked[m]
	}
	d.now = d.now.Add(time.Second)
	was := d.c.Epoch()
	grants := d.c.Step(d.now, Takeover{})
	var to []lease.Member
	for _, g := range grants {
		to = append(to, g.To)
		if g.Epoch != was+1 || g.Number <= last[g.To] || g.Lease != lease.DefaultLease || g.Refresh != lease.DefaultRefresh || g.Age < time.Second {
			t.Errorf("%+v after number %d of epoch %d", g, last[g.To], was)
		}
	}
	if !slices.Equal(to, []lease.Member{anna, bert, cleo}) || d.c.Epoch() != was+1 || !d.c.Recovering(d.now.Add(lease.DefaultLease)) || d.c.Recovering(d.now.Add(lease.DefaultLease+lease.DefaultLease/64)) {
		t.Errorf("sent to %v; epoch %d; it recovers until %v", to, d.c.Epoch(), time.Duration(d.c.RecoveredAt()-d.now))
	}
}
