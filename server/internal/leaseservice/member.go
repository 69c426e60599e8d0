package leaseservice

import (
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/limit"
)

// member is an instance as the loop knows it. It outlives its stream for as long as
// its leases may last, so that an instance which comes back is the same one.
type member struct {
	lease.Member
	stream  *stream // nil while there is none
	heard   limit.Time
	handles map[uint32]struct{}
	decided map[string]lease.Usage // by limit, since it began; nil = nothing
}

var (
	errDuplicate = status.Error(codes.AlreadyExists, "another process reports under this instance's name: give each instance a name of its own")
	errReplaced  = status.Error(codes.Aborted, "a newer stream has taken the place of this one")
	errChanged   = status.Error(codes.InvalidArgument, "the instance or its session changed within a stream: open a stream for each")
	errHandles   = status.Errorf(codes.ResourceExhausted, "the instance has more than %d open handles: close those that are not used", maxHandles)
	errSilent    = status.Error(codes.DeadlineExceeded, "the instance has not reported for several leases: open another stream")
	errStalled   = status.Error(codes.ResourceExhausted, "the instance does not read its grants: read them as they come")
)

// admit returns the member that a report is of, or ends the stream and returns nil.
func (s *Service) admit(now limit.Time, st *stream, r *lease.Report) *member {
	if st.cause() != nil {
		return nil // ended meanwhile
	}
	m := s.loop.members[r.Instance]
	switch {
	case st.member != (lease.Member{}) && st.member != r.Member:
		st.end(errChanged)
		return nil
	case m == nil:
		m = &member{Member: r.Member, stream: st, handles: map[uint32]struct{}{}}
		s.loop.members[r.Instance] = m
	case m.Session != r.Session && m.stream != nil && now-m.heard < limit.Time(s.opts.Lease):
		st.end(errDuplicate)
		return nil
	case m.Session != r.Session:
		// The former one has gone, or its machine has: its leases run out.
		if m.stream != nil {
			m.stream.end(errReplaced)
		}
		*m = member{Member: r.Member, stream: st, handles: map[uint32]struct{}{}}
	case m.stream != st:
		if m.stream != nil {
			m.stream.end(errReplaced)
		}
		m.stream = st
	}
	if st.member == (lease.Member{}) {
		st.member = r.Member
		close(st.accepted)
	}
	m.heard = now
	for i := range r.Demands {
		d := &r.Demands[i]
		if m.handles[d.Handle] = struct{}{}; d.Closed {
			delete(m.handles, d.Handle)
		}
		if len(m.handles) > maxHandles {
			st.end(errHandles)
			return nil
		}
	}
	return m
}

// gone takes note of the end of a stream.
func (s *Service) gone(st *stream) {
	if m := s.loop.members[st.member.Instance]; m != nil && m.stream == st {
		m.stream = nil
	}
}

// sweep forgets members whose leases have ended, and ends streams that are of no use.
func (s *Service) sweep(now limit.Time) {
	for name, m := range s.loop.members {
		quiet := time.Duration(now - m.heard)
		switch {
		case m.stream == nil:
			if quiet > 2*s.opts.Lease {
				delete(s.loop.members, name)
			}
		case quiet > silence*s.opts.Lease:
			m.stream.end(errSilent)
		case m.stream.stalledFor() > s.patience.stalled:
			m.stream.end(errStalled)
		}
	}
}
