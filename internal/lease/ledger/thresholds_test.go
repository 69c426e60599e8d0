package ledger

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/internal/lease/leasetest"
	"github.com/stint-io/stint/limit"
)

// TestThresholds: from which amount on a coordinator decides otherwise, to a millionth.
// testdata/thresholds.txt has for each question the amounts at which the answer changes, and
// the answer from there on. A diff of it is a change of hysteresis, of headroom or of what is
// worth a message; -update writes it anew.
func TestThresholds(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	leasetest.Thresholds(t, "testdata/thresholds.txt", "# Where decisions change; see TestThresholds. Granted are +rate/burst/tokens, asked back is\n"+
		"# what is above the given rate/burst.\n", slices.Concat(roundQuestions(), suppressedQuestions()))
}

// roundCase is how a limit stands before a round.
type roundCase struct {
	terms    lease.Terms
	level    fixed.Amount // of the pool
	bursts   bool         // another burst is another kind of answer
	accounts []accountCase
}

// accountCase is what one instance has, and its demand. It is short of tokens without end.
type accountCase struct {
	rate, burst, demand, shortfall fixed.Amount
	weight                         uint32
	band                           uint8
	silent                         bool
	returnedAgo                    time.Duration // how long ago it returned burst; 0 = never
	capRate                        fixed.Amount  // the cap that it was sent; 0 = none
	unacked                        fixed.Amount  // tokens that were sent, without burst of their own
}

func (s roundCase) round() (r *Resource, next limit.Time) {
	r = new(Scratch).New(theLimit, s.terms, leasetest.Now, false)
	for i, k := range s.accounts {
		a := &Account{
			resource: r, caps: noCaps, totals: totals{refundableAt: leasetest.Now},
			needs: needs{Weight: max(1, k.weight), Band: k.band, Silent: k.silent, Demand: k.demand, Shortfall: k.shortfall, shortUntil: lease.Never},
		}
		if k.shortfall > 0 {
			a.shortSince = leasetest.Now - limit.Time(i) // later ones have been short for longer
		}
		a.grant(lease.Capacity{Rate: k.rate, Burst: k.burst})
		a.unacked, a.unsent = lease.Capacity{}, lease.Capacity{}
		if k.unacked > 0 {
			a.grant(lease.Capacity{Tokens: k.unacked})
		}
		if a.returnedAt = -lease.Never; k.returnedAgo > 0 {
			a.returnedAt = leasetest.Now.Add(-k.returnedAgo)
		}
		if k.capRate > 0 {
			a.CapRate = k.capRate
		}
		a.Granted.Tokens = 0
		r.accounts = append(r.accounts, a)
	}
	if s.level >= 0 {
		r.Pool.Level = s.level
	}
	return r, r.Round(leasetest.Now)
}

// answer is what a round grants and asks back.
func (s roundCase) answer() (kind, exact string) {
	r, next := s.round()
	var kinds, all []string
	for i, a := range r.accounts {
		had := s.accounts[i]
		g := lease.Capacity{Rate: a.Granted.Rate - had.rate, Burst: a.Granted.Burst - had.burst, Tokens: a.Granted.Tokens}
		capRate, capBurst := a.CapRate != fixed.MaxAmount, a.CapBurst != fixed.MaxAmount
		kinds = append(kinds, fmt.Sprint(g.Rate > 0, g.Burst > 0, g.Tokens > 0, capRate, capBurst && a.CapBurst > 0, a.Pending))
		says := fmt.Sprintf("+%s/%s/%s", leasetest.Exactly(g.Rate), g.Burst, leasetest.Exactly(g.Tokens))
		if g == (lease.Capacity{}) {
			says = "nothing"
		}
		if capRate || capBurst {
			says += fmt.Sprintf(" cap %s/%s", leasetest.Brief(a.CapRate), leasetest.Brief(a.CapBurst))
		}
		if a.Shortfall > 0 {
			says += " remaining shortfall " + leasetest.Exactly(a.Shortfall)
		}
		if a.shortSince != 0 {
			kinds = append(kinds, "shortfall")
		}
		if s.bursts {
			kinds = append(kinds, g.Burst.String())
		}
		all = append(all, says)
	}
	flags := ""
	if r.Contended {
		flags += " contended"
	}
	if r.Saturated {
		flags += " saturated"
	}
	if r.tokenByToken {
		flags += " single"
	}
	due := ""
	if next != lease.Never {
		flags += " again"
		due = fmt.Sprintf(" in %v", time.Duration(next-leasetest.Now).Round(time.Microsecond))
	}
	if r.Rotation.Until != 0 {
		flags += " turns"
		due += fmt.Sprintf(" of %v", time.Duration(r.Rotation.Until-leasetest.Now).Round(time.Microsecond))
	}
	return strings.Join(kinds, ", ") + flags, strings.Join(all, "; ") + flags + due
}

