package reserve_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stint-io/stint/internal/engine"
	"github.com/stint-io/stint/internal/explain"
	"github.com/stint-io/stint/internal/records"
	"github.com/stint-io/stint/internal/reserve"
	"github.com/stint-io/stint/internal/seeding"
	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/rules"
	"github.com/stint-io/stint/store"
	"github.com/stint-io/stint/store/memory"
)

// world is limits, their counters, and a clock.
type world struct {
	*testing.T
	clock  atomic.Int64
	engine *engine.Engine
	book   *reserve.Book
}

func newWorld(t *testing.T, limits string) *world {
	w := &world{T: t}
	w.clock.Store(time.Date(2026, 11, 22, 10, 0, 30, 0, time.UTC).UnixNano())
	set, err := rules.Parse("limits.yaml", []byte("limits: ["+limits+"]"))
	if err != nil {
		t.Fatal(err)
	}
	if w.engine, err = engine.New(memory.New(memory.Options{Now: w.now}), set, engine.Options{}); err != nil {
		t.Fatal(err)
	}
	w.book = reserve.New(w.engine, records.New(w.now, 0), slog.New(slog.DiscardHandler), func() time.Time { return time.Unix(0, w.clock.Load()) })
	return w
}

func (w *world) now() limit.Time { return limit.Time(w.clock.Load()) }

func request(cost int64) limit.Request {
	return limit.Request{Attributes: []limit.Attribute{{Name: "tenant", Value: "acme"}}, Cost: cost}
}

func (w *world) reserve(cost int64) (reserve.Reservation, bool) {
	w.Helper()
	r, d, err := w.book.Reserve(w.Context(), request(cost), 0, false)
	if err != nil {
		w.Fatal(err)
	}
	return r, d.Allowed
}

// used is what counts of the first limit.
func (w *world) used() int64 {
	w.Helper()
	x, err := explain.Request(w.Context(), w.engine, request(1))
	if err != nil {
		w.Fatal(err)
	}
	return x.Limits[0].Used
}

func (w *world) is(used int64, after string) {
	w.Helper()
	if got := w.used(); got != used {
		w.Fatalf("%s: %d used, want %d", after, got, used)
	}
}

const perMinute = "{name: tokens, key: [tenant], algorithm: fixed_window, rate: 1000/minute}"

func TestWalk(t *testing.T) {
	w := newWorld(t, perMinute)
	r, _ := w.reserve(800)
	w.is(800, "reserve")
	if _, ok := w.reserve(300); ok {
		t.Error("300 of 200 were reserved")
	}
	got, err := w.book.Commit(t.Context(), r.ID, 100)
	if err != nil || got.State != reserve.Committed || got.Actual != 100 {
		t.Errorf("%+v, %v", got, err)
	}
	w.is(100, "a commit below")
	again, err := w.book.Commit(t.Context(), r.ID, 100)
	if err != nil || again != got {
		t.Errorf("%+v, %v", again, err)
	}
	w.is(100, "the same again")
	if _, err := w.book.Commit(t.Context(), r.ID, 101); !errors.Is(err, reserve.ErrSettled) {
		t.Error(err)
	}
	if _, err := w.book.Release(t.Context(), r.ID); !errors.Is(err, reserve.ErrSettled) {
		t.Error(err)
	}
	r, _ = w.reserve(500)
	if _, err := w.book.Commit(t.Context(), r.ID, 2000); err != nil {
		t.Error(err)
	}
	w.is(1000, "a commit above: what is over is debt, which no answer shows")
	if _, err := w.book.Release(t.Context(), r.ID); !errors.Is(err, reserve.ErrSettled) {
		t.Error(err)
	}
	w.clock.Add(int64(time.Minute))
	r, _ = w.reserve(5000)
	if !r.Clamped || r.Reserved != 1000 {
		t.Errorf("an estimate above the limit: %+v", r)
	}
	w.is(1000, "clamped")
	if _, err := w.book.Release(t.Context(), r.ID); err != nil {
		t.Error(err)
	}
	if _, err := w.book.Release(t.Context(), r.ID); err != nil {
		t.Error(err)
	}
	w.is(0, "released")
	if _, err := w.book.Commit(t.Context(), r.ID, 5); !errors.Is(err, reserve.ErrSettled) {
		t.Error(err)
	}
}

