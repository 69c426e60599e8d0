package proxy

import (
	"context"
	"errors"
	"net/http"
	"sync/atomic"

	"github.com/stint-io/stint/middleware/httplimit"
	"github.com/stint-io/stint/throttle"
)

// errClientGone says that the client of a request has gone before the answer came.
var errClientGone = errors.New("the client has gone")

// lasting is a request that holds a place: a permit of a limit in flight, or one of the throttle. The server behind may
// not notice that the client has gone, so the request goes on until that server begins to answer, and keeps the place.
type lasting struct {
	client context.Context
	begun  atomic.Bool // the answer has
}

type lastingKey struct{}

// outlive returns r with a context that outlives the client where r holds a place. It ends with the answer that begins
// for a client that has gone, when the throttle cancels the request, and with cut.
func outlive(r *http.Request, cut context.Context) (_ *http.Request, end func()) {
	in := r.Context()
	if !httplimit.HoldsPermit(in) && throttle.FromContext(in) == nil {
		return r, func() {}
	}
	l := &lasting{client: in}
	out, cancel := context.WithCancelCause(context.WithValue(context.WithoutCancel(in), lastingKey{}, l))
	gone := context.AfterFunc(in, func() {
		if cause := context.Cause(in); l.begun.Load() || cause == throttle.ErrCancelled {
			cancel(cause)
		}
	})
	over := context.AfterFunc(cut, func() { cancel(context.Canceled) })
	return r.WithContext(out), func() {
		gone()
		over()
		cancel(context.Canceled)
	}
}

// answerBegins is called with each answer of an upstream. Its error ends the request.
func answerBegins(res *http.Response) error {
	l, _ := res.Request.Context().Value(lastingKey{}).(*lasting)
	if l == nil {
		return nil
	}
	if l.begun.Store(true); l.client.Err() != nil {
		return errClientGone
	}
	return nil
}
