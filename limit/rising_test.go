package limit

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"
)

// At most 10 a second, 2 at first, and 3 more than in the second before.
func TestRisingWindowWalkThrough(t *testing.T) {
	w := NewRisingCounter(Policy{Algorithm: RisingWindow, Rate: PerSecond(10), Start: 2, Rise: 3})
	var s SlidingState
	admitted := func(at Time, cost int64) Verdict { return w.Take(&s, at, cost) }
	want := []int64{3, 6, 9, 10, 10} // min(10, max(2, before + 3)) of a load without end
	for second, most := range want {
		for range most {
			if v := admitted(seconds(int64(second)), 1); !v.Allowed {
				t.Fatalf("second %d: %+v before %d were admitted", second, v, most)
			}
		}
		v := admitted(seconds(int64(second))+Time(time.Millisecond), 1)
		if v.Allowed || v.RetryAfter != 999*time.Millisecond {
			t.Errorf("second %d: %+v after %d", second, v, most)
		}
		if reason := map[bool]Reason{true: ReasonRate, false: ReasonRising}[most == 10]; v.Reason != reason {
			t.Errorf("second %d: reason %v, want %v", second, v.Reason, reason)
		}
	}
	// A second in which nothing comes: the next begins anew.
	if v := admitted(seconds(6), 4); v.Allowed || v.Remaining != 3 || v.RetryAfter != Never {
		t.Errorf("after a pause: %+v", v)
	}
	if v := admitted(seconds(6), 11); v.Reason != ReasonCost {
		t.Errorf("more than the limit: %+v", v)
	}
	if v := admitted(seconds(6), 3); !v.Allowed || v.ResetAfter != 2*time.Second {
		t.Errorf("after a pause: %+v", v)
	}
}

// A window admits what the definition says, whatever comes; a wait is exact where the cost fits at
// all; and a state is as good as new exactly from ResetAfter on.
func TestHistoriesRisingWindow(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	eachHistory(t, func(r *rand.Rand) error {
		p := smallPolicy(r, RisingWindow)
		p.CountRefused, p.Rise, p.Start = false, 1+r.Int64N(4), r.Int64N(6)
		w, c := NewRisingCounter(p), newClock(r, p.Rate.Period)
		counts, latest := map[int64]int64{}, int64(0)
		var s SlidingState
		for step := range 40 {
			now, cost := c.tick(r), smallCost(r, p.Rate.Count)
			index := max(latest, int64(now)/int64(p.Rate.Period))
			most := min(p.Rate.Count, max(p.Start, counts[index-1]+p.Rise))
			want := counts[index]+cost <= most
			peeked := w.Peek(s, now, cost)
			got := w.Take(&s, now, cost)
			if got.Allowed != want || peeked.Allowed != want {
				return fmt.Errorf("step %d: %+v: %d at %d: %+v and %+v, want %v", step, p, cost, now, peeked, got, want)
			}
			if want && cost > 0 {
				latest = index
				counts[index] += cost
			}
			if got.Remaining != max(0, most-counts[index]) {
				return fmt.Errorf("step %d: %+v: %+v, of %d and %d", step, p, got, most, counts[index])
			}
			if err := checkWait(got, now, func(at Time) bool { return w.Peek(s, at, cost).Allowed }); err != nil {
				return fmt.Errorf("step %d: %+v %+v: %d: %w", step, p, s, cost, err)
			}
			if reset := now.Add(got.ResetAfter); !w.Fresh(s, reset) || got.ResetAfter > 0 && w.Fresh(s, reset-1) {
				return fmt.Errorf("step %d: %+v %+v: wrong ResetAfter %v at %d", step, p, s, got.ResetAfter, now)
			}
			if r.IntN(8) == 0 && cost > 0 && want {
				w.Refund(&s, now, cost)
				counts[index] -= cost
			}
		}
		return nil
	})
}

