package ledger

import (
	"fmt"
	"strings"
	"time"

	"github.com/stint-io/stint/internal/demand"
	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/internal/lease/leasetest"
)

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
		kinds = append(kinds, fmt.Sprint(a.Pending, x.Reject > 0, x.Burst > fixed.Token, a.CapRate != fixed.MaxAmount))
		says := fmt.Sprintf("%s/%s", leasetest.Brief(x.Rate), x.Burst)
		if a.Pending {
			says += " at once"
		}
		if a.CapRate != fixed.MaxAmount {
			says += fmt.Sprintf(" cap %s/%s", leasetest.Brief(a.CapRate), leasetest.Brief(a.CapBurst))
		}
		all = append(all, says)
	}
	flags := fmt.Sprint(p.over, r.Saturated, p.bucket.Level == 0)
	return strings.Join(kinds, " ") + flags, fmt.Sprintf("rejects %.4f, %s, over %v, level %s, %s/s demanded of %s/s", p.reject, strings.Join(all, "; "), p.over, leasetest.Brief(p.bucket.Level), leasetest.Brief(r.TotalDemand), leasetest.Brief(p.capacity))
}

// suppressedQuestions are those of limits that are shared by suppression.
func suppressedQuestions() (list []leasetest.Question) {
	ask := func(name string, least, most fixed.Amount, vary func(s *suppressedCase, x fixed.Amount)) {
		list = append(list, leasetest.Question{Name: "suppression: " + name, Least: least, Most: most, Answer: func(x fixed.Amount) (string, string) {
			s := suppressedCase{attempted: 150 * fixed.Token, over: true, demands: []fixed.Amount{100 * fixed.Token, 50 * fixed.Token, 0}}
			vary(&s, x)
			return s.answer()
		}})
	}
	ask("attempted per second", 0, 400*fixed.Token, func(s *suppressedCase, x fixed.Amount) { s.attempted = x })
	ask("attempted per second, a third is refused", 0, 400*fixed.Token, func(s *suppressedCase, x fixed.Amount) { s.attempted, s.was = x, 1.0/3 })
	ask("attempted per second, a third is refused, linearly up to 3 times", 0, 400*fixed.Token, func(s *suppressedCase, x fixed.Amount) {
		s.attempted, s.was, s.suppress = x, 1.0/3, lease.Suppress{Ramp: lease.RampLinear, Full: 3}
	})
	ask("attempted per second, within the bucket", 0, 400*fixed.Token, func(s *suppressedCase, x fixed.Amount) { s.attempted, s.over, s.level = x, false, 5*fixed.Token })
	ask("tokens in the bucket", 0, 40*fixed.Token, func(s *suppressedCase, x fixed.Amount) { s.level = x })
	ask("tokens in the bucket, within the limit", 0, 40*fixed.Token, func(s *suppressedCase, x fixed.Amount) { s.level, s.attempted = x, 100*fixed.Token })
	ask("demand of the first", 0, 400*fixed.Token, func(s *suppressedCase, x fixed.Amount) { s.demands[0] = x })
	ask("demand of the first, linearly", 0, 400*fixed.Token, func(s *suppressedCase, x fixed.Amount) {
		s.demands[0], s.suppress = x, lease.Suppress{Ramp: lease.RampLinear, Full: 2}
	})
	ask("demand of one beside a silent one", 0, 400*fixed.Token, func(s *suppressedCase, x fixed.Amount) {
		s.demands, s.silent = []fixed.Amount{x, 50 * fixed.Token}, true
	})
	ask("attempted per second beside a silent one", 0, 400*fixed.Token, func(s *suppressedCase, x fixed.Amount) {
		s.demands, s.silent, s.attempted = []fixed.Amount{80 * fixed.Token, 50 * fixed.Token}, true, x
	})
	return list
}
