package sim

import (
	"cmp"
	"time"

	"github.com/stint-io/stint/limit"
)

// Published constants of both versions.
const (
	ablyReport       = 2 * time.Second
	ablySubInterval  = 6 * time.Second
	ablySubIntervals = 4
)

// Ably is our model of the account-wide limiter of Ably of 2022 as described, in the
// form that went into production: instances report to the account's master what was
// attempted, refused requests with the cost that they would have had, at most every
// Report and only when it changed. The answer is the part of the requests to refuse,
// 1 - limit/attempted, and an instance draws for each request by itself. What was
// attempted is a moving average of SubIntervals, the one in progress among them, which
// is left out while it is below the mean of all.
//
// With Linear it is the first version, which was given up for its oscillation: the
// average is of what was admitted, the sub-interval in progress counts like the others,
// and the part to refuse rises in a straight line from none at the limit to all at Ramp
// times the limit.
//
// Where the description leaves a choice: an instance's first report comes at a random
// moment of the period, or at its end for all with Together. A refused request is a
// change too, or an instance that refuses everything would never get another answer.
// The cost in a report counts as spread evenly over the time since the report before.
// An instance of which no report has come goes on as in its last one for as long as
// Report, so that the average does not miss what is still to be reported. Sub-intervals
// are counted from the start of the master; while fewer are over than belong to the
// average, it is that of those there are. Reports carry a number, so that one that is
// doubled counts once; one that is lost is made up for by the next. There is no limit
// in the instance itself, and no burst.
//
// The zero value has the published constants.
type Ably struct {
	Linear       bool          // the first version
	Ramp         float64       // of Linear: 0 = 3
	Report       time.Duration // 0 = 2 s
	SubInterval  time.Duration // 0 = 6 s
	SubIntervals int           // 0 = 4
	Together     bool
}

func (a Ably) withDefaults() Ably {
	a.Ramp = cmp.Or(a.Ramp, 3)
	a.Report = cmp.Or(a.Report, ablyReport)
	a.SubInterval = cmp.Or(a.SubInterval, ablySubInterval)
	a.SubIntervals = cmp.Or(a.SubIntervals, ablySubIntervals)
	return a
}

// Name returns "ably-v2", or "ably-v1" for the first version.
func (a Ably) Name() string {
	if a.Linear {
		return "ably-v1"
	}
	return "ably-v2"
}

// Coordinator makes the account's master at Coordinator, and nil elsewhere.
func (a Ably) Coordinator(env Env, setup Setup, address Address, _ int) Node {
	if address != Coordinator {
		return nil
	}
	return &ablyMaster{
		Ably: a.withDefaults(), env: env, limit: setup.Limit.PerSecond(), start: env.Now(), known: map[Address]*ablyPeer{},
	}
}

// Instance makes an instance.
func (a Ably) Instance(env Env, setup Setup, _, restart int) Enforcer {
	n := &ablyInstance{Ably: a.withDefaults(), env: env, session: restart, since: env.Now()}
	first := n.Report
	if !n.Together {
		first = time.Duration(1 + env.Rand().Int64N(int64(n.Report)))
	}
	n.next = env.Now().Add(first)
	return n
}

// Messages, and their size: protobuf, gRPC's five bytes and the nine of an HTTP/2
// frame. A report of all statistics of an account is larger; this is one operation.
type (
	ablyReported struct {
		session, number   int
		span              time.Duration // since the report before
		admitted, refused int64         // tokens, in it
		totals            ablyTotals    // of the session
	}
	ablyAnswer struct {
		session, number int
		factor          float64 // the part to refuse
	}
	ablyTotals struct{ admitted, refused int64 }
)

const ablyBytes = 48

type ablyInstance struct {
	Ably
	env     Env
	session int
	number  int
	totals  ablyTotals
	sent    ablyTotals // totals in the last report
	since   limit.Time // the last report
	next    limit.Time // the earliest that the next may be
	asked   bool       // for a Wake
	rate    float64    // attempted, in the last report
	answer  ablyAnswer
}

func (n *ablyInstance) Receive(_ Address, message any) {
	if m, ok := message.(ablyAnswer); ok && m.session == n.session && m.number > n.answer.number {
		n.answer = m
	}
}

// Take admits unless the draw is against it.
func (n *ablyInstance) Take(cost int64) bool {
	admitted := n.answer.factor <= 0 || n.env.Rand().Float64() >= n.answer.factor
	if admitted {
		n.totals.admitted += cost
	} else {
		n.totals.refused += cost
	}
	if !n.asked {
		n.asked = true
		n.env.WakeAt(max(n.next, n.env.Now()))
	}
	return admitted
}

// Wake reports what has changed.
func (n *ablyInstance) Wake() {
	n.asked = false
	n.report()
}

func (n *ablyInstance) report() {
	if n.totals == n.sent {
		return
	}
	now := n.env.Now()
	n.number++
	m := ablyReported{
		session: n.session, number: n.number, span: time.Duration(now - n.since),
		admitted: n.totals.admitted - n.sent.admitted, refused: n.totals.refused - n.sent.refused, totals: n.totals,
	}
	n.rate = float64(m.admitted+m.refused) / max(n.Report, m.span).Seconds()
	n.sent, n.since = n.totals, now
	n.next = modelNext(n.next, now, int64(n.Report))
	n.env.Send(Coordinator, m, ablyBytes)
}

