package lending

import (
	"context"
	"errors"
	"io"
	"sync"

	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/internal/leasewire"
)

// Pipe is the stream of an instance in this process: the server is a client of its own
// coordinator, by the same words and the same accounting, without a network. Send and
// Receive may be called by one goroutine each.
type Pipe struct {
	shard  *shard
	stream *stream
	closed sync.Once
}

// pipe opens a stream that lives until ctx ends. The leases of the server's own instance end with the term.
func (s *shard) pipe(ctx context.Context, ownInstance bool) (*Pipe, error) {
	if !s.lends() {
		return nil, errNotLeader
	}
	own, cancel := context.WithCancelCause(ctx)
	p := &Pipe{shard: s, stream: newStream(own, cancel)}
	p.stream.own = ownInstance
	if err := s.admission.enter(p.stream, s.opts.maxStreams); err != nil {
		cancel(err)
		return nil, err
	}
	defer s.admission.handlers.Done()
	context.AfterFunc(own, func() {
		s.admission.leave(p.stream)
		s.post(context.Background(), event{stream: p.stream})
	})
	return p, nil
}

// Send hands a report to the coordinator and waits until it is taken; the report is
// not kept. An error means that the stream has ended.
func (p *Pipe) Send(r *lease.Report) error {
	if p.shard.post(p.stream.ctx, event{stream: p.stream, report: r}) {
		select {
		case <-p.stream.taken:
			return p.ended()
		case <-p.shard.ended:
		}
	}
	p.stream.end(errGoing) // unless it has ended already
	return p.ended()
}

// CloseSend says that no more reports come; the stream ends.
func (p *Pipe) CloseSend() error {
	p.closed.Do(func() { p.stream.end(nil) })
	return nil
}

// Receive waits for a grant. Its error says how the stream ended; io.EOF is a good end.
func (p *Pipe) Receive() (*lease.Grant, error) {
	for {
		if m := p.stream.next(); m != nil {
			g := &lease.Grant{To: p.stream.admitted()}
			return g, leasewire.FromGrant(g, m)
		}
		select {
		case <-p.stream.out.wake:
		case <-p.shard.ended:
			p.stream.end(errGoing)
			return nil, p.ended()
		case <-p.stream.ctx.Done():
			if err := p.ended(); err != nil {
				return nil, err
			}
			return nil, io.EOF
		}
	}
}

// ended returns why the stream has ended; nil while it has not, or after a good end.
func (p *Pipe) ended() error {
	var end streamEnd
	switch cause := p.stream.cause(); {
	case cause == nil:
		return nil
	case errors.As(cause, &end):
		return end.err
	default:
		return cause
	}
}
