package coordinator

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
	leasetest.Thresholds(t, "testdata/thresholds.txt", "# Where decisions change; see TestThresholds. Granted are +rate/depth/tokens, asked back is\n"+
		"# what is above the given rate/depth.\n", slices.Concat(roundQuestions(), suppressedQuestions()))
}

// stand is how a limit stands before a round.
type stand struct {
	terms    lease.Terms
	level    fixed.Amount // of the pool
	depths   bool         // another depth is another kind of answer
	accounts []stake
}

// stake is what one instance has and wants; what it lacks is of use for ever.
type stake struct {
	rate, depth, want, lack fixed.Amount
	weight                  uint32
	band                    uint8
	silent                  bool
	gave                    time.Duration // how long ago it gave depth back; 0 = never
	keep                    fixed.Amount  // it was asked to come down to that rate; 0 = it was not
	aloft                   fixed.Amount  // tokens under way to it, without depth of their own
}

func (s stand) round() *resource {
	r := newResource(theLimit, s.terms, leasetest.Now, false)
	for i, k := range s.accounts {
		of := &session{Member: lease.Member{Instance: fmt.Sprint(i)}}
		a := &account{
			session: of, resource: r, handle: 1, caps: noCaps, ledger: ledger{refundableAt: leasetest.Now},
			needs: needs{weight: max(1, k.weight), band: k.band, silent: k.silent, demand: k.want, shortfall: k.lack, shortUntil: lease.Never},
		}
		if k.lack > 0 {
			a.shortSince = leasetest.Now - limit.Time(i) // those who come later lack it for longer
		}
		a.grant(lease.Capacity{Rate: k.rate, Burst: k.depth})
		a.unacked, a.unsent = lease.Capacity{}, lease.Capacity{}
		if k.aloft > 0 {
			a.grant(lease.Capacity{Tokens: k.aloft})
		}
		if a.returnedAt = -lease.Never; k.gave > 0 {
			a.returnedAt = leasetest.Now.Add(-k.gave)
		}
		if k.keep > 0 {
			a.capRate = k.keep
		}
		a.granted.Tokens = 0
		r.accounts = append(r.accounts, a)
	}
	if s.level >= 0 {
		r.pool.level = s.level
	}
	r.round(leasetest.Now)
	return r
}

// answer is what a round grants and asks back.
func (s stand) answer() (kind, exact string) {
	r := s.round()
	var kinds, all []string
	for i, a := range r.accounts {
		had := s.accounts[i]
		g := lease.Capacity{Rate: a.granted.Rate - had.rate, Burst: a.granted.Burst - had.depth, Tokens: a.granted.Tokens}
		keepRate, keepDepth := a.capRate != fixed.MaxAmount, a.capBurst != fixed.MaxAmount
		kinds = append(kinds, fmt.Sprint(g.Rate > 0, g.Burst > 0, g.Tokens > 0, keepRate, keepDepth && a.capBurst > 0, a.pending))
		says := fmt.Sprintf("+%s/%s/%s", leasetest.Exactly(g.Rate), g.Burst, leasetest.Exactly(g.Tokens))
		if g == (lease.Capacity{}) {
			says = "nothing"
		}
		if keepRate || keepDepth {
			says += fmt.Sprintf(" keep %s/%s", leasetest.Brief(a.capRate), leasetest.Brief(a.capBurst))
		}
		if a.shortfall > 0 {
			says += " still lacks " + leasetest.Exactly(a.shortfall)
		}
		if a.shortSince != 0 {
			kinds = append(kinds, "lacks")
		}
		if s.depths {
			kinds = append(kinds, g.Burst.String())
		}
		all = append(all, says)
	}
	flags := ""
	if r.contended {
		flags += " scarce"
	}
	if r.saturated {
		flags += " full"
	}
	if r.tokenByToken {
		flags += " single"
	}
	due := ""
	if r.dirty {
		flags += " again"
		due = fmt.Sprintf(" in %v", time.Duration(r.due-leasetest.Now).Round(time.Microsecond))
	}
	if r.rotation.until != 0 {
		flags += " turns"
		due += fmt.Sprintf(" of %v", time.Duration(r.rotation.until-leasetest.Now).Round(time.Microsecond))
	}
	return strings.Join(kinds, ", ") + flags, strings.Join(all, "; ") + flags + due
}

