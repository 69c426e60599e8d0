package redis

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/stint-io/stint/internal/seeding"

	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/store"
)

// model is one key by the book: the arithmetic of package limit, one request after
// the other, and nothing of this package. The zero value is a new key.
type model struct {
	policy  limit.Policy // by which the state is to be read
	bucket  limit.BucketState
	fixed   limit.FixedState
	sliding limit.SlidingState
	log     limit.LogState
	places  limit.InFlightState
}

// follow carries the state over to the policy in force, which it meets when the key
// is next used. Logs and places say when each entry was, so they are read as they
// are under any policy: what Redis still has counts.
func (m *model) follow(p limit.Policy, now limit.Time) {
	if p.Rate.Period == 0 {
		p.Rate.Period = time.Microsecond // a rate of 0 needs none, but windows have a length
	}
	if m.policy == p {
		return
	}
	old := m.policy
	m.policy = p
	switch p.Algorithm {
	case limit.FixedWindow:
		from, to := limit.NewFixedCounter(old), limit.NewFixedCounter(p)
		m.fixed = to.Convert(m.fixed, &from, now)
	case limit.SlidingWindowCounter:
		from, to := limit.NewSlidingCounter(old), limit.NewSlidingCounter(p)
		m.sliding = to.Convert(m.sliding, &from, now)
	case limit.RisingWindow:
		from, to := limit.NewRisingCounter(old), limit.NewRisingCounter(p)
		m.sliding = to.Convert(m.sliding, &from, now)
	case limit.TokenBucket, limit.LeakyBucket:
		from, to := limit.NewBucket(old), limit.NewBucket(p)
		m.bucket = to.Convert(m.bucket, &from, now)
		if r, err := newRule(p); err == nil { // a debt of centuries is rounded up to a double
			m.bucket = r.decode(r.encode(state{bucket: m.bucket})).bucket
		}
	}
}

func (m *model) take(now limit.Time, cost int64, permit uint64) limit.Verdict {
	switch m.policy.Algorithm {
	case limit.FixedWindow:
		a := limit.NewFixedCounter(m.policy)
		return a.Take(&m.fixed, now, cost)
	case limit.SlidingWindowCounter:
		a := limit.NewSlidingCounter(m.policy)
		return a.Take(&m.sliding, now, cost)
	case limit.RisingWindow:
		a := limit.NewRisingCounter(m.policy)
		return a.Take(&m.sliding, now, cost)
	case limit.SlidingWindowLog:
		a := limit.NewSlidingLog(m.policy)
		return a.Take(&m.log, now, cost)
	case limit.Concurrency:
		a := limit.NewInFlight(m.policy)
		return a.Take(&m.places, now, cost, permit)
	}
	a, s := limit.NewBucket(m.policy), &m.bucket
	if m.outside() {
		s = &limit.BucketState{Hi: s.Hi, Lo: s.Lo}
	}
	return a.Take(s, now, cost)
}

func (m *model) peek(now limit.Time, cost int64) limit.Verdict {
	switch m.policy.Algorithm {
	case limit.FixedWindow:
		a := limit.NewFixedCounter(m.policy)
		return a.Peek(m.fixed, now, cost)
	case limit.SlidingWindowCounter:
		a := limit.NewSlidingCounter(m.policy)
		return a.Peek(m.sliding, now, cost)
	case limit.RisingWindow:
		a := limit.NewRisingCounter(m.policy)
		return a.Peek(m.sliding, now, cost)
	case limit.SlidingWindowLog:
		a := limit.NewSlidingLog(m.policy)
		return a.Peek(m.log, now, cost)
	case limit.Concurrency:
		a := limit.NewInFlight(m.policy)
		return a.Peek(m.places, now, cost)
	}
	a := limit.NewBucket(m.policy)
	return a.Peek(m.bucket, now, cost)
}

