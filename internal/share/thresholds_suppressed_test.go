package share

import (
	"fmt"
	"strings"
	"time"
)

// suppressedStand is a limit of 100/s that is shared by suppression, before a round.
type suppressedStand struct {
	attempted Amount  // per second, by the average
	was       float64 // what was refused up to now
	over      bool    // the bucket ran dry before
	level     Amount  // of the bucket
	wants     []Amount
	silent    bool // the last one
	quiet     time.Duration
	suppress  Suppress
}

func (s suppressedStand) answer() (kind, exact string) {
	const now = thresholdsAt
	t := s.suppress
	t.Window, t.Intervals = 2*time.Second, 2
	r := newResource(theLimit, Terms{Rate: 100 * Token, Burst: 20 * Token, Suppress: &t}, now, false)
	p := r.suppressed
	p.over, p.reject, p.bucket.level, p.added = s.over, s.was, s.level, now
	p.average.ended[0], p.average.known, p.average.next = s.attempted, 1, 1
	p.average.began = now
	for i, want := range s.wants {
		a := &account{
			session: &session{Member: Member{Instance: fmt.Sprint(i)}, version: ProtocolVersion}, resource: r, handle: 1, weight: 1,
			want: want, keepRate: MaxAmount, keepDepth: MaxAmount, attemptedAt: now.Add(-s.quiet), attemptedRate: want, largest: 3 * Token,
		}
		a.silent = s.silent && i == len(s.wants)-1
		a.grant(Holding{Rate: r.terms.Rate, Depth: r.terms.Burst})
		a.tell, a.untold, a.aloft = false, Holding{}, Holding{}
		r.accounts = append(r.accounts, a)
	}
	r.round(now)
	var kinds, all []string
	for _, a := range r.accounts {
		x := r.suppressionOf(a)
		kinds = append(kinds, fmt.Sprint(a.tell, x.Reject > 0, x.Depth > Token, a.keepRate != MaxAmount))
		says := fmt.Sprintf("%s/%s", brief(x.Rate), x.Depth)
		if a.tell {
			says += " at once"
		}
		if a.keepRate != MaxAmount {
			says += fmt.Sprintf(" keep %s/%s", brief(a.keepRate), brief(a.keepDepth))
		}
		all = append(all, says)
	}
	flags := fmt.Sprint(p.over, r.full, p.bucket.level == 0)
	return strings.Join(kinds, " ") + flags, fmt.Sprintf("rejects %.4f, %s, over %v, level %s, %s/s wanted of %s/s", p.reject, strings.Join(all, "; "), p.over, brief(p.bucket.level), brief(r.wanted), brief(p.capacity))
}

// suppressedQuestions are those of limits that are shared by suppression.
func suppressedQuestions() (list []question) {
	ask := func(name string, least, most Amount, vary func(s *suppressedStand, x Amount)) {
		list = append(list, question{"suppression: " + name, least, most, func(x Amount) (string, string) {
			s := suppressedStand{attempted: 150 * Token, over: true, wants: []Amount{100 * Token, 50 * Token, 0}}
			vary(&s, x)
			return s.answer()
		}})
	}
	ask("attempted per second", 0, 400*Token, func(s *suppressedStand, x Amount) { s.attempted = x })
	ask("attempted per second, a third is refused", 0, 400*Token, func(s *suppressedStand, x Amount) { s.attempted, s.was = x, 1.0/3 })
	ask("attempted per second, a third is refused, linearly up to 3 times", 0, 400*Token, func(s *suppressedStand, x Amount) {
		s.attempted, s.was, s.suppress = x, 1.0/3, Suppress{Ramp: RampLinear, Full: 3}
	})
	ask("attempted per second, within the bucket", 0, 400*Token, func(s *suppressedStand, x Amount) { s.attempted, s.over, s.level = x, false, 5*Token })
	ask("tokens in the bucket", 0, 40*Token, func(s *suppressedStand, x Amount) { s.level = x })
	ask("tokens in the bucket, within the limit", 0, 40*Token, func(s *suppressedStand, x Amount) { s.level, s.attempted = x, 100*Token })
	ask("demand of the first", 0, 400*Token, func(s *suppressedStand, x Amount) { s.wants[0] = x })
	ask("demand of the first, linearly", 0, 400*Token, func(s *suppressedStand, x Amount) {
		s.wants[0], s.suppress = x, Suppress{Ramp: RampLinear, Full: 2}
	})
	ask("demand of one beside a silent one", 0, 400*Token, func(s *suppressedStand, x Amount) { s.wants, s.silent = []Amount{x, 50 * Token}, true })
	ask("attempted per second beside a silent one", 0, 400*Token, func(s *suppressedStand, x Amount) {
		s.wants, s.silent, s.attempted = []Amount{80 * Token, 50 * Token}, true, x
	})
	for _, flags := range []string{"", "rejecting"} {
		list = append(list, suppressedLooks(flags != "", strings.TrimSpace("an instance "+flags))...)
	}
	return list
}

// suppressedLooks are questions about when an instance reports what it was asked.
func suppressedLooks(rejecting bool, who string) (list []question) {
	type stand struct {
		want, sent, attempted, sentAttempted, largest Amount
		ago                                           time.Duration
		more                                          bool
	}
	ask := func(name string, least, most Amount, vary func(s *stand, x Amount)) {
		list = append(list, question{"suppression: " + who + ", " + name, least, most, func(x Amount) (kind, exact string) {
			s := stand{want: 100 * Token, sent: 100 * Token, attempted: 50 * Token, sentAttempted: 50 * Token, ago: 200 * time.Millisecond, largest: Token}
			vary(&s, x)
			const now = thresholdsAt
			b := NewBucket(nil)
			l := &lease{
				spender: b, opts: LeaseOptions{Estimator: Declared}, lease: 1, terms: Terms{Rate: 100 * Token, Burst: 20 * Token, Suppress: &Suppress{}},
				sent: 2, seen: 2, sentAt: now.Add(-s.ago), sentWant: s.sent, sentAttempted: s.sentAttempted, sentMore: s.more, steady: 8,
			}
			l.lookSuppressed(now, Reading{Declared: s.want, Attempted: s.attempted, Admitted: s.attempted, Largest: s.largest}, false)
			ask := "does not ask"
			if l.urgent {
				ask = fmt.Sprintf("asks %v after the last report", time.Duration(l.askAt-l.sentAt))
			}
			told := Suppression{Rate: 10 * Token, Depth: 2 * Token}
			if rejecting {
				told.Reject = 0.5
			}
			l.suppress(now, told)
			exact = fmt.Sprintf("%s, looks in %v, %s deep", strings.Replace(ask, fmt.Sprint(s.ago, " after the last report"), "at once", 1), time.Duration(l.lookAt-now), l.suppression.Depth)
			return ask[:5] + fmt.Sprint(l.lookAt-now, l.suppression.Depth), exact
		}})
	}
	ask("demand", 0, 200*Token, func(s *stand, x Amount) { s.want = x })
	ask("demand as reported last", 0, 200*Token, func(s *stand, x Amount) { s.sent = x })
	ask("attempted since the last report", 0, 2, func(s *stand, x Amount) { s.sentAttempted -= x })
	ask("attempted before that", 0, 1, func(s *stand, x Amount) { s.more = x == 1 })
	ask("nanoseconds since the last report", 0, 1, func(s *stand, x Amount) { s.ago, s.more = time.Duration(x)*time.Millisecond, true })
	ask("cost of the largest request", 0, 30*Token, func(s *stand, x Amount) { s.largest = x / Token * Token })
	return list
}
