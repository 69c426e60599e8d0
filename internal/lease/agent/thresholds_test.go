package agent

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stint-io/stint/internal/bucket"
	"github.com/stint-io/stint/internal/demand"
	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/internal/lease/leasetest"
	"github.com/stint-io/stint/limit"
)

// TestThresholds: from which amount on an agent decides otherwise, to a millionth, with the reason. The thresholds
// themselves are in thresholds.go.
func TestThresholds(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	leasetest.Thresholds(t, rateQuestions())
	leasetest.Thresholds(t, timeQuestions())
	leasetest.Thresholds(t, permitQuestions())
	leasetest.Thresholds(t, suppressedQuestions())
}

// instanceCase is how an instance stands when it looks at its bucket.
type instanceCase struct {
	rate, depth     fixed.Amount // held
	level           fixed.Amount
	want, sent      fixed.Amount // demand now, and as reported last
	sentShortfall   fixed.Amount
	waiting, within time.Duration // since when somebody waits, and for how long more; 0 = nobody
	patient         bool
	largest         fixed.Amount
	starved         bool
	shortfallFor    time.Duration // one is expected for so long
	scarce, full    bool
	idle            time.Duration // since when nothing came; 0 = something comes
	reported        time.Duration // ago
	unanswered      bool
	estimator       Estimator
}

// instanceTerms are those of the limit of all questions.
var instanceTerms = lease.Terms{Rate: 1000 * fixed.Token, Burst: 100 * fixed.Token}

func (s instanceCase) answer() (kind, exact string) {
	const now = leasetest.Now
	h := New(Options{Member: lease.Member{Instance: "0", Session: 1}})
	h.timing.trip = 20 * time.Millisecond
	b := &still{level: s.level}
	l := &resource{
		id: theLimit, handle: 1, bucket: b, opts: LeaseOptions{Estimator: s.estimator},
		lease:  leased{number: 7, granted: lease.Capacity{Rate: s.rate, Burst: s.depth}},
		answer: answer{known: true, capRate: fixed.MaxAmount, capBurst: fixed.MaxAmount, terms: &instanceTerms, contended: s.scarce, saturated: s.full},
		acks:   acks{report: 5}, refusals: refusals{starved: s.starved},
		sent:   sent{number: 5, at: now.Add(-s.reported), demand: s.sent, shortfall: s.sentShortfall},
		report: pending{gap: 40 * time.Millisecond}, sampling: sampling{next: now},
	}
	if s.unanswered {
		l.acks.report = 4
	}
	if s.shortfallFor != 0 {
		l.refusals.expectedUntil = now.Add(s.shortfallFor)
	}
	r := bucket.Reading{Level: s.level, Largest: s.largest, Patient: s.patient, Declared: s.want}
	if s.waiting > 0 {
		r.Waiting = fixed.Whole(int64(s.waiting))
		if s.within > 0 {
			l.load.waitUntil = now.Add(s.within)
		}
	}
	if s.idle > 0 {
		l.sampling.idleSince = now.Add(-s.idle)
	}
	l.load.meter = measured(now, s.want)
	before := l.lease.returned
	l.sampleRate(now, &h.timing, r, max(fixed.Token, r.Largest))
	l.schedule(now, r, false, true)
	var words []string
	if l.load.shortfall > 0 {
		words = append(words, "shortfall "+leasetest.Exactly(l.load.shortfall))
	}
	kind = fmt.Sprint(l.load.shortfall > 0)
	if l.lease.returned != before {
		words = append(words, fmt.Sprintf("keeps %s/%s", leasetest.Exactly(l.lease.held().Rate), l.lease.held().Burst))
	}
	kind += fmt.Sprint(l.lease.returned.Rate > 0, l.lease.held().Rate > 0, l.lease.held().Burst > 0)
	ask := asks(l, now)
	if s.shortfallFor == 0 && l.refusals.expectedUntil > now {
		ask += fmt.Sprintf(", expects one for %v", time.Duration(l.refusals.expectedUntil-now).Round(time.Millisecond))
	}
	words = append(words, ask)
	if l.sampling.next == lease.Never {
		words = append(words, "samples never")
	}
	return kind + strings.Split(ask, ",")[0] + fmt.Sprint(l.sampling.next), strings.Join(words, ", ")
}