func (m *model) refuse(now limit.Time, cost int64) {
	switch m.policy.Algorithm {
	case limit.FixedWindow:
		a := limit.NewFixedCounter(m.policy)
		a.Refuse(&m.fixed, now, cost)
	case limit.SlidingWindowCounter:
		a := limit.NewSlidingCounter(m.policy)
		a.Refuse(&m.sliding, now, cost)
	case limit.RisingWindow:
		a := limit.NewRisingCounter(m.policy)
		a.Refuse(&m.sliding, now, cost)
	case limit.SlidingWindowLog:
		a := limit.NewSlidingLog(m.policy)
		a.Refuse(&m.log, now, cost)
	case limit.TokenBucket, limit.LeakyBucket:
		if a := limit.NewBucket(m.policy); !m.outside() {
			a.Refuse(&m.bucket, now, cost)
		}
	}
}

// outside says whether a debt is paid beyond the exact range: nothing is added to it, and
// nothing given back.
func (m *model) outside() bool {
	r, err := newRule(m.policy)
	return err == nil && r.outside(&state{bucket: m.bucket})
}

// by returns the policy by which charges on one bucket are decided together.
func (m *model) by(charges []*store.Charge) limit.Policy {
	p := m.policy
	for _, c := range charges {
		p.CountRefused = p.CountRefused || c.CountRefused && p.Algorithm != limit.Concurrency
	}
	if p.Algorithm == limit.FixedWindow && p.Ban == 0 {
		own := false
		for _, c := range charges {
			if c.HasQuota && (!own || c.Quota < p.Rate.Count) {
				p.Rate.Count, own = c.Quota, true
			}
		}
	}
	return p
}

func (m *model) refund(now limit.Time, cost int64) {
	switch m.policy.Algorithm {
	case limit.FixedWindow:
		a := limit.NewFixedCounter(m.policy)
		a.Refund(&m.fixed, now, cost)
	case limit.SlidingWindowCounter:
		a := limit.NewSlidingCounter(m.policy)
		a.Refund(&m.sliding, now, cost)
	case limit.RisingWindow:
		a := limit.NewRisingCounter(m.policy)
		a.Refund(&m.sliding, now, cost)
	case limit.SlidingWindowLog:
		a := limit.NewSlidingLog(m.policy)
		a.Refund(&m.log, now, cost)
	case limit.Concurrency: // places are finished
	default:
		if a := limit.NewBucket(m.policy); !m.outside() {
			a.Refund(&m.bucket, now, cost)
		}
	}
}

func (m *model) finish(now limit.Time, permit uint64, keep bool) {
	if m.policy.Algorithm != limit.Concurrency {
		return
	}
	if a := limit.NewInFlight(m.policy); keep {
		a.Keep(&m.places, now, permit)
	} else {
		a.Finish(&m.places, permit)
	}
}

// settled is what is left of the state after a run of the script: a window counter
// that has nothing is not kept, and with it goes what its latest window was.
func (m *model) settled() {
	if m.sliding.Cur == 0 && m.sliding.Prev == 0 {
		m.sliding = limit.SlidingState{}
	}
}

// request is one operation, and what it must answer.
type request struct {
	verb    verb
	charges []store.Charge
	models  []*model // of each charge

	allowed bool
	want    []limit.Verdict
}

// clone returns a request for the same.
func (q *request) clone() *request {
	return &request{verb: q.verb, charges: slices.Clone(q.charges), models: q.models}
}

// expect does by the book what the request asks for.
func (q *request) expect(now limit.Time) {
	for i, m := range q.models {
		m.follow(q.charges[i].Counters.Spec().Policy, now)
	}
	switch q.verb {
	case verbTake, verbPeek:
		q.decide(now)
	case verbRefund:
		for i, m := range q.models {
			m.refund(now, q.charges[i].Cost)
		}
	case verbFinish:
		for i, m := range q.models {
			m.finish(now, q.charges[i].Permit, q.charges[i].Keep)
		}
	case verbReset:
		for _, m := range q.models {
			*m = model{policy: m.policy}
		}
	}
}

