package coordinator

import (
	"fmt"
	"strings"
	"time"

	"github.com/stint-io/stint/internal/demand"
	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/internal/lease/leasetest"
)

// suppressedStand is a limit of 100/s that is shared by suppression, before a round.
type suppressedStand struct {
	attempted fixed.Amount // per second, by the average
	was       float64      // what was refused up to now
	over      bool         // the bucket ran dry before
	level     fixed.Amount // of the bucket
	wants     []fixed.Amount
	silent    bool // the last one
	quiet     time.Duration
	suppress  lease.Suppress
}

func (s suppressedStand) answer() (kind, exact string) {
	const now = leasetest.Now
	t := s.suppress
	t.Window, t.Intervals = 2*time.Second, 2
	r := newResource(theLimit, lease.Terms{Rate: 100 * fixed.Token, Burst: 20 * fixed.Token, Suppress: &t}, now, false)
	p := r.divider.(*suppression)
	p.over, p.reject, p.bucket.level, p.added = s.over, s.was, s.level, now
	p.average = demand.NewMovingAverage(t.Window, t.Intervals, now.Add(-time.Second))
	p.average.Add(now.Add(-time.Second), s.attempted)
	for i, want := range s.wants {
		a := &account{
			session: &session{Member: lease.Member{Instance: fmt.Sprint(i)}, version: lease.ProtocolVersion}, resource: r, handle: 1,
			needs: needs{weight: 1, demand: want}, caps: noCaps, attempts: attempts{attemptedAt: now.Add(-s.quiet), attemptedRate: want, largest: 3 * fixed.Token},
		}
		a.silent = s.silent && i == len(s.wants)-1
		a.grant(lease.Capacity{Rate: r.terms.Rate, Burst: r.terms.Burst})
		a.pending, a.unsent, a.unacked = false, lease.Capacity{}, lease.Capacity{}
		r.accounts = append(r.accounts, a)
	}
	r.round(now)
	var kinds, all []string
	for _, a := range r.accounts {
		x := r.divider.suppression(a)
		kinds = append(kinds, fmt.Sprint(a.pending, x.Reject > 0, x.Burst > fixed.Token, a.capRate != fixed.MaxAmount))
		says := fmt.Sprintf("%s/%s", leasetest.Brief(x.Rate), x.Burst)
		if a.pending {
			says += " at once"
		}
		if a.capRate != fixed.MaxAmount {
			says += fmt.Sprintf(" keep %s/%s", leasetest.Brief(a.capRate), leasetest.Brief(a.capBurst))
		}
		all = append(all, says)
	}
	flags := fmt.Sprint(p.over, r.saturated, p.bucket.level == 0)
	return strings.Join(kinds, " ") + flags, fmt.Sprintf("rejects %.4f, %s, over %v, level %s, %s/s wanted of %s/s", p.reject, strings.Join(all, "; "), p.over, leasetest.Brief(p.bucket.level), leasetest.Brief(r.totalDemand), leasetest.Brief(p.capacity))
}

// suppressedQuestions are those of limits that are shared by suppression.
func suppressedQuestions() (list []leasetest.Question) {
	ask := func(name string, least, most fixed.Amount, vary func(s *suppressedStand, x fixed.Amount)) {
		list = append(list, leasetest.Question{Name: "suppression: " + name, Least: least, Most: most, Answer: func(x fixed.Amount) (string, string) {
			s := suppressedStand{attempted: 150 * fixed.Token, over: true, wants: []fixed.Amount{100 * fixed.Token, 50 * fixed.Token, 0}}
			vary(&s, x)
			return s.answer()
		}})
	}
	ask("attempted per second", 0, 400*fixed.Token, func(s *suppressedStand, x fixed.Amount) { s.attempted = x })
	ask("attempted per second, a third is refused", 0, 400*fixed.Token, func(s *suppressedStand, x fixed.Amount) { s.attempted, s.was = x, 1.0/3 })
	ask("attempted per second, a third is refused, linearly up to 3 times", 0, 400*fixed.Token, func(s *suppressedStand, x fixed.Amount) {
		s.attempted, s.was, s.suppress = x, 1.0/3, lease.Suppress{Ramp: lease.RampLinear, Full: 3}
	})
	ask("attempted per second, within the bucket", 0, 400*fixed.Token, func(s *suppressedStand, x fixed.Amount) { s.attempted, s.over, s.level = x, false, 5*fixed.Token })
	ask("tokens in the bucket", 0, 40*fixed.Token, func(s *suppressedStand, x fixed.Amount) { s.level = x })
	ask("tokens in the bucket, within the limit", 0, 40*fixed.Token, func(s *suppressedStand, x fixed.Amount) { s.level, s.attempted = x, 100*fixed.Token })
	ask("demand of the first", 0, 400*fixed.Token, func(s *suppressedStand, x fixed.Amount) { s.wants[0] = x })
	ask("demand of the first, linearly", 0, 400*fixed.Token, func(s *suppressedStand, x fixed.Amount) {
		s.wants[0], s.suppress = x, lease.Suppress{Ramp: lease.RampLinear, Full: 2}
	})
	ask("demand of one beside a silent one", 0, 400*fixed.Token, func(s *suppressedStand, x fixed.Amount) {
		s.wants, s.silent = []fixed.Amount{x, 50 * fixed.Token}, true
	})
	ask("attempted per second beside a silent one", 0, 400*fixed.Token, func(s *suppressedStand, x fixed.Amount) {
		s.wants, s.silent, s.attempted = []fixed.Amount{80 * fixed.Token, 50 * fixed.Token}, true, x
	})
	return list
}