// Share is the admitted part of the rate attempted in the last report, in tokens per second.
func (n *ablyInstance) Share() float64 { return n.rate * (1 - n.answer.factor) }

func (n *ablyInstance) Leave() { n.report() }

// ablyMaster adds up what the instances report.
type ablyMaster struct {
	Ably
	env   Env
	limit float64
	start limit.Time
	known map[Address]*ablyPeer
	order []*ablyPeer // of known, in the order of their first reports
}

// ablyPeer is what the master knows of an instance.
type ablyPeer struct {
	last ablyReported
	at   limit.Time
	rate float64     // in the last report
	sums []ablyStint // one for each sub-interval of the average
}

// ablyStint is the cost in one sub-interval.
type ablyStint struct {
	number int64 // of the sub-interval, from the start of the master
	cost   float64
}

func (m *ablyMaster) Wake() {}

func (m *ablyMaster) SetLimit(l Limit) { m.limit = l.PerSecond() }

func (m *ablyMaster) Receive(from Address, message any) {
	r, ok := message.(ablyReported)
	if !ok {
		return
	}
	now := m.env.Now()
	p := m.known[from]
	if p == nil {
		p = &ablyPeer{sums: make([]ablyStint, m.SubIntervals), at: max(m.start, now-limit.Time(r.span))}
		m.known[from], m.order = p, append(m.order, p)
	} else {
		switch {
		case r.session < p.last.session, r.session == p.last.session && r.number <= p.last.number:
			return // a duplicate, or older than the last report, whose totals include it
		case r.session == p.last.session:
			r.admitted, r.refused = r.totals.admitted-p.last.totals.admitted, r.totals.refused-p.last.totals.refused
		}
	}
	cost := float64(r.admitted)
	if !m.Linear {
		cost += float64(r.refused)
	}
	p.rate = 0
	if now > p.at {
		p.rate = cost / modelSeconds(p.at, now)
	}
	m.spread(p, p.at, now, cost)
	p.last, p.at = r, now
	m.env.Send(from, ablyAnswer{r.session, r.number, m.factor(now)}, ablyBytes)
}

// number is which sub-interval a time is in.
func (m *ablyMaster) number(t limit.Time) int64 { return int64(t-m.start) / int64(m.SubInterval) }

// spread puts cost evenly on the sub-intervals from one time to another. All of it is
// at the end where no time has passed.
func (m *ablyMaster) spread(p *ablyPeer, from, to limit.Time, cost float64) {
	last := m.number(to)
	for k := max(m.number(from), last-int64(len(p.sums))+1); k <= last; k++ {
		part := 1.0
		if to > from {
			begin := max(from, m.start+limit.Time(k*int64(m.SubInterval)))
			end := min(to, m.start+limit.Time((k+1)*int64(m.SubInterval)))
			part = modelSeconds(begin, end) / modelSeconds(from, to)
		}
		s := &p.sums[k%int64(len(p.sums))]
		if s.number != k {
			*s = ablyStint{number: k}
		}
		s.cost += cost * part
	}
}

// in is what an instance spent in a sub-interval of which a time has passed, with what
// it goes on to spend until it reports again.
func (m *ablyMaster) in(p *ablyPeer, number int64, now limit.Time) float64 {
	cost := 0.0
	if s := p.sums[number%int64(len(p.sums))]; s.number == number {
		cost = s.cost
	}
	begin := max(p.at, m.start+limit.Time(number*int64(m.SubInterval)))
	end := min(now, p.at.Add(m.Report), m.start+limit.Time((number+1)*int64(m.SubInterval)))
	if end > begin {
		cost += p.rate * modelSeconds(begin, end)
	}
	return cost
}

// average is the moving average of the rate, in tokens per second.
func (m *ablyMaster) average(now limit.Time) float64 {
	current := m.number(now)
	first := max(current-int64(m.SubIntervals)+1, 0)
	sum, progress := 0.0, 0.0
	for k := first; k <= current; k++ {
		begin := m.start + limit.Time(k*int64(m.SubInterval))
		passed := min(now-begin, limit.Time(m.SubInterval))
		cost, rates := 0.0, 0.0
		for _, p := range m.order {
			cost += m.in(p, k, now)
			rates += p.rate
		}
		rate := rates // at the very beginning there is nothing to divide by
		if passed > 0 {
			rate = cost / modelSeconds(0, passed)
		}
		if sum += rate; k == current {
			progress = rate
		}
	}
	n := float64(current - first + 1)
	if mean := sum / n; m.Linear || n == 1 || progress >= mean {
		return mean
	}
	return (sum - progress) / (n - 1)
}

// factor is the part of the requests to refuse.
func (m *ablyMaster) factor(now limit.Time) float64 {
	rate := m.average(now)
	switch {
	case m.limit <= 0:
		return 1
	case rate <= m.limit:
		return 0
	case m.Linear && m.Ramp <= 1:
		return 1
	case m.Linear:
		return min((rate/m.limit-1)/(m.Ramp-1), 1)
	}
	return 1 - m.limit/rate
}
