package fanout_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stint-io/stint/fanout"
	"github.com/stint-io/stint/limit"
)

// takes is a limit that does as it is told.
type takes func(ctx context.Context) bool

func (f takes) Take(ctx context.Context, _ limit.Request) (limit.Decision, error) {
	return limit.Decision{Allowed: f(ctx)}, nil
}

// TestReaderIsWoken: a reader who waits has a message the moment it is offered, and a gap
// when it is as old as Tell says, however long nothing came before.
func TestReaderIsWoken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, err := fanout.NewStream[int](fanout.StreamOptions{Tell: 100 * time.Millisecond})
		if err != nil {
			t.Fatal(err)
		}
		type got struct {
			fanout.Event[int]
			at time.Duration
		}
		events := make(chan got, 10)
		begin := time.Now()
		ended := make(chan error)
		go func() {
			for {
				e, err := s.Next(t.Context())
				if err != nil {
					ended <- err
					return
				}
				events <- got{e, time.Since(begin)}
			}
		}()
		offer := func(position uint64) {
			t.Helper()
			if ok, err := s.Offer(t.Context(), position, int(position), limit.Request{}); err != nil || !ok {
				t.Errorf("offer %d: %v, %v", position, ok, err)
			}
		}
		drop := func(position uint64) {
			t.Helper()
			if err := s.Drop(position, "lost", limit.ReasonNone); err != nil {
				t.Error(err)
			}
		}
		want := func(message bool, dropped uint64, at time.Duration) {
			t.Helper()
			e := <-events
			if e.Message != message || e.Gap.Dropped != dropped || e.at != at {
				t.Errorf("at %v: %+v, want a message %v and a gap of %d at %v", e.at, e.Event, message, dropped, at)
			}
		}
		time.Sleep(10 * time.Second)
		offer(1)
		want(true, 0, 10*time.Second)
		time.Sleep(10 * time.Second)
		drop(2)
		time.Sleep(50 * time.Millisecond)
		drop(3) // the age is that of the first
		want(false, 2, 20*time.Second+100*time.Millisecond)
		drop(4) // another, with an age of its own
		want(false, 1, 20*time.Second+200*time.Millisecond)
		drop(5)
		time.Sleep(99 * time.Millisecond)
		offer(6) // the gap goes with it
		want(true, 1, 20*time.Second+299*time.Millisecond)
		drop(7)
		synctest.Wait()
		s.Close() // which does not wait for the age
		want(false, 1, 20*time.Second+299*time.Millisecond)
		if err := <-ended; !errors.Is(err, fanout.ErrClosed) {
			t.Errorf("after the last: %v", err)
		}
	})
}

// TestGapWaitsForADecision: a gap that comes of age while a message is being decided goes
// with that message, or has it in it, and comes within a moment of the decision.
func TestGapWaitsForADecision(t *testing.T) {
	for _, admit := range []bool{true, false} {
		t.Run(fmt.Sprint(admit), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				slow := takes(func(context.Context) bool {
					time.Sleep(500 * time.Millisecond)
					return admit
				})
				s, err := fanout.NewStream[int](fanout.StreamOptions{Tell: 100 * time.Millisecond, Limit: slow})
				if err != nil {
					t.Fatal(err)
				}
				begin := time.Now()
				if err := s.Drop(1, "lost", limit.ReasonNone); err != nil {
					t.Error(err)
				}
				go s.Offer(t.Context(), 2, 2, limit.Request{})
				e, err := s.Next(t.Context())
				dropped := map[bool]uint64{true: 1, false: 2}[admit]
				if err != nil || e.Message != admit || e.Gap.Dropped != dropped || e.Gap.From != 1 || e.Gap.To != dropped {
					t.Errorf("%+v, %v, want a message %v and a gap of %d", e, err, admit, dropped)
				}
				if at := time.Since(begin); at < 500*time.Millisecond || at > 502*time.Millisecond {
					t.Errorf("came after %v, want the decision's 500 ms", at)
				}
			})
		})
	}
}

// TestDefaults are as documented: 256 messages wait, and a gap for 250 ms.
func TestDefaults(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, err := fanout.NewStream[int](fanout.StreamOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for i := range 258 {
			ok, err := s.Offer(t.Context(), uint64(i), i, limit.Request{})
			if err != nil || ok != (i < 256) {
				t.Errorf("message %d: %v, %v", i, ok, err)
			}
			if got := s.Queued(); got != min(i+1, 256) {
				t.Errorf("%d in the queue after %d", got, i+1)
			}
		}
		begin := time.Now()
		for i := range 256 {
			if e, err := s.Next(t.Context()); err != nil || !e.Message || e.Value != i {
				t.Fatalf("message %d: %+v, %v", i, e, err)
			}
		}
		e, err := s.Next(t.Context())
		if err != nil || e.Message || e.Gap.Dropped != 2 || e.Gap.From != 256 || e.Gap.To != 257 {
			t.Errorf("the gap: %+v, %v", e, err)
		}
		if at := time.Since(begin); at != 250*time.Millisecond {
			t.Errorf("the gap comes after %v", at)
		}
		if e.Gap.Limit != "subscriber.queue" {
			t.Errorf("the gap is of %q", e.Gap.Limit)
		}
		named, err := fanout.NewStream[int](fanout.StreamOptions{Queue: 1, QueueName: "mine"})
		if err != nil {
			t.Fatal(err)
		}
		for i := range 2 {
			if _, err := named.Offer(t.Context(), uint64(i), i, limit.Request{}); err != nil {
				t.Fatal(err)
			}
		}
		named.Next(t.Context())
		if e, err := named.Next(t.Context()); err != nil || e.Gap.Limit != "mine" {
			t.Errorf("the gap of a queue with a name: %+v, %v", e, err)
		}
	})
}

// TestClosedWhileAMessageIsDecided: a message that is decided after the reader was told that
// the stream is closed was not delivered, and whoever offered it is told so.
func TestClosedWhileAMessageIsDecided(t *testing.T) {
	for _, admit := range []bool{true, false} {
		var s *fanout.Stream[int]
		var err error
		s, err = fanout.NewStream[int](fanout.StreamOptions{Limit: takes(func(ctx context.Context) bool {
			s.Close()
			if e, err := s.Next(ctx); !errors.Is(err, fanout.ErrClosed) {
				t.Errorf("%+v, %v, want that it is closed", e, err)
			}
			return admit
		})})
		if err != nil {
			t.Fatal(err)
		}
		ok, err := s.Offer(t.Context(), 1, 1, limit.Request{})
		if ok || !errors.Is(err, fanout.ErrClosed) {
			t.Errorf("decided %v: %v, %v, want that it is closed", admit, ok, err)
		}
		if err := s.Drop(7, "lost", limit.ReasonNone); !errors.Is(err, fanout.ErrClosed) {
			t.Errorf("drop: %v", err)
		}
		if ok, err := s.Offer(t.Context(), 8, 8, limit.Request{}); ok || !errors.Is(err, fanout.ErrClosed) {
			t.Errorf("offer: %v, %v", ok, err)
		}
	}
}
