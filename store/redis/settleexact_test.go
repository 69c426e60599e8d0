package redis

import (
	"math/big"
	"math/bits"
	"slices"
	"sort"
	"testing"
	"time"

	"github.com/stint-io/stint/internal/seeding"

	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/store"
)

// TestSettledToTheTick: what is charged to a bucket for the time without the server is
// added to its state to the last tick, which is then full no sooner than what is owed says;
// what is charged to a window counts in it. Unless refused requests count, that is as much as
// fits. Answers before and after are the book's.
func TestSettledToTheTick(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	h := newHistory(t, seeding.Rand(t))
	r := h.r
	for n := range 160 {
		p := drawPolicy(r, []limit.Algorithm{limit.TokenBucket, limit.LeakyBucket, limit.TokenBucket, limit.FixedWindow, limit.SlidingWindowCounter}[n%5])
		if n%3 == 0 && p.Algorithm <= limit.LeakyBucket { // tokens of few ticks and a rest
			p.Rate, p.Burst = limit.Rate{Count: 1 + r.Int64N(5_000_000), Period: time.Duration(1 + r.Int64N(1e6))}, 1+r.Int64N(1000)
			if _, err := newRule(p); err != nil {
				continue
			}
		}
		h.seed = uint64(n)
		h.clock.Store(1_700_000_000_000_000_000 + r.Int64N(1e12)*1000)
		h.forget()
		h.begin("settled", p)
		l := h.limits[0]
		m, rule := l.keys[0], l.counters.(*Counters).bound.Load().rule
		for round := range 6 {
			h.round([]*request{h.ofOne(l, verbTake, boundedCost(p, h.cost(l)))})
			if r.IntN(2) == 0 {
				h.clock.Add(r.Int64N(min(int64(p.Rate.Period), 1e9)+1000) / 1000 * 1000)
			}
			o := newOperation(verbSettle, h.store.clock())
			cost := boundedCost(p, h.cost(l))
			o.owed = r.Int64N(1 << r.IntN(30))
			c := h.charge(l, 0, cost)
			counts := (n+round)%2 == 0
			o.parts = append(o.parts, part{counters: l.counters.(*Counters), rule: rule, key: h.store.keyOfCharge(c), cost: cost, terms: terms{counts: counts}})
			h.settleByTheBook(m, p, cost, o.owed, counts)
			beside := h.ofOne(l, verbTake, 1) // in the same run of the script
			beside.expect(h.now())
			take := beside.operation(h.store)
			together(h.lane, []*operation{o, take})
			m.settled()
			take.answer(beside.charges)
			if o.err != nil || !h.same(beside, take.allowed, take.err) {
				t.Fatalf("history %d: %+v: %v", n, p, o.err)
			}
			o.release()
			take.release()
			h.forget()
			for _, cost := range []int64{0, 1, p.Quota()} {
				h.round([]*request{h.ofOne(l, verbPeek, boundedCost(p, cost))})
			}
			if t.Failed() {
				t.Fatalf("history %d: %+v", n, p)
			}
		}
	}
}

// ofOne is a request about the first key of a limit.
func (h *history) ofOne(l *limitByBook, v verb, cost int64) *request {
	q := &request{verb: v, charges: []store.Charge{h.charge(l, 0, cost)}}
	q.models = h.modelsOf(q.charges)
	return q
}

// settleByTheBook charges a model for the time without the server.
func (h *history) settleByTheBook(m *model, p limit.Policy, cost, owed int64, counts bool) {
	if p.Algorithm > limit.LeakyBucket {
		if !counts {
			fits := sort.Search(int(min(cost, p.Quota())), func(n int) bool { return !m.peek(h.now(), int64(n)+1).Allowed })
			if fits > 0 {
				m.take(h.now(), int64(fits), 0)
			}
			m.settled()
			return
		}
		in := m.policy
		m.policy.CountRefused = true
		m.refuse(h.now(), cost)
		m.policy = in
		m.settled()
		return
	}
	b := limit.NewBucket(p)
	n, per := b.Terms()
	big128 := func(s limit.BucketState) *big.Int {
		v := new(big.Int).SetUint64(s.Hi)
		return v.Lsh(v, 64).Add(v, new(big.Int).SetUint64(s.Lo))
	}
	hi, lo := bits.Mul64(uint64(cost), per)
	sum := big128(limit.BucketState{Hi: hi, Lo: lo})
	sum.Add(sum, big128(m.bucket))
	if n > 0 {
		hi, lo = bits.Mul64(uint64(h.now())+uint64(owed)*1000, n)
		if least := big128(limit.BucketState{Hi: hi, Lo: lo}); least.Cmp(sum) > 0 {
			sum = least
		}
	}
	if !counts {
		t := new(big.Int).Mul(new(big.Int).SetUint64(uint64(h.now())), new(big.Int).SetUint64(n))
		empty := t.Add(t, new(big.Int).Mul(big.NewInt(p.Quota()), new(big.Int).SetUint64(per)))
		if before := big128(m.bucket); before.Cmp(empty) > 0 {
			empty = before
		}
		if sum.Cmp(empty) > 0 {
			sum = empty
		}
	}
	words := sum.FillBytes(make([]byte, 16))
	slices.Reverse(words)
	m.bucket = limit.BucketState{}
	for i := range 8 {
		m.bucket.Lo |= uint64(words[i]) << (8 * i)
		m.bucket.Hi |= uint64(words[8+i]) << (8 * i)
	}
}
