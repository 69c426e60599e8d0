package rlqs

import (
	"time"

	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/limit"
)

// quota is one bucket of one Envoy.
type quota struct {
	session *Session
	id      string // canonical
	name    *BucketName
	parts   []*part
	limited bool // false = no limit applies
	refused bool // no assignment is possible: see Session.open

	demand  demand
	pending usage      // reported too soon to measure a rate by
	denied  bool       // the latest report had refused requests
	missed  float64    // requests that are missing since the latest one, by the rate before
	heard   limit.Time // when it was reported last
	used    limit.Time // when it had a request last

	patience   time.Duration // how long it has no assignment before it gets one that denies all
	current    strategy
	rate       fixed.Amount // of it
	ttl        time.Duration
	sent       limit.Time // when current was sent last; 0 = not yet
	began      limit.Time // since when there has been an assignment without a gap
	ends       limit.Time // when the Envoy certainly uses it no more
	changed    limit.Time
	aboveSince limit.Time   // when the assignment came to be above the lease; 0 = it is not
	lookAt     limit.Time   // when a change that has to wait is due; 0 = none
	repays     fixed.Amount // per second, of what was spent above the lease
	former     []exposure
	lacks      fixed.Amount // tokens that the lease would be below 0 after a change
	indebted   bool         // more was spent above the lease than twice the least size
	refilled   fixed.Amount // by changes since the report
	abandoned  bool
	ending     bool // it is closed when nothing is in use
	dirty      bool
}

type usage struct{ allowed, denied uint64 }

// exposure is an assignment that another one, or its end, has followed.
type exposure struct {
	of      lease.Capacity
	settled limit.Time // when the other one has arrived, if the stream has not ended
	ends    limit.Time // when it is over by itself
}

func (q *quota) touch() {
	if !q.dirty {
		q.dirty = true
		q.session.dirty = append(q.session.dirty, q)
	}
}

// inUse is the most of rate and burst that the Envoy may be using.
func (q *quota) inUse(now limit.Time) lease.Capacity {
	var most lease.Capacity
	if now < q.ends {
		most = lease.Capacity{Rate: q.rate, Burst: q.current.size()}
	}
	kept := q.former[:0]
	for _, e := range q.former {
		if now < min(e.settled, e.ends) {
			kept = append(kept, e)
			most.Rate, most.Burst = max(most.Rate, e.of.Rate), max(most.Burst, e.of.Burst)
		}
	}
	q.former = kept
	return most
}

// lost takes note that the stream has ended: what was sent last may not have arrived.
func (q *quota) lost(now limit.Time) {
	for i := range q.former {
		if e := &q.former[i]; now < e.settled {
			e.settled = lease.Never
		}
	}
}

// report takes note of a usage report.
func (q *quota) report(now limit.Time, u usage, elapsed time.Duration) {
	first := q.heard == 0
	if u == (usage{}) && !first {
		q.missed += q.demand.rate * time.Duration(now-q.heard).Seconds()
	} else {
		q.missed = 0
	}
	q.pending.allowed, q.pending.denied = saturatingAdd(q.pending.allowed, u.allowed), saturatingAdd(q.pending.denied, u.denied)
	if u.allowed > 0 || u.denied > 0 || first {
		q.used = now
	}
	admitted, left := tokensOf(u.allowed), fixed.Amount(fixed.MaxAmount)
	if q.sent == 0 || q.began > q.heard {
		// A part of it was admitted without an assignment, as the configuration of the Envoy says.
		admitted = admitted.Scale(fixed.Amount(max(0, now-max(q.began, q.heard))), fixed.Amount(max(1, now-q.heard)))
		if q.sent == 0 {
			admitted = 0
		}
	}
	q.heard = now
	defer q.touch()
	if q.denied = u.denied > 0; q.denied {
		left = 0 // its bucket was empty
	}
	q.refilled = 0
	if first {
		// The request that made the bucket says nothing about a rate. A bucket that is older than the stream has
		// counts of some seconds. What Envoy admitted in them it had of another lease, which it may still use.
		q.patience = answerWithin
		if elapsed >= time.Second {
			q.demand.report(saturatingAdd(u.allowed, u.denied), u.denied, elapsed)
			q.patience += TTL + Delivery
		}
		q.demand.at, q.pending = now, usage{}
		return
	}
	switch span := time.Duration(now - q.demand.at); {
	case span < minSpan:
	case span > longestSpan && float64(q.pending.allowed+q.pending.denied) < q.demand.rate*span.Seconds():
		q.demand.at, q.pending = now, usage{} // it did not run for some of the time
	default:
		rose := q.demand.report(saturatingAdd(q.pending.allowed, q.pending.denied), q.pending.denied, span)
		if rose { // it may all have come at the end of the interval
			left = min(left, max(0, q.current.size()-admitted))
		}
		q.demand.at, q.pending = now, usage{}
	}
	for _, p := range q.parts {
		p.spend(now, admitted, left)
	}
}