// A load that rises by at most Rise from window to window is never refused below the rate; a step
// is admitted as far as the definition says, and reaches the rate after as many windows as that.
func TestRampsAndSteps(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	eachHistory(t, func(r *rand.Rand) error {
		p := Policy{Algorithm: RisingWindow, Rate: PerSecond(20 + r.Int64N(200)), Rise: 1 + r.Int64N(20), Start: r.Int64N(20)}
		w := NewRisingCounter(p)
		var s SlidingState
		load := int64(0)
		for second := range int64(60) { // a ramp, with falls
			if load = min(p.Rate.Count, max(load, p.Start-p.Rise)+1+r.Int64N(p.Rise)); r.IntN(10) == 0 {
				load = r.Int64N(load + 1)
			}
			for range load {
				if v := w.Take(&s, seconds(second)+Time(r.Int64N(int64(time.Second)/2)), 1); !v.Allowed {
					return fmt.Errorf("%+v: a load of %d refused in second %d: %+v", p, load, second, v)
				}
			}
		}
		s = SlidingState{}
		before := int64(0)
		full := 0 // windows since the rate was reached
		for second := int64(0); second < 300 && full < 10; second++ {
			admitted := int64(0)
			for w.Take(&s, seconds(second), 1).Allowed {
				admitted++
			}
			if most := min(p.Rate.Count, max(p.Start, before+p.Rise)); admitted != most {
				return fmt.Errorf("%+v: a step admitted %d in second %d, want %d", p, admitted, second, most)
			}
			if before = admitted; before == p.Rate.Count {
				full++
			}
		}
		if before != p.Rate.Count {
			return fmt.Errorf("%+v: never reached its rate", p)
		}
		return nil
	})
}

func TestRisingWindowConverts(t *testing.T) {
	from := NewRisingCounter(Policy{Algorithm: RisingWindow, Rate: PerSecond(10), Start: 1, Rise: 2})
	same := NewRisingCounter(Policy{Algorithm: RisingWindow, Rate: PerSecond(20), Start: 5, Rise: 1})
	other := NewRisingCounter(Policy{Algorithm: RisingWindow, Rate: PerMinute(50), Start: 5, Rise: 1})
	s := SlidingState{Index: 120, Cur: 4, Prev: 3}
	if got := same.Convert(s, &from, seconds(120)); got != s {
		t.Errorf("%+v under the same period", got)
	}
	if got := other.Convert(s, &from, seconds(120)); got != (SlidingState{Index: 2, Cur: 4}) {
		t.Errorf("%+v under another", got)
	}
	if got := other.Convert(s, &from, seconds(121)); got != (SlidingState{}) {
		t.Errorf("%+v of a window that has ended", got)
	}
}

func TestRisingWindowPolicy(t *testing.T) {
	good := Policy{Algorithm: RisingWindow, Rate: PerSecond(5), Rise: 1}
	for name, change := range map[string]func(*Policy){
		"rise is 0": func(p *Policy) { p.Rise = 0 }, "rise is 4611686018427387904": func(p *Policy) { p.Rise = MaxCount + 1 },
		"start is -1": func(p *Policy) { p.Start = -1 }, "count_refused has no meaning": func(p *Policy) { p.CountRefused = true },
	} {
		p := good
		if change(&p); p.Validate() == nil {
			t.Errorf("%s: %+v is valid", name, p)
		}
	}
	if good.Validate() != nil || good.Quota() != 5 {
		t.Errorf("%v, %d", good.Validate(), good.Quota())
	}
	w := NewRisingCounter(Policy{Algorithm: RisingWindow, Rate: Rate{MaxCount, math.MaxInt64}, Rise: MaxCount, Start: MaxCount})
	s := SlidingState{Cur: math.MaxInt64, Prev: math.MaxInt64}
	makesSense(t, w.Take(&s, math.MaxInt64, math.MaxInt64))
	makesSense(t, w.Peek(SlidingState{Index: math.MaxInt64, Cur: 1}, 0, math.MaxInt64))
}
