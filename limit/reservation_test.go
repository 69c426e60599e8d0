package limit

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

func TestReserve(t *testing.T) {
	l, now := newLimiter(t, bucketPolicy(PerSecond(1), 2)), time.Now()
	var delays []time.Duration
	for range 5 {
		r := l.ReserveN(now, 1)
		delays = append(delays, r.DelayFrom(now))
	}
	want := []time.Duration{0, 0, time.Second, 2 * time.Second, 3 * time.Second}
	if !slices.Equal(delays, want) {
		t.Errorf("got %v, want %v", delays, want)
	}
	for _, n := range []int64{-1, 3, math.MaxInt64} {
		if r := l.ReserveN(now, n); r.OK() || r.DelayFrom(now) != Never || r.CancelAt(now) {
			t.Errorf("ReserveN(%d): %+v", n, r)
		}
	}
	if l.AllowN(now.Add(time.Second), 1) {
		t.Error("Allow passed those who hold reservations")
	}
	if r := l.ReserveN(now, 0); !r.OK() || r.DelayFrom(now) != 0 {
		t.Errorf("ReserveN(0): %+v", r)
	}
}

func TestReserveWindows(t *testing.T) {
	for _, p := range []Policy{
		{Algorithm: FixedWindow, Rate: PerMinute(2), Align: AlignFirstHit},
		{Algorithm: SlidingWindowLog, Rate: PerMinute(2)},
	} {
		l, now := newLimiter(t, p), time.Now()
		for i, want := range []time.Duration{0, 0, time.Minute, time.Minute, 2 * time.Minute} {
			r := l.ReserveN(now, 1)
			if got := r.DelayFrom(now); got != want {
				t.Errorf("%v: reservation %d: delay %v, want %v", p.Algorithm, i+1, got, want)
			}
		}
	}
}

func TestReserveLeakyBucket(t *testing.T) {
	l, now := newLimiter(t, Policy{Algorithm: LeakyBucket, Rate: PerSecond(10), Burst: 1}), time.Now()
	for i := range 4 {
		r := l.ReserveN(now, 1)
		if got, want := r.DelayFrom(now), time.Duration(i)*100*time.Millisecond; got != want {
			t.Errorf("reservation %d: delay %v, want %v", i+1, got, want)
		}
	}
}

func TestReservationCancelAtOnce(t *testing.T) {
	l, now := newLimiter(t, bucketPolicy(PerHour(1), 1)), time.Now()
	r := l.ReserveN(now, 1)
	if !r.CancelAt(now.Add(1)) || r.CancelAt(now.Add(1)) {
		t.Error("want something back, once")
	}
	if !l.AllowN(now.Add(1), 1) {
		t.Error("what came back is not there")
	}
}

// A request after a cancelled reservation gets its time; the others keep theirs.
func TestReservationCancelInTheMiddle(t *testing.T) {
	l, now := newLimiter(t, bucketPolicy(PerSecond(1), 1)), time.Now()
	var rs [4]Reservation
	for i := range rs {
		rs[i] = l.ReserveN(now, 1)
	}
	rs[1].CancelAt(now)
	if got := rs[2].DelayFrom(now); got != 2*time.Second {
		t.Errorf("a reservation moved to %v", got)
	}
	for i, want := range []time.Duration{time.Second, 4 * time.Second} {
		r := l.ReserveN(now, 1)
		if got := r.DelayFrom(now); got != want {
			t.Errorf("newcomer %d: delay %v, want %v", i+1, got, want)
		}
	}
}

// A refund must not be worth more than it was: the bucket was full again before
// the second request, so giving back the first adds nothing.
func TestReservationCancelAfterRefill(t *testing.T) {
	l, now := newLimiter(t, bucketPolicy(PerSecond(1), 1)), time.Now()
	r := l.ReserveN(now, 1)
	later := now.Add(time.Second)
	if !l.AllowN(later, 1) {
		t.Fatal("refused")
	}
	r.CancelAt(later)
	if l.AllowN(later, 1) {
		t.Error("two at once through a burst of 1")
	}
}

func TestReservationIsForgottenInTime(t *testing.T) {
	l, now := newLimiter(t, bucketPolicy(PerSecond(1), 1000)), time.Now()
	r := l.ReserveN(now, 1)
	for range journal {
		l.AllowN(now, 1)
	}
	if r.CancelAt(now) || len(l.slots) != 0 {
		t.Errorf("%d slots are kept", len(l.slots))
	}
}

func TestReservationOfAFirstHit(t *testing.T) {
	l := newLimiter(t, Policy{Algorithm: FixedWindow, Rate: PerMinute(2), Align: AlignFirstHit})
	now := time.Now()
	r := l.ReserveN(now, 1)
	l.AllowN(now.Add(50*time.Second), 1)
	l.AllowN(now.Add(60*time.Second), 1)
	l.AllowN(now.Add(60*time.Second), 1)
	if r.CancelAt(now.Add(60 * time.Second)) {
		t.Error("the window that it opened is in use by others")
	}
	if got := l.RemainingAt(now.Add(60 * time.Second)); got != 0 {
		t.Errorf("remaining %d", got)
	}
}

