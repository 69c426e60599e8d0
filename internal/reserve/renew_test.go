package reserve_test

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stint-io/stint/internal/explain"
	"github.com/stint-io/stint/internal/reserve"
	"github.com/stint-io/stint/internal/seeding"
	"github.com/stint-io/stint/limit"
)

const perHour = "{name: tokens, key: [tenant], algorithm: fixed_window, rate: 1000/hour}"

func (w *world) renew(id string, used int64, ttl time.Duration) reserve.Reservation {
	w.Helper()
	r, err := w.book.Renew(w.Context(), id, used, ttl)
	if err != nil {
		w.Fatal(err)
	}
	return r
}

// pass lets time go by, and ends what is over.
func (w *world) pass(d time.Duration) {
	w.Helper()
	w.clock.Add(int64(d))
	if err := w.book.Sweep(w.Context()); err != nil {
		w.Fatal(err)
	}
}

func TestRenewWalk(t *testing.T) {
	w := newWorld(t, perHour)
	r, _ := w.reserve(500)
	w.pass(40 * time.Second)
	if got := w.renew(r.ID, 100, 0); got.Used != 100 || got.Reserved != 500 || got.Extended || !got.Ends.Equal(r.Ends.Add(40*time.Second)) {
		t.Errorf("%+v", got)
	}
	w.is(500, "a renewal within what is reserved")
	w.pass(40 * time.Second)
	w.is(500, "after the first end")
	want := w.renew(r.ID, 600, 2*time.Minute)
	if want.Reserved != 600 || !want.Extended {
		t.Errorf("%+v", want)
	}
	w.is(600, "a renewal above it")
	w.pass(time.Second)
	if got := w.renew(r.ID, 599, time.Hour); got != want {
		t.Errorf("less than was said before: %+v, want %+v", got, want)
	}
	if got := w.renew(r.ID, 600, time.Second); !got.Ends.Equal(want.Ends) || got.Reserved != 600 {
		t.Errorf("a shorter ttl: %+v", got)
	}
	w.is(600, "said again")
	if _, err := w.book.Commit(t.Context(), r.ID, 550); err != nil {
		t.Error(err)
	}
	w.is(550, "committed below")
	if _, err := w.book.Renew(t.Context(), r.ID, 700, 0); !errors.Is(err, reserve.ErrSettled) {
		t.Error(err)
	}
	w.is(550, "renewed after the commit")

	// A crash: what was used stays charged, whatever was reserved.
	for _, charge := range []bool{false, true} {
		w := newWorld(t, perHour)
		r, _, err := w.book.Reserve(t.Context(), request(500), 10*time.Second, charge)
		if err != nil {
			t.Fatal(err)
		}
		w.renew(r.ID, 120, 0)
		w.pass(10 * time.Second)
		w.is(120, "after the end")
		got := w.renew(r.ID, 150, 0)
		if got.State != reserve.Open || !got.Late || got.Reserved != 150 {
			t.Errorf("%+v", got)
		}
		w.is(150, "renewed late")
		w.pass(10 * time.Second)
		w.is(150, "after the second end")
		if got, err := w.book.Commit(t.Context(), r.ID, 140); err != nil || !got.Late || got.Actual != 140 {
			t.Errorf("%+v, %v", got, err)
		}
		w.is(140, "committed late")
	}
}

// A renewal may go into debt, which the next wait for; of what nobody has said anything, all comes back late as well.
func TestRenewIntoDebt(t *testing.T) {
	w := newWorld(t, perHour)
	r, _ := w.reserve(300)
	w.reserve(700)
	w.renew(r.ID, 900, 0)
	w.is(1000, "in debt")
	if _, err := w.book.Commit(t.Context(), r.ID, 300); err != nil {
		t.Fatal(err)
	}
	w.is(1000, "the debt came back")
	if _, ok := w.reserve(1); ok {
		t.Error("there is nothing left")
	}
}

// Of several limits each holds what was used; one of requests in flight keeps its permit.
func TestRenewSeveral(t *testing.T) {
	w := newWorld(t, perHour+", {name: all, algorithm: fixed_window, rate: 5000/hour}, {name: flight, algorithm: concurrency, max_in_flight: 1, timeout: 1h}")
	r, _ := w.reserve(400)
	w.renew(r.ID, 600, 0)
	if _, ok := w.reserve(1); ok {
		t.Error("the permit was given back")
	}
	x, err := explain.Request(t.Context(), w.engine, request(1))
	if err != nil || x.Limits[0].Used != 600 || x.Limits[1].Used != 600 {
		t.Fatalf("%+v %v", x.Limits, err)
	}
	// Reset by hand: nothing comes back to it that is gone, and what is used from then on counts in whole.
	c := w.engine.Counters("tokens", nil)[0]
	key, err := c.Limit.KeyFrom(request(1).Attributes)
	if err != nil {
		t.Fatal(err)
	}
	id := c.Counters.Spec().ID
	w.pass(50 * time.Second)
	w.renew(r.ID, 600, 0)
	w.pass(20 * time.Second) // it is listed anew
	if held, err := w.book.Held(t.Context(), id, key); held != 600 || err != nil {
		t.Error(held, err)
	}
	if _, err := w.book.Release(t.Context(), r.ID); err != nil {
		t.Fatal(err)
	}
	w.is(0, "released after it was renewed")
	if _, ok := w.reserve(1); !ok {
		t.Error("the permit was not given back")
	}
}

// one is a reservation of the model.
type one struct {
	id           string
	held, counts int64
	used         int64 // -1 = nobody has said anything
	ends         int64
	charge       bool
	state        reserve.State
}

func (r *one) expire(now int64) {
	if r.state != reserve.Open || r.ends > now {
		return
	}
	r.state, r.counts = reserve.Expired, max(r.used, 0)
	if r.used < 0 && r.charge {
		r.counts = r.held
	}
}

