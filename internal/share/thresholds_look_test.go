package share

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/stint-io/stint/limit"
)

// instanceStand is how an instance stands when it looks at its bucket.
type instanceStand struct {
	rate, depth     Amount // held
	level           Amount
	want, sent      Amount // demand now, and as reported last
	sentLack        Amount
	waiting, within time.Duration // since when somebody waits, and for how long more; 0 = nobody
	patient         bool
	largest         Amount
	starved         bool
	lackFor         time.Duration // one is expected for so long
	scarce, full    bool
	idle            time.Duration // since when nothing came; 0 = something comes
	reported        time.Duration // ago
	unanswered      bool
	uneven          float64
	estimator       Estimator
}

// instanceTerms are those of the limit of all questions.
var instanceTerms = Terms{Rate: 1000 * Token, Burst: 100 * Token}

func (s instanceStand) answer() (kind, exact string) {
	const now = thresholdsAt
	h := NewHolder(HolderOptions{Member: Member{"0", 1}})
	h.trip = 20 * time.Millisecond
	b := &still{level: s.level}
	l := &lease{
		id: theLimit, handle: 1, spender: b, opts: LeaseOptions{Estimator: s.estimator}, place: -1,
		lease: 7, known: true, granted: Holding{Rate: s.rate, Depth: s.depth}, keepRate: MaxAmount, keepDepth: MaxAmount,
		terms: instanceTerms, scarce: s.scarce, full: s.full, starved: s.starved,
		sent: 5, seen: 5, sentAt: now.Add(-s.reported), sentWant: s.sent, sentLack: s.sentLack, gap: 40 * time.Millisecond, lookAt: now,
	}
	if s.unanswered {
		l.seen = 4
	}
	if s.lackFor != 0 {
		l.lackUntil = now.Add(s.lackFor)
	}
	r := Reading{Level: s.level, Largest: s.largest, Patient: s.patient, Declared: s.want}
	if s.waiting > 0 {
		r.Waiting = Whole(int64(s.waiting))
		if s.within > 0 {
			l.waitUntil = now.Add(s.within)
		}
	}
	if s.idle > 0 {
		l.idleSince = now.Add(-s.idle)
	}
	// Only what is declared is exact to a millionth; measured demand is, where it is not the
	// amount that varies.
	l.meter = meter{ready: true, begun: true, at: now, rate: s.want.Float(), uneven: s.uneven, parts: [meterParts]span{{tokens: 8 * s.want.Float(), length: 8}}, count: 1}
	before := l.returned
	l.lookRate(now, h, r, max(Token, r.Largest))
	l.schedule(now, r, false)
	var words []string
	if l.lack > 0 {
		words = append(words, "lacks "+exactly(l.lack))
	}
	kind = fmt.Sprint(l.lack > 0)
	if l.returned != before {
		words = append(words, fmt.Sprintf("keeps %s/%s", exactly(l.held().Rate), l.held().Depth))
	}
	kind += fmt.Sprint(l.returned.Rate > 0, l.held().Rate > 0, l.held().Depth > 0)
	ask := "does not ask"
	if l.urgent {
		ask = "asks at once"
		if l.askAt > now {
			ask = fmt.Sprintf("asks %v after the last report", time.Duration(l.askAt-l.sentAt))
		}
	}
	if s.lackFor == 0 && l.lackUntil > now {
		ask += fmt.Sprintf(", expects one for %v", time.Duration(l.lackUntil-now).Round(time.Millisecond))
	}
	if s.starved && !l.starved {
		ask += ", settled"
	}
	when := "never"
	if l.lookAt != never {
		when = fmt.Sprintf("in %v", time.Duration(l.lookAt-now))
	}
	words = append(words, ask, "looks "+when)
	kind += strings.Split(ask, ",")[0] + when + fmt.Sprint(s.starved && !l.starved)
	return kind, strings.Join(words, ", ")
}

// still is a Spender that holds what it is lent, with a level of its own.
type still struct{ level Amount }

func (s *still) Observe(limit.Time) Reading { return Reading{Level: s.level} }

func (s *still) Amend(_ limit.Time, _, depth, add Amount) (surplus, held Amount) {
	s.level += add
	surplus = max(0, s.level-depth)
	s.level -= surplus
	return surplus, depth / Token * Token
}

