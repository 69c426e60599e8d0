package ledger

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stint-io/stint/internal/demand"
	"github.com/stint-io/stint/internal/fairshare"
	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/internal/lease/leasetest"
	"github.com/stint-io/stint/limit"
)

// TestThresholds: from which amount on a ledger decides otherwise, to a millionth, with the reason. Granted are
// +rate/burst/tokens to each account; what is above the rate/burst of a cap is asked back.
func TestThresholds(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	leasetest.Thresholds(t, roundQuestions())
	leasetest.Thresholds(t, suppressedQuestions())
}

// roundCase is how a limit stands before a round.
type roundCase struct {
	terms    lease.Terms
	accounts []accountCase
}

// accountCase is what one instance has, and its demand. It is short of tokens without end.
type accountCase struct {
	rate, burst, demand, shortfall fixed.Amount
	band                           uint8
	silent                         bool
	returnedAgo                    time.Duration // how long ago it returned burst; 0 = never
}

func (s roundCase) round() (r *Resource, next limit.Time) {
	r = new(Scratch).New(theLimit, s.terms, leasetest.Now, false)
	for i, k := range s.accounts {
		a := &Account{
			resource: r, caps: noCaps, totals: totals{refundableAt: leasetest.Now},
			needs: needs{Weight: 1, Band: k.band, Silent: k.silent, Demand: k.demand, Shortfall: k.shortfall, shortUntil: lease.Never},
		}
		if k.shortfall > 0 {
			a.shortSince = leasetest.Now - limit.Time(i) // later ones have been short for longer
		}
		a.grant(lease.Capacity{Rate: k.rate, Burst: k.burst})
		a.unacked, a.unsent = lease.Capacity{}, lease.Capacity{}
		if a.returnedAt = -lease.Never; k.returnedAgo > 0 {
			a.returnedAt = leasetest.Now.Add(-k.returnedAgo)
		}
		a.Granted.Tokens = 0
		r.accounts = append(r.accounts, a)
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
			says += fmt.Sprintf(" cap %s/%s", capped(a.CapRate), capped(a.CapBurst))
		}
		if a.Shortfall > 0 {
			says += " short of " + leasetest.Exactly(a.Shortfall)
		}
		if a.shortSince != 0 {
			kinds = append(kinds, "shortfall")
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

// capped writes a cap.
func capped(a fixed.Amount) string {
	if a == fixed.MaxAmount {
		return "all"
	}
	return leasetest.Exactly(a)
}

// roundQuestions are those that a ledger answers in a round, of a limit of 100/s.
func roundQuestions() []leasetest.Question {
	const token = fixed.Token
	ask := func(name, why string, least, most fixed.Amount, of func(x fixed.Amount) roundCase, want ...string) leasetest.Question {
		return leasetest.Question{Name: name, Why: why, Least: least, Most: most, Want: want, Answer: func(x fixed.Amount) (string, string) { return of(x).answer() }}
	}
	limited := func(burst fixed.Amount, accounts ...accountCase) roundCase {
		return roundCase{terms: lease.Terms{Rate: 100 * token, Burst: burst}, accounts: accounts}
	}
	permits := func(burst fixed.Amount, accounts ...accountCase) roundCase {
		return roundCase{terms: lease.Terms{Burst: burst / token * token, Semaphore: true}, accounts: accounts}
	}
	return []leasetest.Question{
		ask("rate of one that demands 30/s",
			"3/4 of its demand as head-room, less than half of what is free; burst 2, 30 % of 38, and half of the rest: 26. With its demand alone it has enough", 0, 60*token,
			func(x fixed.Amount) roundCase {
				return limited(40*token, accountCase{rate: x, burst: 12 * token, demand: 30 * token})
			},
			"0 +52.5/14/14", "30 nothing"),
		ask("burst of one that demands 30/s", "less than an eighth of its part, 26, is not worth a message", 0, 30*token,
			func(x fixed.Amount) roundCase {
				return limited(40*token, accountCase{burst: x / token * token, demand: 30 * token})
			},
			"0 +52.5/26/26", "23 +52.5/0/0"),
		ask("rate of one that demands 30/s beside 60/s of another",
			"above 7/8 of the limit is demanded, so there is no head-room; off by less than 1/64, 0.46875, no rate is moved. Burst 2, and of the other 36 as sqrt(30) to sqrt(60): 16", 0, 40*token,
			func(x fixed.Amount) roundCase {
				return limited(40*token, accountCase{rate: x, burst: 12 * token, demand: 30 * token}, accountCase{rate: 60 * token, burst: 24 * token, demand: 60 * token})
			},
			"0 +30/4/4; nothing contended", "29.531251 +0/4/4; nothing contended"),
		ask("the same, short of a token", "its bucket runs dry in the end: a quarter of 1/64 of 1/64, 0.00183, is moved", 20*token, 40*token,
			func(x fixed.Amount) roundCase {
				return limited(40*token, accountCase{rate: x, burst: 12 * token, demand: 30 * token, shortfall: token}, accountCase{rate: 60 * token, burst: 24 * token, demand: 60 * token})
			},
			"20 +10/4/4 short of 1; nothing contended", "29.99817 +0/4/4 short of 1; nothing contended"),
		ask("demand of one that has 50/s beside another 50/s", "7/8 of the limit; 1/64 above it; more than 150/(demand-50) tokens are of no use to it: from 57.5 on that is less than the mean, 20, and it weighs half as much, so of the 36 it has somewhat less than 12", 0, 110*token,
			func(x fixed.Amount) roundCase {
				return limited(40*token, accountCase{rate: 50 * token, burst: 20 * token, demand: x}, accountCase{rate: 50 * token, burst: 20 * token, demand: 50 * token})
			},
			"0 nothing; nothing", "37.500001 nothing; nothing contended", "51.562501 nothing; nothing contended saturated", "57.500001 nothing cap all/13; nothing contended saturated"),
		ask("demand of one beside 30/s of another, nothing is held", "1/64 above the limit; from there the others get 1/512 more than they demand: 30.058593", 71_562_500, 80*token,
			func(x fixed.Amount) roundCase {
				return limited(40*token, accountCase{demand: 30 * token}, accountCase{demand: x})
			},
			"71.5625 +30/16/16; +70/23/23 contended", "71.562501 +30.058593/16/16; +69.941407/23/23 contended saturated"),
		ask("the same, in proportion", "each has its 50/s or what it demands, and what is left is the other's", 71_562_500, 80*token,
			func(x fixed.Amount) roundCase {
				s := limited(40*token, accountCase{demand: 30 * token}, accountCase{demand: x})
				s.terms.Allocation = fairshare.Proportional
				return s
			},
			"71.5625 +30/16/16; +70/23/23 contended", "71.562501 +30/16/16; +70/23/23 contended saturated"),
		ask("demand of one beside 600 permits of another", "permits are counted exactly: of 2000 the other has no more than it demands", 1500*token, 1900*token,
			func(x fixed.Amount) roundCase {
				return permits(2000*token, accountCase{demand: 600 * token}, accountCase{demand: x})
			},
			"1500 +0/600/0; +0/1400/0 contended saturated"),
		ask("demand of one beside a silent one that has a half", "the same; its share ends at the other's half, and the other gets the burst that it has too much", 0, 110*token,
			func(x fixed.Amount) roundCase {
				return limited(40*token, accountCase{demand: x}, accountCase{rate: 50 * token, burst: 20 * token, silent: true})
			},
			"0 nothing; nothing", "0.000001 +0.000001/6/6; nothing", "37.500001 +37.500001/18/18; nothing contended",
			"51.562501 +50/20/20; nothing contended saturated", "57.500001 +50/13/13; +0/6/6 contended saturated"),
		{
			Name: "time since one returned burst", Why: "what it has just returned it does not get again, for IdleGrace. Burst 2, 45 % of 38, and half of the rest: 29",
			Most: fixed.Amount(2 * time.Second), Write: leasetest.Nanoseconds,
			Answer: func(x fixed.Amount) (string, string) {
				return limited(40*token, accountCase{rate: 40 * token, burst: 3 * token, demand: 45 * token, returnedAgo: time.Duration(x)}).answer()
			},
			Want: []string{"0s +32.5/26/26", "1ns +32.5/0/0", "1s +32.5/26/26"},
		},
		ask("rate of three with two tokens, of which the last demands 30/s",
			"a demand of eight times its part of the rate has all of it, but three are too many for two tokens: from 7.5/s two are left. Above 4/s for each token they take turns, of 20 "+
				"trips or two seconds, and one token's time, until the last has less than twice its part", 0, 50*token,
			func(x fixed.Amount) roundCase {
				return roundCase{terms: lease.Terms{Rate: x, Burst: 2 * token}, accounts: []accountCase{{demand: 40 * token}, {demand: 48 * token}, {demand: 30 * token}}}
			},
			"0 nothing; nothing; nothing contended saturated", "0.000001 nothing; nothing; nothing contended saturated single",
			"7.500002 +3.750001/1/1; +3.750001/1/1; nothing contended saturated single", "8.000002 +4.000001/1/1; +4.000001/1/1; nothing contended saturated again turns in 2.25s of 2.25s",
			"30.000002 nothing; nothing; nothing contended saturated single"),
		{
			Name: "millionths per second for three", Why: "64 for each are as few as can be divided; two demand them", Most: 400, Write: leasetest.Count,
			Answer: func(x fixed.Amount) (string, string) {
				return roundCase{terms: lease.Terms{Rate: x, Burst: 8 * token}, accounts: []accountCase{{demand: token}, {demand: 2 * token}, {}}}.answer()
			},
			Want: []string{"0 nothing; nothing; nothing contended saturated", "1 nothing; nothing; nothing contended saturated single", "192 +0.000096/4/4; +0.000096/4/4; nothing contended saturated"},
		},
		ask("permits of four that hold 0, 1, 2 and 3 and demand 5, 1, 2 and 3",
			"max-min in whole permits; those that rounding leaves go by turns, and the last is asked for what it has above its part. 11 are demanded, and of 13 an eighth is free", 6*token, 20*token,
			func(x fixed.Amount) roundCase {
				return permits(x, accountCase{demand: 5 * token}, accountCase{burst: token, demand: token}, accountCase{burst: 2 * token, demand: 2 * token}, accountCase{burst: 3 * token, demand: 3 * token})
			},
			"6 nothing; nothing; nothing; nothing cap all/1 contended saturated again turns in 2s of 2s",
			"7 +0/1/0; nothing; nothing; nothing cap all/2 contended saturated",
			"8 +0/2/0; nothing; nothing; nothing cap all/2 contended saturated again turns in 2s of 2s",
			"9 +0/3/0; nothing; nothing; nothing contended saturated", "11 +0/5/0; nothing; nothing; nothing contended", "13 +0/5/0; nothing; nothing; nothing"),
		ask("permits of a silent one and two others", "the silent one has a third, in whole permits, and the others the rest, of which the odd one goes by turns", 3*token, 6*token,
			func(x fixed.Amount) roundCase {
				return permits(x, accountCase{burst: token, silent: true}, accountCase{burst: token, demand: 4 * token}, accountCase{burst: token, demand: 5 * token})
			},
			"3 nothing; nothing; nothing contended saturated", "4 nothing; +0/1/0; nothing contended saturated again turns in 2s of 2s",
			"5 nothing; +0/1/0; +0/1/0 contended saturated", "6 +0/1/0; +0/1/0; +0/1/0 contended saturated"),
	}
}

// suppressedCase is a limit of 100/s that is shared by suppression, before a round.
type suppressedCase struct {
	attempted fixed.Amount // per second, by the average
	was       float64      // what was refused up to now
	over      bool         // the bucket ran dry before
	level     fixed.Amount // of the bucket
	demands   []fixed.Amount
	silent    bool // the last one
	quiet     time.Duration
	suppress  lease.Suppress
}

func (s suppressedCase) answer() (kind, exact string) {
	const now = leasetest.Now
	t := s.suppress
	t.Window, t.Intervals = 2*time.Second, 2
	r := new(Scratch).New(theLimit, lease.Terms{Rate: 100 * fixed.Token, Burst: 20 * fixed.Token, Suppress: &t}, now, false)
	p := r.divider.(*suppression)
	p.over, p.reject, p.bucket.Level, p.added = s.over, s.was, s.level, now
	p.average = demand.NewMovingAverage(t.Window, t.Intervals, now.Add(-time.Second))
	p.average.Add(now.Add(-time.Second), s.attempted)
	for i, want := range s.demands {
		a := &Account{
			resource: r,
			needs:    needs{Weight: 1, Demand: want}, caps: noCaps, attempts: attempts{attemptedAt: now.Add(-s.quiet), attemptedRate: want, largest: 3 * fixed.Token},
		}
		a.Silent = s.silent && i == len(s.demands)-1
		a.grant(lease.Capacity{Rate: r.Terms.Rate, Burst: r.Terms.Burst})
		a.Pending, a.unsent, a.unacked = false, lease.Capacity{}, lease.Capacity{}
		r.accounts = append(r.accounts, a)
	}
	r.Round(now)
	var kinds, all []string
	for _, a := range r.accounts {
		x := r.divider.suppression(a)
		kinds = append(kinds, fmt.Sprint(a.Pending))
		says := fmt.Sprintf("%.5g/%s", x.Rate.Float(), x.Burst)
		if a.Pending {
			says += " at once"
		}
		all = append(all, says)
	}
	return fmt.Sprint(kinds, p.over, p.reject > 0), fmt.Sprintf("rejects %.4f above %s, %s in the bucket", p.reject, strings.Join(all, "; "), leasetest.Exactly(p.bucket.Level))
}

// suppressedQuestions are those of a limit of 100/s and burst 20 that two instances share by suppression: they demand 100/s and
// 50/s, and a third nothing.
func suppressedQuestions() []leasetest.Question {
	const token = fixed.Token
	ask := func(name, why string, most fixed.Amount, vary func(s *suppressedCase, x fixed.Amount), want ...string) leasetest.Question {
		return leasetest.Question{Name: "suppression: " + name, Why: why, Most: most, Want: want, Answer: func(x fixed.Amount) (string, string) {
			s := suppressedCase{attempted: 150 * token, over: true, demands: []fixed.Amount{100 * token, 50 * token, 0}}
			vary(&s, x)
			return s.answer()
		}}
	}
	return []leasetest.Question{
		ask("attempted per second, a third is refused",
			"1-100/x is refused, and within the limit nothing: of the bucket of 32 the burst is owed; a change of 1/32 is sent at once: 100/(1-1/3+1/32) and 100/(1-1/3-1/32). The others admit by demand, 2:1 of the limit", 200*token,
			func(s *suppressedCase, x fixed.Amount) { s.attempted, s.was = x, 1.0/3 },
			"0 rejects 0.0000 above 0/0 at once; 0/0 at once; 0/0, 12 in the bucket", "100.000001 rejects 0.0000 above 66.667/14 at once; 33.333/7 at once; 0/1, 0 in the bucket",
			"143.283583 rejects 0.3021 above 66.667/14; 33.333/7; 0/1, 0 in the bucket", "157.37705 rejects 0.3646 above 66.667/14 at once; 33.333/7 at once; 0/1, 0 in the bucket"),
		ask("attempted per second, a third is refused, linearly up to three times the limit",
			"(x-100)/200 is refused, and a change of 1/32 sent at once: 100+200*(1/3-1/32) and 100+200*(1/3+1/32)", 200*token,
			func(s *suppressedCase, x fixed.Amount) {
				s.attempted, s.was, s.suppress = x, 1.0/3, lease.Suppress{Ramp: lease.RampLinear, Full: 3}
			},
			"0 rejects 0.0000 above 0/0 at once; 0/0 at once; 0/0, 12 in the bucket", "100.000001 rejects 0.0000 above 100/20 at once; 50/10 at once; 0/1, 0 in the bucket",
			"160.416667 rejects 0.3021 above 69.792/14; 34.896/7; 0/1, 0 in the bucket", "172.916667 rejects 0.3646 above 63.542/13 at once; 31.771/7 at once; 0/1, 0 in the bucket"),
		ask("tokens in the bucket", "it has the burst and what 120 ms bring, 32: above its half the excess has ended", 40*token,
			func(s *suppressedCase, x fixed.Amount) { s.level = x },
			"0 rejects 0.3333 above 66.667/14 at once; 33.333/7 at once; 0/1, 0 in the bucket", "16.000001 rejects 0.0000 above 0/0; 0/0; 0/0, 16.000001 in the bucket"),
		ask("attempted per second, the bucket has tokens", "within the bucket nothing is refused", 400*token,
			func(s *suppressedCase, x fixed.Amount) { s.attempted, s.over, s.level = x, false, 5*token },
			"0 rejects 0.0000 above 0/0; 0/0; 0/0, 5 in the bucket"),
		ask("less than 200/s demanded, linearly up to three times the limit", "20/200 is refused; two report intervals of 180/s are 36, and no instance has more than the burst of the limit", 50*token,
			func(s *suppressedCase, x fixed.Amount) {
				s.attempted, s.was, s.suppress, s.demands = 120*token, 0.1, lease.Suppress{Ramp: lease.RampLinear, Full: 3}, []fixed.Amount{200*token - x}
			},
			"0 rejects 0.1000 above 180/20, 0 in the bucket"),
		ask("attempted per second beside a silent one", "the silent one has a half of the limit, used or not", 200*token,
			func(s *suppressedCase, x fixed.Amount) {
				s.demands, s.silent, s.attempted = []fixed.Amount{80 * token, 50 * token}, true, x
			},
			"0 rejects 0.0000 above 0/0; 0/0 at once, 12 in the bucket", "50.000001 rejects 0.0000 above 50/10 at once; 0/0 at once, 0 in the bucket"),
	}
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