// decide is Take or Peek of all charges as one; those on one bucket add up, and are
// enforced when one of them is.
func (q *request) decide(now limit.Time) {
	q.allowed = true
	q.want = make([]limit.Verdict, len(q.charges))
	costs, fits := make([]int64, len(q.charges)), make([]bool, len(q.charges))
	policies := make([]limit.Policy, len(q.charges))
	for i, m := range q.models {
		if slices.Index(q.models, m) != i {
			continue
		}
		shadow := true
		var charges []*store.Charge
		for j, other := range q.models {
			if other == m {
				charges = append(charges, &q.charges[j])
				shadow = shadow && q.charges[j].Shadow
				if costs[i] += q.charges[j].Cost; costs[i] < 0 {
					costs[i] = 1<<63 - 1
				}
			}
		}
		policies[i] = m.policy
		m.policy = m.by(charges)
		fits[i] = m.peek(now, costs[i]).Allowed
		q.allowed = q.allowed && (fits[i] || shadow)
	}
	for i, m := range q.models {
		first := slices.Index(q.models, m)
		if first == i {
			q.want[i] = shownInMicroseconds(q.settle(m, now, costs[i], q.charges[i].Permit, fits[i]))
		} else {
			q.want[i] = q.want[first]
		}
	}
	for i, m := range q.models {
		if slices.Index(q.models, m) == i {
			m.policy = policies[i]
		}
	}
}

func (q *request) settle(m *model, now limit.Time, cost int64, permit uint64, fits bool) limit.Verdict {
	switch take := q.verb == verbTake; {
	case cost == 0:
		return m.peek(now, 0)
	case take && fits && !q.allowed:
		m.refuse(now, cost)
	case take: // as one that fits, or as one that is refused here
		return m.take(now, cost, permit)
	case !fits || q.allowed:
		return m.peek(now, cost)
	}
	rest := m.peek(now, 0)
	return limit.Verdict{Allowed: true, Remaining: rest.Remaining, ResetAfter: rest.ResetAfter}
}

// shownInMicroseconds is v with its waits rounded up to the clock of Redis.
func shownInMicroseconds(v limit.Verdict) limit.Verdict {
	for _, d := range []*time.Duration{&v.RetryAfter, &v.ResetAfter, &v.Delay} {
		if *d < limit.Never-999 {
			*d = (*d + 999) / 1000 * 1000
		}
	}
	return v
}

// ask has the request done by the store's own methods.
func (q *request) ask(s *Store) (allowed bool, err error) {
	ctx := context.Background()
	switch q.verb {
	case verbTake:
		return s.Take(ctx, q.charges)
	case verbPeek:
		return s.Peek(ctx, q.charges)
	case verbRefund:
		return false, s.Refund(ctx, q.charges)
	case verbFinish:
		return false, s.Finish(ctx, q.charges)
	default:
		return false, s.Reset(ctx, q.charges)
	}
}

// operation is what the store's methods hand to a lane.
func (q *request) operation(s *Store) *operation {
	o := newOperation(q.verb, s.clock())
	if q.verb == verbTake || q.verb == verbPeek {
		o.fill(q.charges, true)
	} else {
		for i := range q.charges {
			o.fill(q.charges[i:i+1], false)
		}
	}
	return o
}

// together has requests decided as if they had come at the same time: in as few
// runs of the script as their number and policies allow. It returns the operations,
// which are done.
func together(l *lane, ops []*operation) {
	l.enqueue(ops...)
	for _, o := range ops {
		<-o.done
	}
}

// laneBeside returns a lane that nobody else uses.
func laneBeside(s *Store) *lane { return &lane{store: s, breaker: newBreaker(s)} }

// TestBatchOrder: requests that share a run of the script are decided in their
// order, whether they are sent as repetitions or not.
func TestBatchOrder(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	h := newHistory(t, seeding.Rand(t))
	for _, algorithm := range []limit.Algorithm{limit.TokenBucket, limit.FixedWindow, limit.SlidingWindowCounter, limit.SlidingWindowLog, limit.Concurrency} {
		p := limit.Policy{Algorithm: algorithm, Rate: limit.PerHour(7)}
		switch algorithm {
		case limit.TokenBucket:
			p.Burst = 7
		case limit.Concurrency:
			p.MaxInFlight, p.Timeout = 7, time.Hour
		}
		h.begin(algorithm.String(), p, limit.Policy{Rate: limit.PerHour(100), Burst: 100})
		a, b := h.limits[0], h.limits[1]
		var all []*request
		add := func(v verb, n int, charges ...store.Charge) {
			for range n {
				all = append(all, (&request{verb: v, charges: charges, models: h.modelsOf(charges)}).clone())
			}
		}
		one, two, other := h.charge(a, 0, 1), h.charge(a, 0, 2), h.charge(b, 0, 1)
		shadow := one
		shadow.Shadow = true
		add(verbTake, 2, one)
		add(verbTake, 3, other)
		add(verbTake, 1, one)        // a repetition, with another key's in between
		add(verbTake, 2, one, other) // both
		add(verbTake, 1, other, one) // both, the other way round
		add(verbTake, 2, two)        // 7 are taken after the first 0 of these
		add(verbTake, 3, one)
		add(verbTake, 2, shadow)
		add(verbRefund, 1, two)
		add(verbPeek, 2, two)
		add(verbTake, 2, one)
		add(verbTake, 2, one, other)
		add(verbReset, 1, one)
		add(verbTake, 9, one)
		h.round(all)
	}
}