// lookQuestions are those that an instance answers when it looks at its bucket, for each state of
// the limit as it was told last.
func lookQuestions() (list []question) {
	for _, flags := range []string{"", "scarce", "scarce full"} {
		base := instanceStand{
			rate: 100 * Token, depth: 20 * Token, level: 20 * Token, want: 100 * Token, sent: 100 * Token, reported: 2 * time.Second,
			scarce: strings.Contains(flags, "scarce"), full: strings.Contains(flags, "full"),
		}
		for _, q := range slices.Concat(bucketQuestions(), demandQuestions(), timeQuestions()) {
			list = append(list, question{strings.TrimSpace("an instance: " + q.name + " " + flags), q.least, q.most, func(x Amount) (string, string) {
				s := base
				q.vary(&s, x)
				return s.answer()
			}})
		}
		list = append(list, placesQuestions(base.scarce, base.full, strings.TrimSpace("places: %s "+flags))...)
	}
	return list
}

// placesStand is how an instance stands that looks at places of a gauge.
type placesStand struct {
	held, inUse, waiting, declared, largest, sent Amount
	busy                                          Amount // what it used of late, for busyFor more
	busyFor                                       time.Duration
	starved, unanswered, asked                    bool
	steady                                        int
}

func (s placesStand) answer(scarce, full bool) (kind, exact string) {
	const now = thresholdsAt
	h := NewHolder(HolderOptions{Member: Member{"0", 1}})
	p := NewPlaces(nil)
	p.Amend(now, 0, s.inUse, 0)
	p.Acquire(now, s.inUse.Floor())
	p.Amend(now, 0, s.held, 0)
	l := &lease{
		spender: p, lease: 7, known: true, granted: Holding{Depth: s.held}, keepRate: MaxAmount, keepDepth: MaxAmount,
		terms: Terms{Burst: 20 * Token, Gauge: true}, scarce: scarce, full: full, starved: s.starved, steady: s.steady,
		sent: 5, seen: 5, sentAt: now.Add(-time.Millisecond), sentWant: s.sent, gap: 40 * time.Millisecond, lookAt: now,
		busyPlaces: s.busy, busyUntil: now.Add(s.busyFor),
	}
	if s.unanswered {
		l.seen = 4
	}
	if s.asked {
		l.keepDepth = 3 * Token
	}
	if s.declared > 0 {
		l.opts.Estimator = Declared
	}
	r := Reading{Level: max(0, s.held-s.inUse), InUse: s.inUse, Waiting: s.waiting, Declared: s.declared, Largest: s.largest}
	l.lookPlaces(now, h, r)
	l.schedule(now, r, false)
	ask, when := "does not ask", "never"
	if l.urgent {
		ask = fmt.Sprintf("asks %v after the last report", time.Duration(l.askAt-l.sentAt))
	}
	if l.lookAt != never {
		when = fmt.Sprintf("in %v", time.Duration(l.lookAt-now))
	}
	exact = fmt.Sprintf("wants %v, has %v, %s, looks %s, keeps %v for %v", l.want, l.held().Depth, ask, when, l.busyPlaces, time.Duration(l.busyUntil-now))
	return fmt.Sprint(l.want, l.held().Depth, ask, when, l.busyUntil > now), exact
}

// placesQuestions are about the places of a gauge.
func placesQuestions(scarce, full bool, name string) (list []question) {
	ask := func(what string, least, most Amount, vary func(s *placesStand, x Amount)) {
		list = append(list, question{fmt.Sprintf("an instance's "+name, what), least, most, func(x Amount) (string, string) {
			s := placesStand{held: 5 * Token, inUse: 3 * Token, sent: 5 * Token, busy: 3 * Token, busyFor: 500 * time.Millisecond}
			vary(&s, x)
			return s.answer(scarce, full)
		}})
	}
	ask("in use, of 5", 0, 5, func(s *placesStand, x Amount) { s.inUse = x * Token })
	ask("held, 3 in use", 0, 8, func(s *placesStand, x Amount) { s.held = x * Token })
	ask("held, 3 in use and one was refused", 0, 8, func(s *placesStand, x Amount) { s.held, s.starved = x*Token, true })
	ask("held, 3 in use, 3 were asked for", 0, 8, func(s *placesStand, x Amount) { s.held, s.asked = x*Token, true })
	ask("that are waited for", 0, 6, func(s *placesStand, x Amount) { s.waiting = x * Token })
	ask("declared", 0, 8, func(s *placesStand, x Amount) { s.declared = x * Token })
	ask("of the largest request, that was refused", 0, 8, func(s *placesStand, x Amount) { s.largest, s.starved = x*Token, true })
	ask("wanted as reported last", 0, 8, func(s *placesStand, x Amount) { s.sent = x * Token })
	ask("wanted as reported last, no answer yet", 0, 8, func(s *placesStand, x Amount) { s.sent, s.unanswered, s.waiting = x*Token, true, 3*Token })
	ask("used of late", 0, 8, func(s *placesStand, x Amount) { s.busy = x * Token })
	ask("used of late, nanoseconds ago", -3, 3, func(s *placesStand, x Amount) { s.busy, s.busyFor = 4*Token, time.Duration(x) })
	ask("looked at so often without a change", 0, 40, func(s *placesStand, x Amount) { s.steady = int(x) })
	ask("looked at so often without a change, none held", 0, 8, func(s *placesStand, x Amount) {
		s.steady, s.held, s.inUse, s.busy, s.sent = 4*int(x), 0, 0, 0, x/4*Token
	})
	return list
}