func TestReservationUnderATighterPolicy(t *testing.T) {
	l := newLimiter(t, bucketPolicy(PerSecond(1), 1))
	l.Reserve()
	r := l.Reserve()
	if err := l.SetRate(PerMinute(1)); err != nil {
		t.Fatal(err)
	}
	if got := r.Delay(); got < 55*time.Second || got > time.Minute {
		t.Errorf("delay %v, want nearly a minute", got)
	}
	if err := l.SetRate(PerSecond(1000)); err != nil {
		t.Fatal(err)
	}
	if got := r.Delay(); got > time.Second || got < 500*time.Millisecond {
		t.Errorf("delay %v, want the second that was told", got)
	}
}

// Whatever is reserved, given back and taken at once: who acts is within the
// limit, and the limiter is as if what was given back had never been.
func TestHistoriesReservations(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	eachHistory(t, func(r *rand.Rand) error {
		rate, burst := Rate{1 + r.Int64N(5), time.Duration(1 + r.Int64N(30))}, 1+r.Int64N(5)
		p := bucketPolicy(rate, burst)
		switch r.IntN(3) {
		case 1:
			p = Policy{Algorithm: SlidingWindowLog, Rate: rate}
			burst = rate.Count
		case 2: // of a rate whose delays are whole, so that the model is exact
			p = Policy{Algorithm: LeakyBucket, Rate: Every(rate.Period), Burst: burst - 1}
		}
		l, err := NewLimiter(p)
		if err != nil {
			return err
		}
		m := newMeter(p)
		var held []heldReservation
		now := Time(0)
		at := func(t Time) time.Time { return l.origin.Add(time.Duration(t)) }
		for step := range 50 {
			now += Time(r.Int64N(10))
			cost := 1 + r.Int64N(burst)
			switch r.IntN(4) {
			case 0, 1:
				res := l.ReserveN(at(now), cost)
				if !res.OK() {
					return fmt.Errorf("step %d: %+v: reservation of %d refused", step, p, cost)
				}
				held = append(held, heldReservation{res, event{now.Add(res.DelayFrom(at(now))), cost}})
			case 2:
				if l.AllowN(at(now), cost) {
					held = append(held, heldReservation{event: event{now, cost}})
				}
			default:
				if len(held) == 0 {
					continue
				}
				i := r.IntN(len(held))
				if held[i].CancelAt(at(now)) {
					held = slices.Delete(held, i, i+1)
				}
			}
			if err := checkHeld(&m, held); err != nil {
				return fmt.Errorf("step %d: %+v: %w", step, p, err)
			}
			want, pending := remainingAfter(&m, held, l.epoch, now)
			if got := l.RemainingAt(at(now)); !pending && got != want {
				return fmt.Errorf("step %d: %+v: remaining %d at %d, want %d: %v", step, p, got, now, want, held)
			}
		}
		return nil
	})
}

type heldReservation struct {
	Reservation
	event
}

// checkHeld checks that all acts together are within the limit.
func checkHeld(m *meter, held []heldReservation) error {
	acts := make([]event, len(held))
	for i := range held {
		acts[i] = held[i].event
	}
	slices.SortStableFunc(acts, func(a, b event) int { return int(a.at - b.at) })
	for i, e := range acts {
		switch m.policy.Algorithm {
		case SlidingWindowLog:
			if sumIn(acts[:i+1], e.at-Time(m.policy.Rate.Period), e.at) > m.quota {
				return fmt.Errorf("over at %d: %v", e.at, acts)
			}
		case TokenBucket:
			if !withinBucket(acts[:i], e, m.policy.Rate, m.quota) {
				return fmt.Errorf("over at %d: %v", e.at, acts)
			}
		case LeakyBucket: // each is followed by the time that its cost is worth
			if i > 0 && acts[i-1].cost*int64(m.policy.Rate.Period) > int64(e.at-acts[i-1].at+1)*m.policy.Rate.Count {
				return fmt.Errorf("unpaced at %d: %v", e.at, acts)
			}
		}
	}
	return nil
}

// remainingAfter takes all that is held from a new ledger and says what remains.
// pending says that somebody is still to act.
func remainingAfter(m *meter, held []heldReservation, epoch, now Time) (remaining int64, pending bool) {
	held = slices.Clone(held)
	slices.SortStableFunc(held, func(a, b heldReservation) int { return int(a.at - b.at) })
	var l ledger
	for _, h := range held {
		if h.at > now {
			return 0, true
		}
		m.take(&l, epoch+h.at, h.cost)
	}
	return m.peek(&l, epoch+now, 0).Remaining, false
}
