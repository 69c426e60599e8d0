package fanout

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stint-io/stint/internal/seeding"
	"github.com/stint-io/stint/limit"
)

func open[T any](t testing.TB, o StreamOptions) *Stream[T] {
	t.Helper()
	s, err := NewStream[T](o)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// One that reads too slowly: what its queue has no place for is dropped, and the gap comes
// with the next message that has one, or by itself if none comes.
func TestStreamQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := open[string](t, StreamOptions{Queue: 2, Tell: time.Second})
		offer := func(position uint64, want bool) {
			t.Helper()
			if got, err := s.Offer(t.Context(), position, "m", limit.Request{}); err != nil || got != want {
				t.Errorf("Offer(%d) = %v, %v", position, got, err)
			}
		}
		next := func(want Event[string]) {
			t.Helper()
			if got, err := s.Next(t.Context()); err != nil || got != want {
				t.Errorf("Next = %+v, %v, want %+v", got, err, want)
			}
		}
		queue := func(from, to, n uint64) Gap {
			return Gap{From: from, To: to, Dropped: n, Limit: "subscriber.queue", Reason: limit.ReasonConcurrency}
		}
		offer(1, true)
		offer(2, true)
		offer(3, false)
		offer(4, false)
		next(Event[string]{Message: true, Position: 1, Value: "m"})
		offer(5, true)
		next(Event[string]{Message: true, Position: 2, Value: "m"})
		next(Event[string]{Gap: queue(3, 4, 2), Message: true, Position: 5, Value: "m"})
		// Silence afterwards: it is told after a second.
		offer(6, true)
		offer(7, true)
		offer(8, false)
		next(Event[string]{Message: true, Position: 6, Value: "m"})
		next(Event[string]{Message: true, Position: 7, Value: "m"})
		begin := time.Now()
		if next(Event[string]{Gap: queue(8, 8, 1)}); time.Since(begin) != time.Second {
			t.Errorf("a silent stream was told after %v, want 1 s", time.Since(begin))
		}
		offer(9, true)
		offer(10, true)
		offer(11, false)
		if err := s.Drop(11, "network", 0); !errors.Is(err, ErrPosition) {
			t.Errorf("Drop of what was dropped: %v", err)
		}
		if err := s.Drop(12, "network", 0); err != nil {
			t.Error(err)
		}
		s.Close()
		if err := s.Drop(13, "network", 0); !errors.Is(err, ErrClosed) {
			t.Errorf("Drop in a closed stream: %v", err)
		}
		if _, err := s.Offer(t.Context(), 12, "m", limit.Request{}); !errors.Is(err, ErrClosed) {
			t.Errorf("Offer to a closed stream: %v", err)
		}
		next(Event[string]{Message: true, Position: 9, Value: "m"})
		next(Event[string]{Message: true, Position: 10, Value: "m"})
		next(Event[string]{Gap: queue(11, 12, 2)})
		if _, err := s.Next(t.Context()); !errors.Is(err, ErrClosed) {
			t.Errorf("Next of a closed stream: %v", err)
		}
	})
}

// One that is sent too much: its limit drops, for it alone; and gaps of a stream of
// nothing but drops come once per Tell, not one for each.
func TestStreamLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slow := open[int](t, StreamOptions{Limit: limiter(t, limit.PerSecond(10), 1), Tell: 250 * time.Millisecond})
		fast := open[int](t, StreamOptions{})
		go func() {
			for i := range 1000 {
				if ok, err := fast.Offer(t.Context(), uint64(i), i, limit.Request{}); err != nil || !ok && fast.Queued() < DefaultQueue {
					t.Errorf("%d is dropped for one without limit: %v", i, err)
				}
				if _, err := slow.Offer(t.Context(), uint64(i), i, limit.Request{}); err != nil {
					t.Error(err)
				}
				time.Sleep(time.Millisecond)
			}
			slow.Close()
			fast.Close()
		}()
		go func() {
			for {
				if _, err := fast.Next(t.Context()); err != nil {
					return
				}
			}
		}()
		messages, gaps, dropped := 0, 0, uint64(0)
		for {
			e, err := slow.Next(t.Context())
			if err != nil {
				break
			}
			if e.Message {
				messages++
			}
			if e.Gap.Dropped > 0 {
				gaps++
				dropped += e.Gap.Dropped
			}
		}
		if messages < 10 || messages > 11 || gaps > messages+1 || dropped != uint64(1000-messages) {
			t.Errorf("%d messages, %d gaps of %d, want 10 or 11 messages and a gap between each", messages, gaps, dropped)
		}
	})
}