// roundQuestions are those that a coordinator answers in a round.
func roundQuestions() (list []leasetest.Question) {
	ask := func(name string, least, most fixed.Amount, f func(x fixed.Amount) roundCase) {
		list = append(list, leasetest.Question{Name: name, Least: least, Most: most, Answer: func(x fixed.Amount) (string, string) { return f(x).answer() }})
	}
	limit100 := lease.Terms{Rate: 100 * fixed.Token, Burst: 40 * fixed.Token}
	mine := func(k accountCase, others ...accountCase) roundCase {
		return roundCase{terms: limit100, level: -1, accounts: append([]accountCase{k}, others...)}
	}
	for _, shortfall := range []fixed.Amount{0, fixed.Token} {
		with := fmt.Sprintf(", of 100/s and burst 40, shortfall %v", shortfall)
		ask("rate held by one that demands 30/s"+with, 0, 60*fixed.Token, func(x fixed.Amount) roundCase {
			return mine(accountCase{rate: x, burst: 12 * fixed.Token, demand: 30 * fixed.Token, shortfall: shortfall})
		})
		ask("rate held by one that demands 30/s beside one that has and demands 60/s"+with, 0, 40*fixed.Token, func(x fixed.Amount) roundCase {
			return mine(accountCase{rate: x, burst: 12 * fixed.Token, demand: 30 * fixed.Token, shortfall: shortfall}, accountCase{rate: 60 * fixed.Token, burst: 24 * fixed.Token, demand: 60 * fixed.Token})
		})
		ask("rate held by one that demands 80/s beside one that has and demands 80/s, 40/s of it held"+with, 0, 60*fixed.Token, func(x fixed.Amount) roundCase {
			return mine(accountCase{rate: x, burst: 10 * fixed.Token, demand: 80 * fixed.Token, shortfall: shortfall}, accountCase{rate: 40 * fixed.Token, burst: 20 * fixed.Token, demand: 80 * fixed.Token})
		})
		ask("burst held by one that has 50/s and demands 60/s beside another such"+with, 0, 24*fixed.Token, func(x fixed.Amount) roundCase {
			x = x / fixed.Token * fixed.Token
			return mine(accountCase{rate: 50 * fixed.Token, burst: x, demand: 60 * fixed.Token, shortfall: shortfall}, accountCase{rate: 50 * fixed.Token, burst: 16 * fixed.Token, demand: 60 * fixed.Token})
		})
		ask("burst held by one that has 50/s and demands 45/s"+with, 0, 40*fixed.Token, func(x fixed.Amount) roundCase {
			x = x / fixed.Token * fixed.Token
			return mine(accountCase{rate: 50 * fixed.Token, burst: x, demand: 45 * fixed.Token, shortfall: shortfall})
		})
		ask("demand of one that has 50/s and burst 20 beside another that demands 50/s"+with, 0, 110*fixed.Token, func(x fixed.Amount) roundCase {
			return mine(accountCase{rate: 50 * fixed.Token, burst: 20 * fixed.Token, demand: x, shortfall: shortfall}, accountCase{rate: 50 * fixed.Token, burst: 20 * fixed.Token, demand: 50 * fixed.Token})
		})
		ask("demand of one that has nothing beside one that has 70/s and demands 50/s"+with, 0, 110*fixed.Token, func(x fixed.Amount) roundCase {
			return mine(accountCase{demand: x, shortfall: shortfall}, accountCase{rate: 70 * fixed.Token, burst: 30 * fixed.Token, demand: 50 * fixed.Token})
		})
		ask("demand of one that has nothing beside a silent one that has 50/s"+with, 0, 110*fixed.Token, func(x fixed.Amount) roundCase {
			return mine(accountCase{demand: x, shortfall: shortfall}, accountCase{rate: 50 * fixed.Token, burst: 20 * fixed.Token, silent: true})
		})
	}
	for _, gave := range []time.Duration{lease.IdleGrace - 1, lease.IdleGrace, lease.IdleGrace + 1} {
		ask(fmt.Sprintf("burst held by one that returned some %v ago", gave), 0, 24*fixed.Token, func(x fixed.Amount) roundCase {
			x = x / fixed.Token * fixed.Token
			return mine(accountCase{rate: 40 * fixed.Token, burst: x, demand: 45 * fixed.Token, returnedAgo: gave})
		})
	}
	ask("cap on the rate of one that holds 80/s and demands 20/s beside one that has 20/s and demands 80/s", fixed.Token, 100*fixed.Token, func(x fixed.Amount) roundCase {
		return mine(accountCase{rate: 80 * fixed.Token, burst: 20 * fixed.Token, demand: 20 * fixed.Token, capRate: x}, accountCase{rate: 20 * fixed.Token, burst: 20 * fixed.Token, demand: 80 * fixed.Token})
	})
	ask("cap on the rate of one that holds 60/s and demands 55/s beside one that has and demands 20/s", fixed.Token, 100*fixed.Token, func(x fixed.Amount) roundCase {
		return mine(accountCase{rate: 60 * fixed.Token, burst: 20 * fixed.Token, demand: 55 * fixed.Token, capRate: x}, accountCase{rate: 20 * fixed.Token, burst: 10 * fixed.Token, demand: 20 * fixed.Token})
	})
	for _, rate := range []fixed.Amount{0, 10 * fixed.Token} {
		of := fmt.Sprintf(" of one that has %v/s and burst 4 and demands 9/s", rate)
		ask("tokens in the pool, of a shortfall of 12"+of, 0, 20*fixed.Token, func(x fixed.Amount) roundCase {
			s := mine(accountCase{rate: rate, burst: 4 * fixed.Token, demand: 9 * fixed.Token, shortfall: 12 * fixed.Token})
			s.level, s.bursts = x, true
			return s
		})
		ask("tokens in the pool, of a shortfall of 2.5 while the limit is contended,"+of, 0, 4*fixed.Token, func(x fixed.Amount) roundCase {
			s := mine(accountCase{rate: rate, burst: 4 * fixed.Token, demand: 9 * fixed.Token, shortfall: 5 * fixed.Token / 2}, accountCase{rate: 90 * fixed.Token, burst: 30 * fixed.Token, demand: 90 * fixed.Token})
			s.level, s.bursts = x, true
			return s
		})
		ask("shortfall"+of, 0, 30*fixed.Token, func(x fixed.Amount) roundCase {
			s := mine(accountCase{rate: rate, burst: 4 * fixed.Token, demand: 9 * fixed.Token, shortfall: x})
			s.bursts = true
			return s
		})
		ask("tokens unacked, of a shortfall of 6"+of, 0, 8*fixed.Token, func(x fixed.Amount) roundCase {
			return mine(accountCase{rate: rate, burst: 4 * fixed.Token, demand: 9 * fixed.Token, shortfall: 6 * fixed.Token, unacked: x})
		})
	}
	list = append(list, divisions()...)
	return list
}