// A caller that dies gives back what it has reserved when its time is over; if it comes back, what it has spent
// counts.
func TestExpiry(t *testing.T) {
	w := newWorld(t, "{name: tokens, key: [tenant], algorithm: fixed_window, rate: 1000/hour}")
	r, _ := w.reserve(800)
	w.clock.Add(int64(reserve.DefaultTTL) - 1)
	if err := w.book.Sweep(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.is(800, "before its end")
	w.clock.Add(2)
	for range 2 {
		if err := w.book.Sweep(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	w.is(0, "after its end")
	got, err := w.book.Commit(t.Context(), r.ID, 300)
	if err != nil || !got.Late {
		t.Errorf("%+v, %v", got, err)
	}
	w.is(300, "a late commit")
	w.clock.Add(int64(2 * time.Hour))
	if _, err := w.book.Commit(t.Context(), r.ID, 300); !errors.Is(err, reserve.ErrUnknown) {
		t.Error(err)
	}
}

// What a caller that died may have spent stays charged, where that is asked for, and a commit that comes late after
// all makes it what was spent.
func TestExpiryCharges(t *testing.T) {
	w := newWorld(t, "{name: tokens, key: [tenant], algorithm: fixed_window, rate: 1000/hour}")
	r, _, err := w.book.Reserve(t.Context(), request(800), 0, true)
	if err != nil {
		t.Fatal(err)
	}
	w.clock.Add(int64(reserve.DefaultTTL))
	if err := w.book.Sweep(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.is(800, "after its end")
	if got, err := w.book.Commit(t.Context(), r.ID, 300); err != nil || !got.Late {
		t.Errorf("%+v, %v", got, err)
	}
	w.is(300, "a late commit")
}

// What comes back of a window that has ended is not given to the one that is open.
func TestAcrossWindows(t *testing.T) {
	for _, algorithm := range []string{"fixed_window", "sliding_window_counter", "sliding_window_log", "rising_window, rise: 1000"} {
		w := newWorld(t, "{name: tokens, key: [tenant], rate: 1000/minute, algorithm: "+algorithm+"}")
		old, _ := w.reserve(800)
		w.clock.Add(int64(2 * time.Minute))
		w.reserve(600)
		if _, err := w.book.Release(t.Context(), old.ID); err != nil {
			t.Fatal(err)
		}
		w.is(600, algorithm+": released after its window")
	}
}

// Several limits are reserved all or none, and each is settled.
func TestSeveralLimits(t *testing.T) {
	w := newWorld(t, perMinute+", {name: all, algorithm: fixed_window, rate: 500/hour}")
	if _, ok := w.reserve(600); ok {
		// The lesser limit clamps what neither would ever admit.
		w.is(500, "clamped by the lesser")
	} else {
		t.Error("refused")
	}
	if _, ok := w.reserve(1); ok {
		t.Error("one limit is used up")
	}
	w.is(500, "a refusal takes from none")
}

// However reservations are made, committed, released and left, at whatever times, in parallel and again: at any
// time what counts in a window is what was committed in it and what is reserved, and no more than the quota is ever
// reserved at a time.
func TestHistories(t *testing.T) {
	for seed := range seeding.Draw(t, 40) {
		rnd := rand.New(rand.NewPCG(14, seed))
		w := newWorld(t, "{name: tokens, key: [tenant], algorithm: fixed_window, rate: 1000/hour}")
		w.clock.Store(time.Date(2026, 11, 22, 10, 0, 0, 0, time.UTC).UnixNano())
		type one struct {
			id             string
			reserved, ends int64
			state          reserve.State
			actual         int64
		}
		var all []*one
		expected := func() (n int64) {
			for _, r := range all {
				if r.state == reserve.Open {
					n += r.reserved
				}
				n += r.actual
			}
			return n
		}
		for range 100 {
			w.clock.Add(rnd.Int64N(int64(20 * time.Second))) // all within one hour
			if rnd.IntN(3) == 0 {
				if err := w.book.Sweep(t.Context()); err != nil {
					t.Fatal(err)
				}
				for _, r := range all {
					if r.state == reserve.Open && r.ends <= w.clock.Load() {
						r.state = reserve.Expired
					}
				}
			}
			before := expected()
			switch n := len(all); {
			case n == 0 || rnd.IntN(3) == 0:
				cost := 1 + rnd.Int64N(400)
				r, ok := w.reserve(cost)
				if want := before+cost <= 1000; ok != want {
					t.Fatalf("seed %d: %d reserved beside %d: %v", seed, cost, before, ok)
				}
				if ok {
					all = append(all, &one{id: r.ID, reserved: r.Reserved, ends: w.clock.Load() + int64(reserve.DefaultTTL), state: reserve.Open})
				}
			case rnd.IntN(3) == 0:
				r := all[rnd.IntN(n)]
				_, err := w.book.Release(t.Context(), r.id)
				if (err != nil) != (r.state == reserve.Committed) {
					t.Fatal(seed, r.state, err)
				}
				if r.state == reserve.Open {
					r.state = reserve.Released
				}
			default:
				r := all[rnd.IntN(n)]
				actual := rnd.Int64N(r.reserved + r.reserved/2 + 1)
				var errs [3]error
				var at sync.WaitGroup
				for i := range errs {
					at.Go(func() { _, errs[i] = w.book.Commit(t.Context(), r.id, actual) })
				}
				at.Wait()
				refused := r.state == reserve.Released || r.state == reserve.Committed && r.actual != actual
				for _, err := range errs {
					if (err != nil) != refused {
						t.Fatal(seed, r.state, err)
					}
				}
				if !refused && r.state != reserve.Committed {
					r.state, r.actual = reserve.Committed, actual
				}
			}
			w.is(min(expected(), 1000), fmt.Sprint("seed ", seed))
		}
	}
}

func TestBadInput(t *testing.T) {
	w := newWorld(t, perMinute)
	r, _ := w.reserve(10)
	for _, actual := range []int64{-1, math.MinInt64, math.MaxInt64, limit.MaxCount + 1} {
		if _, err := w.book.Commit(t.Context(), r.ID, actual); !errors.Is(err, reserve.ErrBad) {
			t.Error(actual, err)
		}
	}
	for _, id := range []string{"", "stranger", string(make([]byte, 5000)), r.ID + "x", "../" + r.ID} {
		if _, err := w.book.Commit(t.Context(), id, 1); !errors.Is(err, reserve.ErrUnknown) {
			t.Errorf("%q: %v", id, err)
		}
	}
	for _, ttl := range []time.Duration{-1, 1, reserve.MaxTTL + 1} {
		if _, _, err := w.book.Reserve(t.Context(), request(1), ttl, false); !errors.Is(err, reserve.ErrBad) {
			t.Error(ttl, err)
		}
	}
	for _, cost := range []int64{0, -1, math.MaxInt64} {
		if _, _, err := w.book.Reserve(t.Context(), request(cost), 0, false); !errors.Is(err, reserve.ErrBad) {
			t.Error(cost, err)
		}
	}
	w.is(10, "bad input")
}

// deaf are records that fail.
type deaf struct{ store.Records }

func (deaf) Swap(context.Context, string, string, []byte, []byte, time.Duration) (bool, []byte, error) {
	return false, nil, store.ErrUnavailable
}

// A reservation that cannot be kept takes nothing.
func TestRecordsFail(t *testing.T) {
	w := newWorld(t, perMinute)
	book := reserve.New(w.engine, deaf{}, slog.New(slog.DiscardHandler), func() time.Time { return time.Unix(0, w.clock.Load()) })
	if _, _, err := book.Reserve(t.Context(), request(10), 0, false); !errors.Is(err, store.ErrUnavailable) {
		t.Error(err)
	}
	w.is(0, "records fail")
}