// varied is a question of how an instance decides as one amount varies.
type varied struct {
	name        string
	least, most Amount
	vary        func(s *instanceStand, x Amount)
}

// bucketQuestions are about what is held.
func bucketQuestions() []varied {
	return []varied{
		{"tokens of 20 deep", 0, 20 * Token, func(s *instanceStand, x Amount) { s.level = x }},
		{"tokens of 20 deep, one was refused", 0, 20 * Token, func(s *instanceStand, x Amount) {
			s.level, s.starved, s.want = x, true, 130*Token
		}},
		{"tokens of 20 deep, 120/s are wanted", 0, 20 * Token, func(s *instanceStand, x Amount) {
			s.level, s.want, s.sent = x, 120*Token, 120*Token
		}},
		{"tokens of 20 deep, 120/s are wanted, no answer yet", 0, 20 * Token, func(s *instanceStand, x Amount) {
			s.level, s.want, s.sent, s.unanswered, s.reported = x, 120*Token, 120*Token, true, time.Millisecond
		}},
		{"tokens of 20 deep, of which it lacked some", 0, 20 * Token, func(s *instanceStand, x Amount) {
			s.level, s.sentLack, s.want, s.sent = x, 3*Token, 150*Token, 150*Token
		}},
		{"tokens of 3 deep without a rate, of which it lacked some", 0, 3 * Token, func(s *instanceStand, x Amount) {
			s.rate, s.depth, s.level, s.sentLack, s.want, s.sent, s.lackFor, s.reported = 0, 3*Token, x, 3*Token, 2*Token, 2*Token, time.Second, time.Millisecond
		}},
		{"rate held, 100/s are wanted", 0, 400 * Token, func(s *instanceStand, x Amount) { s.rate = x }},
		{"rate held, 100/s are wanted, the bucket is half full", 0, 400 * Token, func(s *instanceStand, x Amount) {
			s.rate, s.level, s.reported = x, 10*Token, 100*time.Millisecond
		}},
		{"rate held by a full bucket, just reported", 0, 400 * Token, func(s *instanceStand, x Amount) {
			s.rate, s.reported = x, scarceGap-1
		}},
		{"rate held, 100/s are wanted, one waits", 0, 400 * Token, func(s *instanceStand, x Amount) {
			s.rate, s.level, s.waiting, s.reported = x, Token/2, 1, time.Millisecond
		}},
		{"rate held, 4/s are wanted", 0, 20 * Token, func(s *instanceStand, x Amount) {
			s.rate, s.want, s.sent = x, 4*Token, 4*Token
		}},
		{"rate held, 2/s are wanted", 0, 20 * Token, func(s *instanceStand, x Amount) {
			s.rate, s.want, s.sent = x, 2*Token, 2*Token
		}},
		{"depth held, 100/s wanted and 160/s held", Token, 101 * Token, func(s *instanceStand, x Amount) {
			s.depth, s.rate = x/Token*Token, 160*Token
			s.level = s.depth
		}},
		{"cost of the largest request, of a full bucket 20 deep", Token, 30 * Token, func(s *instanceStand, x Amount) {
			s.largest, s.starved = x/Token*Token, true
		}},
		{"cost of the largest request, 300/s are wanted", Token, 30 * Token, func(s *instanceStand, x Amount) {
			s.largest, s.want, s.level = x/Token*Token, 300*Token, 4*Token
		}},
	}
}