// divisions are questions of how a limit is divided among several.
func divisions() (list []leasetest.Question) {
	ask := func(name string, least, most fixed.Amount, f func(x fixed.Amount) roundCase) {
		list = append(list, leasetest.Question{Name: name, Least: least, Most: most, Answer: func(x fixed.Amount) (string, string) { return f(x).answer() }})
	}
	three := func(t lease.Terms, x fixed.Amount) roundCase {
		return roundCase{terms: t, level: -1, accounts: []accountCase{
			{rate: 20 * fixed.Token, burst: 4 * fixed.Token, demand: x, shortfall: fixed.Token}, {rate: 40 * fixed.Token, burst: 4 * fixed.Token, demand: 30 * fixed.Token}, {rate: 30 * fixed.Token, burst: 4 * fixed.Token, demand: 60 * fixed.Token},
		}}
	}
	for _, burst := range []int64{4, 5, 6, 12, 13, 60} {
		ask(fmt.Sprintf("demand of one of three, 100/s and burst %d", burst), 0, 100*fixed.Token, func(x fixed.Amount) roundCase {
			s := three(lease.Terms{Rate: 100 * fixed.Token, Burst: fixed.Whole(burst)}, x)
			for i := range s.accounts {
				s.accounts[i].burst = min(fixed.Whole(burst)/3/fixed.Token*fixed.Token, s.accounts[i].burst)
			}
			return s
		})
	}
	for _, missing := range []fixed.Amount{1, 7, 8, 9, 30} {
		ask(fmt.Sprintf("rate of the pool when two of four are below their rates, and %v/s are held above them", missing), 0, 60*fixed.Token, func(x fixed.Amount) roundCase {
			return roundCase{terms: lease.Terms{Rate: 160*fixed.Token + x, Burst: 80 * fixed.Token}, level: -1, accounts: []accountCase{
				{rate: 5 * fixed.Token, burst: 10 * fixed.Token, demand: 90 * fixed.Token},
				{rate: 15 * fixed.Token, burst: 10 * fixed.Token, demand: 90 * fixed.Token, band: 1},
				{rate: (70 + missing) * fixed.Token, burst: 20 * fixed.Token, demand: 90 * fixed.Token},
				{rate: (70 - missing) * fixed.Token, burst: 20 * fixed.Token, demand: 20 * fixed.Token},
			}}
		})
	}
	ask("burst of four that demand 90/s of 160/s, one with the rate and no burst", 4*fixed.Token, 80*fixed.Token, func(x fixed.Amount) roundCase {
		return roundCase{terms: lease.Terms{Rate: 160 * fixed.Token, Burst: x / fixed.Token * fixed.Token}, level: -1, accounts: []accountCase{
			{demand: 90 * fixed.Token}, {rate: 10 * fixed.Token, burst: fixed.Token, demand: 90 * fixed.Token}, {rate: 60 * fixed.Token, burst: fixed.Token, demand: 90 * fixed.Token}, {demand: 0.4e6},
		}}
	})
	for _, want := range []fixed.Amount{2, 4, 30, 200} {
		ask(fmt.Sprintf("burst of three of 6/s, of which the last demands %v/s", want), 0, 6*fixed.Token, func(x fixed.Amount) roundCase {
			return roundCase{terms: lease.Terms{Rate: 6 * fixed.Token, Burst: x / fixed.Token * fixed.Token}, level: -1, accounts: []accountCase{
				{demand: 4 * fixed.Token, shortfall: fixed.Token}, {demand: 40 * fixed.Token, band: 1}, {demand: want * fixed.Token, shortfall: fixed.Token / 2},
			}}
		})
		ask(fmt.Sprintf("rate of three with two tokens, that demand 40/s, 48/s and %v/s", want), 0, 50*fixed.Token, func(x fixed.Amount) roundCase {
			return roundCase{terms: lease.Terms{Rate: x, Burst: 2 * fixed.Token}, level: -1, accounts: []accountCase{
				{demand: 40 * fixed.Token}, {demand: 48 * fixed.Token}, {demand: want * fixed.Token},
			}}
		})
	}
	ask("rate of so few millionths that three can hardly divide it", 0, 400, func(x fixed.Amount) roundCase {
		return roundCase{terms: lease.Terms{Rate: x, Burst: 8 * fixed.Token}, level: -1, accounts: []accountCase{{demand: fixed.Token}, {demand: 2 * fixed.Token}, {demand: 0}}}
	})
	ask("rate of so few millionths that one has it alone", 0, 100, func(x fixed.Amount) roundCase {
		return roundCase{terms: lease.Terms{Rate: x, Burst: 8 * fixed.Token}, level: -1, accounts: []accountCase{{demand: fixed.Token, shortfall: fixed.Token}}}
	})
	ask("rate of so few millionths, with a silent one", 0, 400, func(x fixed.Amount) roundCase {
		return roundCase{terms: lease.Terms{Rate: x, Burst: 8 * fixed.Token}, level: -1, accounts: []accountCase{{demand: fixed.Token}, {silent: true}, {demand: 2 * fixed.Token}}}
	})
	places := func(want ...fixed.Amount) (all []accountCase) {
		for i, w := range want {
			all = append(all, accountCase{burst: fixed.Amount(i) * fixed.Token, demand: w * fixed.Token, shortfall: w * fixed.Token, band: uint8(i / 2)})
		}
		return all
	}
	for _, demands := range [][]fixed.Amount{{3, 3, 3, 3}, {1, 9, 0, 9}, {1, 1, 2, 3}, {5, 1, 2, 3}} {
		ask(fmt.Sprintf("permits of four that hold 0, 1, 2 and 3 and demand %v", demands), 6*fixed.Token, 20*fixed.Token, func(x fixed.Amount) roundCase {
			return roundCase{terms: lease.Terms{Burst: x / fixed.Token * fixed.Token, Semaphore: true}, level: -1, accounts: places(demands...)}
		})
	}
	ask("permits of a silent one and two others", 3*fixed.Token, 15*fixed.Token, func(x fixed.Amount) roundCase {
		return roundCase{terms: lease.Terms{Burst: x / fixed.Token * fixed.Token, Semaphore: true}, level: -1, accounts: []accountCase{
			{burst: fixed.Token, silent: true}, {burst: fixed.Token, demand: 4 * fixed.Token, shortfall: 3 * fixed.Token}, {burst: fixed.Token, demand: 5 * fixed.Token, shortfall: 4 * fixed.Token},
		}}
	})
	return list
}

