package coordinator

import (
	"testing"
	"time"

	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/internal/lease"
)

// admitted runs a fleet for a while and returns what each was admitted.
func admitted(f *fleet, d time.Duration) []int64 {
	was := make([]int64, len(f.instances))
	for i, in := range f.instances {
		was[i] = in.took
	}
	f.run(d)
	for i, in := range f.instances {
		was[i] = in.took - was[i]
	}
	return was
}

// TestFewerTokensThanInstances: with a bucket for one or two, all have their turn.
func TestFewerTokensThanInstances(t *testing.T) {
	for _, terms := range []lease.Terms{
		{Rate: 5 * fixed.Token, Burst: fixed.Token}, {Rate: 20 * fixed.Token, Burst: 2 * fixed.Token}, {Rate: 2 * fixed.Token, Burst: 3 * fixed.Token},
	} {
		f := newFleet(t, 1, 7, terms)
		for _, in := range f.instances {
			f.load(in, 10*terms.Rate.Float())
		}
		f.run(10 * time.Second)
		got := admitted(f, 5*time.Minute)
		fair := int64(terms.Rate.Float() * 300 / 7)
		for i, n := range got {
			if n < fair*6/10 || n > fair*14/10 {
				t.Errorf("%+v: %v were admitted to instances alike, %d to %d; fair were %d", terms, got, n, i, fair)
				break
			}
		}
	}
}

// TestSilentHasItsTurn: one that never asks is not forgotten where there are fewer
// tokens than instances.
func TestSilentHasItsTurn(t *testing.T) {
	for _, others := range []float64{1, 40} {
		f := newFleet(t, 1, 3, lease.Terms{Rate: 8 * fixed.Token, Burst: fixed.Token})
		f.instances[2].opts.Silent = true
		f.start(f.instances[2])
		for _, in := range f.instances {
			f.load(in, others)
		}
		f.load(f.instances[2], 40)
		f.run(10 * time.Second)
		got := admitted(f, 3*time.Minute)
		if want := int64(8 * 180 / 3); got[2] < want/2 {
			t.Errorf("the silent one was admitted %d in 3 min, want about %d; all: %v", got[2], want, got)
		}
	}
}

// TestTinyRates: a rate of a few millionths per second reaches all instances in
// turn.
func TestTinyRates(t *testing.T) {
	for _, burst := range []fixed.Amount{1, 40} {
		// 24 instances, of which a rate of 11 millionths could reach 11.
		f := newFleet(t, 1, 24, lease.Terms{Rate: 11, Burst: burst * fixed.Token})
		d := f.desk()
		for i := range f.instances {
			d.lacks(i)
		}
		for range 24 * 4 {
			d.token()
		}
		for i, n := range d.served {
			if n == 0 {
				t.Errorf("burst %v: of %v tokens instance %d got none", burst, d.served, i)
				break
			}
		}
	}
}

// tinyDesk lends single tokens, without holders that would need months of seconds.
type tinyDesk struct {
	r      *resource
	served []int
	f      *fleet
}

func (f *fleet) desk() *tinyDesk {
	d := &tinyDesk{r: newResource(theLimit, f.terms, f.now, false), f: f}
	for i := range f.instances {
		a := &account{session: &session{Member: lease.Member{Instance: "x", Session: uint64(i)}}, resource: d.r, handle: 1, caps: noCaps, needs: needs{weight: 1}}
		d.r.accounts = append(d.r.accounts, a)
	}
	d.served = make([]int, len(f.instances))
	return d
}

// lacks has an instance want a token.
func (d *tinyDesk) lacks(i int) {
	a := d.r.accounts[i]
	a.demand, a.shortfall, a.shortUntil = fixed.Token, fixed.Token, lease.Never
	if a.shortSince == 0 {
		a.shortSince = d.f.now
	}
}

// token waits until one more has come, and has all that were lent used and their depth
// and rate given back as far as the coordinator asks.
func (d *tinyDesk) token() {
	d.f.now = d.f.now.Add(26 * time.Hour)
	d.r.round(d.f.now)
	for i, a := range d.r.accounts {
		a.unacked, a.unsent, a.unackedGrants = lease.Capacity{}, lease.Capacity{}, nil
		d.r.pool.reserved = 0
		h := a.held()
		back := lease.Capacity{Rate: max(0, h.Rate-a.capRate), Burst: max(0, h.Burst-a.capBurst)}
		if h.Burst >= fixed.Token && h.Rate*93600 >= fixed.Token {
			d.served[i]++ // what came with its rate
		}
		if h.Tokens >= fixed.Token {
			d.served[i]++
			back.Tokens = 0
			a.granted.Tokens -= h.Tokens
			if h.Rate == 0 {
				back.Burst = h.Burst
			}
		}
		if !a.settle(a.returned.Add(back), 0) {
			d.f.t.Fatalf("%+v given back of %+v", back, h)
		}
		d.lacks(i)
	}
}

// TestTurnsOfACutBurst: a turn of more than there are tokens ends with the cut. (Found
// by one of 100,000 random schedules of TestLiveTerms.)
func TestTurnsOfACutBurst(t *testing.T) {
	r := newResource(lease.ResourceID{Limit: "l"}, lease.Terms{Rate: fixed.Token, Burst: 2 * fixed.Token}, 1, false)
	for range 3 {
		r.accounts = append(r.accounts, &account{resource: r, session: &session{}, caps: noCaps, needs: needs{weight: 1, demand: 20 * fixed.Token}})
	}
	r.round(2)
	if len(r.rotation.members) != 2 {
		t.Fatalf("%d have the turn of two tokens", len(r.rotation.members))
	}
	r.setTerms(lease.Terms{Rate: fixed.Token, Burst: fixed.Token}, 3)
	r.round(4)
	var rate, depth fixed.Amount
	for _, a := range r.accounts {
		rate, depth = rate+a.target.Rate, depth+a.target.Burst
	}
	if rate != fixed.Token || depth != fixed.Token {
		t.Errorf("%v/s and depth %v are to be lent of 1/s and 1", rate, depth)
	}
}