// asks says when a report is due.
func asks(l *resource, now limit.Time) string {
	switch {
	case !l.report.urgent:
		return "does not ask"
	case l.report.notBefore > now:
		return fmt.Sprintf("asks %v after the last report", time.Duration(l.report.notBefore-l.sent.at))
	}
	return "asks at once"
}

// measured returns a meter that has measured a rate over its whole window up to now. Twice
// that long without an arrival is no demand.
func measured(now limit.Time, rate fixed.Amount) (m demand.Meter) {
	m.Observe(now.Add(-20*time.Second), 0, 1)
	if rate == 0 {
		m.Observe(now, 0, 1)
		return m
	}
	m.Observe(now.Add(-8*time.Second), fixed.Token, 1)
	m.Observe(now, fixed.Token+8*rate, 1)
	return m
}

// still is a Spender that holds what it is lent, with a level of its own.
type still struct{ level fixed.Amount }

func (s *still) Observe(limit.Time) bucket.Reading { return bucket.Reading{Level: s.level} }

func (s *still) Update(_ limit.Time, _, depth, add fixed.Amount) (surplus, held fixed.Amount) {
	s.level += add
	surplus = max(0, s.level-depth)
	s.level -= surplus
	return surplus, depth / fixed.Token * fixed.Token
}

// ask is a question about an instance that holds 100/s of 1000/s with a full bucket of 20 of 100, demands what it holds,
// and has said so two seconds ago.
func ask(name, why string, least, most fixed.Amount, vary func(s *instanceCase, x fixed.Amount), want ...string) leasetest.Question {
	return leasetest.Question{Name: name, Why: why, Least: least, Most: most, Want: want, Answer: func(x fixed.Amount) (string, string) {
		s := instanceCase{
			rate: 100 * fixed.Token, depth: 20 * fixed.Token, level: 20 * fixed.Token, want: 100 * fixed.Token, sent: 100 * fixed.Token, reported: 2 * time.Second,
		}
		vary(&s, x)
		return s.answer()
	}}
}

