package ledger

import (
	"testing"
	"time"

	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/internal/lease"
)

// TestTokensOfAShortfall: tokens that an instance is missing are lent at once: as many as the pool has and are not under
// way already, with burst of their own where its burst does not hold them. Without a rate it gets whole tokens.
func TestTokensOfAShortfall(t *testing.T) {
	for name, c := range map[string]struct {
		short, burst, unacked, level float64 // of tokens
		rate                         bool    // it has its rate
		want                         lease.Capacity
		left                         float64 // of the shortfall
	}{
		"all":                               {short: 3, level: 40, want: capacity(3, 3)},
		"a part without a rate":             {short: 2.5, level: 40, want: capacity(2, 2)},
		"the pool has two":                  {short: 3, level: 2, want: capacity(2, 2), left: 1},
		"the pool has less than one":        {short: 3, level: 0.9, left: 3},
		"two are under way":                 {short: 3, burst: 2, unacked: 2, level: 38, want: capacity(0, 1), left: 2},
		"its burst holds them":              {short: 3, burst: 5, level: 35, want: capacity(0, 3)},
		"two with a rate":                   {short: 30, burst: 26, level: 2, rate: true, want: capacity(2, 2), left: 28},
		"its burst holds them, with a rate": {short: 3, burst: 26, level: 10, rate: true, want: capacity(0, 3)},
		"a part with a rate":                {short: 30, burst: 26, level: 1.5, rate: true, want: capacity(2, 1.5), left: 28.5},
	} {
		r := new(Scratch).New(theLimit, lease.Terms{Rate: 100 * fixed.Token, Burst: 40 * fixed.Token}, start, false)
		a := &Account{resource: r, caps: noCaps, totals: totals{refundableAt: start}, needs: needs{Weight: 1, Shortfall: tokens(c.short), shortUntil: lease.Never}}
		r.accounts = append(r.accounts, a)
		h := lease.Capacity{Burst: tokens(c.burst)}
		if c.rate {
			a.Demand, h.Rate = 30*fixed.Token, tokens(52.5)
		}
		a.grant(h)
		a.unacked, a.unsent = lease.Capacity{Tokens: tokens(c.unacked)}, lease.Capacity{}
		a.Pending, a.Granted.Tokens, r.Pool.Level = false, 0, tokens(c.level)
		r.Round(start)
		got := lease.Capacity{Rate: a.Granted.Rate - h.Rate, Burst: a.Granted.Burst - h.Burst, Tokens: a.Granted.Tokens}
		if got != c.want || a.Shortfall != tokens(c.left) || a.Pending != (c.want != lease.Capacity{}) {
			t.Errorf("%s: granted %+v, want %+v; short of %v, want %v; pending %v", name, got, c.want, a.Shortfall, c.left, a.Pending)
		}
	}
}

// TestNextRound: the next round is due when the pool has the tokens that an instance is missing, or is full, at 10 of 40 per
// second. It is not due before a report where nothing is missing, where what is missing is under way, or where nothing comes.
func TestNextRound(t *testing.T) {
	for name, c := range map[string]struct {
		short, unacked, level float64 // of tokens
		lent                  bool    // the rate is, to another
		burst                 float64 // of the pool that is lent
		want                  time.Duration
	}{
		"nothing is missing, and nothing is there": {},
		"three are missing, and 0.9 are there":     {short: 3, level: 0.9, want: 210 * time.Millisecond},
		"without a rate a whole one is needed":     {short: 0.5, level: 0.2, want: 80 * time.Millisecond},
		"of many none is lost":                     {short: 3, level: 0.4, burst: 39, want: 60 * time.Millisecond},
		"what is missing is under way":             {short: 1, unacked: 1, level: 5},
		"the rate is lent":                         {short: 3, level: 0.9, lent: true},
	} {
		r := new(Scratch).New(theLimit, lease.Terms{Rate: 10 * fixed.Token, Burst: 40 * fixed.Token}, start, false)
		a := &Account{resource: r, caps: noCaps, totals: totals{refundableAt: start}, needs: needs{Weight: 1, Shortfall: tokens(c.short), shortUntil: lease.Never}}
		b := &Account{resource: r, caps: noCaps, totals: totals{refundableAt: start}, needs: needs{Weight: 1, shortUntil: lease.Never}}
		r.accounts = append(r.accounts, a, b)
		h := lease.Capacity{Burst: tokens(c.burst)}
		if c.lent {
			b.Demand, h = 10*fixed.Token, lease.Capacity{Rate: 10 * fixed.Token, Burst: 36 * fixed.Token}
		}
		b.grant(h)
		a.unacked, r.Pool.Level = lease.Capacity{Tokens: tokens(c.unacked)}, tokens(c.level)
		want := lease.Never
		if c.want != 0 {
			want = start.Add(c.want + 1)
		}
		if next := r.Round(start); next != want || a.Shortfall != tokens(c.short) {
			t.Errorf("%s: the next round is due after %v, want %v; short of %v", name, time.Duration(next-start), time.Duration(want-start), a.Shortfall)
		}
	}
}

func tokens(x float64) fixed.Amount { return fixed.Amount(x * float64(fixed.Token)) }

func capacity(burst, n float64) lease.Capacity {
	return lease.Capacity{Burst: tokens(burst), Tokens: tokens(n)}
}

