package httpthrottle

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"

	"github.com/stint-io/stint/throttle"
)

// response is what a handler writes to. It passes all on, until the request is cancelled. Like any
// ResponseWriter it belongs to one goroutine.
type response struct {
	http.ResponseWriter
	work *throttle.Work
	ctx  context.Context
	m    *middleware
	r    *http.Request

	begun    bool           // the header was sent
	refused  bool           // by the refusal of a cancelled request
	hijacked bool           // the connection is the handler's
	length   int64          // as declared; -1 = it was not
	written  int64          // of the body
	usage    throttle.Usage // reported in the header
}

// Unwrap is for http.ResponseController.
func (w *response) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func (w *response) cancelled() bool {
	return w.ctx.Err() != nil && errors.Is(context.Cause(w.ctx), throttle.ErrCancelled)
}

// WriteHeader implements http.ResponseWriter. If the request was cancelled before, the refusal is
// sent instead.
func (w *response) WriteHeader(status int) {
	informational := status >= 100 && status < 200 && status != http.StatusSwitchingProtocols
	switch {
	case w.refused, w.begun && informational:
	case informational || w.begun: // net/http complains of a second one
		w.ResponseWriter.WriteHeader(status)
	case w.cancelled():
		w.refuse()
	default:
		w.begun, w.length = true, -1
		switch n, err := strconv.ParseInt(w.Header().Get("Content-Length"), 10, 64); {
		case w.r.Method == http.MethodHead || status == http.StatusNoContent || status == http.StatusNotModified:
			w.length = 0 // there is no body to cut off
		case err == nil:
			w.length = n
		}
		if w.m.hide {
			w.usage = w.m.reported(w.Header())
		}
		w.ResponseWriter.WriteHeader(status)
		if status == http.StatusSwitchingProtocols || w.leaves() {
			w.report()
			w.work.Leave()
		}
	}
}

// leaves reports whether the request gives its place back now that its answer has begun.
func (w *response) leaves() bool {
	place := PlaceByAnswer
	if w.m.place != nil {
		place = w.m.place(w.r)
	}
	kind, _, _ := strings.Cut(w.Header().Get("Content-Type"), ";")
	return place == PlaceUntilAnswer || place == PlaceByAnswer && strings.EqualFold(strings.TrimSpace(kind), "text/event-stream")
}

// begin sends the header, if it was not sent, and reports whether the body may be written.
func (w *response) begin() bool {
	if !w.begun && !w.refused {
		w.WriteHeader(http.StatusOK)
	}
	return !w.refused && !w.cancelled()
}

// Write implements http.ResponseWriter. Its error is ErrCancelled once the request was cancelled.
func (w *response) Write(b []byte) (int, error) {
	if !w.begin() {
		return 0, throttle.ErrCancelled
	}
	n, err := w.ResponseWriter.Write(b)
	w.written += int64(n)
	return n, err
}

// ReadFrom lets the server send files without copying them.
func (w *response) ReadFrom(src io.Reader) (int64, error) {
	if !w.begin() {
		return 0, throttle.ErrCancelled
	}
	n, err := io.Copy(w.ResponseWriter, src)
	w.written += n
	return n, err
}

// Flush implements http.Flusher.
func (w *response) Flush() { _ = w.FlushError() }

// FlushError is for http.ResponseController.
func (w *response) FlushError() error {
	if !w.begin() {
		return throttle.ErrCancelled
	}
	return http.NewResponseController(w.ResponseWriter).Flush()
}

// Hijack implements http.Hijacker.
func (w *response) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, buffer, err := http.NewResponseController(w.ResponseWriter).Hijack()
	if err == nil {
		w.hijacked = true
		w.work.Leave()
	}
	return conn, buffer, err
}

// refuse answers a cancelled request in place of its handler, whose fields about the body do not
// hold for the problem document.
func (w *response) refuse() {
	d, ok := w.work.Refusal()
	if !ok {
		return
	}
	w.refused = true
	h := w.Header()
	for _, name := range [...]string{
		"Accept-Ranges", "Cache-Control", "Content-Disposition", "Content-Encoding", "Content-Language", "Content-Length",
		"Content-Range", "Content-Type", "Etag", "Last-Modified", "Set-Cookie", "Trailer",
	} {
		delete(h, name)
	}
	w.m.refuse(w.ResponseWriter, w.r, &d)
}

// end is called when the handler has returned.
func (w *response) end() {
	switch {
	case w.hijacked || w.refused || !w.cancelled():
	case !w.begun:
		w.refuse()
	case w.length < 0 || w.written < w.length:
		// It may be complete, but nobody can tell: the connection or stream is closed.
		panic(http.ErrAbortHandler)
	}
}

// report says what the request has cost, if its handler reports that. What it says by
// throttle.SetCost counts before it.
func (w *response) report() {
	usage := w.usage
	if later := w.m.reported(w.Header()); later != nil {
		usage = later
	}
	if usage != nil && !w.work.HasCost() {
		w.work.SetUsage(usage)
	}
}