// roundQuestions are those that a coordinator answers in a round.
func roundQuestions() (list []leasetest.Question) {
	ask := func(name string, least, most fixed.Amount, f func(x fixed.Amount) stand) {
		list = append(list, leasetest.Question{Name: name, Least: least, Most: most, Answer: func(x fixed.Amount) (string, string) { return f(x).answer() }})
	}
	limit100 := lease.Terms{Rate: 100 * fixed.Token, Burst: 40 * fixed.Token}
	mine := func(k stake, others ...stake) stand {
		return stand{terms: limit100, level: -1, accounts: append([]stake{k}, others...)}
	}
	for _, lack := range []fixed.Amount{0, fixed.Token} {
		with := fmt.Sprintf(", of 100/s and 40 deep, lacking %v", lack)
		ask("rate held by one that wants 30/s"+with, 0, 60*fixed.Token, func(x fixed.Amount) stand {
			return mine(stake{rate: x, depth: 12 * fixed.Token, want: 30 * fixed.Token, lack: lack})
		})
		ask("rate held by one that wants 30/s beside one that has and wants 60/s"+with, 0, 40*fixed.Token, func(x fixed.Amount) stand {
			return mine(stake{rate: x, depth: 12 * fixed.Token, want: 30 * fixed.Token, lack: lack}, stake{rate: 60 * fixed.Token, depth: 24 * fixed.Token, want: 60 * fixed.Token})
		})
		ask("rate held by one that wants 80/s beside one that has and wants 80/s, 40/s of it held"+with, 0, 60*fixed.Token, func(x fixed.Amount) stand {
			return mine(stake{rate: x, depth: 10 * fixed.Token, want: 80 * fixed.Token, lack: lack}, stake{rate: 40 * fixed.Token, depth: 20 * fixed.Token, want: 80 * fixed.Token})
		})
		ask("depth held by one that has 50/s and wants 60/s beside another such"+with, 0, 24*fixed.Token, func(x fixed.Amount) stand {
			x = x / fixed.Token * fixed.Token
			return mine(stake{rate: 50 * fixed.Token, depth: x, want: 60 * fixed.Token, lack: lack}, stake{rate: 50 * fixed.Token, depth: 16 * fixed.Token, want: 60 * fixed.Token})
		})
		ask("depth held by one that has 50/s and wants 45/s"+with, 0, 40*fixed.Token, func(x fixed.Amount) stand {
			x = x / fixed.Token * fixed.Token
			return mine(stake{rate: 50 * fixed.Token, depth: x, want: 45 * fixed.Token, lack: lack})
		})
		ask("demand of one that has 50/s and 20 deep beside another that wants 50/s"+with, 0, 110*fixed.Token, func(x fixed.Amount) stand {
			return mine(stake{rate: 50 * fixed.Token, depth: 20 * fixed.Token, want: x, lack: lack}, stake{rate: 50 * fixed.Token, depth: 20 * fixed.Token, want: 50 * fixed.Token})
		})
		ask("demand of one that has nothing beside one that has 70/s and wants 50/s"+with, 0, 110*fixed.Token, func(x fixed.Amount) stand {
			return mine(stake{want: x, lack: lack}, stake{rate: 70 * fixed.Token, depth: 30 * fixed.Token, want: 50 * fixed.Token})
		})
		ask("demand of one that has nothing beside a silent one that has 50/s"+with, 0, 110*fixed.Token, func(x fixed.Amount) stand {
			return mine(stake{want: x, lack: lack}, stake{rate: 50 * fixed.Token, depth: 20 * fixed.Token, silent: true})
		})
	}
	for _, gave := range []time.Duration{lease.IdleGrace - 1, lease.IdleGrace, lease.IdleGrace + 1} {
		ask(fmt.Sprintf("depth held by one that gave some back %v ago", gave), 0, 24*fixed.Token, func(x fixed.Amount) stand {
			x = x / fixed.Token * fixed.Token
			return mine(stake{rate: 40 * fixed.Token, depth: x, want: 45 * fixed.Token, gave: gave})
		})
	}
	ask("rate that one was asked to come down to, that holds 80/s and wants 20/s beside one that has 20/s and wants 80/s", fixed.Token, 100*fixed.Token, func(x fixed.Amount) stand {
		return mine(stake{rate: 80 * fixed.Token, depth: 20 * fixed.Token, want: 20 * fixed.Token, keep: x}, stake{rate: 20 * fixed.Token, depth: 20 * fixed.Token, want: 80 * fixed.Token})
	})
	ask("rate that one was asked to come down to, that holds 60/s and wants 55/s beside one that has and wants 20/s", fixed.Token, 100*fixed.Token, func(x fixed.Amount) stand {
		return mine(stake{rate: 60 * fixed.Token, depth: 20 * fixed.Token, want: 55 * fixed.Token, keep: x}, stake{rate: 20 * fixed.Token, depth: 10 * fixed.Token, want: 20 * fixed.Token})
	})
	for _, rate := range []fixed.Amount{0, 10 * fixed.Token} {
		of := fmt.Sprintf(" of one that has %v/s and 4 deep and wants 9/s", rate)
		ask("tokens in the pool, of 12 that are lacking"+of, 0, 20*fixed.Token, func(x fixed.Amount) stand {
			s := mine(stake{rate: rate, depth: 4 * fixed.Token, want: 9 * fixed.Token, lack: 12 * fixed.Token})
			s.level, s.depths = x, true
			return s
		})
		ask("tokens in the pool, of 2.5 that are lacking while the limit is scarce"+of, 0, 4*fixed.Token, func(x fixed.Amount) stand {
			s := mine(stake{rate: rate, depth: 4 * fixed.Token, want: 9 * fixed.Token, lack: 5 * fixed.Token / 2}, stake{rate: 90 * fixed.Token, depth: 30 * fixed.Token, want: 90 * fixed.Token})
			s.level, s.depths = x, true
			return s
		})
		ask("tokens that are lacking"+of, 0, 30*fixed.Token, func(x fixed.Amount) stand {
			s := mine(stake{rate: rate, depth: 4 * fixed.Token, want: 9 * fixed.Token, lack: x})
			s.depths = true
			return s
		})
		ask("tokens under way, of 6 that are lacking"+of, 0, 8*fixed.Token, func(x fixed.Amount) stand {
			return mine(stake{rate: rate, depth: 4 * fixed.Token, want: 9 * fixed.Token, lack: 6 * fixed.Token, aloft: x})
		})
	}
	list = append(list, divisions()...)
	return list
}

