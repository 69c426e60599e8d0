package agent

import (
	"fmt"
	"slices"
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

// TestThresholds: from which amount on an agent decides otherwise, to a millionth. See
// TestThresholds of the coordinator.
func TestThresholds(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	list := lookQuestions()
	for _, flags := range []string{"", "rejecting"} {
		list = append(list, suppressedLooks(flags != "", strings.TrimSpace("an instance "+flags))...)
	}
	leasetest.Thresholds(t, "testdata/thresholds.txt", "# Where decisions change; see TestThresholds.\n", list)
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
	ask := "does not ask"
	if l.report.urgent {
		ask = "asks at once"
		if l.report.notBefore > now {
			ask = fmt.Sprintf("asks %v after the last report", time.Duration(l.report.notBefore-l.sent.at))
		}
	}
	if s.shortfallFor == 0 && l.refusals.expectedUntil > now {
		ask += fmt.Sprintf(", expects one for %v", time.Duration(l.refusals.expectedUntil-now).Round(time.Millisecond))
	}
	if s.starved && !l.refusals.starved {
		ask += ", settled"
	}
	when := "never"
	if l.sampling.next != lease.Never {
		when = fmt.Sprintf("in %v", time.Duration(l.sampling.next-now))
	}
	words = append(words, ask, "samples "+when)
	kind += strings.Split(ask, ",")[0] + when + fmt.Sprint(s.starved && !l.refusals.starved)
	return kind, strings.Join(words, ", ")
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

// lookQuestions are those that an instance answers when it looks at its bucket, for each state of
// the limit as it was told last.
func lookQuestions() (list []leasetest.Question) {
	for _, flags := range []string{"", "contended", "contended saturated"} {
		base := instanceCase{
			rate: 100 * fixed.Token, depth: 20 * fixed.Token, level: 20 * fixed.Token, want: 100 * fixed.Token, sent: 100 * fixed.Token, reported: 2 * time.Second,
			scarce: strings.Contains(flags, "contended"), full: strings.Contains(flags, "saturated"),
		}
		for _, q := range slices.Concat(bucketQuestions(), demandQuestions(), timeQuestions()) {
			list = append(list, leasetest.Question{Name: strings.TrimSpace("an instance: " + q.name + " " + flags), Least: q.least, Most: q.most, Answer: func(x fixed.Amount) (string, string) {
				s := base
				q.vary(&s, x)
				return s.answer()
			}})
		}
		list = append(list, permitsQuestions(base.scarce, base.full, strings.TrimSpace("permits: %s "+flags))...)
	}
	return list
}

// permitsCase is how an instance stands that looks at permits of a semaphore.
type permitsCase struct {
	held, inUse, waiting, declared, largest, sent fixed.Amount
	busy                                          fixed.Amount // what it used recently, for busyFor more
	busyFor                                       time.Duration
	starved, unanswered, asked                    bool
	steady                                        int
}

func (s permitsCase) answer(scarce, full bool) (kind, exact string) {
	const now = leasetest.Now
	p := bucket.NewSemaphore(nil)
	p.Update(now, 0, s.inUse, 0)
	p.Acquire(now, s.inUse.Floor())
	p.Update(now, 0, s.held, 0)
	l := &resource{
		bucket: p,
		lease:  leased{number: 7, granted: lease.Capacity{Burst: s.held}},
		answer: answer{known: true, capRate: fixed.MaxAmount, capBurst: fixed.MaxAmount, terms: &lease.Terms{Burst: 20 * fixed.Token, Semaphore: true}, contended: scarce, saturated: full},
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
	ask, when := "does not ask", "never"
	if l.report.urgent {
		ask = fmt.Sprintf("asks %v after the last report", time.Duration(l.report.notBefore-l.sent.at))
	}
	if l.sampling.next != lease.Never {
		when = fmt.Sprintf("in %v", time.Duration(l.sampling.next-now))
	}
	exact = fmt.Sprintf("demands %v, has %v, %s, samples %s, keeps %v for %v", l.load.demand, l.lease.held().Burst, ask, when, l.permits.recent, time.Duration(l.permits.recentUntil-now))
	return fmt.Sprint(l.load.demand, l.lease.held().Burst, ask, when, l.permits.recentUntil > now), exact
}

// permitsQuestions are about the permits of a semaphore.
func permitsQuestions(scarce, full bool, name string) (list []leasetest.Question) {
	ask := func(what string, least, most fixed.Amount, vary func(s *permitsCase, x fixed.Amount)) {
		list = append(list, leasetest.Question{Name: fmt.Sprintf("an instance's "+name, what), Least: least, Most: most, Answer: func(x fixed.Amount) (string, string) {
			s := permitsCase{held: 5 * fixed.Token, inUse: 3 * fixed.Token, sent: 5 * fixed.Token, busy: 3 * fixed.Token, busyFor: 500 * time.Millisecond}
			vary(&s, x)
			return s.answer(scarce, full)
		}})
	}
	ask("in use, of 5", 0, 5, func(s *permitsCase, x fixed.Amount) { s.inUse = x * fixed.Token })
	ask("held, 3 in use", 0, 8, func(s *permitsCase, x fixed.Amount) { s.held = x * fixed.Token })
	ask("held, 3 in use and one was refused", 0, 8, func(s *permitsCase, x fixed.Amount) { s.held, s.starved = x*fixed.Token, true })
	ask("held, 3 in use, 3 were asked for", 0, 8, func(s *permitsCase, x fixed.Amount) { s.held, s.asked = x*fixed.Token, true })
	ask("that are waited for", 0, 6, func(s *permitsCase, x fixed.Amount) { s.waiting = x * fixed.Token })
	ask("declared", 0, 8, func(s *permitsCase, x fixed.Amount) { s.declared = x * fixed.Token })
	ask("of the largest request, that was refused", 0, 8, func(s *permitsCase, x fixed.Amount) { s.largest, s.starved = x*fixed.Token, true })
	ask("demanded as reported last", 0, 8, func(s *permitsCase, x fixed.Amount) { s.sent = x * fixed.Token })
	ask("demanded as reported last, no answer yet", 0, 8, func(s *permitsCase, x fixed.Amount) {
		s.sent, s.unanswered, s.waiting = x*fixed.Token, true, 3*fixed.Token
	})
	ask("used recently", 0, 8, func(s *permitsCase, x fixed.Amount) { s.busy = x * fixed.Token })
	ask("used recently, nanoseconds ago", -3, 3, func(s *permitsCase, x fixed.Amount) { s.busy, s.busyFor = 4*fixed.Token, time.Duration(x) })
	ask("looked at so often without a change", 0, 40, func(s *permitsCase, x fixed.Amount) { s.steady = int(x) })
	ask("looked at so often without a change, none held", 0, 8, func(s *permitsCase, x fixed.Amount) {
		s.steady, s.held, s.inUse, s.busy, s.sent = 4*int(x), 0, 0, 0, x/4*fixed.Token
	})
	return list
}

// varied is a question of how an instance decides as one amount varies.
type varied struct {
	name        string
	least, most fixed.Amount
	vary        func(s *instanceCase, x fixed.Amount)
}

// bucketQuestions are about what is held.
func bucketQuestions() []varied {
	return []varied{
		{"tokens of burst 20", 0, 20 * fixed.Token, func(s *instanceCase, x fixed.Amount) { s.level = x }},
		{"tokens of burst 20, one was refused", 0, 20 * fixed.Token, func(s *instanceCase, x fixed.Amount) {
			s.level, s.starved, s.want = x, true, 130*fixed.Token
		}},
		{"tokens of burst 20, 120/s are demanded", 0, 20 * fixed.Token, func(s *instanceCase, x fixed.Amount) {
			s.level, s.want, s.sent = x, 120*fixed.Token, 120*fixed.Token
		}},
		{"tokens of burst 20, 120/s are demanded, no answer yet", 0, 20 * fixed.Token, func(s *instanceCase, x fixed.Amount) {
			s.level, s.want, s.sent, s.unanswered, s.reported = x, 120*fixed.Token, 120*fixed.Token, true, time.Millisecond
		}},
		{"tokens of burst 20, with a shortfall", 0, 20 * fixed.Token, func(s *instanceCase, x fixed.Amount) {
			s.level, s.sentShortfall, s.want, s.sent = x, 3*fixed.Token, 150*fixed.Token, 150*fixed.Token
		}},
		{"tokens of burst 3 without a rate, with a shortfall", 0, 3 * fixed.Token, func(s *instanceCase, x fixed.Amount) {
			s.rate, s.depth, s.level, s.sentShortfall, s.want, s.sent, s.shortfallFor, s.reported = 0, 3*fixed.Token, x, 3*fixed.Token, 2*fixed.Token, 2*fixed.Token, time.Second, time.Millisecond
		}},
		{"rate held, 100/s are demanded", 0, 400 * fixed.Token, func(s *instanceCase, x fixed.Amount) { s.rate = x }},
		{"rate held, 100/s are demanded, the bucket is half full", 0, 400 * fixed.Token, func(s *instanceCase, x fixed.Amount) {
			s.rate, s.level, s.reported = x, 10*fixed.Token, 100*time.Millisecond
		}},
		{"rate held by a full bucket, just reported", 0, 400 * fixed.Token, func(s *instanceCase, x fixed.Amount) {
			s.rate, s.reported = x, contendedGap-1
		}},
		{"rate held, 100/s are demanded, one waits", 0, 400 * fixed.Token, func(s *instanceCase, x fixed.Amount) {
			s.rate, s.level, s.waiting, s.reported = x, fixed.Token/2, 1, time.Millisecond
		}},
		{"rate held, 4/s are demanded", 0, 20 * fixed.Token, func(s *instanceCase, x fixed.Amount) {
			s.rate, s.want, s.sent = x, 4*fixed.Token, 4*fixed.Token
		}},
		{"rate held, 2/s are demanded", 0, 20 * fixed.Token, func(s *instanceCase, x fixed.Amount) {
			s.rate, s.want, s.sent = x, 2*fixed.Token, 2*fixed.Token
		}},
		{"burst held, 100/s demanded and 160/s held", fixed.Token, 101 * fixed.Token, func(s *instanceCase, x fixed.Amount) {
			s.depth, s.rate = x/fixed.Token*fixed.Token, 160*fixed.Token
			s.level = s.depth
		}},
		{"cost of the largest request, of a full bucket of burst 20", fixed.Token, 30 * fixed.Token, func(s *instanceCase, x fixed.Amount) {
			s.largest, s.starved = x/fixed.Token*fixed.Token, true
		}},
		{"cost of the largest request, 300/s are demanded", fixed.Token, 30 * fixed.Token, func(s *instanceCase, x fixed.Amount) {
			s.largest, s.want, s.level = x/fixed.Token*fixed.Token, 300*fixed.Token, 4*fixed.Token
		}},
	}
}

// demandQuestions are about what is wanted.
func demandQuestions() []varied {
	return []varied{
		{"demand as reported last, 100/s held and demanded", 0, 250 * fixed.Token, func(s *instanceCase, x fixed.Amount) { s.sent = x }},
		{"demand as just reported, 100/s held and demanded", 0, 250 * fixed.Token, func(s *instanceCase, x fixed.Amount) {
			s.sent, s.reported = x, time.Millisecond
		}},
		{"demand as just reported, 100/s held and 100.5/s demanded", 80 * fixed.Token, 120 * fixed.Token, func(s *instanceCase, x fixed.Amount) {
			s.sent, s.reported, s.want = x, time.Millisecond, 100*fixed.Token+fixed.Token/2
		}},
		{"demand as just reported, 50/s held, 100/s demanded", 0, 250 * fixed.Token, func(s *instanceCase, x fixed.Amount) {
			s.sent, s.rate, s.reported = x, 50*fixed.Token, time.Millisecond
		}},
		{"demand as just reported, nothing held, 100/s demanded", 0, 250 * fixed.Token, func(s *instanceCase, x fixed.Amount) {
			s.sent, s.rate, s.depth, s.level, s.reported = x, 0, 0, 0, time.Millisecond
		}},
		{"demand as just reported, 80/s held and 60/s demanded", 0, 250 * fixed.Token, func(s *instanceCase, x fixed.Amount) {
			s.sent, s.rate, s.want, s.reported = x, 80*fixed.Token, 60*fixed.Token, time.Millisecond
		}},
		{"demand as just reported, 50/s held, 100/s demanded, one was refused", 0, 250 * fixed.Token, func(s *instanceCase, x fixed.Amount) {
			s.sent, s.rate, s.starved, s.level, s.reported = x, 50*fixed.Token, true, 0, time.Millisecond
		}},
		{"demand as just reported, nothing demanded any more", 0, 20 * fixed.Token, func(s *instanceCase, x fixed.Amount) {
			s.sent, s.want, s.idle, s.reported = x, 0, time.Millisecond, time.Millisecond
		}},
		{"demand as just reported, of declared 100/s", 80 * fixed.Token, 120 * fixed.Token, func(s *instanceCase, x fixed.Amount) {
			s.sent, s.estimator, s.reported = x, Declared, time.Millisecond
		}},
		{"declared demand, 100/s held and reported", 0, 250 * fixed.Token, func(s *instanceCase, x fixed.Amount) {
			s.want, s.estimator, s.level = x, Declared, 15*fixed.Token
		}},
		{"demand of one that was refused, without a rate", 0, 10 * fixed.Token, func(s *instanceCase, x fixed.Amount) {
			s.want, s.sent, s.starved, s.rate, s.depth, s.level, s.estimator = x, x, true, 0, 0, 0, Declared
		}},
	}
}

// timeQuestions are about how long something is ago, or goes on, in nanoseconds.
func timeQuestions() []varied {
	return []varied{
		{"nanoseconds since the last report, of one that has too much", 0, fixed.Amount(2 * time.Second), func(s *instanceCase, x fixed.Amount) {
			s.rate, s.reported = 300*fixed.Token, time.Duration(x)
		}},
		{"nanoseconds since the last report, of a full bucket and 104/s", 0, fixed.Amount(2 * time.Second), func(s *instanceCase, x fixed.Amount) {
			s.rate, s.reported = 104*fixed.Token, time.Duration(x)
		}},
		{"nanoseconds of silence, of one that has tokens", 1, fixed.Amount(2 * time.Second), func(s *instanceCase, x fixed.Amount) {
			s.rate, s.want, s.sent, s.idle, s.level = 0, 0, 0, time.Duration(x), 5*fixed.Token
		}},
		{"nanoseconds of silence, of one that has a demand and no rate", 1, fixed.Amount(2 * time.Second), func(s *instanceCase, x fixed.Amount) {
			s.rate, s.want, s.sent, s.idle, s.level = 0, fixed.Token, fixed.Token, time.Duration(x), 5*fixed.Token
		}},
		{"nanoseconds of silence, of one that has a rate", 1, fixed.Amount(2 * time.Second), func(s *instanceCase, x fixed.Amount) {
			s.want, s.sent, s.idle, s.level = 0, 0, time.Duration(x), 5*fixed.Token/2
		}},
		{"nanoseconds for which one is expected, of one that has no rate", 1, fixed.Amount(100 * time.Millisecond), func(s *instanceCase, x fixed.Amount) {
			s.rate, s.want, s.sent, s.shortfallFor, s.level, s.depth = 0, 2*fixed.Token, 2*fixed.Token, time.Duration(x), fixed.Token/2, 2*fixed.Token
		}},
		{"nanoseconds until those who wait go away", 1, fixed.Amount(60 * time.Millisecond), func(s *instanceCase, x fixed.Amount) {
			s.waiting, s.within, s.level = 2, time.Duration(x), fixed.Token
		}},
		{"nanoseconds since the last report, of one with a demand 1 % off", 0, fixed.Amount(2 * time.Second), func(s *instanceCase, x fixed.Amount) {
			s.sent, s.reported = 101*fixed.Token+fixed.Token/100, time.Duration(x)
		}},
	}
}
