package coordinator

import (
	"testing"
	"time"

	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/internal/lease"
)

// changedLimit is a coordinator with one instance, which has used up a limit of 100/day.
func changedLimit(t *testing.T) (f *fleet, change func(n fixed.Amount)) {
	day := func(n fixed.Amount) lease.Terms {
		return lease.Terms{Rate: n * fixed.Token / 86400, Burst: n * fixed.Token}
	}
	f = newFleet(t, 1, 1, day(100))
	f.central.terms, f.central.level = lease.Terms{Burst: fixed.MaxAmount / 2}, fixed.MaxAmount/2 // the tests count themselves
	f.run(time.Second)
	for range 150 {
		f.arriveOnce(f.instances[0])
		f.run(100 * time.Millisecond)
	}
	if f.instances[0].took != 100 {
		t.Fatalf("%d were admitted of 100", f.instances[0].took)
	}
	return f, func(n fixed.Amount) {
		f.terms = day(200) // what is out counts until it is given back
		real := day(n)
		f.coord.opts.Resolve = func(lease.ResourceID) (lease.Terms, lease.Status) { return real, lease.StatusOK }
		f.coordinate(Reconfigure{})
	}
}

// A limit that was used up, reloaded to less and back, admits nothing on leases.
func TestChangeAndBackGivesNothingOnLeases(t *testing.T) {
	f, change := changedLimit(t)
	in := f.instances[0]
	for _, n := range []fixed.Amount{1, 100, 3, 0, 100, 1, 50, 100} {
		change(n)
		for range 20 {
			f.arriveOnce(in)
			f.run(200 * time.Millisecond)
		}
	}
	if in.took != 100 {
		t.Errorf("%d were admitted in half a minute of 100/day, want 100", in.took)
	}
}

// What a larger burst adds to a limit is there at once, as in memory and in Redis.
func TestLargerBurstIsThereAtOnceOnLeases(t *testing.T) {
	f, change := changedLimit(t)
	in := f.instances[0]
	change(130)
	for range 60 {
		f.arriveOnce(in)
		f.run(200 * time.Millisecond)
	}
	if in.took != 130 {
		t.Errorf("%d were admitted after 100 of 100 and a change to 130, want 130", in.took)
	}
}

// A removed limit is not remembered for ever, whatever was used of it.
func TestRemovedLimitIsForgotten(t *testing.T) {
	f, _ := changedLimit(t)
	f.coord.opts.Resolve = func(lease.ResourceID) (lease.Terms, lease.Status) { return lease.Terms{}, lease.StatusUnknownLimit }
	f.coordinate(Reconfigure{})
	f.instances[0].down = true
	f.run(10 * time.Second)
	if n := f.coord.Stats().Resources; n != 0 {
		t.Errorf("%d resources are left of a limit that is gone", n)
	}
}
