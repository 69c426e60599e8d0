package agent

import (
	"fmt"
	"strings"
	"time"

	"github.com/stint-io/stint/internal/bucket"
	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/internal/lease/leasetest"
)

// suppressedLooks are questions about when an instance reports what it was asked.
func suppressedLooks(rejecting bool, who string) (list []leasetest.Question) {
	type stand struct {
		want, sent, attempted, sentAttempted, largest fixed.Amount
		ago                                           time.Duration
		more                                          bool
	}
	ask := func(name string, least, most fixed.Amount, vary func(s *stand, x fixed.Amount)) {
		list = append(list, leasetest.Question{Name: "suppression: " + who + ", " + name, Least: least, Most: most, Answer: func(x fixed.Amount) (kind, exact string) {
			s := stand{want: 100 * fixed.Token, sent: 100 * fixed.Token, attempted: 50 * fixed.Token, sentAttempted: 50 * fixed.Token, ago: 200 * time.Millisecond, largest: fixed.Token}
			vary(&s, x)
			const now = leasetest.Now
			b := bucket.NewBucket(nil)
			l := &resource{
				bucket: b, opts: LeaseOptions{Estimator: Declared}, lease: leased{number: 1},
				answer: answer{terms: &lease.Terms{Rate: 100 * fixed.Token, Burst: 20 * fixed.Token, Suppress: &lease.Suppress{}}}, acks: acks{report: 2},
				sent:     sent{number: 2, at: now.Add(-s.ago), demand: s.sent, attempted: s.sentAttempted, more: s.more},
				sampling: sampling{steady: 8},
			}
			l.sampleSuppressed(now, bucket.Reading{Declared: s.want, Attempted: s.attempted, Admitted: s.attempted, Largest: s.largest}, false)
			ask := "does not ask"
			if l.report.urgent {
				ask = fmt.Sprintf("asks %v after the last report", time.Duration(l.report.notBefore-l.sent.at))
			}
			told := bucket.Suppression{Rate: 10 * fixed.Token, Burst: 2 * fixed.Token}
			if rejecting {
				told.Reject = 0.5
			}
			l.suppress(now, told)
			exact = fmt.Sprintf("%s, samples in %v, burst %s", strings.Replace(ask, fmt.Sprint(s.ago, " after the last report"), "at once", 1), time.Duration(l.sampling.next-now), l.suppression.sent.Burst)
			return ask[:5] + fmt.Sprint(l.sampling.next-now, l.suppression.sent.Burst), exact
		}})
	}
	ask("demand", 0, 200*fixed.Token, func(s *stand, x fixed.Amount) { s.want = x })
	ask("demand as reported last", 0, 200*fixed.Token, func(s *stand, x fixed.Amount) { s.sent = x })
	ask("attempted since the last report", 0, 2, func(s *stand, x fixed.Amount) { s.sentAttempted -= x })
	ask("attempted before that", 0, 1, func(s *stand, x fixed.Amount) { s.more = x == 1 })
	ask("nanoseconds since the last report", 0, 1, func(s *stand, x fixed.Amount) { s.ago, s.more = time.Duration(x)*time.Millisecond, true })
	ask("cost of the largest request", 0, 30*fixed.Token, func(s *stand, x fixed.Amount) { s.largest = x / fixed.Token * fixed.Token })
	return list
}
