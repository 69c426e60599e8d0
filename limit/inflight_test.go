package limit

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"
)

func TestInFlight(t *testing.T) {
	f := NewInFlight(Policy{Algorithm: Concurrency, MaxInFlight: 2, Timeout: time.Minute})
	var s InFlightState
	if v := f.Take(&s, seconds(0), 1, 7); !v.Allowed || v.Remaining != 1 || v.ResetAfter != time.Minute {
		t.Errorf("first: %+v", v)
	}
	f.Take(&s, seconds(10), 1, 8)
	want := Verdict{Reason: ReasonConcurrency, RetryAfter: 45 * time.Second, ResetAfter: 55 * time.Second}
	if v := f.Take(&s, seconds(15), 1, 9); v != want {
		t.Errorf("third: got %+v, want %+v", v, want)
	}
	if !f.Finish(&s, 8) || f.Finish(&s, 8) || f.Finish(&s, 9) {
		t.Error("Finish must say whether the permit held a place")
	}
	if v := f.Take(&s, seconds(15), 1, 9); !v.Allowed {
		t.Errorf("after a finish: %+v", v)
	}
	if v := f.Take(&s, seconds(60), 1, 10); !v.Allowed {
		t.Errorf("after a time-out: %+v", v)
	}
	if v := f.Take(&s, seconds(60), 3, 11); v.Reason != ReasonCost || v.RetryAfter != Never {
		t.Errorf("more places than there are: %+v", v)
	}
	if v := f.Take(&s, seconds(60), 0, 12); !v.Allowed || f.Finish(&s, 12) {
		t.Errorf("cost 0 must take no place: %+v", v)
	}
}

func TestInFlightConvertKeepsWhoIsIn(t *testing.T) {
	from := NewInFlight(Policy{Algorithm: Concurrency, MaxInFlight: 3, Timeout: time.Hour})
	to := NewInFlight(Policy{Algorithm: Concurrency, MaxInFlight: 1, Timeout: time.Second})
	var s InFlightState
	for i := range uint64(3) {
		from.Take(&s, 0, 1, i+1)
	}
	s = to.Convert(s, &from, 0)
	if v := to.Take(&s, seconds(10), 1, 9); v.Allowed || v.RetryAfter != time.Hour-10*time.Second {
		t.Errorf("got %+v", v)
	}
	from.Finish(&s, 1)
	from.Finish(&s, 2)
	from.Finish(&s, 3)
	if v := to.Take(&s, seconds(10), 1, 9); !v.Allowed {
		t.Errorf("got %+v", v)
	}
}

// Never more places are held than there are, and every answer is that of a plain
// list of holders.
func TestHistoriesInFlight(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	type holder struct {
		expires Time
		cost    int64
	}
	eachHistory(t, func(r *rand.Rand) error {
		p := Policy{Algorithm: Concurrency, MaxInFlight: r.Int64N(6), Timeout: time.Duration(1 + r.Int64N(50))}
		f, c := NewInFlight(p), newClock(r, p.Timeout)
		var s InFlightState
		var latest Time
		held := map[uint64]holder{}
		for step := range 60 {
			now, cost, permit := c.tick(r), smallCost(r, p.MaxInFlight), uint64(step+1)
			at := max(now, latest)
			if r.IntN(3) == 0 {
				permit = uint64(r.IntN(step+1) + 1)
				_, holds := held[permit]
				delete(held, permit)
				if got := f.Finish(&s, permit); got && !holds {
					return fmt.Errorf("step %d: permit %d finished out of nothing", step, permit)
				}
				continue
			}
			var used int64
			for _, h := range held {
				if h.expires > at {
					used += h.cost
				}
			}
			want := used+cost <= p.MaxInFlight
			peeked, copied := f.Peek(s, now, cost), s.Clone()
			got := f.Take(&s, now, cost, permit)
			if got.Allowed != want || peeked != got {
				return fmt.Errorf("step %d: %+v: take %d at %d: got %+v and peeked %+v, want %v", step, p, cost, now, got, peeked, want)
			}
			if err := checkWait(got, now, func(at Time) bool { return f.Peek(copied, at, cost).Allowed }); err != nil {
				return fmt.Errorf("step %d: %w", step, err)
			}
			if want && cost > 0 {
				latest = at
				held[permit] = holder{at.Add(p.Timeout), cost}
				used += cost
			}
			if used > p.MaxInFlight || got.Remaining != p.MaxInFlight-used {
				return fmt.Errorf("step %d: %d of %d places held, %+v", step, used, p.MaxInFlight, got)
			}
			if reset := now.Add(got.ResetAfter); !f.Fresh(s, reset) || got.ResetAfter > 0 && f.Fresh(s, reset-1) {
				return fmt.Errorf("step %d: wrong ResetAfter %v", step, got.ResetAfter)
			}
		}
		return nil
	})
}

func TestInFlightEdges(t *testing.T) {
	f := NewInFlight(Policy{Algorithm: Concurrency, MaxInFlight: MaxLogCount, Timeout: math.MaxInt64})
	for _, now := range []Time{math.MinInt64, 0, math.MaxInt64} {
		var s InFlightState
		for _, cost := range []int64{0, 1, math.MaxInt64} {
			if v := f.Take(&s, now, cost, 1); v.Allowed != (cost < 2) || v.Remaining < 0 || v.RetryAfter < 0 {
				t.Errorf("take %d at %d: %+v", cost, now, v)
			}
		}
	}
}

func TestInFlightAfterAShorterTimeout(t *testing.T) {
	from := NewInFlight(Policy{Algorithm: Concurrency, MaxInFlight: 2, Timeout: time.Hour})
	to := NewInFlight(Policy{Algorithm: Concurrency, MaxInFlight: 2, Timeout: time.Second})
	var s InFlightState
	from.Take(&s, 0, 1, 1)
	s = to.Convert(s, &from, 0)
	to.Take(&s, 0, 1, 2)
	if v := to.Take(&s, 0, 1, 3); v.RetryAfter != time.Second || v.ResetAfter != time.Hour {
		t.Errorf("got %+v, want a place to expire after 1s and the last after 1h", v)
	}
	if v := to.Take(&s, seconds(1), 1, 3); !v.Allowed {
		t.Errorf("got %+v", v)
	}
}