// rateQuestions are about what is held and demanded per second.
func rateQuestions() []leasetest.Question {
	const token = fixed.Token
	return []leasetest.Question{
		ask("tokens left, 120/s demanded and 100/s held", "a round trip is 20 ms: two take 4.8 tokens, and the next request one; half of the burst is asked for", 0, 20*token,
			func(s *instanceCase, x fixed.Amount) { s.level, s.want, s.sent = x, 120*token, 120*token },
			"0 shortfall 10, asks at once", "5.8 does not ask"),
		ask("the same, no answer yet", "the next report waits for the answer, or 10 ms", 0, 20*token,
			func(s *instanceCase, x fixed.Amount) {
				s.level, s.want, s.sent, s.unanswered, s.reported = x, 120*token, 120*token, true, time.Millisecond
			},
			"0 shortfall 10, asks 10ms after the last report", "5.8 does not ask"),
		ask("the same, of a saturated limit", "it has what such a limit can give", 0, 20*token,
			func(s *instanceCase, x fixed.Amount) {
				s.level, s.want, s.sent, s.scarce, s.full = x, 120*token, 120*token, true, true
			},
			"0 does not ask"),
		ask("tokens left, all that is demanded is held", "the bucket refills as fast as it is emptied", 0, 20*token,
			func(s *instanceCase, x fixed.Amount) { s.level = x },
			"0 does not ask"),
		ask("the same, of a contended limit", "two round trips take 4 tokens, and the next request one", 0, 20*token,
			func(s *instanceCase, x fixed.Amount) { s.level, s.scarce = x, true },
			"0 shortfall 10, asks at once", "5 does not ask"),
		ask("tokens left, one was refused", "the next request is expected within two round trips", 0, 20*token,
			func(s *instanceCase, x fixed.Amount) { s.level, s.starved, s.want = x, true, 130*token },
			"0 shortfall 10, asks at once, expects one for 40ms"),
		ask("cost of a refused request, of a saturated limit", "20 fit the burst, and come in time; 21 never fit", token, 30*token,
			func(s *instanceCase, x fixed.Amount) {
				s.largest, s.starved, s.scarce, s.full = x/token*token, true, true, true
			},
			"1 shortfall 1, does not ask, expects one for 40ms", "21 shortfall 1, asks at once, expects one for 420ms"),
		ask("rate held, 100/s demanded", "above twice the demand all but 5/4 of it goes back, with its part of the burst: 20*125/200", token, 400*token,
			func(s *instanceCase, x fixed.Amount) { s.rate = x },
			"1 does not ask", "200.000001 keeps 125/13, asks at once"),
		ask("rate held of a contended limit, half a bucket", "above 5/4 of the demand all but 17/16 of it goes back: 20*106.25/125 of the burst", token, 400*token,
			func(s *instanceCase, x fixed.Amount) { s.rate, s.level, s.scarce = x, 10*token, true },
			"1 does not ask", "125.000001 keeps 106.25/17, asks at once"),
		ask("rate held of a contended limit, a full bucket", "what refills a full bucket is lost: all above the demand goes back, and half of the burst", token, 400*token,
			func(s *instanceCase, x fixed.Amount) { s.rate, s.scarce = x, true },
			"1 does not ask", "100.000001 keeps 100/10, asks at once"),
		ask("rate held of a saturated limit, a full bucket", "1/512 above the demand is lent on purpose", token, 400*token,
			func(s *instanceCase, x fixed.Amount) { s.rate, s.scarce, s.full = x, true, true },
			"1 does not ask", "100.195313 keeps 100/10, asks at once"),
		ask("rate held, 2/s demanded", "less than 1/256 of the limit, 3.90625, is not worth a message; 20*2.5/5.90625 of the burst", token, 20*token,
			func(s *instanceCase, x fixed.Amount) { s.rate, s.want, s.sent = x, 2*token, 2*token },
			"1 does not ask", "5.906251 keeps 2.5/9, asks at once"),
		ask("rate held of a saturated limit, 100/s demanded, one waits",
			"without a rate it asks for half of the burst, and returns what no rate refills; with one it has what such a limit can give, up to 15/16 of 101/s", 0, 110*token,
			func(s *instanceCase, x fixed.Amount) {
				s.rate, s.level, s.waiting, s.reported, s.scarce, s.full = x, token/2, 1, time.Millisecond, true, true
			},
			"0 shortfall 9.5, keeps 0/0, asks at once", "0.000001 does not ask", "94.6875 shortfall 9.5, does not ask"),
		ask("rate held of a contended limit, 95/s reported and 100/s demanded", "5/4 of it and more is 95/s: what it has too little of is corrected within 250 ms, else after a second", 60*token, 100*token,
			func(s *instanceCase, x fixed.Amount) {
				s.rate, s.sent, s.reported, s.scarce = x, 95*token, time.Millisecond, true
			},
			"60 asks 1s after the last report", "76 asks 250ms after the last report"),
		ask("rate held of a saturated limit, 98/s reported and 100/s demanded", "a demand above 5/4 of it gets no more by being exact", 60*token, 100*token,
			func(s *instanceCase, x fixed.Amount) {
				s.rate, s.sent, s.reported, s.scarce, s.full = x, 98*token, time.Millisecond, true, true
			},
			"60 does not ask", "80 asks 1s after the last report"),
		ask("tokens left of a burst of 12, 120/s demanded and 100/s held", "up to half of the burst a whole token is asked for, and no part of one: it may not fit", 0, 12*token,
			func(s *instanceCase, x fixed.Amount) {
				s.depth, s.level, s.want, s.sent = 12*token, x, 120*token, 120*token
			},
			"0 shortfall 6, asks at once", "5.000001 does not ask"),
		ask("tokens left of a burst of 3, 12/s demanded and 10/s held", "less than the next request takes is asked for, though half of the burst, 1.5, is less than a token more", 0, 3*token,
			func(s *instanceCase, x fixed.Amount) {
				s.rate, s.depth, s.level, s.want, s.sent = 10*token, 3*token, x, 12*token, 12*token
			},
			"0 shortfall 1.5, asks at once", "1 does not ask"),
		ask("the same, two wait", "with the two in a second 14/s are demanded. All that they lack is asked for", 0, 3*token,
			func(s *instanceCase, x fixed.Amount) {
				s.rate, s.depth, s.level, s.want, s.sent, s.waiting = 10*token, 3*token, x, 12*token, 14*token, 2
			},
			"0 shortfall 2, asks at once", "2 does not ask"),
		ask("tokens left of a burst of 20 without a rate, of a saturated limit, five wait", "the limit gives single tokens: up to half of the burst is asked for again, after the gap", token, 9*token,
			func(s *instanceCase, x fixed.Amount) {
				s.rate, s.level, s.waiting, s.sent, s.sentShortfall, s.reported, s.scarce, s.full = 0, x, 5, 105*token, token, time.Millisecond, true, true
			},
			"1 shortfall 9, asks 40ms after the last report"),
		ask("shortfall as just reported, nothing is missing now, without a rate, of a contended limit", "a token would be granted that nothing here uses; the answer is awaited for 10 ms", 0, 2*token,
			func(s *instanceCase, x fixed.Amount) {
				s.rate, s.depth, s.level, s.want, s.sent, s.sentShortfall = 0, 3*token, 3*token, 2*token, 2*token, x
				s.reported, s.unanswered, s.scarce = time.Millisecond, true, true
			},
			"0 does not ask", "0.000001 asks 10ms after the last report"),
		ask("tokens left of a burst of 3 without a rate", "they are for the next request; less than one is of no use without a rate", 0, 3*token,
			func(s *instanceCase, x fixed.Amount) {
				s.rate, s.depth, s.level, s.want, s.sent, s.reported = 0, 3*token, x, 2*token, 2*token, time.Millisecond
			},
			"0 keeps 0/0, asks at once", "1 does not ask"),
		ask("tokens left of a burst of 2, where a request of 2 is expected", "it does not fit until both are there", 0, 3*token,
			func(s *instanceCase, x fixed.Amount) {
				s.depth, s.level, s.largest, s.shortfallFor, s.scarce = 2*token, x, 2*token, time.Second, true
			},
			"0 shortfall 2, asks at once", "2 does not ask"),
		ask("demand as just reported, 50/s held and 100/s demanded", "1/8 of the larger: 100-12.5 and 8/7 of 100", 80*token, 120*token,
			func(s *instanceCase, x fixed.Amount) { s.sent, s.rate, s.reported = x, 50*token, time.Millisecond },
			"80 asks at once", "87.5 does not ask", "114.285715 asks at once"),
		ask("the same, of a declared demand", "1/32: 100-3.125 and 32/31 of 100", 80*token, 120*token,
			func(s *instanceCase, x fixed.Amount) { s.sent, s.estimator, s.reported = x, Declared, time.Millisecond },
			"80 asks at once", "96.875 does not ask", "103.225807 asks at once"),
		ask("the same, of a contended limit", "1/32 at once, and 1/100 after a second: 99 and 100/99 of 100", 80*token, 120*token,
			func(s *instanceCase, x fixed.Amount) {
				s.sent, s.estimator, s.reported, s.scarce = x, Declared, time.Millisecond, true
			},
			"80 asks at once", "96.875 asks 1s after the last report", "99 does not ask", "101.010102 asks 1s after the last report", "103.225807 asks at once"),
		ask("demand as just reported, 100/s held and measured, of a contended limit",
			"1/8 less is reported at once; the error of a measurement of 800 requests is 1/sqrt(800), 3.535 %: more is reported after 250 ms, and 1/100 after a second", 80*token, 120*token,
			func(s *instanceCase, x fixed.Amount) { s.sent, s.reported, s.scarce = x, time.Millisecond, true },
			"80 asks 250ms after the last report", "96.464467 asks 1s after the last report", "99 does not ask", "101.010102 asks 1s after the last report",
			"103.535534 asks 250ms after the last report", "114.285715 asks at once"),
		ask("demand as just reported, 60/s demanded and 80/s held", "nobody needs it: below half of what was reported, and in no hurry", token, 250*token,
			func(s *instanceCase, x fixed.Amount) {
				s.sent, s.rate, s.want, s.reported = x, 80*token, 60*token, time.Millisecond
			},
			"1 does not ask", "120.000002 asks 1s after the last report"),
		ask("demand as just reported, 2/s demanded, of a contended limit", "8/7 of 2; a decrease of less than 1/1024 of the limit, 0.976562, waits for 250 ms", 2*token, 4*token,
			func(s *instanceCase, x fixed.Amount) {
				s.sent, s.rate, s.want, s.reported, s.level, s.scarce = x, 2*token, 2*token, time.Millisecond, 10*token, true
			},
			"2 does not ask", "2.020203 asks 1s after the last report", "2.285715 asks 250ms after the last report", "2.976562 asks at once"),
	}
}