// mostDebt is the most that a lease is below 0: what was spent above it is paid back from the rate, and
// a report that is false, or of a time without assignment, is not held against the Envoy for longer
// than two report intervals.
func (p *part) mostDebt() fixed.Amount {
	return fixed.SaturatingAdd(p.held.Burst, min(p.held.Rate, fixed.MaxAmount/16)*5)
}

// reserveWithin is how many seconds it takes until the rate has brought what the next change costs. Not shorter: a change
// of the rate by 1/128 is worth another change.
const reserveWithin = 8

// reservePart bounds the part of the rate that is kept back for that. Not more: eight tokens are a fifth of what
// five requests per second bring in 8 s. Not less: leases follow the demands of all, by about a hundredth at each
// report, and an assignment that is not below its lease has to follow each time.
const reservePart = 80

// repayWithin is how long paying back takes: a report interval of Envoy.
const repayWithin = 5

// next returns the strategy that follows from the leases; ok is false while there is nothing to say.
func (q *quota) next(now limit.Time) (s strategy, rate fixed.Amount, ok bool) {
	if !q.limited {
		return strategy{rule: ruleAllow}, 0, true
	}
	allowed := lease.Capacity{Rate: fixed.MaxAmount, Burst: fixed.MaxAmount}
	level, most := fixed.Amount(fixed.MaxAmount), fixed.Amount(fixed.MaxAmount)
	spent := q.expectedUse(now)
	for _, p := range q.parts {
		if !p.known || p.answer.Recovering && p.held.Rate == 0 || p.answer.Status != lease.StatusOK && p.held.Rate == 0 {
			return strategy{}, 0, false
		}
		a := p.allowed()
		if a.Rate == 0 || a.Burst < fixed.Token {
			if q.sent == 0 && now < p.since.Add(q.patience) && p.answer.Limit.Rate > 0 {
				return strategy{}, 0, false // others have to give back first
			}
			return strategy{rule: ruleDeny}, 0, true
		}
		allowed.Rate, allowed.Burst = min(allowed.Rate, a.Rate), min(allowed.Burst, a.Burst)
		l, m := p.expected(now, spent)
		level, most = min(level, l), min(most, m)
	}
	least := least(allowed)
	if now == q.heard {
		// Each change costs a size, so a debt is paid back from one report to another, and a small one is not.
		if debt := -most; debt > 2*least || q.repays > 0 && debt > least {
			q.repays = min(allowed.Rate/2, debt/repayWithin)
		} else {
			q.repays = 0
		}
	}
	allowed.Rate -= min(allowed.Rate/2, q.repays)
	level, most = level-q.refilled, most-q.refilled
	if !q.demand.known && q.sent != 0 {
		level = min(level, 0) // a new bucket may have used all that it had
	}
	q.indebted = most < -2*least
	// The next change fills Envoy's bucket as well: so much stays in the lease, or comes back to it by a lower rate. Random
	// arrivals at a lower rate leave enough.
	reserve := fixed.Amount(0)
	if allowed.Rate/20 == least {
		reserve = least
	}
	size := min(max(least, level-reserve), allowed.Burst)
	q.lacks = max(0, size-most)
	if most-size < reserve {
		allowed.Rate -= min(least/reserveWithin, allowed.Rate/reservePart)
	}
	s = bucketOf(allowed.Rate, size.Floor(), q.current)
	return s, min(s.rate(), allowed.Rate), true
}

// expectedUse is what the Envoy has admitted since its latest report, at the rate of that one.
func (q *quota) expectedUse(now limit.Time) fixed.Amount {
	rate, err := fixed.AmountOf(q.demand.rate)
	if err != nil {
		rate = fixed.MaxAmount / 4
	}
	if q.current.rule == ruleTokens {
		rate = min(rate, q.rate)
	}
	return rate.Scale(fixed.Amount(max(0, now-q.heard)), fixed.Amount(time.Second))
}

// The differences that are worth a change, which fills Envoy's bucket: a rate that is higher by 1/32,
// and a size that is twice as large.
const (
	worthRate = 32
	worthSize = 2
)

// least is the size that an assignment has at least, whatever is left of the lease, if its burst is that large: four
// tokens, eight of a burst of 16, twenty of a burst of 80, and what the rate brings in 50 ms. Random arrivals overflow a
// smaller bucket: of one token a third of the rate is lost, of four less than a tenth where the demand is a little above
// the rate. Requests also come in clumps where a machine is busy. A larger one costs more at each change, which fills it;
// what the lease did not have is paid back, and of a limit with a burst of 20, eight for each Envoy would be too many.
func least(of lease.Capacity) fixed.Amount {
	return min(of.Burst, max(4*fixed.Token, min(8*fixed.Token, of.Burst/2), min(20*fixed.Token, of.Burst/4), of.Rate/20))
}

// trimWithin is how long an assignment may stay a little above the lease, which is given back that much
// later. Not longer: a lease that does not come down within five seconds is not renewed. Not shorter: a
// report may come until then.
const trimWithin = 2500 * time.Millisecond

