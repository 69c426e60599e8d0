package fanout

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/stint-io/stint/limit"
)

// ErrPosition says that a position is not above those that came before it. What was
// delivered and what was dropped could not be distinguished by it, so nothing is.
var ErrPosition = errors.New("fanout: position does not ascend")

// Gap says what a subscriber was not sent: so many messages, the first and the last of
// them at these positions. Of the positions from From to To none was delivered.
type Gap struct {
	From, To uint64 // both inclusive
	Dropped  uint64 // messages; 0 = no gap. Fewer than the positions where those have holes

	// Limit is the limit that dropped the first of them, and Reason why.
	Limit  string
	Reason limit.Reason
}

// Outcome is what becomes of one message for one subscriber.
type Outcome struct {
	// Deliver says that the message goes to the subscriber. Otherwise it was dropped,
	// for this subscriber alone, and a later Gap will say so.
	Deliver bool

	// Gap is to be sent before the message, if Gap.Dropped is not 0.
	Gap Gap
}

// Subscriber decides about one recipient of a stream of messages. It is offered each
// message, in the order of their positions, and asks the recipient's outbound limits. It
// keeps no message and sends nothing; a [Stream] does.
//
// Each position offered or dropped is either delivered or in one Gap: a gap is handed out
// once, with the next message that is delivered or by Flush, whichever comes first.
//
// Use [NewSubscriber]. It is safe for concurrent use, but messages have to come in
// the order of their positions.
type Subscriber struct {
	taker limit.Taker

	mu    sync.Mutex
	next  uint64 // the least position that may come; meaningless once it is ended
	ended bool   // the largest position has come
	gap   Gap    // not handed out yet
}

// NewSubscriber returns a Subscriber whose messages are limited by taker, such as a
// limiter of its connection, or [limit.All] of the limits of its connection and its account.
// A nil taker drops nothing.
func NewSubscriber(taker limit.Taker) *Subscriber { return &Subscriber{taker: taker} }

// Offer decides whether the message at position goes to the subscriber. req is what its
// limits are asked: with a cost of its own where the default of 1 does not fit.
//
// An error that is no [ErrPosition] says that no decision could be made. The message is
// then dropped, and the gap says so: [limit.ReasonStoreFailure].
func (s *Subscriber) Offer(ctx context.Context, position uint64, req limit.Request) (Outcome, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.pass(position); err != nil {
		return Outcome{}, err
	}
	if s.taker == nil {
		return s.deliver(), nil
	}
	d, err := s.taker.Take(ctx, req)
	if err != nil {
		s.drop(position, "", limit.ReasonStoreFailure)
		return Outcome{}, fmt.Errorf("fanout: message %d is dropped: %w", position, err)
	}
	if d.Allowed {
		return s.deliver(), nil
	}
	name, reason := "", limit.ReasonNone
	if r := d.Refused(); r != nil {
		name, reason = r.Limit, r.Reason
	}
	s.drop(position, name, reason)
	return Outcome{}, nil
}

// Drop says that the message at position does not go to the subscriber, for a reason that
// the caller has: its queue is full, say. Its limits are not asked and not charged.
func (s *Subscriber) Drop(position uint64, name string, reason limit.Reason) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.pass(position); err != nil {
		return err
	}
	s.drop(position, name, reason)
	return nil
}

// Flush hands out the gap that no delivery has carried yet, so that a subscriber of a
// stream that fell silent gets it. It reports whether there was one.
func (s *Subscriber) Flush() (Gap, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	gap := s.deliver().Gap
	return gap, gap.Dropped > 0
}

// Pending reports whether there is a gap that was not handed out.
func (s *Subscriber) Pending() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.gap.Dropped > 0
}

// pass takes note of a position.
func (s *Subscriber) pass(position uint64) error {
	if s.ended || position < s.next {
		return fmt.Errorf("%w: %d came when those before %d had been told of", ErrPosition, position, s.next)
	}
	s.next = position + 1
	s.ended = s.next == 0
	return nil
}

func (s *Subscriber) drop(position uint64, name string, reason limit.Reason) {
	if s.gap.Dropped == 0 {
		s.gap = Gap{From: position, Limit: name, Reason: reason}
	}
	s.gap.To = position
	s.gap.Dropped++
}

func (s *Subscriber) deliver() Outcome {
	gap := s.gap
	s.gap = Gap{}
	return Outcome{Deliver: true, Gap: gap}
}