// timeQuestions are about how long something is ago, or goes on.
func timeQuestions() (list []leasetest.Question) {
	const token = fixed.Token
	list = []leasetest.Question{
		ask("since the last report, 300/s held", "IdleGrace; 20*125/300 of the burst", 0, fixed.Amount(2*time.Second),
			func(s *instanceCase, x fixed.Amount) { s.rate, s.reported = 300*token, time.Duration(x) },
			"0s does not ask", "1s keeps 125/9, asks at once"),
		ask("since the last report, a full bucket and 104/s held of a contended limit", "contendedGap", 0, fixed.Amount(2*time.Second),
			func(s *instanceCase, x fixed.Amount) {
				s.rate, s.reported, s.scarce = 104*token, time.Duration(x), true
			},
			"0s does not ask", "250ms keeps 100/10, asks at once"),
		ask("of silence, with a rate", "the rate goes back at once, and the tokens that are there, two, after IdleGrace", 1, fixed.Amount(2*time.Second),
			func(s *instanceCase, x fixed.Amount) {
				s.want, s.sent, s.idle, s.level = 0, 0, time.Duration(x), 5*token/2
			},
			"1ns keeps 0/2, asks at once", "1s keeps 0/0, asks at once, samples never"),
		ask("of silence, with tokens and no rate", "IdleGrace", 1, fixed.Amount(2*time.Second),
			func(s *instanceCase, x fixed.Amount) {
				s.rate, s.want, s.sent, s.idle, s.level = 0, 0, 0, time.Duration(x), 5*token
			},
			"1ns does not ask", "1s keeps 0/0, asks at once, samples never"),
		ask("the same, of a contended limit", "two round trips", 1, fixed.Amount(2*time.Second),
			func(s *instanceCase, x fixed.Amount) {
				s.rate, s.want, s.sent, s.idle, s.level, s.scarce = 0, 0, 0, time.Duration(x), 5*token, true
			},
			"1ns does not ask", "40ms keeps 0/0, asks at once, samples never"),
		ask("of silence, 100/s are measured and held", "the rate goes by what is measured", 1, fixed.Amount(2*time.Second),
			func(s *instanceCase, x fixed.Amount) { s.idle = time.Duration(x) },
			"1ns does not ask"),
		ask("until those who wait go away", "an answer takes a round trip, 20 ms", 1, fixed.Amount(60*time.Millisecond),
			func(s *instanceCase, x fixed.Amount) {
				s.waiting, s.within, s.level, s.rate, s.reported = 2, time.Duration(x), token, 150*token, time.Millisecond
			},
			"1ns does not ask", "20.000001ms shortfall 9, asks at once"),
	}
	for i := range list {
		list[i].Write = leasetest.Nanoseconds
	}
	return list
}