// waiting is a taker that takes its time.
type waiting struct{ limit.Taker }

func (w waiting) Take(ctx context.Context, req limit.Request) (limit.Decision, error) {
	time.Sleep(50 * time.Millisecond)
	return w.Taker.Take(ctx, req)
}

// TestStreamEveryPositionOnce: publisher, reader and a limit that waits, at once.
func TestStreamEveryPositionOnce(t *testing.T) {
	for seed := range seeding.Draw(t, 200) {
		synctest.Test(t, func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 9))
			var taker limit.Taker = limiter(t, limit.PerSecond(1+r.Int64N(100)), 1+r.Int64N(5))
			if r.IntN(4) == 0 {
				taker = waiting{taker}
			}
			s := open[uint64](t, StreamOptions{Limit: taker, Queue: 1 + r.IntN(4), Tell: time.Duration(1 + r.Int64N(int64(50*time.Millisecond)))})
			var published []uint64
			var wg sync.WaitGroup
			pace := rand.New(rand.NewPCG(seed, 10))
			wg.Go(func() {
				for i := range uint64(200) {
					published = append(published, 3*i)
					if _, err := s.Offer(t.Context(), 3*i, i, limit.Request{}); err != nil {
						t.Error(err)
					}
					time.Sleep(time.Duration(pace.Int64N(int64(20 * time.Millisecond))))
				}
				s.Close()
			})
			var events []Event[uint64]
			for {
				e, err := s.Next(t.Context())
				if err != nil {
					break
				}
				events = append(events, e)
				time.Sleep(time.Duration(r.Int64N(int64(20 * time.Millisecond))))
			}
			wg.Wait()
			seen, last := account{}, int64(-1)
			for _, e := range events {
				if seen.gap(t, e.Gap, published); e.Gap.Dropped > 0 {
					if int64(e.Gap.From) <= last {
						t.Fatalf("seed %d: %+v after %d", seed, e, last)
					}
					last = int64(e.Gap.To)
				}
				if e.Message {
					if seen.put(t, e.Position, "delivered"); int64(e.Position) <= last || e.Value != e.Position/3 {
						t.Fatalf("seed %d: %+v after %d", seed, e, last)
					}
					last = int64(e.Position)
				}
			}
			if len(seen) != 200 {
				t.Fatalf("seed %d: %d of 200 positions are accounted for", seed, len(seen))
			}
		})
	}
}

// TestStreamStorm: no bubble, several publishers who take turns, a reader who leaves.
func TestStreamStorm(t *testing.T) {
	s := open[int](t, StreamOptions{Limit: limiter(t, limit.PerSecond(100_000), 50), Queue: 16, Tell: time.Microsecond})
	var turn sync.Mutex
	var position, offered atomic.Uint64
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 5000 {
				turn.Lock()
				p := position.Add(1)
				if _, err := s.Offer(t.Context(), p, 0, limit.Request{}); err == nil {
					offered.Add(1)
				} else if !errors.Is(err, ErrClosed) {
					t.Error(err)
				}
				turn.Unlock()
			}
		})
	}
	go func() { wg.Wait(); s.Close() }()
	read := uint64(0)
	for {
		e, err := s.Next(t.Context())
		if err != nil {
			break
		}
		if read += e.Gap.Dropped; e.Message {
			read++
		}
		if e.Position > 15_000 {
			s.Close()
		}
	}
	wg.Wait()
	if read != offered.Load() {
		t.Errorf("%d were offered, %d are accounted for", offered.Load(), read)
	}
}

func TestNewStreamRefuses(t *testing.T) {
	for _, o := range []StreamOptions{{Queue: -1}, {Tell: -1}} {
		if _, err := NewStream[int](o); err == nil {
			t.Errorf("%+v is taken", o)
		}
	}
	s := open[int](t, StreamOptions{})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.Next(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("a context that has ended: %v", err)
	}
}
