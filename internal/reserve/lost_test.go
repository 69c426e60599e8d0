package reserve_test

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stint-io/stint/internal/explain"
	"github.com/stint-io/stint/internal/records"
	"github.com/stint-io/stint/internal/reserve"
	"github.com/stint-io/stint/internal/seeding"
	"github.com/stint-io/stint/store"
)

// unheard are records that do what they are told, and whose answers are lost now and then. Those of a caller that
// has gone are always lost, as a file's are that is written later.
type unheard struct {
	store.Records
	rnd  *rand.Rand
	lose float64
}

func (u *unheard) Swap(ctx context.Context, table, key string, old, value []byte, keep time.Duration) (bool, []byte, error) {
	swapped, present, err := u.Records.Swap(ctx, table, key, old, value, keep)
	if err == nil && (ctx.Err() != nil || u.rnd.Float64() < u.lose) {
		return false, nil, store.ErrUnavailable
	}
	return swapped, present, err
}

// TestLostAnswers: whoever hangs up, and whatever answer of the records is lost, what counts in the end is what was
// committed, and nothing of reservations that were released, or whose caller never got an ID.
func TestLostAnswers(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	for seed := range seeding.Draw(t, 30) {
		w := newWorld(t, "{name: hour, key: [tenant], rate: 1000000/hour, algorithm: fixed_window}")
		kept := &unheard{records.New(w.now, 0), rand.New(rand.NewPCG(seed, 1)), 0.2}
		w.book = reserve.New(w.engine, kept, slog.New(slog.DiscardHandler), func() time.Time { return time.Unix(0, w.clock.Load()) })
		gone, cancel := context.WithCancel(t.Context())
		cancel()
		ctx := func() context.Context {
			if kept.rnd.IntN(2) == 0 {
				return gone
			}
			return t.Context()
		}
		want := int64(0)
		for range 60 {
			r, d, err := w.book.Reserve(ctx(), request(100), time.Second, false)
			if err != nil {
				continue
			}
			if !d.Allowed {
				t.Fatal(d)
			}
			actual := kept.rnd.Int64N(300)
			finish := func() error { _, err := w.book.Commit(ctx(), r.ID, actual); return err }
			if kept.rnd.IntN(3) == 0 {
				actual = 0
				finish = func() error { _, err := w.book.Release(ctx(), r.ID); return err }
			}
			for tries := 0; ; tries++ {
				if err := finish(); err == nil {
					break
				} else if !errors.Is(err, store.ErrUnavailable) || tries > 100 {
					t.Fatal(err)
				}
			}
			want += actual
		}
		kept.lose = 0
		w.clock.Add(int64(5 * time.Second))
		if err := w.book.Sweep(t.Context()); err != nil {
			t.Fatal(err)
		}
		w.is(want, "lost answers")
	}
}

// TestResetAndReserved: what an open reservation holds comes back once, not to a key that was reset, nor beside a refund.
func TestResetAndReserved(t *testing.T) {
	w := newWorld(t, "{name: hour, key: [tenant], rate: 1000/hour, algorithm: fixed_window}")
	c := w.engine.Counters("hour", nil)[0]
	key, err := c.Limit.KeyFrom(request(1).Attributes)
	if err != nil {
		t.Fatal(err)
	}
	id := c.Counters.Spec().ID
	a, _ := w.reserve(300)
	b, _ := w.reserve(500)
	if _, err := w.book.Commit(t.Context(), b.ID, 400); err != nil {
		t.Fatal(err)
	}
	if held, err := w.book.Held(t.Context(), id, key); held != 300 || err != nil {
		t.Fatal(held, err)
	}
	if held, err := w.book.Held(t.Context(), id, []byte("other")); held != 0 || err != nil {
		t.Fatal(held, err)
	}
	if err := w.book.Forget(t.Context(), id, key); err != nil {
		t.Fatal(err)
	}
	if held, err := w.book.Held(t.Context(), id, key); held != 0 || err != nil {
		t.Fatal(held, err)
	}
	if _, err := w.book.Release(t.Context(), a.ID); err != nil {
		t.Fatal(err)
	}
	w.is(700, "released after it was forgotten")
}

// TestInFlight: a reservation holds one permit of a limit of requests in flight, until it is settled.
func TestInFlight(t *testing.T) {
	w := newWorld(t, "{name: flight, key: [tenant], algorithm: concurrency, max_in_flight: 2, timeout: 1h}, {name: hour, key: [tenant], rate: 1000/hour, algorithm: fixed_window}")
	a, _ := w.reserve(500)
	b, ok := w.reserve(100)
	if !ok {
		t.Fatal("the second")
	}
	if _, ok := w.reserve(1); ok {
		t.Fatal("the third")
	}
	if _, err := w.book.Release(t.Context(), a.ID); err != nil {
		t.Fatal(err)
	}
	if _, ok := w.reserve(1); !ok {
		t.Fatal("after the first has ended")
	}
	if _, ok := w.reserve(1); ok {
		t.Fatal("full again")
	}
	if _, err := w.book.Commit(t.Context(), b.ID, 100); err != nil {
		t.Fatal(err)
	}
	if _, ok := w.reserve(1); !ok {
		t.Fatal("after the second has ended")
	}
}

// TestClampedWhileRefusedCount: an estimate above the limit takes the limit, once, where refused requests count too.
func TestClampedWhileRefusedCount(t *testing.T) {
	w := newWorld(t, "{name: hour, key: [tenant], rate: 1000/hour, algorithm: fixed_window, count_refused: true}")
	r, ok := w.reserve(5000)
	if !ok || !r.Clamped || r.Reserved != 1000 {
		t.Fatalf("%v %+v", ok, r)
	}
	if _, err := w.book.Commit(t.Context(), r.ID, 10); err != nil {
		t.Fatal(err)
	}
	w.is(10, "clamped")
}

// TestRefusedWhileRefusedCount: an estimate that is refused is not counted, where refused requests are.
func TestRefusedWhileRefusedCount(t *testing.T) {
	w := newWorld(t, "{name: hour, key: [tenant], rate: 1000/hour, algorithm: fixed_window, count_refused: true}, {name: all, rate: 5000/hour, algorithm: fixed_window, count_refused: true}")
	r, _ := w.reserve(800)
	for range 3 {
		if _, ok := w.reserve(300); ok {
			t.Error("300 of 200 were reserved")
		}
	}
	if _, err := w.book.Commit(t.Context(), r.ID, 800); err != nil {
		t.Fatal(err)
	}
	x, err := explain.Request(t.Context(), w.engine, request(1))
	if err != nil || x.Limits[0].Used != 800 || x.Limits[1].Used != 800 {
		t.Errorf("%+v %v", x.Limits, err)
	}
}
