// Package leasestream has the streams of instances: who opened each of them and what it may send, which
// instance it is of, what is sent on it next, and how many there may be. It reads and writes nothing
// itself, and knows no coordinator.
package leasestream

import (
	"context"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/stint-io/stint/internal/gen/leasepb"
	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/internal/leasewire"
)

// Stream is the stream of one instance. Make it with [New]. One goroutine reads, one writes, and the
// handler waits for the reason to end: a handler that has returned is what ends a
// read or a write that hangs.
type Stream struct {
	ctx    context.Context
	cancel context.CancelCauseFunc

	accepted chan struct{} // closed by the loop when the instance is admitted
	taken    chan struct{} // the loop is done with the report
	member   lease.Member  // the loop's, until accepted is closed; then it stays
	holder   holder

	// Own says that the instance is in this process. It is set before the first report.
	Own bool

	out struct {
		sync.Mutex
		pending *leasepb.Grant
		wake    chan struct{}
		since   time.Time // when the write that runs began; zero = none runs
	}
}

// New returns a stream that lives until ctx ends, which cancel ends.
func New(ctx context.Context, cancel context.CancelCauseFunc) *Stream {
	st := &Stream{ctx: ctx, cancel: cancel, accepted: make(chan struct{}), taken: make(chan struct{}, 1)}
	st.out.wake = make(chan struct{}, 1)
	return st
}

// Member returns whose stream it is, once that is known; the zero value before.
func (st *Stream) Member() lease.Member {
	select {
	case <-st.accepted:
		return st.member // it does not change any more
	default:
		return lease.Member{}
	}
}

// Accepted is closed when the instance is admitted.
func (st *Stream) Accepted() <-chan struct{} { return st.accepted }

// Taken says that the loop is done with the report that was posted last.
func (st *Stream) Taken() <-chan struct{} { return st.taken }

// Take says to Taken that the loop is done with a report.
func (st *Stream) Take() { st.taken <- struct{}{} }

// Wake says that there may be something to send: see [Stream.Next].
func (st *Stream) Wake() <-chan struct{} { return st.out.wake }

// Context lives as long as the stream.
func (st *Stream) Context() context.Context { return st.ctx }

// ErrGoing is how streams end when the service does.
var ErrGoing = status.Error(codes.Unavailable, "the coordinator goes: come back later, leases run on meanwhile")

// End is the cause of a stream's end; a nil Err is a good end.
type End struct{ Err error }

// Error makes an End a cause.
func (e End) Error() string { return "the stream ends" }

// End ends the stream with the status of err. The first reason counts.
func (st *Stream) End(err error) { st.cancel(End{err}) }

// Cause returns why the stream ends; nil while it does not.
func (st *Stream) Cause() error { return context.Cause(st.ctx) }

// Put adds a grant to what is to be sent. What was not sent yet is brought up to date
// rather than queued: grants carry totals, so the newest says it all, and a slow reader
// costs no more than one grant with all its resources.
func (st *Stream) Put(g *lease.Grant) {
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

// merge returns the shares of both, the newer one where both have a handle.
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

// StalledFor is how long the write that runs has taken.
func (st *Stream) StalledFor() time.Duration {
	st.out.Lock()
	defer st.out.Unlock()
	if st.out.since.IsZero() {
		return 0
	}
	return time.Since(st.out.since)
}

// Next returns what is to be sent, nil = nothing, and marks the beginning or the end of a write.
func (st *Stream) Next() *leasepb.Grant {
	st.out.Lock()
	defer st.out.Unlock()
	g := st.out.pending
	st.out.pending, st.out.since = nil, time.Time{}
	if g != nil {
		st.out.since = time.Now()
	}
	return g
}
