package leaseservice

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
	"github.com/stint-io/stint/server/internal/leasestream"
)

// Hold implements the service of the protocol.
func (s *Service) Hold(srv grpc.BidiStreamingServer[leasepb.Report, leasepb.Grant]) error {
	ctx, cancel := context.WithCancelCause(srv.Context())
	st := leasestream.New(ctx, cancel)
	defer cancel(nil)
	if !s.lends() {
		if err := s.sendOn(srv); err != nil {
			return err
		}
	}
	if err := st.Identify(access.FromContext(srv.Context())); err != nil {
		return err
	}
	if err := s.admission.Enter(st, s.opts.MaxStreams); err != nil {
		return err
	}
	defer s.admission.Handlers.Done()
	s.admission.Handlers.Go(func() {
		defer s.admission.Leave(st)
		s.read(st, srv)
		s.post(context.Background(), event{stream: st})
	})
	late := time.NewTimer(s.patience.firstReport)
	defer late.Stop()
	select {
	case <-st.Accepted():
		s.admission.Handlers.Go(func() { s.write(st, srv) })
		<-ctx.Done()
	case <-ctx.Done():
	case <-s.ended:
		st.End(leasestream.ErrGoing)
	case <-late.C:
		st.End(status.Errorf(codes.DeadlineExceeded, "no report came within %v: the instance speaks first", s.patience.firstReport))
	}
	var end leasestream.End
	switch cause := context.Cause(ctx); {
	case errors.As(cause, &end):
		if errors.Is(end.Err, leasestream.ErrDuplicate) {
			// Nothing else writes to a stream that was not accepted. Whether
			// it can be sent or not, the status says the same.
			_ = srv.Send(&leasepb.Grant{Epoch: s.opts.State.Epoch, Status: leasepb.Status_STATUS_DUPLICATE_INSTANCE})
		}
		return end.Err
	default:
		return leasestream.ErrGoing // the server ends all streams, or the connection broke
	}
}

// usualDemands is how many demands a stream has memory for between its reports.
const usualDemands = 256

// read hands reports to the loop, one at a time: an instance that floods waits
// for the loop.
func (s *Service) read(st *leasestream.Stream, srv grpc.BidiStreamingServer[leasepb.Report, leasepb.Grant]) {
	var report lease.Report
	for {
		m, err := srv.Recv()
		if errors.Is(err, io.EOF) {
			st.End(nil)
			return
		}
		if err != nil {
			// The status says what is wrong with a message; of a
			// broken connection nobody reads it.
			st.End(err)
			return
		}
		if _, err = leasewire.FromReport(&report, m); err != nil {
			st.End(status.Error(codes.InvalidArgument, err.Error()))
			return
		}
		if err = st.Permit(&report); err != nil {
			st.End(err)
			return
		}
		s.decided.Add(s.limits.Load(), report.Usage)
		s.limits.Load().Canonical(&report)
		if !s.post(st.Context(), event{stream: st, report: &report}) {
			return
		}
		select {
		case <-st.Taken():
		case <-s.ended:
			return
		}
		if cap(report.Demands) > usualDemands {
			report.Demands = nil // a stream that sent much once does not hold it for ever
		}
	}
}

// write sends what the loop has put.
func (s *Service) write(st *leasestream.Stream, srv grpc.BidiStreamingServer[leasepb.Report, leasepb.Grant]) {
	for {
		for g := st.Next(); g != nil; g = st.Next() {
			if err := srv.Send(g); err != nil {
				st.End(err)
				return
			}
		}
		select {
		case <-st.Wake():
		case <-st.Context().Done():
			return
		}
	}
}