// TestSpare: instances that cannot ask at once are lent what nobody demands: all of it, or half where others can ask.
func TestSpare(t *testing.T) {
	for _, c := range []struct {
		demands []fixed.Amount // of instances with Spare
		other   fixed.Amount   // of one without
		want    []fixed.Amount
	}{
		{demands: []fixed.Amount{100}, want: []fixed.Amount{1000}},
		{demands: []fixed.Amount{100, 300}, want: []fixed.Amount{400, 600}},
		{demands: []fixed.Amount{100}, other: 300, want: []fixed.Amount{400}},
		{demands: []fixed.Amount{100, 890}, want: []fixed.Amount{100, 890}}, // little is free: who comes short gets it
		{demands: []fixed.Amount{100, 2000}, want: []fixed.Amount{100, 900}},
	} {
		r := new(Scratch).New(lease.ResourceID{Limit: "l"}, lease.Terms{Rate: fixed.Whole(1000), Burst: fixed.Whole(1000)}, 0, false)
		all := append(c.demands[:len(c.demands):len(c.demands)], c.other)
		accounts := make([]Account, len(all))
		for i, demand := range all {
			r.Open(&accounts[i])
			if demand > 0 {
				r.Receive(&accounts[i], &lease.Demand{Rate: demand * fixed.Token, Spare: i < len(c.demands)}, Arrival{})
			}
		}
		r.Round(1)
		for i, want := range c.want {
			if got := accounts[i].Held().Rate; !fixed.Near(got, want*fixed.Token, 100) {
				t.Errorf("%v and %v: instance %d holds %v, want %d", c.demands, c.other, i, got, want)
			}
		}
		var burst fixed.Amount
		for i := range accounts {
			burst += accounts[i].Held().Burst
		}
		if burst > fixed.Whole(1000) || r.Check() != nil {
			t.Errorf("%v and %v: %v of the burst is lent, %v", c.demands, c.other, burst, r.Check())
		}
	}
}