// permitQuestions are about an instance that holds five permits of 20, has three in use, and has reported five.
func permitQuestions() []leasetest.Question {
	ask := func(name, why string, most fixed.Amount, vary func(s *permitsCase, x fixed.Amount), want ...string) leasetest.Question {
		return leasetest.Question{Name: name, Why: why, Most: most, Want: want, Write: leasetest.Count, Answer: func(x fixed.Amount) (string, string) {
			s := permitsCase{held: 5 * fixed.Token, inUse: 3 * fixed.Token, sent: 5 * fixed.Token, busy: 3 * fixed.Token, busyFor: 500 * time.Millisecond}
			vary(&s, x)
			return s.answer()
		}}
	}
	return []leasetest.Question{
		ask("waited for", "those in use and those waited for are demanded: less than before is reported after IdleGrace, more than is held at once", 3,
			func(s *permitsCase, x fixed.Amount) { s.waiting = x * fixed.Token },
			"0 demands 3, has 5, asks 1s after the last report, samples in 10ms", "1 demands 4, has 5, asks 1s after the last report, samples in 10ms",
			"2 demands 5, has 5, does not ask, samples in 10ms", "3 demands 6, has 5, asks at once, samples in 10ms"),
		ask("waited for, of a contended limit", "less than before is reported at once too, for others", 3,
			func(s *permitsCase, x fixed.Amount) { s.waiting, s.contended = x*fixed.Token, true },
			"0 demands 3, has 5, asks at once, samples in 10ms", "1 demands 4, has 5, asks at once, samples in 10ms",
			"2 demands 5, has 5, does not ask, samples in 10ms", "3 demands 6, has 5, asks at once, samples in 10ms"),
		ask("demanded as reported", "what is acknowledged and more than is demanded goes back", 5,
			func(s *permitsCase, x fixed.Amount) { s.sent = x * fixed.Token },
			"0 demands 3, has 5, does not ask, samples in 10ms", "3 demands 3, has 3, asks at once, samples in 10ms", "4 demands 3, has 5, asks 1s after the last report, samples in 10ms"),
		ask("held, where three are asked back", "what is above three goes back, since it is not in use", 5,
			func(s *permitsCase, x fixed.Amount) { s.held, s.asked = x*fixed.Token, true },
			"0 demands 3, has 0, asks at once, samples in 10ms", "1 demands 3, has 1, asks at once, samples in 10ms", "2 demands 3, has 2, asks at once, samples in 10ms",
			"3 demands 3, has 3, asks 1s after the last report, samples in 10ms", "4 demands 3, has 3, asks at once, samples in 10ms"),
		ask("the cost of a refused request", "all that are held were not enough, and another as large may come", 3,
			func(s *permitsCase, x fixed.Amount) { s.largest, s.starved = x*fixed.Token, true },
			"0 demands 6, has 5, asks at once, samples in 10ms", "2 demands 7, has 5, asks at once, samples in 10ms", "3 demands 8, has 5, asks at once, samples in 10ms"),
		ask("nanoseconds until what was used before is forgotten", "four were in use, and three are", 3,
			func(s *permitsCase, x fixed.Amount) { s.busy, s.busyFor = 4*fixed.Token, time.Duration(x) },
			"0 demands 3, has 5, asks 1s after the last report, samples in 10ms", "1 demands 4, has 5, asks 1s after the last report, samples in 10ms"),
		ask("samples without a change", "the time between samples doubles with every fourth, up to 16 times", 40,
			func(s *permitsCase, x fixed.Amount) { s.steady = int(x) },
			"0 demands 3, has 5, asks 1s after the last report, samples in 10ms", "4 demands 3, has 5, asks 1s after the last report, samples in 20ms",
			"8 demands 3, has 5, asks 1s after the last report, samples in 40ms", "12 demands 3, has 5, asks 1s after the last report, samples in 80ms",
			"16 demands 3, has 5, asks 1s after the last report, samples in 160ms"),
	}
}

