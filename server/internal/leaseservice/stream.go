package leaseservice

import (
	"context"
	"errors"
	"io"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/stint-io/stint/internal/gen/leasepb"
	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/internal/leasewire"
)

// stream is the stream of one instance. One goroutine reads, one writes, and the
// handler waits for the reason to end: a handler that has returned is what ends a
// read or a write that hangs.
type stream struct {
	ctx    context.Context
	cancel context.CancelCauseFunc

	accepted chan struct{} // closed by the loop when the instance is admitted
	taken    chan struct{} // the loop is done with the report
	member   lease.Member  // the loop's, until accepted is closed; then it stays

	out struct {
		sync.Mutex
		pending *leasepb.Grant
		wake    chan struct{}
		since   time.Time // when the write that runs began; zero = none runs
	}
}

func newStream(ctx context.Context, cancel context.CancelCauseFunc) *stream {
	st := &stream{ctx: ctx, cancel: cancel, accepted: make(chan struct{}), taken: make(chan struct{}, 1)}
	st.out.wake = make(chan struct{}, 1)
	return st
}

// as returns whose stream it is, once that is known.
func (st *stream) as() lease.Member {
	select {
	case <-st.accepted:
		return st.member // it does not change any more
	default:
		return lease.Member{}
	}
}

// endOfStream carries how a stream ends; a nil error is a good end.
type endOfStream struct{ err error }

func (e endOfStream) Error() string { return "the stream ends" }

// end ends the stream with the status of err. The first reason counts.
func (st *stream) end(err error) { st.cancel(endOfStream{err}) }

// cause returns why the stream ends; nil while it does not.
func (st *stream) cause() error { return context.Cause(st.ctx) }

// Hold implements the service of the protocol.
func (s *Service) Hold(srv grpc.BidiStreamingServer[leasepb.Report, leasepb.Grant]) error {
	ctx, cancel := context.WithCancelCause(srv.Context())
	st := newStream(ctx, cancel)
	defer cancel(nil)
	if !s.lends(s.now()) {
		return s.notHere()
	}
	if err := s.enter(); err != nil {
		return err
	}
	defer s.admission.handlers.Done()
	s.admission.handlers.Go(func() {
		defer s.leave()
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
	var end endOfStream
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

// enter counts a stream in, for Run to wait for its handler. Its reader counts it out.
func (s *Service) enter() error {
	a := &s.admission
	a.Lock()
	defer a.Unlock()
	switch {
	case a.closing:
		return errGoing
	case a.streams >= s.opts.MaxStreams:
		a.refused++
		return status.Errorf(codes.ResourceExhausted, "%d instances are served, which is all: come back later", a.streams)
	}
	a.streams++
	a.handlers.Add(1)
	return nil
}

func (s *Service) leave() {
	s.admission.Lock()
	s.admission.streams--
	s.admission.Unlock()
}

// read hands reports to the loop, one at a time: an instance that floods waits for
// its turn.
func (s *Service) read(st *stream, srv grpc.BidiStreamingServer[leasepb.Report, leasepb.Grant]) {
	var report lease.Report
	for {
		m, err := srv.Recv()
		if errors.Is(err, io.EOF) {
			st.end(nil)
			return
		}
		if err != nil {
			// What is wrong with a message is told; a broken connection
			// is told to nobody.
			st.end(err)
			return
		}
		if _, err = leasewire.FromReport(&report, m); err != nil {
			st.end(status.Error(codes.InvalidArgument, err.Error()))
			return
		}
		s.count(report.Usage)
		s.limits.Load().canonical(&report)
		if !s.post(st.ctx, event{stream: st, report: &report}) {
			return
		}
		select {
		case <-st.taken:
		case <-s.ended:
			return
		}
	}
}

// put adds a grant to what is to be sent. What was not sent yet is brought up to date
// rather than queued: grants carry totals, so the newest says it all, and a slow reader
// costs no more than one grant with all its resources.
func (st *stream) put(g *lease.Grant) {
	m := new(leasepb.Grant)
	leasewire.ToGrant(m, g)
	st.out.Lock()
	if old := st.out.pending; old != nil {
		m.Shares = merge(old.GetShares(), m.GetShares())
	}
	st.out.pending = m
	st.out.Unlock()
	select {
	case st.out.wake <- struct{}{}:
	default:
	}
}

// merge returns the shares of both, the newer one where both tell of a handle.
func merge(older, newer []*leasepb.Share) []*leasepb.Share {
	place := make(map[uint32]int, len(older))
	for i, s := range older {
		place[s.GetHandle()] = i
	}
	for _, s := range newer {
		if i, ok := place[s.GetHandle()]; ok {
			older[i] = s
		} else {
			older = append(older, s)
		}
	}
	return older
}

// stalledFor is how long the write that runs has taken.
func (st *stream) stalledFor() time.Duration {
	st.out.Lock()
	defer st.out.Unlock()
	if st.out.since.IsZero() {
		return 0
	}
	return time.Since(st.out.since)
}

// next returns what is to be sent, and marks the beginning or the end of a write.
func (st *stream) next() *leasepb.Grant {
	st.out.Lock()
	defer st.out.Unlock()
	g := st.out.pending
	st.out.pending, st.out.since = nil, time.Time{}
	if g != nil {
		st.out.since = time.Now()
	}
	return g
}

// write sends what the loop has put.
func (s *Service) write(st *stream, srv grpc.BidiStreamingServer[leasepb.Report, leasepb.Grant]) {
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
