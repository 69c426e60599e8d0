package lending

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

// stream is the stream of one instance. Make it with newStream. One goroutine reads, one writes, and the
// handler waits for the reason to end: a handler that has returned is what ends a
// read or a write that hangs.
type stream struct {
	ctx    context.Context
	cancel context.CancelCauseFunc

	accepted chan struct{} // closed by the loop when the instance is admitted
	taken    chan struct{} // the loop is done with the report
	member   lease.Member  // the loop's, until accepted is closed; then it stays
	holder   holder

	// own says that the instance is in this process. It is set before the first report.
	own bool

	out struct {
		sync.Mutex
		pending *leasepb.Grant
		wake    chan struct{} // there may be something to send: see next
		since   time.Time     // when the write that runs began; zero = none runs
	}
}

// newStream returns a stream that lives until ctx ends, which cancel ends.
func newStream(ctx context.Context, cancel context.CancelCauseFunc) *stream {
	st := &stream{ctx: ctx, cancel: cancel, accepted: make(chan struct{}), taken: make(chan struct{}, 1)}
	st.out.wake = make(chan struct{}, 1)
	return st
}

// admitted returns whose stream it is, once that is known; the zero value before.
func (st *stream) admitted() lease.Member {
	select {
	case <-st.accepted:
		return st.member // it does not change any more
	default:
		return lease.Member{}
	}
}

// take says that the loop is done with the report that was posted last.
func (st *stream) take() { st.taken <- struct{}{} }

// errGoing is how streams end when the service does.
var errGoing = status.Error(codes.Unavailable, "the coordinator goes: come back later, leases run on meanwhile")

// streamEnd is the cause of a stream's end; a nil err is a good end.
type streamEnd struct{ err error }

// Error makes it a cause.
func (e streamEnd) Error() string { return "the stream ends" }

// end ends the stream with the status of err. The first reason counts.
func (st *stream) end(err error) { st.cancel(streamEnd{err}) }

// cause returns why the stream ends; nil while it does not.
func (st *stream) cause() error { return context.Cause(st.ctx) }

// put adds a grant to what is to be sent. What was not sent yet is brought up to date
// rather than queued: grants carry totals, so the newest says it all, and a slow reader
// costs no more than one grant with all its resources.
func (st *stream) put(g *lease.Grant) {
	m := new(leasepb.Grant)
	leasewire.ToGrant(m, g)
	st.out.Lock()
	if old := st.out.pending; old != nil {
		m.Shares = mergeShares(old.GetShares(), m.GetShares())
	}
	st.out.pending = m
	st.out.Unlock()
	select {
	case st.out.wake <- struct{}{}:
	default:
	}
}

// mergeShares returns the shares of both, the newer one where both have a handle.
func mergeShares(older, newer []*leasepb.Share) []*leasepb.Share {
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

// next returns what is to be sent, nil = nothing, and marks the beginning or the end of a write.
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