// In whatever order reservations are made, renewed (also late, again and with less), committed, released and left, and
// whatever the clock does: what counts is the actual cost of those committed, what those that have ended were said to
// have used (or what they held, where that stays charged), and what open ones hold.
func TestRenewHistories(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	for seed := range seeding.Draw(t, 40) {
		rnd := rand.New(rand.NewPCG(41, seed))
		w := newWorld(t, "{name: tokens, key: [tenant], algorithm: fixed_window, rate: 1000000/hour}")
		w.clock.Add(int64(10 * time.Minute)) // so that no jump leaves the hour
		var all []*one
		for range 150 {
			w.clock.Add(rnd.Int64N(int64(10 * time.Second)))
			if rnd.IntN(20) == 0 {
				w.clock.Add(-rnd.Int64N(int64(30 * time.Second)))
			}
			now := w.clock.Load()
			if rnd.IntN(3) == 0 {
				w.pass(0)
				for _, r := range all {
					r.expire(now)
				}
			}
			var r *one
			if len(all) > 0 {
				r = all[max(0, len(all)-1-rnd.IntN(5))]
			}
			switch what := rnd.IntN(8); {
			case r == nil || what < 2:
				cost, ttl := 1+rnd.Int64N(400), time.Duration(1+rnd.IntN(30))*time.Second
				charge := rnd.IntN(2) == 0
				got, _, err := w.book.Reserve(t.Context(), request(cost), ttl, charge)
				if err != nil {
					t.Fatal(err)
				}
				all = append(all, &one{got.ID, cost, cost, -1, now + int64(ttl), charge, reserve.Open})
			case what < 6:
				used, ttl := rnd.Int64N(600), time.Duration(1+rnd.IntN(30))*time.Second
				got, err := w.book.Renew(t.Context(), r.id, used, ttl)
				if ended := r.state == reserve.Committed || r.state == reserve.Released; ended != errors.Is(err, reserve.ErrSettled) || !ended && err != nil {
					t.Fatal(seed, r.state, err)
				} else if ended || used < r.used {
					break
				}
				r.used, r.ends, r.state = used, max(r.ends, now+int64(ttl)), reserve.Open
				r.held = max(r.counts, used)
				r.counts = r.held
				if got.Reserved != r.held || got.Used != used || got.Ends.UnixNano() != r.ends {
					t.Fatalf("seed %d: %+v, want %+v", seed, got, r)
				}
			case what == 6:
				_, err := w.book.Release(t.Context(), r.id)
				if (err != nil) != (r.state == reserve.Committed) {
					t.Fatal(seed, r.state, err)
				}
				if r.state == reserve.Open {
					r.state, r.counts = reserve.Released, 0
				}
			default:
				actual := rnd.Int64N(700)
				_, err := w.book.Commit(t.Context(), r.id, actual)
				if r.state == reserve.Released || r.state == reserve.Committed && r.counts != actual {
					if !errors.Is(err, reserve.ErrSettled) {
						t.Fatal(seed, r.state, err)
					}
					break
				}
				if err != nil {
					t.Fatal(err)
				}
				r.state, r.counts = reserve.Committed, actual
			}
			sum := int64(0)
			for _, r := range all {
				sum += r.counts
			}
			w.is(sum, fmt.Sprint("seed ", seed))
		}
	}
}

// A clock that is put a day back and forth ends nothing twice, and loses no reservation.
func TestClockJumps(t *testing.T) {
	const day = 24 * time.Hour
	for _, jump := range []time.Duration{day, -day} {
		w := newWorld(t, "{name: tokens, key: [tenant], algorithm: fixed_window, rate: 1000/week}")
		w.clock.Store(time.Date(2026, 11, 25, 12, 0, 0, 0, time.UTC).UnixNano()) // a Wednesday
		r, _ := w.reserve(400)
		s, _ := w.reserve(300)
		w.renew(s.ID, 200, 0)
		w.pass(jump)
		w.renew(r.ID, 100, 0)
		w.renew(s.ID, 250, 0)
		w.pass(-jump)
		w.renew(r.ID, 120, 0)
		w.pass(2*day + 2*time.Hour) // wherever their ends were
		w.is(370, fmt.Sprint("after a jump of ", jump))
	}
}

func TestRenewBadInput(t *testing.T) {
	w := newWorld(t, perHour)
	r, _ := w.reserve(10)
	for _, used := range []int64{-1, math.MinInt64, math.MaxInt64, limit.MaxCount + 1} {
		if _, err := w.book.Renew(t.Context(), r.ID, used, 0); !errors.Is(err, reserve.ErrBad) {
			t.Error(used, err)
		}
	}
	for _, ttl := range []time.Duration{-1, 1, reserve.MaxTTL + 1, 10 * 365 * 24 * time.Hour} {
		if _, err := w.book.Renew(t.Context(), r.ID, 1, ttl); !errors.Is(err, reserve.ErrBad) {
			t.Error(ttl, err)
		}
	}
	for _, id := range []string{"", "stranger", string(make([]byte, 5000)), r.ID[:len(r.ID)-1], "../" + r.ID} {
		if _, err := w.book.Renew(t.Context(), id, 1, 0); !errors.Is(err, reserve.ErrUnknown) {
			t.Errorf("%q: %v", id, err)
		}
	}
	w.is(10, "bad input")
	if _, err := w.book.Renew(t.Context(), r.ID, limit.MaxCount, 0); err != nil {
		t.Error(err)
	}
	w.is(1000, "as much as can be")
	if _, err := w.book.Commit(t.Context(), r.ID, 3); err != nil {
		t.Error(err)
	}
	w.is(1000, "settled after all: so much does not come back")
}