// permitsCase is how an instance stands that looks at permits of a semaphore.
type permitsCase struct {
	held, inUse, waiting, declared, largest, sent fixed.Amount
	busy                                          fixed.Amount // what it used recently, for busyFor more
	busyFor                                       time.Duration
	starved, unanswered, asked, contended         bool
	steady                                        int
}

func (s permitsCase) answer() (kind, exact string) {
	const now = leasetest.Now
	p := bucket.NewSemaphore(nil)
	p.Update(now, 0, s.inUse, 0)
	p.Acquire(now, s.inUse.Floor())
	p.Update(now, 0, s.held, 0)
	l := &resource{
		bucket: p,
		lease:  leased{number: 7, granted: lease.Capacity{Burst: s.held}},
		answer: answer{known: true, capRate: fixed.MaxAmount, capBurst: fixed.MaxAmount, terms: &lease.Terms{Burst: 20 * fixed.Token, Semaphore: true}, contended: s.contended},
		acks:   acks{report: 5}, refusals: refusals{starved: s.starved},
		sent:   sent{number: 5, at: now.Add(-time.Millisecond), demand: s.sent},
		report: pending{gap: 40 * time.Millisecond}, sampling: sampling{next: now, steady: s.steady},
		permits: recentPermits{recent: s.busy, recentUntil: now.Add(s.busyFor)},
	}
	if s.unanswered {
		l.acks.report = 4
	}
	if s.asked {
		l.answer.capBurst = 3 * fixed.Token
	}
	if s.declared > 0 {
		l.opts.Estimator = Declared
	}
	r := bucket.Reading{Level: max(0, s.held-s.inUse), InUse: s.inUse, Waiting: s.waiting, Declared: s.declared, Largest: s.largest}
	l.samplePermits(now, r)
	l.schedule(now, r, false, true)
	ask := asks(l, now)
	exact = fmt.Sprintf("demands %v, has %v, %s, samples in %v", l.load.demand, l.lease.held().Burst, ask, time.Duration(l.sampling.next-now))
	return exact + fmt.Sprint(l.permits.recentUntil > now), exact
}