// divisions are questions of how a limit is divided among several.
func divisions() (list []leasetest.Question) {
	ask := func(name string, least, most fixed.Amount, f func(x fixed.Amount) stand) {
		list = append(list, leasetest.Question{Name: name, Least: least, Most: most, Answer: func(x fixed.Amount) (string, string) { return f(x).answer() }})
	}
	three := func(t lease.Terms, x fixed.Amount) stand {
		return stand{terms: t, level: -1, accounts: []stake{
			{rate: 20 * fixed.Token, depth: 4 * fixed.Token, want: x, lack: fixed.Token}, {rate: 40 * fixed.Token, depth: 4 * fixed.Token, want: 30 * fixed.Token}, {rate: 30 * fixed.Token, depth: 4 * fixed.Token, want: 60 * fixed.Token},
		}}
	}
	for _, burst := range []int64{4, 5, 6, 12, 13, 60} {
		ask(fmt.Sprintf("demand of one of three, 100/s and %d deep", burst), 0, 100*fixed.Token, func(x fixed.Amount) stand {
			s := three(lease.Terms{Rate: 100 * fixed.Token, Burst: fixed.Whole(burst)}, x)
			for i := range s.accounts {
				s.accounts[i].depth = min(fixed.Whole(burst)/3/fixed.Token*fixed.Token, s.accounts[i].depth)
			}
			return s
		})
	}
	for _, missing := range []fixed.Amount{1, 7, 8, 9, 30} {
		ask(fmt.Sprintf("rate of the pool when two of four lack their rates, and %v/s are held above them", missing), 0, 60*fixed.Token, func(x fixed.Amount) stand {
			return stand{terms: lease.Terms{Rate: 160*fixed.Token + x, Burst: 80 * fixed.Token}, level: -1, accounts: []stake{
				{rate: 5 * fixed.Token, depth: 10 * fixed.Token, want: 90 * fixed.Token},
				{rate: 15 * fixed.Token, depth: 10 * fixed.Token, want: 90 * fixed.Token, band: 1},
				{rate: (70 + missing) * fixed.Token, depth: 20 * fixed.Token, want: 90 * fixed.Token},
				{rate: (70 - missing) * fixed.Token, depth: 20 * fixed.Token, want: 20 * fixed.Token},
			}}
		})
	}
	ask("burst of four that want 90/s of 160/s, one with the rate and no depth", 4*fixed.Token, 80*fixed.Token, func(x fixed.Amount) stand {
		return stand{terms: lease.Terms{Rate: 160 * fixed.Token, Burst: x / fixed.Token * fixed.Token}, level: -1, accounts: []stake{
			{want: 90 * fixed.Token}, {rate: 10 * fixed.Token, depth: fixed.Token, want: 90 * fixed.Token}, {rate: 60 * fixed.Token, depth: fixed.Token, want: 90 * fixed.Token}, {want: 0.4e6},
		}}
	})
	for _, want := range []fixed.Amount{2, 4, 30, 200} {
		ask(fmt.Sprintf("burst of three of 6/s, of which the last wants %v/s", want), 0, 6*fixed.Token, func(x fixed.Amount) stand {
			return stand{terms: lease.Terms{Rate: 6 * fixed.Token, Burst: x / fixed.Token * fixed.Token}, level: -1, accounts: []stake{
				{want: 4 * fixed.Token, lack: fixed.Token}, {want: 40 * fixed.Token, band: 1}, {want: want * fixed.Token, lack: fixed.Token / 2},
			}}
		})
		ask(fmt.Sprintf("rate of three with two tokens, that want 40/s, 48/s and %v/s", want), 0, 50*fixed.Token, func(x fixed.Amount) stand {
			return stand{terms: lease.Terms{Rate: x, Burst: 2 * fixed.Token}, level: -1, accounts: []stake{
				{want: 40 * fixed.Token}, {want: 48 * fixed.Token}, {want: want * fixed.Token},
			}}
		})
	}
	ask("rate of so few millionths that three can hardly divide it", 0, 400, func(x fixed.Amount) stand {
		return stand{terms: lease.Terms{Rate: x, Burst: 8 * fixed.Token}, level: -1, accounts: []stake{{want: fixed.Token}, {want: 2 * fixed.Token}, {want: 0}}}
	})
	ask("rate of so few millionths that one has it alone", 0, 100, func(x fixed.Amount) stand {
		return stand{terms: lease.Terms{Rate: x, Burst: 8 * fixed.Token}, level: -1, accounts: []stake{{want: fixed.Token, lack: fixed.Token}}}
	})
	ask("rate of so few millionths, with a silent one", 0, 400, func(x fixed.Amount) stand {
		return stand{terms: lease.Terms{Rate: x, Burst: 8 * fixed.Token}, level: -1, accounts: []stake{{want: fixed.Token}, {silent: true}, {want: 2 * fixed.Token}}}
	})
	places := func(want ...fixed.Amount) (all []stake) {
		for i, w := range want {
			all = append(all, stake{depth: fixed.Amount(i) * fixed.Token, want: w * fixed.Token, lack: w * fixed.Token, band: uint8(i / 2)})
		}
		return all
	}
	for _, wants := range [][]fixed.Amount{{3, 3, 3, 3}, {1, 9, 0, 9}, {1, 1, 2, 3}, {5, 1, 2, 3}} {
		ask(fmt.Sprintf("places of four that hold 0, 1, 2 and 3 and want %v", wants), 6*fixed.Token, 20*fixed.Token, func(x fixed.Amount) stand {
			return stand{terms: lease.Terms{Burst: x / fixed.Token * fixed.Token, Semaphore: true}, level: -1, accounts: places(wants...)}
		})
	}
	ask("places of a silent one and two others", 3*fixed.Token, 15*fixed.Token, func(x fixed.Amount) stand {
		return stand{terms: lease.Terms{Burst: x / fixed.Token * fixed.Token, Semaphore: true}, level: -1, accounts: []stake{
			{depth: fixed.Token, silent: true}, {depth: fixed.Token, want: 4 * fixed.Token, lack: 3 * fixed.Token}, {depth: fixed.Token, want: 5 * fixed.Token, lack: 4 * fixed.Token},
		}}
	})
	return list
}