// TestFewAreRevoked: where an instance is short, those that hold more than their part come down to it, and no more of them
// than are needed where each holds so little too much that it would be left alone.
func TestFewAreRevoked(t *testing.T) {
	for name, c := range map[string]struct {
		held []float64 // of 33/s each
		last float64   // demand of the last one
		want []bool    // who is asked
	}{
		"nobody is short":              {[]float64{33.3, 33.1, 32.8, 32.8}, 33, []bool{false, false, false, false}},
		"the first has what is needed": {[]float64{33.3, 33.1, 32.7, 32.9}, 33, []bool{true, false, false, false}},
		"both are needed":              {[]float64{33.3, 33.1, 32.6, 33}, 60, []bool{true, true, false, false}},
		"the second has the most":      {[]float64{33.1, 33.6, 32.4, 32.9}, 33, []bool{false, true, false, false}},
	} {
		r := new(Scratch).New(theLimit, lease.Terms{Rate: 132 * fixed.Token, Burst: 40 * fixed.Token}, start, false)
		for i, rate := range c.held {
			a := &Account{resource: r, caps: noCaps, totals: totals{refundableAt: start}, needs: needs{Weight: 1, Demand: 60 * fixed.Token, shortUntil: lease.Never}}
			if i == 3 {
				a.Demand = tokens(c.last)
			}
			a.grant(lease.Capacity{Rate: tokens(rate), Burst: 10 * fixed.Token})
			r.accounts = append(r.accounts, a)
		}
		if name == "nobody is short" {
			r.accounts[2].Demand = 33 * fixed.Token
		}
		r.Round(start)
		for i, a := range r.accounts {
			if asked := a.CapRate != fixed.MaxAmount; asked != c.want[i] || asked && a.CapRate != 33*fixed.Token {
				t.Errorf("%s: the cap of %d, which holds %v, is %v, want one: %v", name, i, c.held[i], a.CapRate, c.want[i])
			}
		}
	}
}

// TestLittleGoesToOne: an eighth of what all are short of is divided among them; less goes to the one with the least part
// of its rate.
func TestLittleGoesToOne(t *testing.T) {
	for _, c := range []struct{ free, first, second float64 }{
		{3, 1.375, 1.625}, // in proportion 11:13
		{2.9, 0, 2.9},
	} {
		r := new(Scratch).New(theLimit, lease.Terms{Rate: 120 * fixed.Token, Burst: 40 * fixed.Token}, start, false)
		held := []float64{29, 27, 64 - c.free} // of 40 each
		for _, rate := range held {
			a := &Account{resource: r, caps: noCaps, totals: totals{refundableAt: start}, needs: needs{Weight: 1, Demand: 60 * fixed.Token, shortUntil: lease.Never}}
			a.grant(lease.Capacity{Rate: tokens(rate), Burst: 10 * fixed.Token})
			r.accounts = append(r.accounts, a)
		}
		r.Round(start)
		for i, want := range []float64{c.first, c.second, 0} {
			if got := r.accounts[i].Granted.Rate - tokens(held[i]); got != tokens(want) {
				t.Errorf("of %v/s that are free %d gets %v, want %v", c.free, i, got, want)
			}
		}
	}
}

// TestTokensWithoutARateAreLeft: burst that was lent for single tokens comes back as they are used. It is asked back where
// the pool owes burst, where it belongs to a rate, and where it is permits.
func TestTokensWithoutARateAreLeft(t *testing.T) {
	for name, c := range map[string]struct {
		rate  fixed.Amount // of the one that demands nothing
		owed  fixed.Amount
		terms lease.Terms
		asked bool
	}{
		"single tokens":         {terms: lease.Terms{Rate: 100 * fixed.Token, Burst: 40 * fixed.Token}},
		"of a rate":             {rate: fixed.Token, terms: lease.Terms{Rate: 100 * fixed.Token, Burst: 40 * fixed.Token}, asked: true},
		"the pool owes a burst": {owed: fixed.Token, terms: lease.Terms{Rate: 100 * fixed.Token, Burst: 40 * fixed.Token}, asked: true},
		"permits":               {terms: lease.Terms{Burst: 40 * fixed.Token, Semaphore: true}, asked: true},
	} {
		r := new(Scratch).New(theLimit, c.terms, start, false)
		idle := &Account{resource: r, caps: noCaps, totals: totals{refundableAt: start}, needs: needs{Weight: 1, shortUntil: lease.Never}}
		busy := &Account{resource: r, caps: noCaps, totals: totals{refundableAt: start}, needs: needs{Weight: 1, Demand: 100 * fixed.Token, shortUntil: lease.Never}}
		r.accounts = append(r.accounts, idle, busy)
		idle.grant(lease.Capacity{Rate: c.rate, Burst: 20 * fixed.Token})
		busy.grant(lease.Capacity{Rate: r.Terms.Rate - c.rate, Burst: 10 * fixed.Token})
		if c.owed > 0 {
			r.Pool.Burst = -c.owed
		}
		r.Round(start)
		if asked := idle.CapBurst != fixed.MaxAmount; asked != c.asked || asked && idle.CapBurst != 0 {
			t.Errorf("%s: the cap of the burst is %v, want one: %v; %+v is in the pool", name, idle.CapBurst, c.asked, r.Pool)
		}
	}
}
