package share

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stint-io/stint/limit"
)

// TestThresholds: from which amount on a coordinator or an instance decides otherwise, to a
// millionth. testdata/thresholds.txt has for each question the amounts at which the answer
// changes, and the answer from there on. A diff of it is a change of hysteresis, of head-room or
// of what is worth a message; -update writes it anew.
func TestThresholds(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	const file = "testdata/thresholds.txt"
	var b strings.Builder
	b.WriteString("# Where decisions change; see TestThresholds. Granted are +rate/depth/tokens, asked back is\n" +
		"# what is above the given rate/depth.\n")
	for _, q := range slices.Concat(roundQuestions(), lookQuestions(), suppressedQuestions()) {
		fmt.Fprintf(&b, "\n%s\n", q.name)
		for _, e := range changes(q.least, q.most, q.answer) {
			from := exactly(e.from)
			if q.most < 1000 || strings.Contains(q.name, "nanoseconds") {
				from = fmt.Sprint(int64(e.from)) // not an amount
			}
			fmt.Fprintf(&b, "%14s  %s\n", from, e.says)
		}
	}
	if *update {
		if err := os.WriteFile(file, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	differ(t, b.String(), string(want))
}

// question is what is decided as one amount varies. The answer is a kind, by which changes are
// found, and what it is exactly.
type question struct {
	name        string
	least, most Amount
	answer      func(Amount) (kind, exact string)
}

type edge struct {
	from Amount
	says string
}

// changes finds where the kind of an answer changes, between the points of a grid by bisection.
func changes(least, most Amount, answer func(Amount) (kind, exact string)) (edges []edge) {
	const grid = 96
	kind, says := answer(least)
	edges = append(edges, edge{least, says})
	at := least
	for i := Amount(1); i <= grid && len(edges) < 100; i++ {
		end := least + (most-least)*i/grid
		for k, _ := answer(end); k != kind && len(edges) < 100; k, _ = answer(end) {
			low, high := at, end
			for low+1 < high {
				middle := low + (high-low)/2
				if m, _ := answer(middle); m == kind {
					low = middle
				} else {
					high = middle
				}
			}
			kind, says = answer(high)
			edges, at = append(edges, edge{high, says}), high
		}
		at = end
	}
	return edges
}

func exactly(a Amount) string { return fmt.Sprintf("%d.%06d", a/Token, a%Token) }

// stand is how a limit stands before a round.
type stand struct {
	terms    Terms
	level    Amount // of the pool
	depths   bool   // another depth is another kind of answer
	accounts []stake
}

// stake is what one instance has and wants; what it lacks is of use for ever.
type stake struct {
	rate, depth, want, lack Amount
	weight                  uint32
	band                    uint8
	silent                  bool
	gave                    time.Duration // how long ago it gave depth back; 0 = never
	keep                    Amount        // it was asked to come down to that rate; 0 = it was not
	aloft                   Amount        // tokens under way to it, without depth of their own
}

const thresholdsAt = limit.Time(time.Hour)

func (s stand) round() *resource {
	r := newResource(theLimit, s.terms, thresholdsAt, false)
	for i, k := range s.accounts {
		of := &session{Member: Member{Instance: fmt.Sprint(i)}}
		a := &account{
			session: of, resource: r, handle: 1, weight: max(1, k.weight), band: k.band, silent: k.silent,
			want: k.want, lack: k.lack, lackUntil: never, keepRate: MaxAmount, keepDepth: MaxAmount, purseAt: thresholdsAt,
		}
		if k.lack > 0 {
			a.lackSince = thresholdsAt - limit.Time(i) // those who come later lack it for longer
		}
		a.grant(Holding{Rate: k.rate, Depth: k.depth})
		a.aloft, a.untold = Holding{}, Holding{}
		if k.aloft > 0 {
			a.grant(Holding{Tokens: k.aloft})
		}
		if a.gaveAt = -never; k.gave > 0 {
			a.gaveAt = thresholdsAt.Add(-k.gave)
		}
		if k.keep > 0 {
			a.keepRate = k.keep
		}
		a.granted.Tokens = 0
		r.accounts = append(r.accounts, a)
	}
	if s.level >= 0 {
		r.pool.level = s.level
	}
	r.round(thresholdsAt)
	return r
}

// answer is what a round grants and asks back.
func (s stand) answer() (kind, exact string) {
	r := s.round()
	var kinds, all []string
	for i, a := range r.accounts {
		had := s.accounts[i]
		g := Holding{Rate: a.granted.Rate - had.rate, Depth: a.granted.Depth - had.depth, Tokens: a.granted.Tokens}
		keepRate, keepDepth := a.keepRate != MaxAmount, a.keepDepth != MaxAmount
		kinds = append(kinds, fmt.Sprint(g.Rate > 0, g.Depth > 0, g.Tokens > 0, keepRate, keepDepth && a.keepDepth > 0, a.tell))
		says := fmt.Sprintf("+%s/%s/%s", exactly(g.Rate), g.Depth, exactly(g.Tokens))
		if g == (Holding{}) {
			says = "nothing"
		}
		if keepRate || keepDepth {
			says += fmt.Sprintf(" keep %s/%s", brief(a.keepRate), brief(a.keepDepth))
		}
		if a.lack > 0 {
			says += " still lacks " + exactly(a.lack)
		}
		if a.lackSince != 0 {
			kinds = append(kinds, "lacks")
		}
		if s.depths {
			kinds = append(kinds, g.Depth.String())
		}
		all = append(all, says)
	}
	flags := ""
	if r.scarce {
		flags += " scarce"
	}
	if r.full {
		flags += " full"
	}
	if r.single {
		flags += " single"
	}
	due := ""
	if r.dirty {
		flags += " again"
		due = fmt.Sprintf(" in %v", time.Duration(r.due-thresholdsAt).Round(time.Microsecond))
	}
	if r.turns.until != 0 {
		flags += " turns"
		due += fmt.Sprintf(" of %v", time.Duration(r.turns.until-thresholdsAt).Round(time.Microsecond))
	}
	return strings.Join(kinds, ", ") + flags, strings.Join(all, "; ") + flags + due
}

// roundQuestions are those that a coordinator answers in a round.
func roundQuestions() (list []question) {
	ask := func(name string, least, most Amount, f func(x Amount) stand) {
		list = append(list, question{name, least, most, func(x Amount) (string, string) { return f(x).answer() }})
	}
	limit100 := Terms{Rate: 100 * Token, Burst: 40 * Token}
	mine := func(k stake, others ...stake) stand {
		return stand{terms: limit100, level: -1, accounts: append([]stake{k}, others...)}
	}
	for _, lack := range []Amount{0, Token} {
		with := fmt.Sprintf(", of 100/s and 40 deep, lacking %v", lack)
		ask("rate held by one that wants 30/s"+with, 0, 60*Token, func(x Amount) stand {
			return mine(stake{rate: x, depth: 12 * Token, want: 30 * Token, lack: lack})
		})
		ask("rate held by one that wants 30/s beside one that has and wants 60/s"+with, 0, 40*Token, func(x Amount) stand {
			return mine(stake{rate: x, depth: 12 * Token, want: 30 * Token, lack: lack}, stake{rate: 60 * Token, depth: 24 * Token, want: 60 * Token})
		})
		ask("rate held by one that wants 80/s beside one that has and wants 80/s, 40/s of it held"+with, 0, 60*Token, func(x Amount) stand {
			return mine(stake{rate: x, depth: 10 * Token, want: 80 * Token, lack: lack}, stake{rate: 40 * Token, depth: 20 * Token, want: 80 * Token})
		})
		ask("depth held by one that has 50/s and wants 60/s beside another such"+with, 0, 24*Token, func(x Amount) stand {
			x = x / Token * Token
			return mine(stake{rate: 50 * Token, depth: x, want: 60 * Token, lack: lack}, stake{rate: 50 * Token, depth: 16 * Token, want: 60 * Token})
		})
		ask("depth held by one that has 50/s and wants 45/s"+with, 0, 40*Token, func(x Amount) stand {
			x = x / Token * Token
			return mine(stake{rate: 50 * Token, depth: x, want: 45 * Token, lack: lack})
		})
		ask("demand of one that has 50/s and 20 deep beside another that wants 50/s"+with, 0, 110*Token, func(x Amount) stand {
			return mine(stake{rate: 50 * Token, depth: 20 * Token, want: x, lack: lack}, stake{rate: 50 * Token, depth: 20 * Token, want: 50 * Token})
		})
		ask("demand of one that has nothing beside one that has 70/s and wants 50/s"+with, 0, 110*Token, func(x Amount) stand {
			return mine(stake{want: x, lack: lack}, stake{rate: 70 * Token, depth: 30 * Token, want: 50 * Token})
		})
		ask("demand of one that has nothing beside a silent one that has 50/s"+with, 0, 110*Token, func(x Amount) stand {
			return mine(stake{want: x, lack: lack}, stake{rate: 50 * Token, depth: 20 * Token, silent: true})
		})
	}
	for _, gave := range []time.Duration{linger - 1, linger, linger + 1} {
		ask(fmt.Sprintf("depth held by one that gave some back %v ago", gave), 0, 24*Token, func(x Amount) stand {
			x = x / Token * Token
			return mine(stake{rate: 40 * Token, depth: x, want: 45 * Token, gave: gave})
		})
	}
	ask("rate that one was asked to come down to, that holds 80/s and wants 20/s beside one that has 20/s and wants 80/s", Token, 100*Token, func(x Amount) stand {
		return mine(stake{rate: 80 * Token, depth: 20 * Token, want: 20 * Token, keep: x}, stake{rate: 20 * Token, depth: 20 * Token, want: 80 * Token})
	})
	ask("rate that one was asked to come down to, that holds 60/s and wants 55/s beside one that has and wants 20/s", Token, 100*Token, func(x Amount) stand {
		return mine(stake{rate: 60 * Token, depth: 20 * Token, want: 55 * Token, keep: x}, stake{rate: 20 * Token, depth: 10 * Token, want: 20 * Token})
	})
	for _, rate := range []Amount{0, 10 * Token} {
		of := fmt.Sprintf(" of one that has %v/s and 4 deep and wants 9/s", rate)
		ask("tokens in the pool, of 12 that are lacking"+of, 0, 20*Token, func(x Amount) stand {
			s := mine(stake{rate: rate, depth: 4 * Token, want: 9 * Token, lack: 12 * Token})
			s.level, s.depths = x, true
			return s
		})
		ask("tokens in the pool, of 2.5 that are lacking while the limit is scarce"+of, 0, 4*Token, func(x Amount) stand {
			s := mine(stake{rate: rate, depth: 4 * Token, want: 9 * Token, lack: 5 * Token / 2}, stake{rate: 90 * Token, depth: 30 * Token, want: 90 * Token})
			s.level, s.depths = x, true
			return s
		})
		ask("tokens that are lacking"+of, 0, 30*Token, func(x Amount) stand {
			s := mine(stake{rate: rate, depth: 4 * Token, want: 9 * Token, lack: x})
			s.depths = true
			return s
		})
		ask("tokens under way, of 6 that are lacking"+of, 0, 8*Token, func(x Amount) stand {
			return mine(stake{rate: rate, depth: 4 * Token, want: 9 * Token, lack: 6 * Token, aloft: x})
		})
	}
	list = append(list, divisions()...)
	return list
}

// divisions are questions of how a limit is divided among several.
func divisions() (list []question) {
	ask := func(name string, least, most Amount, f func(x Amount) stand) {
		list = append(list, question{name, least, most, func(x Amount) (string, string) { return f(x).answer() }})
	}
	three := func(t Terms, x Amount) stand {
		return stand{terms: t, level: -1, accounts: []stake{
			{rate: 20 * Token, depth: 4 * Token, want: x, lack: Token}, {rate: 40 * Token, depth: 4 * Token, want: 30 * Token}, {rate: 30 * Token, depth: 4 * Token, want: 60 * Token},
		}}
	}
	for _, burst := range []int64{4, 5, 6, 12, 13, 60} {
		ask(fmt.Sprintf("demand of one of three, 100/s and %d deep", burst), 0, 100*Token, func(x Amount) stand {
			s := three(Terms{Rate: 100 * Token, Burst: Whole(burst)}, x)
			for i := range s.accounts {
				s.accounts[i].depth = min(Whole(burst)/3/Token*Token, s.accounts[i].depth)
			}
			return s
		})
	}
	for _, missing := range []Amount{1, 7, 8, 9, 30} {
		ask(fmt.Sprintf("rate of the pool when two of four lack their rates, and %v/s are held above them", missing), 0, 60*Token, func(x Amount) stand {
			return stand{terms: Terms{Rate: 160*Token + x, Burst: 80 * Token}, level: -1, accounts: []stake{
				{rate: 5 * Token, depth: 10 * Token, want: 90 * Token}, {rate: 15 * Token, depth: 10 * Token, want: 90 * Token, band: 1},
				{rate: (70 + missing) * Token, depth: 20 * Token, want: 90 * Token}, {rate: (70 - missing) * Token, depth: 20 * Token, want: 20 * Token},
			}}
		})
	}
	ask("burst of four that want 90/s of 160/s, one with the rate and no depth", 4*Token, 80*Token, func(x Amount) stand {
		return stand{terms: Terms{Rate: 160 * Token, Burst: x / Token * Token}, level: -1, accounts: []stake{
			{want: 90 * Token}, {rate: 10 * Token, depth: Token, want: 90 * Token}, {rate: 60 * Token, depth: Token, want: 90 * Token}, {want: 0.4e6},
		}}
	})
	for _, want := range []Amount{2, 4, 30, 200} {
		ask(fmt.Sprintf("burst of three of 6/s, of which the last wants %v/s", want), 0, 6*Token, func(x Amount) stand {
			return stand{terms: Terms{Rate: 6 * Token, Burst: x / Token * Token}, level: -1, accounts: []stake{
				{want: 4 * Token, lack: Token}, {want: 40 * Token, band: 1}, {want: want * Token, lack: Token / 2},
			}}
		})
		ask(fmt.Sprintf("rate of three with two tokens, that want 40/s, 48/s and %v/s", want), 0, 50*Token, func(x Amount) stand {
			return stand{terms: Terms{Rate: x, Burst: 2 * Token}, level: -1, accounts: []stake{
				{want: 40 * Token}, {want: 48 * Token}, {want: want * Token},
			}}
		})
	}
	ask("rate of so few millionths that three can hardly divide it", 0, 400, func(x Amount) stand {
		return stand{terms: Terms{Rate: x, Burst: 8 * Token}, level: -1, accounts: []stake{{want: Token}, {want: 2 * Token}, {want: 0}}}
	})
	ask("rate of so few millionths that one has it alone", 0, 100, func(x Amount) stand {
		return stand{terms: Terms{Rate: x, Burst: 8 * Token}, level: -1, accounts: []stake{{want: Token, lack: Token}}}
	})
	ask("rate of so few millionths, with a silent one", 0, 400, func(x Amount) stand {
		return stand{terms: Terms{Rate: x, Burst: 8 * Token}, level: -1, accounts: []stake{{want: Token}, {silent: true}, {want: 2 * Token}}}
	})
	places := func(want ...Amount) (all []stake) {
		for i, w := range want {
			all = append(all, stake{depth: Amount(i) * Token, want: w * Token, lack: w * Token, band: uint8(i / 2)})
		}
		return all
	}
	for _, wants := range [][]Amount{{3, 3, 3, 3}, {1, 9, 0, 9}, {1, 1, 2, 3}, {5, 1, 2, 3}} {
		ask(fmt.Sprintf("places of four that hold 0, 1, 2 and 3 and want %v", wants), 6*Token, 20*Token, func(x Amount) stand {
			return stand{terms: Terms{Burst: x / Token * Token, Gauge: true}, level: -1, accounts: places(wants...)}
		})
	}
	ask("places of a silent one and two others", 3*Token, 15*Token, func(x Amount) stand {
		return stand{terms: Terms{Burst: x / Token * Token, Gauge: true}, level: -1, accounts: []stake{
			{depth: Token, silent: true}, {depth: Token, want: 4 * Token, lack: 3 * Token}, {depth: Token, want: 5 * Token, lack: 4 * Token},
		}}
	})
	return list
}
