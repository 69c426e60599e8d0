package limit

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"
)

// What is given back comes from the oldest of what a log still counts, and leaves nothing
// behind: every answer, that the key is as good as new included, is that of a plain list.
func TestHistoriesLogRefunds(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	eachHistory(t, func(r *rand.Rand) error {
		p := smallPolicy(r, SlidingWindowLog)
		p.CountRefused = false
		l, c := NewSlidingLog(p), newClock(r, p.Rate.Period)
		var s LogState
		var list []event
		for step := range 40 {
			now := c.tick(r)
			at := now
			if len(list) > 0 {
				at = max(now, list[len(list)-1].at)
			}
			expire := func() {
				for len(list) > 0 && list[0].at <= at-Time(p.Rate.Period) {
					list = list[1:]
				}
			}
			used := func() int64 { return sumIn(list, at-Time(p.Rate.Period), at) }
			if r.IntN(3) == 0 {
				back := r.Int64N(p.Rate.Count + 2)
				if len(list) > 0 && r.IntN(2) == 0 {
					back = list[0].cost
				}
				l.Refund(&s, now, back)
				for expire(); len(list) > 0 && back > 0; {
					n := min(back, list[0].cost)
					back, list[0].cost = back-n, list[0].cost-n
					if list[0].cost == 0 {
						list = list[1:]
					}
				}
			} else if cost := smallCost(r, p.Rate.Count); l.Take(&s, now, cost).Allowed != (used()+cost <= p.Rate.Count) {
				return fmt.Errorf("step %d: %+v: cost %d with %d used", step, p, cost, used())
			} else if used()+cost <= p.Rate.Count && cost > 0 {
				expire()
				list = append(list, event{at, cost})
			}
			if used() == 0 {
				if !l.Fresh(s, at) {
					return fmt.Errorf("step %d: %+v: nothing is used, but the key is not as good as new: %+v", step, p, s)
				}
				continue
			}
			v, reset := l.Peek(s, now, 0), list[len(list)-1].at.Add(p.Rate.Period)
			if v.Remaining != p.Rate.Count-used() || now.Add(v.ResetAfter) != reset {
				return fmt.Errorf("step %d: %+v: got %+v, want %d used until %d", step, p, v, used(), reset)
			}
		}
		return nil
	})
}

// A refund of a window gives back what was taken in the window that is current, no more
// than that, and lifts no ban.
func TestHistoriesWindowRefunds(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	eachHistory(t, func(r *rand.Rand) error {
		p := smallPolicy(r, FixedWindow)
		if r.IntN(3) == 0 {
			p.Ban = p.Rate.Period
		}
		q := Policy{Algorithm: SlidingWindowCounter, Rate: p.Rate, CountRefused: p.CountRefused}
		w, c := NewFixedCounter(p), NewSlidingCounter(q)
		var fixed FixedState
		var sliding SlidingState
		now := Time(r.Int64N(1 << 40))
		period := Time(p.Rate.Period)
		for step := range 30 {
			now += Time(r.Int64N(int64(period)/2 + 1))
			cost := smallCost(r, p.Rate.Count)
			if r.IntN(2) == 0 {
				w.Take(&fixed, now, cost)
				c.Take(&sliding, now, cost)
				continue
			}
			before, was := fixed, sliding
			w.Refund(&fixed, now, cost)
			c.Refund(&sliding, now, cost)
			want := before
			banned := p.Ban > 0 && before.Count > p.Rate.Count
			if now < before.Start+period && !banned {
				want.Count = max(0, before.Count-cost)
			}
			if fixed != want {
				return fmt.Errorf("step %d: %+v: refund of %d at %d made %+v of %+v, want %+v", step, p, cost, now, fixed, before, want)
			}
			if is := was; int64(now/period) == was.Index {
				if is.Cur = max(0, was.Cur-cost); sliding != is {
					return fmt.Errorf("step %d: %+v: refund of %d at %d made %+v of %+v, want %+v", step, q, cost, now, sliding, was, is)
				}
			} else if sliding != was {
				return fmt.Errorf("step %d: %+v: refund of %d at %d made %+v of %+v, which is of another window", step, q, cost, now, sliding, was)
			}
		}
		return nil
	})
}

// Where refused requests count, all that is asked is charged. So a reservation that is
// given back leaves exactly what a limiter has that never made it, whatever was refused
// because of it.
func TestHistoriesReservationsAmongCountedRefusals(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	eachHistory(t, func(r *rand.Rand) error {
		p := Policy{
			Algorithm: []Algorithm{TokenBucket, FixedWindow, SlidingWindowLog, SlidingWindowCounter}[r.IntN(4)],
			Rate:      Rate{1 + r.Int64N(5), time.Duration(1 + r.Int64N(30))}, CountRefused: true,
		}
		if p.Algorithm == TokenBucket {
			p.Burst = 1 + r.Int64N(5)
		}
		with, err := NewLimiter(p)
		if err != nil {
			return err
		}
		without, err := NewLimiter(p)
		if err != nil {
			return err
		}
		without.origin, without.epoch = with.origin, with.epoch
		now := Time(0)
		for round := range 8 {
			at := with.origin.Add(time.Duration(now))
			held := with.ReserveN(at, 1+r.Int64N(p.Quota()))
			later := held.DelayFrom(at) > 0
			for range r.IntN(6) {
				if later { // while it waits nobody passes, and nothing is counted
					break
				}
				now += Time(r.Int64N(int64(p.Rate.Period)))
				at = with.origin.Add(time.Duration(now))
				cost := 1 + r.Int64N(p.Quota()+1)
				with.AllowN(at, cost)
				without.AllowN(at, cost)
			}
			if !held.CancelAt(at) {
				return fmt.Errorf("round %d: %+v: nothing came back", round, p)
			}
			for ahead := range Time(6) {
				then := with.origin.Add(time.Duration(now + ahead*Time(p.Rate.Period)/4))
				if got, want := with.RemainingAt(then), without.RemainingAt(then); got != want {
					return fmt.Errorf("round %d: %+v: %d remain %d/4 periods on, want %d", round, p, got, ahead, want)
				}
			}
			now += Time(r.Int64N(3 * int64(p.Rate.Period)))
		}
		return nil
	})
}
