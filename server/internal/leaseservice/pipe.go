package leaseservice

import (
	"context"
	"errors"
	"io"
	"sync"

	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/internal/leasewire"
	"github.com/stint-io/stint/server/internal/leasestream"
)

// Pipe is the stream of an instance in this process: the server is a client of its own
// coordinator, by the same words and the same accounting, without a network. Send and
// Receive may be called by one goroutine each.
type Pipe struct {
	service *Service
	stream  *leasestream.Stream
	closed  sync.Once
}

// Pipe opens a stream that lives until ctx ends. Keys in its reports are those of
// [rules.Matched], as the engine has them.
func (s *Service) Pipe(ctx context.Context) (*Pipe, error) { return s.pipe(ctx, true) }

// LastingPipe is Pipe for an instance whose leases outlast a term of this service, as those of instances in
// other processes do: somebody else uses them, who cannot be told that the term has ended.
func (s *Service) LastingPipe(ctx context.Context) (*Pipe, error) {
	return s.pipe(ctx, s.membership == nil)
}

func (s *Service) pipe(ctx context.Context, ownInstance bool) (*Pipe, error) {
	if !s.lends() {
		return nil, errNotLeader
	}
	own, cancel := context.WithCancelCause(ctx)
	p := &Pipe{service: s, stream: leasestream.New(own, cancel)}
	p.stream.Own = ownInstance
	if err := s.admission.Enter(p.stream, s.opts.MaxStreams); err != nil {
		cancel(err)
		return nil, err
	}
	defer s.admission.Handlers.Done()
	context.AfterFunc(own, func() {
		s.admission.Leave(p.stream)
		s.post(context.Background(), event{stream: p.stream})
	})
	return p, nil
}

// Send hands a report to the coordinator and waits until it is taken; the report is
// not kept. An error means that the stream has ended.
func (p *Pipe) Send(r *lease.Report) error {
	if p.service.post(p.stream.Context(), event{stream: p.stream, report: r}) {
		select {
		case <-p.stream.Taken():
			return p.ended()
		case <-p.service.ended:
		}
	}
	p.stream.End(leasestream.ErrGoing) // unless it has ended already
	return p.ended()
}

// CloseSend says that no more reports come; the stream ends.
func (p *Pipe) CloseSend() error {
	p.closed.Do(func() { p.stream.End(nil) })
	return nil
}

// Receive waits for a grant. Its error says how the stream ended; io.EOF is a good end.
func (p *Pipe) Receive() (*lease.Grant, error) {
	for {
		if m := p.stream.Next(); m != nil {
			g := &lease.Grant{To: p.stream.Member()}
			return g, leasewire.FromGrant(g, m)
		}
		select {
		case <-p.stream.Wake():
		case <-p.service.ended:
			p.stream.End(leasestream.ErrGoing)
			return nil, p.ended()
		case <-p.stream.Context().Done():
			if err := p.ended(); err != nil {
				return nil, err
			}
			return nil, io.EOF
		}
	}
}

// ended returns why the stream has ended; nil while it has not, or after a good end.
func (p *Pipe) ended() error {
	var end leasestream.End
	switch cause := p.stream.Cause(); {
	case cause == nil:
		return nil
	case errors.As(cause, &end):
		return end.Err
	default:
		return cause
	}
}