// TestRefundClosesWindow: a window that a refund has emptied is no window; the next
// one begins with what is taken next, in the same run of the script or in another.
func TestRefundClosesWindow(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	h := newHistory(t, nil)
	for _, p := range []limit.Policy{
		{Algorithm: limit.FixedWindow, Rate: limit.PerMinute(5), Align: limit.AlignFirstHit},
		{Algorithm: limit.FixedWindow, Rate: limit.PerMinute(5), Align: limit.AlignFirstHit, Ban: time.Minute, CountRefused: true},
	} {
		for _, atOnce := range []bool{true, false} {
			h.seed++
			h.begin("refund", p)
			ask := func(v verb, cost int64) *request {
				q := &request{verb: v, charges: []store.Charge{h.charge(h.limits[0], 0, cost)}}
				q.models = h.modelsOf(q.charges)
				return q
			}
			h.round([]*request{ask(verbTake, 3)})
			h.clock.Add(int64(50 * time.Second))
			if back := []*request{ask(verbRefund, 3), ask(verbTake, 5)}; atOnce {
				h.round(back)
			} else {
				h.round(back[:1])
				h.round(back[1:])
			}
			h.clock.Add(int64(20 * time.Second)) // the first window would be over
			h.round([]*request{ask(verbTake, 1)})
		}
	}
}

// TestWide: one request may name more buckets than a run of the script takes, and
// more than Lua's stack holds.
func TestWide(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	h := newHistory(t, nil)
	h.begin("wide", limit.Policy{Algorithm: limit.FixedWindow, Rate: limit.PerHour(3)}, limit.Policy{Burst: 3},
		limit.Policy{Algorithm: limit.SlidingWindowLog, Rate: limit.PerHour(3)}, limit.Policy{Algorithm: limit.Concurrency, MaxInFlight: 3, Timeout: time.Hour})
	const keys = 9000
	q := &request{verb: verbTake}
	for i := range keys {
		l := h.limits[i%len(h.limits)]
		q.charges = append(q.charges, h.charge(l, i, 1+int64(i%2)))
		q.models = append(q.models, &model{policy: l.counters.Spec().Policy})
	}
	h.round([]*request{q})
	h.round([]*request{q.clone()}) // refused by those of which 2 were taken
	for i := range q.charges {
		q.charges[i].Cost = 1
	}
	h.round([]*request{q.clone()})
}

// TestOwnRefund: what a store gives back itself it does not refuse from memory, even
// before it hears of it from the server.
func TestOwnRefund(t *testing.T) {
	h := newHistory(t, nil)
	for _, v := range []verb{verbRefund, verbReset} {
		h.seed = uint64(v)
		h.begin("own", limit.Policy{Rate: limit.PerHour(5), Burst: 5})
		take := func(cost int64) *request {
			q := &request{verb: verbTake, charges: []store.Charge{h.charge(h.limits[0], 0, cost)}}
			q.models = h.modelsOf(q.charges)
			return q
		}
		h.round([]*request{take(5)})
		h.round([]*request{take(1)}) // refused, and remembered
		d := &h.store.denials
		mine := h.store.keyOfCharge(take(1).charges[0])
		other := mine
		for d.shard(other) == d.shard(mine) {
			other += "x"
		}
		// The listener stops at this message, and what comes behind it waits.
		d.shard(other).mu.Lock()
		h.server.Do("PUBLISH", h.store.channel(), "1 "+other)
		back := take(2)
		back.verb = v
		h.round([]*request{back})
		h.round([]*request{take(1)})
		d.shard(other).mu.Unlock()
	}
}
