package reserve_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stint-io/stint/internal/engine"
	"github.com/stint-io/stint/internal/records"
	"github.com/stint-io/stint/internal/reserve"
	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/rules"
	"github.com/stint-io/stint/store"
)

// away is a taker whose store goes away between a record and its charge.
type away struct {
	*engine.Engine
	away atomic.Bool
}

func (a *away) Settle(ctx context.Context, parts []engine.Part, taken, now limit.Time, actual int64) error {
	if a.away.Load() {
		return store.ErrUnavailable
	}
	return a.Engine.Settle(ctx, parts, taken, now, actual)
}

// lost are records that are away as well, from their next write but one.
type lost struct {
	store.Records
	writes atomic.Int64 // that are still answered; negative = all
}

func (l *lost) Swap(ctx context.Context, table, key string, old, value []byte, keep time.Duration) (bool, []byte, error) {
	if l.writes.Load() >= 0 && l.writes.Add(-1) < 0 {
		l.writes.Store(0)
		return false, nil, store.ErrUnavailable
	}
	return l.Records.Swap(ctx, table, key, old, value, keep)
}

// What is over is charged once the store is back, by whoever repeats the call or by the sweep, and once.
func TestOverIsChargedLater(t *testing.T) {
	for _, all := range []bool{false, true} { // whether the records are away as well
		for _, verb := range []string{"commit", "renew"} {
			for _, again := range []bool{true, false} {
				name := fmt.Sprint(verb, ", records away ", all, ", said again ", again)
				w := newWorld(t, "{name: hour, key: [tenant], rate: 100000/hour, algorithm: fixed_window}")
				a, kept := &away{Engine: w.engine}, &lost{Records: records.New(w.now, 0)}
				kept.writes.Store(-1)
				w.book = reserve.New(a, kept, slog.New(slog.DiscardHandler), func() time.Time { return time.Unix(0, w.clock.Load()) })
				call := func(id string) (err error) {
					if verb == "commit" {
						_, err = w.book.Commit(t.Context(), id, 5000)
					} else {
						_, err = w.book.Renew(t.Context(), id, 5000, 0)
					}
					return err
				}
				r, _ := w.reserve(100)
				a.away.Store(true)
				if all {
					kept.writes.Store(1)
				}
				if err := call(r.ID); !errors.Is(err, store.ErrUnavailable) {
					t.Fatal(name, err)
				}
				a.away.Store(false)
				kept.writes.Store(-1)
				if again {
					if err := call(r.ID); err != nil {
						t.Fatal(name, err)
					}
					if !all {
						w.is(5000, name)
					}
				}
				for range 3 {
					w.pass(30 * time.Second)
					if verb == "renew" {
						w.renew(r.ID, 5000, 0)
					}
				}
				w.is(5000, name+", later")
				if _, err := w.book.Commit(t.Context(), r.ID, 5000); err != nil {
					t.Fatal(name, err)
				}
				w.pass(3 * time.Minute)
				w.is(5000, name+", at the end")
			}
		}
	}
}

// A renewal with an absurd number does not, taken back, give back what others have used.
func TestCountersThatStop(t *testing.T) {
	for _, algorithm := range []string{"fixed_window", "token_bucket", "sliding_window_counter", "sliding_window_log"} {
		w := newWorld(t, "{name: hour, key: [tenant], rate: 1000/hour, algorithm: "+algorithm+"}")
		var all []reserve.Reservation
		for range 4 {
			r, _ := w.reserve(1)
			all = append(all, r)
		}
		w.take(996)
		for _, r := range all {
			w.renew(r.ID, limit.MaxCount, 0)
		}
		for _, r := range all {
			if _, err := w.book.Release(t.Context(), r.ID); err != nil {
				t.Fatal(err)
			}
		}
		if u := w.used(); u < 996 {
			t.Errorf("%s: %d used, want 996", algorithm, u)
		}
	}
}

// take takes without a reservation.
func (w *world) take(cost int64) {
	w.Helper()
	if d, err := w.engine.Take(w.Context(), request(cost)); err != nil || !d.Allowed {
		w.Fatal(d, err)
	}
}

