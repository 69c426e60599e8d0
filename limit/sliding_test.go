package limit

import (
	"fmt"
	"math"
	"math/big"
	"math/rand/v2"
	"testing"
	"time"
)

// The article's example (003-33): 7 per minute, 5 in the previous minute, 3 in
// this one, 30 % into it: 3 + 5 x 0.7 = 6.5.
func TestSlidingCounterExample(t *testing.T) {
	now := seconds(60 + 18)
	cases := []struct {
		rounding  Rounding
		want      bool
		remaining int64
	}{
		{RoundDown, true, 0},     // 6: one more is the seventh
		{RoundNearest, false, 0}, // 7
		{RoundUp, false, 0},      // 7
	}
	for _, c := range cases {
		w := NewSlidingCounter(Policy{Algorithm: SlidingWindowCounter, Rate: PerMinute(7), Rounding: c.rounding})
		s := SlidingState{Index: 1, Cur: 3, Prev: 5}
		v := w.Take(&s, now, 1)
		if v.Allowed != c.want || v.Remaining != c.remaining {
			t.Errorf("rounding %d: got %+v, want allowed %v", c.rounding, v, c.want)
		}
		if !c.want && s.Cur != 3 {
			t.Errorf("rounding %d: a refusal was charged: %+v", c.rounding, s)
		}
	}
}

func TestSlidingCounterRetry(t *testing.T) {
	w := NewSlidingCounter(Policy{Algorithm: SlidingWindowCounter, Rate: PerMinute(7)})
	s := SlidingState{Index: 1, Cur: 3, Prev: 5}
	// Rounded up it fits once 5 x left <= 3 minutes, with 36 s left of the window.
	if v := w.Take(&s, seconds(78), 1); v.RetryAfter != 6*time.Second {
		t.Errorf("got %+v, want 6s", v)
	}
}

// slidingModel keeps every window's count and estimates with fractions.
type slidingModel struct {
	p      Policy
	counts map[int64]int64
	latest int64 // index
}

func (m *slidingModel) estimate(now Time) int64 {
	p := int64(m.p.Rate.Period)
	index, elapsed := int64(now)/p, int64(now)%p
	if index < m.latest {
		index, elapsed = m.latest, 0
	}
	part := new(big.Rat).SetFrac64(m.counts[index-1], 1)
	part.Mul(part, new(big.Rat).SetFrac64(p-elapsed, p))
	switch m.p.Rounding {
	case RoundUp:
		part.Add(part, new(big.Rat).Sub(big.NewRat(1, 1), new(big.Rat).SetFrac(big.NewInt(1), part.Denom())))
	case RoundNearest:
		part.Add(part, big.NewRat(1, 2))
	}
	whole := new(big.Int).Quo(part.Num(), part.Denom())
	return m.counts[index] + whole.Int64()
}

func (m *slidingModel) charge(now Time, cost int64) {
	if cost > 0 {
		m.latest = max(m.latest, int64(now)/int64(m.p.Rate.Period))
		m.counts[m.latest] += cost
	}
}

