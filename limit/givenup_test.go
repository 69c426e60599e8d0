package limit

import (
	"context"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stint-io/stint/internal/seeding"
)

// A newcomer gets the earliest of the times that were given up which had room for its cost,
// whatever came before it.
func TestHistoriesTimesGivenUp(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	filled := 0
	for seed := range seeding.Draw(t, 1000) {
		r := rand.New(rand.NewPCG(seed, 67))
		l, now := newLimiter(t, bucketPolicy(PerSecond(1), 4)), time.Now()
		type place struct {
			Reservation
			act    time.Duration
			cost   int64
			vacant bool
		}
		var places []place
		for range 12 {
			cost := 1 + r.Int64N(4)
			held := l.ReserveN(now, cost)
			if act := held.DelayFrom(now); act > 0 {
				places = append(places, place{held, act, cost, false})
			}
		}
		for range 30 {
			if i := r.IntN(len(places) - 1); r.IntN(2) == 0 { // the last one stays
				if p := &places[i]; !p.vacant {
					p.CancelAt(now)
					p.vacant = true
				}
				continue
			}
			cost, best := 1+r.Int64N(4), -1
			for i, p := range places {
				if p.vacant && p.cost >= cost && (best < 0 || p.act < places[best].act) {
					best = i
				}
			}
			if best < 0 {
				break // all who come are planned anew now
			}
			held := l.ReserveN(now, cost)
			if got, want := held.DelayFrom(now), places[best].act; got != want {
				t.Fatalf("seed %d: a cost of %d is to wait %v, want %v: %+v", seed, cost, got, want, places)
			}
			places[best] = place{held, places[best].act, cost, false}
			filled++
		}
	}
	if filled < 500 {
		t.Errorf("%d times were taken over: that shows little", filled)
	}
}

// A waiter takes over the time of a cancelled reservation and is served then.
func TestWaiterTakesATimeGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(t, bucketPolicy(PerSecond(1), 1))
		start := time.Now()
		var rs [4]Reservation
		for i := range rs {
			rs[i] = l.Reserve()
		}
		rs[1].Cancel()
		q := told{start: start}
		q.join(l, 0, 1, Never)
		time.Sleep(1500 * time.Millisecond)
		if got := q.all(); len(got) != 1 || got[0].after != time.Second || got[0].err != nil {
			t.Errorf("told %+v, want a permit after 1s", got)
		}
		if got := l.Remaining(); got != 0 {
			t.Errorf("%d remain before those who hold reservations", got)
		}
		time.Sleep(10 * time.Second)
		if got := l.Remaining(); got != 1 {
			t.Errorf("%d remain in the end, want 1", got)
		}
	})
}

// What a reservation took that has acted does not come back once the policy has changed, or
// a refused request was charged all the same.
func TestReservationIsPastRecall(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	for name, happens := range map[string]func(l *Limiter) error{
		"rate": func(l *Limiter) error { return l.SetRate(PerHour(2)) },
		"both": func(l *Limiter) error { return l.SetPolicy(bucketPolicy(PerHour(2), 10)) },
		"counted": func(l *Limiter) error {
			_, err := l.Take(context.Background(), Request{Cost: 10, CountRefused: true})
			return err
		},
	} {
		for n := range 4 {
			synctest.Test(t, func(t *testing.T) {
				l := newLimiter(t, bucketPolicy(PerHour(1), 10))
				var held []Reservation
				for range 1 + n {
					held = append(held, l.Reserve())
				}
				if err := happens(l); err != nil {
					t.Fatal(err)
				}
				before := must(l.Take(t.Context(), Request{Cost: 10, Peek: true}))
				for i, r := range held {
					if r.Cancel() {
						t.Errorf("%s: reservation %d of %d came back", name, i+1, len(held))
					}
				}
				if after := must(l.Take(t.Context(), Request{Cost: 10, Peek: true})); after.Results[0] != before.Results[0] {
					t.Errorf("%s: %+v became %+v", name, before, after)
				}
			})
		}
	}
}

// Waiters are served by the limiter's clock, whatever times other callers name.
func TestChosenTimesLetNobodyGo(t *testing.T) {
	for name, ask := range map[string]func(l *Limiter, early Reservation, at time.Time){
		"AllowN":      func(l *Limiter, _ Reservation, at time.Time) { l.AllowN(at, 1) },
		"RemainingAt": func(l *Limiter, _ Reservation, at time.Time) { l.RemainingAt(at) },
		"CancelAt":    func(_ *Limiter, early Reservation, at time.Time) { early.CancelAt(at) },
		"DelayFrom":   func(_ *Limiter, early Reservation, at time.Time) { early.DelayFrom(at) },
	} {
		synctest.Test(t, func(t *testing.T) {
			l := newLimiter(t, bucketPolicy(PerSecond(1), 2))
			q := told{start: time.Now()}
			early := l.Reserve()
			l.Allow()
			for i := range 3 {
				q.join(l, i, 1, Never)
			}
			ask(l, early, time.Now().Add(time.Hour))
			time.Sleep(10 * time.Second)
			first := time.Second
			if name == "CancelAt" {
				first = 0 // what came back is the first one's
			}
			for i, f := range q.all() {
				if want := first + time.Duration(i)*time.Second; f.who != i || f.err != nil || f.after != want {
					t.Errorf("%s: %+v, want after %v", name, f, want)
				}
			}
		})
	}
}

// What Allow took of a full bucket counts from the time of that Allow for a caller that names an
// earlier time afterwards.
func TestAnEarlierTimeAfterAllow(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	synctest.Test(t, func(t *testing.T) {
		l, start := newLimiter(t, bucketPolicy(PerSecond(1), 10)), time.Now()
		if !l.Allow() {
			t.Fatal("refused")
		}
		time.Sleep(5 * time.Second)
		if !l.AllowN(start.Add(2*time.Second), 10) {
			t.Error("it was full then, and is now")
		}
		if got := l.Remaining(); got != 3 {
			t.Errorf("%d remain, want the 3 that came since", got)
		}
	})
}

// A reservation whose time has come stands in nobody's way, were it the only one.
func TestReservationThatHasActedIsInNobodysWay(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	for n := range 3 {
		l, now := newLimiter(t, bucketPolicy(PerSecond(1), 1)), time.Now()
		l.AllowN(now, 1)
		for range 1 + n {
			l.ReserveN(now, 1)
		}
		acts := time.Duration(1+n) * time.Second
		if l.AllowN(now.Add(acts-1), 1) {
			t.Errorf("%d reservations: one passed them", 1+n)
		}
		if l.AllowN(now.Add(acts+time.Second-1), 1) || !l.AllowN(now.Add(acts+time.Second), 1) {
			t.Errorf("%d reservations: want the next token a second after the last of them", 1+n)
		}
	}
}