// evaluate decides whether the Envoy is sent something, and notes it down as sent. changed says whether
// it is another assignment than it has.
func (q *quota) evaluate(now limit.Time) (send bool) {
	if q.ending || q.abandoned || q.refused {
		return false
	}
	s, rate, ok := q.next(now)
	if !ok {
		return false
	}
	silent := now > q.heard.Add(silentAfter)
	if !q.differs(now, s, rate) {
		return q.current.rule != ruleNone && now >= q.refreshAt() && !silent && q.put(now, q.current, q.rate)
	}
	if q.sent != 0 && now < q.changed.Add(changeGap) && q.above() < 2 {
		q.lookAt = q.changed.Add(changeGap)
		return now >= q.refreshAt() && !silent && q.put(now, q.current, q.rate)
	}
	return q.put(now, s, rate)
}

// refreshAt is when the assignment has to be sent again.
func (q *quota) refreshAt() limit.Time {
	switch {
	case q.sent == 0:
		return 0
	}
	return q.sent.Add(q.ttl - max(time.Second, q.ttl/3))
}

// scarce says that the assignment is so small that a load which comes back would have to wait for a report.
func (q *quota) scarce() bool {
	for _, p := range q.parts {
		if q.rate < p.answer.Limit.Rate/2 {
			return true
		}
	}
	return false
}

// above says whether the Envoy has more than is allowed: 0 = no, 1 = a little, 2 = much.
func (q *quota) above() (how int) {
	for _, p := range q.parts {
		a := p.allowed()
		switch {
		case q.rate > a.Rate+a.Rate/worthRate || q.current.size() > a.Burst+a.Burst/2:
			return 2
		case q.rate > a.Rate || q.current.size() > a.Burst:
			how = 1
		}
	}
	return how
}

// differs says whether the strategy is worth a change, or has to be one. Most changes wait for a report:
// what is left of the lease is best known then.
func (q *quota) differs(now limit.Time, s strategy, rate fixed.Amount) bool {
	reported := q.heard == now
	above := 0
	if s.rule == ruleTokens && q.current.rule == ruleTokens {
		above = q.above()
	}
	switch {
	case above == 0:
		q.aboveSince = 0
	case q.aboveSince == 0:
		q.aboveSince = now
	}
	switch {
	case q.current.rule != s.rule || now >= q.ends:
		return true
	case s.rule != ruleTokens:
		return false
	case above == 2, above == 1 && (reported || now >= q.aboveSince.Add(trimWithin)):
		return true
	case rate > q.rate && rate-q.rate < q.lacks/reserveWithin:
		return false // until the lease has the tokens, which the lower rate leaves in it
	case !q.denied && q.demand.known && q.rate.Float() >= q.demand.asked:
		// It has what it needs, and more is for a rise that may come.
		if reported && rate > q.rate+q.rate/4 {
			return true
		}
	case rate > q.rate+q.rate/worthRate && !q.indebted, // each change fills the bucket, so who owes waits for its report
		reported && rate > q.rate+q.rate/(4*worthRate):
		return true
	}
	switch {
	case reported && rate < q.rate-q.rate/8: // something is to be paid back
		return true
	}
	return reported && s.MaxTokens >= worthSize*q.current.MaxTokens && q.lacks == 0
}

// put notes down what is sent. It returns false when the leases end too soon for an assignment.
func (q *quota) put(now limit.Time, s strategy, rate fixed.Amount) bool {
	ttl := q.lasts(now)
	if s.rule == ruleDeny {
		ttl = TTL // it uses no lease
	}
	if ttl < time.Second {
		return false
	}
	if q.current.rule == ruleNone || now >= q.ends {
		q.began = now
	}
	if s != q.current || now >= q.ends {
		q.follow(now)
		if q.sent != 0 && q.heard != now {
			q.refilled += s.size()
		}
		q.changed = now
	}
	q.current, q.rate, q.sent, q.ttl = s, rate, now, ttl
	q.ends = now.Add(ttl + Delivery)
	q.session.out = append(q.session.out, Action{Bucket: q.name, strategy: s, TTL: ttl})
	return true
}

// follow notes that what is sent now takes the place of the assignment, which the Envoy has until that arrives.
func (q *quota) follow(now limit.Time) {
	if now < q.ends && q.current.rule == ruleTokens {
		q.former = append(q.former, exposure{
			of: lease.Capacity{Rate: q.rate, Burst: q.current.size()}, settled: now.Add(Delivery), ends: q.ends,
		})
	}
}

// lasts is how long an assignment may be used from now on.
func (q *quota) lasts(now limit.Time) time.Duration {
	if !q.limited {
		return unlimitedTTL
	}
	ttl := TTL
	for _, p := range q.parts {
		end := limit.Time(p.agent.agent.Deadline().Load())
		ttl = min(ttl, (time.Duration(end-now)-Delivery)/time.Second*time.Second)
	}
	return ttl
}

func saturatingAdd(a, b uint64) uint64 {
	if a+b < a {
		return 1<<64 - 1
	}
	return a + b
}

// tokensOf is a count of requests as tokens, bounded far above what any limit admits.
func tokensOf(n uint64) fixed.Amount {
	return fixed.Whole(int64(min(n, uint64(fixed.MaxAmount/fixed.Token/4))))
}