// Every answer is that of fractions, the estimate never passes the count unless
// refused requests do, and a wait is exact to the nanosecond.
func TestHistoriesSlidingCounter(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	eachHistory(t, func(r *rand.Rand) error {
		p := smallPolicy(r, SlidingWindowCounter)
		p.Rounding = Rounding(r.IntN(3))
		if r.IntN(4) == 0 {
			p.Rate.Count = r.Int64N(1 << 40)
		}
		w, c := NewSlidingCounter(p), newClock(r, p.Rate.Period)
		m := slidingModel{p: p, counts: map[int64]int64{}}
		var s SlidingState
		for step := range 40 {
			now, cost := c.tick(r), smallCost(r, p.Rate.Count)
			if p.Rate.Count > 10 && r.IntN(2) == 0 {
				cost = r.Int64N(p.Rate.Count)
			}
			want := m.estimate(now)+cost <= p.Rate.Count
			peeked := w.Peek(s, now, cost)
			if peeked.Allowed != want {
				return fmt.Errorf("step %d: %+v: peek %d at %d: got %+v, want %v", step, p, cost, now, peeked, want)
			}
			if err := checkWait(peeked, now, func(at Time) bool { return w.Peek(s, at, cost).Allowed }); err != nil {
				return fmt.Errorf("step %d: %+v %+v: peek %d: %w", step, p, s, cost, err)
			}
			if r.IntN(5) == 0 {
				w.Refuse(&s, now, cost)
				if p.CountRefused {
					m.charge(now, cost)
				}
				continue
			}
			got := w.Take(&s, now, cost)
			if want || p.CountRefused {
				m.charge(now, cost)
			}
			if got.Allowed != want || got.Remaining != max(0, p.Rate.Count-m.estimate(now)) {
				return fmt.Errorf("step %d: %+v: take %d at %d: got %+v, want %v", step, p, cost, now, got, want)
			}
			if want && cost > 0 && m.estimate(now) > p.Rate.Count {
				return fmt.Errorf("step %d: %+v: admitted to %d", step, p, m.estimate(now))
			}
			if err := checkWait(got, now, func(at Time) bool { return w.Peek(s, at, cost).Allowed }); err != nil {
				return fmt.Errorf("step %d: %+v %+v: take %d: %w", step, p, s, cost, err)
			}
			if reset := now.Add(got.ResetAfter); !w.Fresh(s, reset) || got.ResetAfter > 0 && w.Fresh(s, reset-1) {
				return fmt.Errorf("step %d: %+v %+v: wrong ResetAfter %v at %d", step, p, s, got.ResetAfter, now)
			}
		}
		return nil
	})
}

func TestSlidingCounterEdges(t *testing.T) {
	for _, rounding := range []Rounding{RoundUp, RoundDown, RoundNearest} {
		p := Policy{Algorithm: SlidingWindowCounter, Rate: Rate{MaxCount, math.MaxInt64}, Rounding: rounding, CountRefused: true}
		for _, period := range []time.Duration{1, 3, math.MaxInt64} {
			p.Rate.Period = period
			w := NewSlidingCounter(p)
			for _, now := range []Time{math.MinInt64, 0, 1, math.MaxInt64 - 3, math.MaxInt64} {
				s := SlidingState{Cur: math.MaxInt64, Prev: math.MaxInt64, Index: int64(uint64(max(now, 0)) / uint64(period))}
				for _, cost := range []int64{0, 1, MaxCount, math.MaxInt64} {
					v := w.Take(&s, now, cost)
					if v.Allowed || v.Remaining != 0 || v.RetryAfter <= 0 || v.ResetAfter < 0 {
						t.Errorf("%+v: take %d at %d: %+v", p, cost, now, v)
					}
				}
			}
		}
	}
	zero := NewSlidingCounter(Policy{Algorithm: SlidingWindowCounter})
	var s SlidingState
	if v := zero.Take(&s, 5, 1); v.Allowed || v.RetryAfter != Never {
		t.Errorf("rate 0: %+v", v)
	}
	if v := zero.Take(&s, 5, 0); !v.Allowed {
		t.Errorf("rate 0, cost 0: %+v", v)
	}
}

func TestSlidingCounterConvert(t *testing.T) {
	from := NewSlidingCounter(Policy{Algorithm: SlidingWindowCounter, Rate: PerMinute(10)})
	to := NewSlidingCounter(Policy{Algorithm: SlidingWindowCounter, Rate: PerHour(20)})
	s := SlidingState{Index: 1, Cur: 3, Prev: 5}
	now := seconds(78)
	if v := to.Peek(to.Convert(s, &from, now), now, 0); v.Remaining != 13 {
		t.Errorf("got %+v, want the 6.5 that were used to count as 7", v)
	}
	if got := to.Convert(s, &from, seconds(600)); got != (SlidingState{}) {
		t.Errorf("long after: %+v", got)
	}
	if got := from.Convert(s, &from, now); got != s {
		t.Errorf("same policy: %+v", got)
	}
}