// demandQuestions are about what is wanted.
func demandQuestions() []varied {
	return []varied{
		{"demand as reported last, 100/s held and wanted", 0, 250 * Token, func(s *instanceStand, x Amount) { s.sent = x }},
		{"demand as just reported, 100/s held and wanted", 0, 250 * Token, func(s *instanceStand, x Amount) {
			s.sent, s.reported = x, time.Millisecond
		}},
		{"demand as just reported, 100/s held and 100.5/s wanted", 80 * Token, 120 * Token, func(s *instanceStand, x Amount) {
			s.sent, s.reported, s.want = x, time.Millisecond, 100*Token+Token/2
		}},
		{"demand as just reported, 50/s held, 100/s wanted", 0, 250 * Token, func(s *instanceStand, x Amount) {
			s.sent, s.rate, s.uneven, s.reported = x, 50*Token, 1, time.Millisecond
		}},
		{"demand as just reported, nothing held, 100/s wanted", 0, 250 * Token, func(s *instanceStand, x Amount) {
			s.sent, s.rate, s.depth, s.level, s.reported = x, 0, 0, 0, time.Millisecond
		}},
		{"demand as just reported, 80/s held and 60/s wanted", 0, 250 * Token, func(s *instanceStand, x Amount) {
			s.sent, s.rate, s.want, s.reported = x, 80*Token, 60*Token, time.Millisecond
		}},
		{"demand as just reported, 50/s held, 100/s wanted, one was refused", 0, 250 * Token, func(s *instanceStand, x Amount) {
			s.sent, s.rate, s.starved, s.level, s.reported = x, 50*Token, true, 0, time.Millisecond
		}},
		{"demand as just reported, nothing wanted any more", 0, 20 * Token, func(s *instanceStand, x Amount) {
			s.sent, s.want, s.idle, s.reported = x, 0, time.Millisecond, time.Millisecond
		}},
		{"demand as just reported, of declared 100/s", 80 * Token, 120 * Token, func(s *instanceStand, x Amount) {
			s.sent, s.estimator, s.reported = x, Declared, time.Millisecond
		}},
		{"declared demand, 100/s held and reported", 0, 250 * Token, func(s *instanceStand, x Amount) {
			s.want, s.estimator, s.level = x, Declared, 15*Token
		}},
		{"demand of one that was refused, without a rate", 0, 10 * Token, func(s *instanceStand, x Amount) {
			s.want, s.sent, s.starved, s.rate, s.depth, s.level, s.estimator = x, x, true, 0, 0, 0, Declared
		}},
	}
}

// timeQuestions are about how long something is ago, or goes on, in nanoseconds.
func timeQuestions() []varied {
	return []varied{
		{"nanoseconds since the last report, of one that has too much", 0, Amount(2 * time.Second), func(s *instanceStand, x Amount) {
			s.rate, s.reported = 300*Token, time.Duration(x)
		}},
		{"nanoseconds since the last report, of a full bucket and 104/s", 0, Amount(2 * time.Second), func(s *instanceStand, x Amount) {
			s.rate, s.reported = 104*Token, time.Duration(x)
		}},
		{"nanoseconds of silence, of one that has tokens", 1, Amount(2 * time.Second), func(s *instanceStand, x Amount) {
			s.rate, s.want, s.sent, s.idle, s.level = 0, 0, 0, time.Duration(x), 5*Token
		}},
		{"nanoseconds of silence, of one that has a demand and no rate", 1, Amount(2 * time.Second), func(s *instanceStand, x Amount) {
			s.rate, s.want, s.sent, s.idle, s.level = 0, Token, Token, time.Duration(x), 5*Token
		}},
		{"nanoseconds of silence, of one that has a rate", 1, Amount(2 * time.Second), func(s *instanceStand, x Amount) {
			s.want, s.sent, s.idle, s.level = 0, 0, time.Duration(x), 5*Token/2
		}},
		{"nanoseconds for which one is expected, of one that has no rate", 1, Amount(100 * time.Millisecond), func(s *instanceStand, x Amount) {
			s.rate, s.want, s.sent, s.lackFor, s.level, s.depth = 0, 2*Token, 2*Token, time.Duration(x), Token/2, 2*Token
		}},
		{"nanoseconds until those who wait go away", 1, Amount(60 * time.Millisecond), func(s *instanceStand, x Amount) {
			s.waiting, s.within, s.level = 2, time.Duration(x), Token
		}},
		{"nanoseconds since the last report, of one with a demand 1 % off", 0, Amount(2 * time.Second), func(s *instanceStand, x Amount) {
			s.sent, s.reported = 101*Token+Token/100, time.Duration(x)
		}},
	}
}
