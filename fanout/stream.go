package fanout

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/stint-io/stint/limit"
)

// ErrClosed says that a Stream was closed, and that everything in it has been read.
var ErrClosed = errors.New("fanout: the stream is closed")

// The defaults of [StreamOptions].
const (
	// DefaultQueue is how many messages wait for a reader. Not more: a reader that is
	// that far behind is better served from history. Not fewer: at 50 messages per
	// second it may pause for five seconds.
	DefaultQueue = 256
	// DefaultTell is how long after its first drop a gap waits for a message to go with.
	// Not longer: a subscriber that shows what it has should not show it as complete.
	// Not shorter: under steady excess each subscriber gets a gap that often.
	DefaultTell = 250 * time.Millisecond

	// DefaultQueueName is what a gap calls the queue that was full.
	DefaultQueueName = "subscriber.queue"
)

// StreamOptions configure a [Stream]. The zero value has the defaults and no limit.
type StreamOptions struct {
	Limit     limit.Taker   // of what is sent; nil = none
	Queue     int           // messages; 0 = DefaultQueue
	QueueName string        // "" = DefaultQueueName
	Tell      time.Duration // 0 = DefaultTell
}

// Event is what a reader of a Stream gets: a message, a gap before it, or a gap alone.
type Event[T any] struct {
	Gap      Gap // first; Gap.Dropped = 0: none
	Message  bool
	Position uint64 // of the message
	Value    T      // of the message
}

// Stream carries messages to one subscriber. Who publishes calls Offer, which does not wait
// for the reader: a message that finds the queue full, or is above the subscriber's limit,
// is dropped for this subscriber. Who sends calls Next, which gives messages and gaps in the
// order of their positions; each position that was offered is in one of them, once.
//
// Use [NewStream]. A Stream is safe for concurrent use, with one reader at a time and
// offers in the order of their positions; it starts no goroutine.
type Stream[T any] struct {
	name     string
	gapDelay time.Duration

	offer sync.Mutex // held while a message is decided
	sub   *Subscriber

	mu      sync.Mutex
	ring    []Event[T]
	head, n int
	since   time.Time // when the first of the gap that is not handed out was dropped
	closed  bool
	drained bool          // the reader has got ErrClosed
	wake    chan struct{} // holds one
}

// NewStream returns an empty Stream. A queue or a time below 0 is an error.
func NewStream[T any](o StreamOptions) (*Stream[T], error) {
	if o.Queue < 0 || o.Tell < 0 {
		return nil, fmt.Errorf("fanout: a queue of %d and gaps told after %v: want at least 0, which is the default", o.Queue, o.Tell)
	}
	return &Stream[T]{
		name: cmp.Or(o.QueueName, DefaultQueueName), gapDelay: cmp.Or(o.Tell, DefaultTell), sub: NewSubscriber(o.Limit),
		ring: make([]Event[T], cmp.Or(o.Queue, DefaultQueue)), wake: make(chan struct{}, 1),
	}, nil
}

// Offer gives a message to the subscriber, or drops it, and reports which. It waits for
// nothing but the limit's answer. The errors are [ErrClosed] and those of
// [Subscriber.Offer].
func (s *Stream[T]) Offer(ctx context.Context, position uint64, value T, req limit.Request) (delivered bool, err error) {
	s.offer.Lock()
	defer s.offer.Unlock()
	full, closed := s.room()
	switch {
	case closed:
		return false, ErrClosed
	case full:
		err = s.sub.Drop(position, s.name, limit.ReasonConcurrency)
	default:
		var o Outcome
		o, err = s.sub.Offer(ctx, position, req)
		if o.Deliver {
			err = s.push(Event[T]{Gap: o.Gap, Message: true, Position: position, Value: value})
			return err == nil, err
		}
	}
	if !errors.Is(err, ErrPosition) {
		err = errors.Join(err, s.dropped())
	}
	return false, err
}

// Drop says that a message never comes to the subscriber, for a reason that the caller has:
// it was lost on the way. The gap says so. The errors are those of Offer.
func (s *Stream[T]) Drop(position uint64, name string, reason limit.Reason) error {
	s.offer.Lock()
	defer s.offer.Unlock()
	if _, closed := s.room(); closed {
		return ErrClosed
	}
	if err := s.sub.Drop(position, name, reason); err != nil {
		return err
	}
	return s.dropped()
}

func (s *Stream[T]) room() (full, closed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.n == len(s.ring), s.closed
}

// push appends what there is room for: offer is held, and the reader only takes out.
func (s *Stream[T]) push(e Event[T]) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.drained {
		return ErrClosed
	}
	s.ring[(s.head+s.n)%len(s.ring)] = e
	s.n++
	s.since = time.Time{}
	s.signal()
	return nil
}

// dropped wakes the reader, which waits until the gap is old enough.
func (s *Stream[T]) dropped() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.drained {
		return ErrClosed
	}
	if s.since.IsZero() {
		s.since = time.Now()
		s.signal()
	}
	return nil
}

func (s *Stream[T]) signal() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// Next waits for the next message or gap. A gap that no message goes with comes by itself
// when it is old enough, or the stream is closed. The errors are that of ctx, and
// [ErrClosed] when everything has been read.
func (s *Stream[T]) Next(ctx context.Context) (Event[T], error) {
	var timer *time.Timer
	for {
		e, ok, wait, err := s.take()
		if ok || err != nil {
			return e, err
		}
		var due <-chan time.Time
		if wait > 0 {
			if timer == nil {
				timer = time.NewTimer(wait)
				defer timer.Stop()
			} else {
				timer.Reset(wait)
			}
			due = timer.C
		}
		select {
		case <-ctx.Done():
			return Event[T]{}, ctx.Err()
		case <-s.wake:
		case <-due:
		}
	}
}

// retry is when the reader tries again to take a gap while a message is being decided.
// Not longer: most are decided in a microsecond. Not shorter: one that asks for more waits.
const retry = time.Millisecond

// take returns what is there, or how long to wait for a gap to be old enough; 0 = there is
// none.
func (s *Stream[T]) take() (e Event[T], ok bool, wait time.Duration, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.n > 0 {
		slot := &s.ring[s.head]
		e, *slot = *slot, Event[T]{}
		s.head, s.n = (s.head+1)%len(s.ring), s.n-1
		return e, true, 0, nil
	}
	if !s.since.IsZero() {
		if wait = s.gapDelay - time.Since(s.since); wait > 0 && !s.closed {
			return e, false, wait, nil
		}
		// A message that is being decided may take the gap along, or become part of
		// it: it goes first.
		if !s.offer.TryLock() {
			return e, false, retry, nil
		}
		defer s.offer.Unlock()
		s.since = time.Time{}
		if e.Gap, ok = s.sub.Flush(); ok {
			return e, true, 0, nil
		}
	}
	if s.closed {
		s.drained = true
		return e, false, 0, ErrClosed
	}
	return e, false, 0, nil
}

// Queued is how many messages wait for the reader.
func (s *Stream[T]) Queued() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.n
}

// Close ends the stream: nothing more is offered, and the reader gets what is in it, a
// last gap, and then ErrClosed.
func (s *Stream[T]) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	s.signal()
}
