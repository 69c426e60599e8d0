package lending

import (
	"context"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/stint-io/stint/internal/gen/leasepb"
	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/internal/lease/coordinator"
	"github.com/stint-io/stint/internal/leasewire"
	"github.com/stint-io/stint/limit"
)

// ask implements the service of the protocol, for another member.
func (s *shard) ask(ctx context.Context, m *leasepb.Asks) (*leasepb.Answers, error) {
	asks, err := leasewire.FromAsks(m)
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	answers, err := s.answer(ctx, asks)
	if err != nil {
		return nil, err
	}
	return leasewire.ToAnswers(answers), nil
}

var errNotAnswered = status.Error(codes.Unavailable, "this member does not coordinate these limits any more, or not yet: whether something was taken is not known")

// answer takes what is asked for from buckets of which nobody has a lease, and returns when a successor knows what
// was taken. After an error nothing is known.
func (s *shard) answer(ctx context.Context, asks []lease.Ask) (answers []lease.Answer, err error) {
	if err := s.admission.begin(); err != nil {
		return nil, err
	}
	defer s.admission.handlers.Done()
	known := make(chan bool, 1)
	e := &coordinator.Asked{Asks: asks}
	if !s.post(ctx, event{snapshot: func(now limit.Time) { s.answerInLoop(now, e, func(yes bool) { known <- yes }) }}) {
		return nil, errGoing
	}
	select {
	case yes := <-known:
		if !yes {
			return nil, errNotAnswered
		}
		return e.Answers, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-s.ended:
		return nil, errGoing
	}
}

// answerInLoop is answer in the loop. known is called when the answers may be sent, or cannot.
func (s *shard) answerInLoop(now limit.Time, e *coordinator.Asked, known func(bool)) {
	if !s.lends() {
		known(false)
		return
	}
	s.feed(now, nil, e)
	switch p := s.membership; {
	case len(e.Answers) != len(e.Asks): // a panic
		known(false)
	case p == nil || p.replicas == nil:
		known(true)
	case p.inRecord == 0:
		p.asked = append(p.asked, func(written bool) {
			if !written {
				known(false)
				return
			}
			p.replicas.after(e.Must, known)
		})
		s.publish()
	default:
		p.replicas.after(e.Must, known)
	}
}
