package ledger

import (
	"testing"
	"time"

	"github.com/stint-io/stint/internal/fairshare"
	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/limit"
)

// TestTinyRates: a rate of a few millionths per second reaches all instances, one after another.
func TestTinyRates(t *testing.T) {
	for _, burst := range []fixed.Amount{1, 40} {
		// 24 instances, of which a rate of 11 millionths could reach 11.
		d := newTinyRate(t, 24, lease.Terms{Rate: 11, Burst: burst * fixed.Token})
		for i := range d.served {
			d.demandToken(i)
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

// tinyRate lends single tokens, without agents that would need months of seconds.
type tinyRate struct {
	t      *testing.T
	r      *Resource
	now    limit.Time
	served []int
}

func newTinyRate(t *testing.T, n int, terms lease.Terms) *tinyRate {
	d := &tinyRate{t: t, now: limit.Time(time.Hour), served: make([]int, n)}
	d.r = new(Scratch).New(theLimit, terms, d.now, false)
	for range n {
		opened(d.r)
	}
	return d
}

// demandToken has an instance be short of a token.
func (d *tinyRate) demandToken(i int) {
	a := d.r.accounts[i]
	a.Demand, a.Shortfall, a.shortUntil = fixed.Token, fixed.Token, lease.Never
	if a.shortSince == 0 {
		a.shortSince = d.now
	}
}

// token waits until one more was refilled, and has all tokens that were lent used, and their burst
// and rate returned as far as the caps say.
func (d *tinyRate) token() {
	d.now = d.now.Add(26 * time.Hour)
	d.r.Round(d.now)
	for i, a := range d.r.accounts {
		a.unacked, a.unsent, a.unackedGrants = lease.Capacity{}, lease.Capacity{}, nil
		d.r.Pool.Reserved = 0
		h := a.Held()
		back := lease.Capacity{Rate: max(0, h.Rate-a.CapRate), Burst: max(0, h.Burst-a.CapBurst)}
		if h.Burst >= fixed.Token && h.Rate*93600 >= fixed.Token {
			d.served[i]++ // by its rate
		}
		if h.Tokens >= fixed.Token {
			d.served[i]++
			back.Tokens = 0
			a.Granted.Tokens -= h.Tokens
			if h.Rate == 0 {
				back.Burst = h.Burst
			}
		}
		if !a.Settle(a.Returned.Add(back), 0) {
			d.t.Fatalf("%+v returned of %+v", back, h)
		}
		d.demandToken(i)
	}
}

// TestTurnsOfACutBurst: a turn of more than there are tokens ends with the cut. (Found
// by one of 100,000 random schedules of TestLiveTerms.)
func TestTurnsOfACutBurst(t *testing.T) {
	r := new(Scratch).New(lease.ResourceID{Limit: "l"}, lease.Terms{Rate: 10 * fixed.Token, Burst: 2 * fixed.Token}, 1, false)
	for range 3 {
		opened(r).Demand = 20 * fixed.Token
	}
	r.Round(2)
	if len(r.Rotation.Members) != 2 {
		t.Fatalf("%d have the turn of two tokens", len(r.Rotation.Members))
	}
	r.SetTerms(lease.Terms{Rate: 10 * fixed.Token, Burst: fixed.Token}, 3)
	r.Round(4)
	var rate, burst fixed.Amount
	for _, a := range r.accounts {
		rate, burst = rate+a.target.Rate, burst+a.target.Burst
	}
	if rate != 10*fixed.Token || burst != fixed.Token {
		t.Errorf("%v/s and burst %v are to be lent of 10/s and 1", rate, burst)
	}
}

// TestKindChangesAnew: whatever kind of limit an account was divided by before, and however its
// tokens rotated or were lent one by one, new terms are announced and due as on a new resource.
func TestKindChangesAnew(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	kinds := map[string]lease.Terms{
		"rotating":   {Rate: 10 * fixed.Token, Burst: 2 * fixed.Token},
		"one by one": {Rate: 10 * fixed.Token, Burst: 2 * fixed.Token},
		"rate":       {Rate: 10 * fixed.Token, Burst: 40 * fixed.Token},
		"permits":    {Burst: 4 * fixed.Token, Semaphore: true},
		"instance":   {Rate: 10 * fixed.Token, Burst: 40 * fixed.Token, Allocation: fairshare.Static},
		"suppressed": {Rate: 10 * fixed.Token, Burst: 40 * fixed.Token, Suppress: &lease.Suppress{}},
	}
	populate := func(r *Resource, each fixed.Amount) {
		for range 3 {
			opened(r).Demand = each
		}
	}
	for was, former := range kinds {
		for is, terms := range kinds {
			demand := 20 * fixed.Token
			if was == "one by one" {
				demand = 4 * fixed.Token // not enough to use up a period of a rotation
			}
			r := new(Scratch).New(theLimit, former, 1, false)
			populate(r, demand)
			r.Round(2)
			anew := new(Scratch).New(theLimit, terms, 1, false)
			populate(anew, demand)
			r.SetTerms(terms, limit.Time(time.Hour))
			for _, a := range r.accounts {
				a.served = 0
			}
			next := r.Round(limit.Time(time.Hour))
			anew.Round(limit.Time(time.Hour))
			if got, want := r.SaturatedFor(r.accounts[0]), anew.SaturatedFor(anew.accounts[0]); got != want {
				t.Errorf("%s after %s: announced as saturated: %v, on a new resource %v", is, was, got, want)
			}
			if r.Rotation.Until != anew.Rotation.Until {
				t.Errorf("%s after %s: the rotation ends at %v, on a new resource at %v", is, was, time.Duration(r.Rotation.Until), time.Duration(anew.Rotation.Until))
			}
			if next < limit.Time(time.Hour) {
				t.Errorf("%s after %s: the next round was due %v ago", is, was, time.Hour-time.Duration(next))
			}
		}
	}
}