// A limit that counts by another algorithm has begun anew: what was taken before does not come back of what others use.
func TestAnotherAlgorithm(t *testing.T) {
	algorithms := []string{"fixed_window", "token_bucket", "sliding_window_counter", "sliding_window_log"}
	for _, was := range algorithms {
		for _, is := range algorithms {
			if was == is {
				continue
			}
			w := newWorld(t, "{name: hour, key: [tenant], rate: 1000/hour, algorithm: "+was+"}")
			r, _ := w.reserve(800)
			set, err := rules.Parse("limits.yaml", []byte("limits: [{name: hour, key: [tenant], rate: 1000/hour, algorithm: "+is+"}]"))
			if err != nil {
				t.Fatal(err)
			}
			if err := w.engine.Swap(set); err != nil {
				t.Fatal(err)
			}
			w.take(900)
			if _, err := w.book.Commit(t.Context(), r.ID, 0); err != nil {
				t.Fatal(err)
			}
			w.is(900, was+" to "+is)
		}
	}
}

// What was reserved by a clock that was then put back a day comes back to no later window.
func TestClockPutBack(t *testing.T) {
	w := newWorld(t, perHour)
	var wall atomic.Int64 // the counters' clock does not jump
	wall.Store(w.clock.Load() + int64(24*time.Hour))
	w.book = reserve.New(w.engine, records.New(w.now, 0), slog.New(slog.DiscardHandler), func() time.Time { return time.Unix(0, wall.Load()) })
	r, _ := w.reserve(800)
	w.clock.Add(int64(time.Hour))
	wall.Store(w.clock.Load())
	w.take(900)
	if _, err := w.book.Commit(t.Context(), r.ID, 0); err != nil {
		t.Fatal(err)
	}
	w.is(900, "a later window")
}

// Reservations do not save up bursts: whatever is reserved and released, a bucket admits at most two at once.
func TestBucketsDoNotSaveUp(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	for _, step := range []time.Duration{time.Second, 300 * time.Millisecond, 10 * time.Millisecond} {
		w := newWorld(t, "{name: second, key: [tenant], rate: 100/s, burst: 100, algorithm: token_bucket}")
		var all []reserve.Reservation
		for range 300 {
			if r, ok := w.reserve(1 + int64(step*99/time.Second)); ok {
				all = append(all, r)
			}
			w.clock.Add(int64(step))
		}
		admitted := 0
		for _, r := range all {
			for {
				d, err := w.engine.Take(t.Context(), request(1))
				if err != nil {
					t.Fatal(err)
				}
				if !d.Allowed {
					break
				}
				admitted++
			}
			if _, err := w.book.Release(t.Context(), r.ID); err != nil {
				t.Fatal(err)
			}
		}
		if admitted > 200 {
			t.Errorf("each %v: %d admitted in one moment", step, admitted)
		}
	}
}

// mute are records that do what they are told and do not answer, from the next change of a reservation on.
type mute struct {
	store.Records
	mute, silent bool
}

func (m *mute) Swap(ctx context.Context, table, key string, old, value []byte, keep time.Duration) (bool, []byte, error) {
	swapped, present, err := m.Records.Swap(ctx, table, key, old, value, keep)
	if m.mute && table == "reservations" {
		m.silent = true
		return false, nil, store.ErrUnavailable
	}
	return swapped, present, err
}

func (m *mute) Get(ctx context.Context, table, key string) ([]byte, error) {
	if m.silent {
		return nil, store.ErrUnavailable
	}
	return m.Records.Get(ctx, table, key)
}

// A commit that was noted, and whose caller nobody answered, is charged, also after the reservation has expired.
func TestUnheardCommit(t *testing.T) {
	for _, expired := range []bool{false, true} {
		w := newWorld(t, "{name: hour, key: [tenant], rate: 100000/hour, algorithm: fixed_window}")
		kept := &mute{Records: records.New(w.now, 0)}
		w.book = reserve.New(w.engine, kept, slog.New(slog.DiscardHandler), func() time.Time { return time.Unix(0, w.clock.Load()) })
		r, _ := w.reserve(100)
		if expired {
			w.pass(2 * time.Minute)
		}
		kept.mute = true
		if _, err := w.book.Commit(t.Context(), r.ID, 5000); !errors.Is(err, store.ErrUnavailable) {
			t.Fatal(err)
		}
		kept.mute, kept.silent = false, false
		if got, err := w.book.Commit(t.Context(), r.ID, 5000); err != nil || got.Actual != 5000 {
			t.Fatal(got, err)
		}
		for range 3 {
			w.pass(time.Minute)
		}
		w.is(5000, fmt.Sprint("expired: ", expired))
	}
}