// suppressedQuestions are about when an instance of a limit that is shared by suppression reports what it was asked.
func suppressedQuestions() (list []leasetest.Question) {
	type stand struct {
		want, sent, attempted, sentAttempted fixed.Amount
		ago                                  time.Duration
		more                                 bool
		steady                               int
	}
	ask := func(name, why string, least, most fixed.Amount, write func(fixed.Amount) string, vary func(s *stand, x fixed.Amount), want ...string) {
		list = append(list, leasetest.Question{Name: "suppression: " + name, Why: why, Least: least, Most: most, Write: write, Want: want, Answer: func(x fixed.Amount) (kind, exact string) {
			s := stand{want: 100 * fixed.Token, sent: 100 * fixed.Token, attempted: 50 * fixed.Token, sentAttempted: 50 * fixed.Token, ago: 200 * time.Millisecond, steady: 8}
			vary(&s, x)
			const now = leasetest.Now
			b := bucket.NewBucket(nil)
			l := &resource{
				bucket: b, opts: LeaseOptions{Estimator: Declared}, lease: leased{number: 1},
				answer: answer{terms: &lease.Terms{Rate: 100 * fixed.Token, Burst: 20 * fixed.Token, Suppress: &lease.Suppress{}}}, acks: acks{report: 2},
				sent:     sent{number: 2, at: now.Add(-s.ago), demand: s.sent, attempted: s.sentAttempted, more: s.more},
				sampling: sampling{steady: s.steady},
			}
			l.sampleSuppressed(now, bucket.Reading{Declared: s.want, Attempted: s.attempted, Admitted: s.attempted, Largest: fixed.Token}, false)
			exact = fmt.Sprintf("%s, samples in %v", asks(l, now), time.Duration(l.sampling.next-now))
			return exact, exact
		}})
	}
	ask("demand as reported", "1/64 of the larger: 100-1.5625 and 64/63 of 100; eight samples in each 100 ms", 90*fixed.Token, 110*fixed.Token, leasetest.Exactly,
		func(s *stand, x fixed.Amount) { s.sent = x },
		"90 asks at once, samples in 12.5ms", "98.4375 does not ask, samples in 12.5ms", "101.587302 asks at once, samples in 12.5ms")
	ask("attempted since the last report", "the least is news", 0, 2, leasetest.Count,
		func(s *stand, x fixed.Amount) { s.sentAttempted -= x },
		"0 does not ask, samples in 12.5ms", "1 asks at once, samples in 12.5ms")
	ask("attempted before the last report", "one more report says that nothing came since", 0, 1, leasetest.Count,
		func(s *stand, x fixed.Amount) { s.more = x == 1 },
		"0 does not ask, samples in 12.5ms", "1 asks at once, samples in 12.5ms")
	ask("samples without a change or a demand", "eight, then no more than there are reports", 0, 20, leasetest.Count,
		func(s *stand, x fixed.Amount) { s.want, s.sent, s.steady = 0, 0, int(x) },
		"0 does not ask, samples in 12.5ms", "8 does not ask, samples in 100ms")
	ask("tenths of a second since the last report", "100 ms are between reports", 0, 1, leasetest.Count,
		func(s *stand, x fixed.Amount) { s.ago, s.more = time.Duration(x)*100*time.Millisecond, true },
		"0 asks 100ms after the last report, samples in 12.5ms", "1 asks at once, samples in 12.5ms")
	return list
}
