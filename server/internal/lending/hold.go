package lending

import (
	"context"
	"errors"
	"io"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/stint-io/stint/internal/gen/leasepb"
	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/internal/leasewire"
	"github.com/stint-io/stint/server/internal/access"
)

// hold implements the service of the protocol.
func (s *shard) hold(srv grpc.BidiStreamingServer[leasepb.Report, leasepb.Grant]) error {
	ctx, cancel := context.WithCancelCause(srv.Context())
	st := newStream(ctx, cancel)
	defer cancel(nil)
	if !s.lends() {
		if err := s.sendOn(srv); err != nil {
			return err
		}
	}
	if err := st.identify(access.FromContext(srv.Context())); err != nil {
		return err
	}
	if err := s.admission.enter(st, s.opts.maxStreams); err != nil {
		return err
	}
	defer s.admission.handlers.Done()
	s.admission.handlers.Go(func() {
		defer s.admission.leave(st)
		s.read(st, srv)
		s.post(context.Background(), event{stream: st})
	})
	late := time.NewTimer(s.patience.firstReport)
	defer late.Stop()
	select {
	case <-st.accepted:
		s.admission.handlers.Go(func() { s.write(st, srv) })
		<-ctx.Done()
	case <-ctx.Done():
	case <-s.ended:
		st.end(errGoing)
	case <-late.C:
		st.end(status.Errorf(codes.DeadlineExceeded, "no report came within %v: the instance speaks first", s.patience.firstReport))
	}
	var end streamEnd
	switch cause := context.Cause(ctx); {
	case errors.As(cause, &end):
		if errors.Is(end.err, errDuplicate) {
			// Nothing else writes to a stream that was not accepted. Whether
			// it can be sent or not, the status says the same.
			_ = srv.Send(&leasepb.Grant{Epoch: s.opts.State.Epoch, Status: leasepb.Status_STATUS_DUPLICATE_INSTANCE})
		}
		return end.err
	default:
		return errGoing // the server ends all streams, or the connection broke
	}
}

// usualDemands is how many demands a stream has memory for between its reports.
const usualDemands = 256

// read hands reports to the loop, one at a time: an instance that floods waits
// for the loop.
func (s *shard) read(st *stream, srv grpc.BidiStreamingServer[leasepb.Report, leasepb.Grant]) {
	var report lease.Report
	for {
		m, err := srv.Recv()
		if errors.Is(err, io.EOF) {
			st.end(nil)
			return
		}
		if err != nil {
			// The status says what is wrong with a message; of a
			// broken connection nobody reads it.
			st.end(err)
			return
		}
		if _, err = leasewire.FromReport(&report, m); err != nil {
			st.end(status.Error(codes.InvalidArgument, err.Error()))
			return
		}
		if err = st.permit(&report); err != nil {
			st.end(err)
			return
		}
		s.decided.add(s.limits.Load(), report.Usage)
		s.limits.Load().canonical(&report)
		if !s.post(st.ctx, event{stream: st, report: &report}) {
			return
		}
		select {
		case <-st.taken:
		case <-s.ended:
			return
		}
		if cap(report.Demands) > usualDemands {
			report.Demands = nil // a stream that sent much once does not hold it for ever
		}
	}
}

// write sends what the loop has put.
func (s *shard) write(st *stream, srv grpc.BidiStreamingServer[leasepb.Report, leasepb.Grant]) {
	for {
		for g := st.next(); g != nil; g = st.next() {
			if err := srv.Send(g); err != nil {
				st.end(err)
				return
			}
		}
		select {
		case <-st.out.wake:
		case <-st.ctx.Done():
			return
		}
	}
}
