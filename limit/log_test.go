package limit

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"
)

// The article's example (003-31): 2 per minute, refused requests stay in the log.
func TestSlidingLogExample(t *testing.T) {
	l := NewSlidingLog(Policy{Algorithm: SlidingWindowLog, Rate: PerMinute(2), CountRefused: true})
	hour := func(min, sec int64) Time { return seconds(3600 + 60*min + sec) }
	var s LogState
	steps := []struct {
		at   Time
		want bool
		size int
	}{
		{hour(0, 1), true, 1},
		{hour(0, 30), true, 2},
		{hour(0, 50), false, 3},
		{hour(1, 40), true, 2}, // 1:00:01 and 1:00:30 have left, the refused 1:00:50 has not
	}
	for i, step := range steps {
		v := l.Take(&s, step.at, 1)
		if v.Allowed != step.want || s.n != step.size {
			t.Errorf("request %d: got %+v and %d entries, want allowed %v and %d", i+1, v, s.n, step.want, step.size)
		}
	}
	if v := l.Take(&s, hour(1, 49), 1); v.Allowed {
		t.Errorf("with 1:00:50 still in the log: got %+v, want refused", v)
	}
}

func TestSlidingLogBoundary(t *testing.T) {
	l := NewSlidingLog(Policy{Algorithm: SlidingWindowLog, Rate: PerMinute(1)})
	var s LogState
	l.Take(&s, seconds(10), 1)
	if v := l.Take(&s, seconds(70)-1, 1); v.Allowed || v.RetryAfter != 1 {
		t.Errorf("one nanosecond early: got %+v", v)
	}
	if v := l.Take(&s, seconds(70), 1); !v.Allowed {
		t.Errorf("an entry exactly a period old is out: got %+v", v)
	}
	if v := l.Take(&s, seconds(5), 1); v.Allowed || v.RetryAfter != 125*time.Second {
		t.Errorf("after the clock stepped back: got %+v", v)
	}
}

func TestSlidingLogRefund(t *testing.T) {
	l := NewSlidingLog(Policy{Algorithm: SlidingWindowLog, Rate: PerMinute(4)})
	var s LogState
	l.Take(&s, seconds(1), 2)
	l.Take(&s, seconds(2), 2)
	l.Refund(&s, seconds(3), 3)
	if v := l.Peek(s, seconds(3), 0); v.Remaining != 3 || v.ResetAfter != 59*time.Second {
		t.Errorf("got %+v, want the newest request to be what is left", v)
	}
	l.Refund(&s, seconds(3), 100)
	if !l.Fresh(s, seconds(3)) || s.sum != 0 {
		t.Errorf("a refund above what was taken: %+v", s)
	}
}

func TestSlidingLogMemoryIsBounded(t *testing.T) {
	l := NewSlidingLog(Policy{Algorithm: SlidingWindowLog, Rate: PerMinute(100), CountRefused: true})
	var s LogState
	for i := range Time(100_000) {
		l.Take(&s, i, 1)
	}
	if s.n > 101 || s.Bytes() > 16*256 {
		t.Errorf("%d entries in %d bytes, want at most 101 entries", s.n, s.Bytes())
	}
	// What is idle shrinks as it is used.
	for i := range Time(100) {
		l.Take(&s, seconds(1000*int64(i+1)), 1)
	}
	if s.Bytes() > 16*32 {
		t.Errorf("%d bytes for %d entries", s.Bytes(), s.n)
	}
}

func TestSlidingLogDoesNotAllocateOncePrepared(t *testing.T) {
	l := NewSlidingLog(Policy{Algorithm: SlidingWindowLog, Rate: PerSecond(100)})
	var s LogState
	now := Time(0)
	step := func() {
		now += Time(time.Millisecond)
		l.Take(&s, now, 1)
	}
	for range 1000 {
		step()
	}
	if n := testing.AllocsPerRun(1000, step); n != 0 {
		t.Errorf("%v allocations per Take", n)
	}
}

// Never more than N is admitted in any window of P, and every answer is that of a
// model that forgets nothing.
func TestHistoriesSlidingLog(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	eachHistory(t, func(r *rand.Rand) error {
		p := smallPolicy(r, SlidingWindowLog)
		l, c := NewSlidingLog(p), newClock(r, p.Rate.Period)
		var s LogState
		var logged, admitted []event
		var latest Time
		for step := range 40 {
			now, cost := c.tick(r), smallCost(r, p.Rate.Count)
			at := max(now, latest)
			want := sumIn(logged, at-Time(p.Rate.Period), at)+cost <= p.Rate.Count
			peeked := l.Peek(s, now, cost)
			if peeked.Allowed != want {
				return fmt.Errorf("step %d: %+v: peek %d at %d: got %+v, want %v", step, p, cost, now, peeked, want)
			}
			if err := checkWait(peeked, now, func(at Time) bool { return l.Peek(s, at, cost).Allowed }); err != nil {
				return fmt.Errorf("step %d: %+v: peek: %w", step, p, err)
			}
			if r.IntN(5) == 0 {
				l.Refuse(&s, now, cost)
				if p.CountRefused && cost > 0 {
					logged, latest = append(logged, event{at, cost}), at
				}
				continue
			}
			got := l.Take(&s, now, cost)
			if (want || p.CountRefused) && cost > 0 {
				logged, latest = append(logged, event{at, cost}), at
			}
			if want {
				admitted = append(admitted, event{at, cost})
			}
			if sum := sumIn(admitted, at-Time(p.Rate.Period), at); want && sum > p.Rate.Count {
				return fmt.Errorf("step %d: %+v: %d admitted in the window to %d", step, p, sum, at)
			}
			if got.Allowed != want {
				return fmt.Errorf("step %d: %+v: take %d at %d: got %+v, want %v", step, p, cost, now, got, want)
			}
			left := max(0, p.Rate.Count-sumIn(logged, at-Time(p.Rate.Period), at))
			if got.Remaining != left {
				return fmt.Errorf("step %d: %+v: take %d: remaining %d, want %d", step, p, cost, got.Remaining, left)
			}
			if err := checkWait(got, now, func(at Time) bool { return l.Peek(s, at, cost).Allowed }); err != nil {
				return fmt.Errorf("step %d: %+v: take %d: %w", step, p, cost, err)
			}
			if reset := now.Add(got.ResetAfter); !l.Fresh(s, reset) || got.ResetAfter > 0 && l.Fresh(s, reset-1) {
				return fmt.Errorf("step %d: %+v: wrong ResetAfter %v", step, p, got.ResetAfter)
			}
		}
		return nil
	})
}
