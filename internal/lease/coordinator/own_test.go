package coordinator

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stint-io/stint/internal/fairshare"
	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/internal/seeding"
	"github.com/stint-io/stint/limit"
)

// TestLimitPerInstance: with the kinds static and none the limit is each instance's
// own, so what one holds does not matter to another.
func TestLimitPerInstance(t *testing.T) {
	for _, tt := range []struct {
		kind fairshare.Allocation
		want map[string]fixed.Amount
	}{
		{fairshare.Static, map[string]fixed.Amount{"a": 100 * fixed.Token, "b": 100 * fixed.Token, "idle": 0}},
		{fairshare.None, map[string]fixed.Amount{"a": 80 * fixed.Token, "b": 300 * fixed.Token, "idle": 0}},
	} {
		now := limit.Time(time.Hour)
		c := New(Options{Epoch: 1, Resolve: func(lease.ResourceID) (lease.Terms, lease.Status) {
			return lease.Terms{Rate: 100 * fixed.Token, Burst: 10 * fixed.Token, Allocation: tt.kind}, lease.StatusOK
		}}, now)
		for name, want := range map[string]fixed.Amount{"a": 80 * fixed.Token, "b": 300 * fixed.Token, "idle": 0} {
			c.Step(now, &lease.Report{Member: lease.Member{Instance: name, Session: 1}, Number: 1, Stamp: 1, Demands: []lease.Demand{{Handle: 1, Resource: lease.ResourceID{Limit: "l"}, Rate: want}}})
		}
		got := map[string]fixed.Amount{}
		for _, g := range c.Step(c.Next(), lease.Tick{}) {
			for _, s := range g.Shares {
				got[g.To.Instance] = s.Granted.Rate
			}
		}
		for name, want := range tt.want {
			if got[name] != want {
				t.Errorf("%v: %s got %v/s, want %v/s", tt.kind, name, got[name], want)
			}
		}
	}
}

// TestOwnLimitHolds: a static limit is a bucket for each instance, which no instance exceeds: not
// who asks for more than it, nor who pauses and comes back, with a lease given back between.
// It has its whole limit, and who asks for several times it does not report all the time.
func TestOwnLimitHolds(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	for seed := range seeding.Draw(t, 100) {
		r := rand.New(rand.NewPCG(seed, 3))
		rate := fixed.Amount(1+r.IntN(60)) * fixed.Token / fixed.Amount(1+r.IntN(20))
		terms := lease.Terms{Rate: rate, Burst: fixed.Amount(1+r.IntN(30)) * fixed.Token, Allocation: fairshare.Static}
		f := newFleet(t, seed, 1, terms) // its central bucket is the limit of the one instance
		f.delay, f.jitter = time.Duration(r.IntN(30))*time.Millisecond, time.Duration(r.IntN(10))*time.Millisecond
		in := f.instances[0]
		for range 12 {
			f.load(in, rate.Float()*3*r.Float64())
			f.run(time.Duration(r.Int64N(int64(5 * time.Second))))
			f.load(in, 0)
			f.run(time.Duration(r.Int64N(int64(5 * time.Second))))
		}
		f.run(time.Duration(terms.Burst.Float() / rate.Float() * float64(time.Second)))
		f.load(in, 3*rate.Float()+10)
		f.run(time.Second)
		before, took := f.coord.Stats().Reports, in.took
		f.run(20 * time.Second)
		if n := f.coord.Stats().Reports - before; n > 20*8 {
			t.Errorf("seed %d: %d reports in 20 s of a steady load at %v/s and %v", seed, n, rate, terms.Burst)
		}
		if got := float64(in.took - took); terms.Burst > fixed.Token && got < 0.95*20*rate.Float()-2 { // a bucket of one overflows between requests
			t.Errorf("seed %d: %v admitted in 20 s, of %v/s and %v", seed, got, rate, terms.Burst)
		}
	}
}

// TestOwnLimitIsChanged: who holds a static limit holds what it is changed to, in a second.
func TestOwnLimitIsChanged(t *testing.T) {
	f := newFleet(t, 1, 3, lease.Terms{Rate: 50 * fixed.Token, Burst: 10 * fixed.Token, Allocation: fairshare.Static})
	f.delay = 5 * time.Millisecond
	for _, to := range []lease.Terms{{Rate: 20 * fixed.Token, Burst: 4 * fixed.Token}, {Rate: 80 * fixed.Token, Burst: 40 * fixed.Token}, {Rate: 1 * fixed.Token, Burst: 1 * fixed.Token}, {Rate: 50 * fixed.Token, Burst: 10 * fixed.Token}} {
		for _, in := range f.instances {
			f.load(in, 100)
		}
		f.run(time.Second)
		to.Allocation = fairshare.Static
		f.terms = to
		f.coordinate(Reconfigure{})
		f.run(time.Second)
		for i, in := range f.instances {
			took := in.took
			if h := in.agent.State(in.handle).Held; h.Rate != to.Rate || h.Burst != to.Burst {
				t.Errorf("%v/s and %v: %d holds %v", to.Rate, to.Burst, i, h)
			}
			f.run(10 * time.Second)
			if got := fixed.Whole(in.took - took); got > 10*to.Rate+to.Burst || got < 9*to.Rate {
				t.Errorf("%v/s and %v: %d is admitted %v in 10 s", to.Rate, to.Burst, i, got)
			}
		}
	}
}
