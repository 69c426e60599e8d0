package proxy

import (
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"
)

// reply is the answer to one request. It knows the status, translates the proxy's own answers for callers
// of gRPC, and keeps the header fields that were set before the upstream's answer comes.
type reply struct {
	http.ResponseWriter
	status    int
	grpc      bool // the caller speaks gRPC
	forwarded bool // the answer is the upstream's
	expects   bool // the client waits for 100 Continue before it sends its body
	discard   bool // of the body: its text is in the status
	slow      time.Duration
	deadline  time.Time
	kept      http.Header
	body      *steadyBody // of the request; nil = it has none
}

var replies = sync.Pool{New: func() any { return &reply{kept: http.Header{}} }}

func newReply(w http.ResponseWriter, r *http.Request, slow time.Duration) *reply {
	a := replies.Get().(*reply)
	a.ResponseWriter, a.status, a.forwarded, a.discard = w, 0, false, false
	a.expects = len(r.Header["Expect"]) > 0
	a.grpc = r.ProtoMajor == 2 && isGRPC(r.Header)
	if a.slow, a.deadline = 0, (time.Time{}); r.ProtoMajor == 2 {
		a.slow = slow // over HTTP/1 the connection has the bound
	}
	return a
}

func (a *reply) free() {
	a.ResponseWriter, a.body = nil, nil
	clear(a.kept)
	replies.Put(a)
}

// replyOf finds the reply below what has been wrapped around it; nil = there is none.
func replyOf(w http.ResponseWriter) *reply {
	for {
		if a, ok := w.(*reply); ok {
			return a
		}
		outer, ok := w.(interface{ Unwrap() http.ResponseWriter })
		if !ok {
			return nil
		}
		w = outer.Unwrap()
	}
}

// Unwrap is for [http.ResponseController].
func (a *reply) Unwrap() http.ResponseWriter { return a.ResponseWriter }

// keep puts the header fields aside that are set already, until the upstream's own are there:
// httputil.ReverseProxy clears the header after each informational answer.
func (a *reply) keep() {
	a.forwarded = true // unless the forwarder says otherwise
	h := a.Header()
	for name, lines := range h {
		a.kept[name] = lines
		delete(h, name)
	}
}

// restore adds what was put aside to the answer. Of the lists both are there; of all else ours counts.
func (a *reply) restore() {
	h := a.Header()
	for name, lines := range a.kept {
		switch name {
		case "Ratelimit", "Ratelimit-Policy", "X-Ratelimit-Warning", "Vary", "Set-Cookie":
			h[name] = append(lines[:len(lines):len(lines)], h[name]...)
		default:
			h[name] = lines
		}
	}
	clear(a.kept)
}

// WriteHeader implements [http.ResponseWriter].
func (a *reply) WriteHeader(status int) {
	if status >= 200 && a.status == 0 {
		a.status = status
		a.restore()
		if a.expects && !a.forwarded {
			// It may send its body all the same, or another request: nobody can tell which.
			a.Header().Set("Connection", "close")
		}
		if a.grpc && !a.forwarded && status >= 300 {
			a.translate(status)
			status = http.StatusOK
		}
	}
	a.ResponseWriter.WriteHeader(status)
}

// Write implements [http.ResponseWriter].
func (a *reply) Write(p []byte) (int, error) {
	if a.status == 0 {
		a.WriteHeader(http.StatusOK)
	}
	if a.discard {
		return len(p), nil
	}
	if a.slow > 0 {
		if now := time.Now(); a.deadline.Sub(now) < a.slow-time.Second {
			a.deadline = now.Add(a.slow)
			// Every server of net/http can; and the stream is bounded by its connection at last.
			_ = http.NewResponseController(a.ResponseWriter).SetWriteDeadline(a.deadline)
		}
	}
	return a.ResponseWriter.Write(p)
}

// translate makes an answer of the proxy one of gRPC, whose libraries do not read the body of another
// status than 200. The codes are those that gRPC gives to statuses of HTTP, but for refusals.
func (a *reply) translate(status int) {
	h := a.Header()
	h.Del("Content-Length")
	h.Set("Content-Type", "application/grpc")
	code := 2 // UNKNOWN
	switch status {
	case http.StatusBadRequest, http.StatusRequestHeaderFieldsTooLarge:
		code = 13 // INTERNAL
	case http.StatusUnauthorized:
		code = 16 // UNAUTHENTICATED
	case http.StatusForbidden:
		code = 7 // PERMISSION_DENIED
	case http.StatusNotFound, http.StatusNotImplemented:
		code = 12 // UNIMPLEMENTED
	case http.StatusTooManyRequests, http.StatusRequestEntityTooLarge:
		code = 8 // RESOURCE_EXHAUSTED
	case http.StatusGatewayTimeout:
		code = 4 // DEADLINE_EXCEEDED
	case http.StatusBadGateway, http.StatusServiceUnavailable:
		code = 14 // UNAVAILABLE
	}
	h.Set("Grpc-Status", strconv.Itoa(code))
	text := http.StatusText(status)
	if limits := h.Get("Ratelimit"); limits != "" {
		text += ": " + limits
	}
	h.Set("Grpc-Message", strings.ReplaceAll(text, "%", "%25"))
	a.discard = true
}

// isGRPC reports whether a request or an answer is of gRPC.
func isGRPC(h http.Header) bool {
	lines := h["Content-Type"]
	return len(lines) == 1 && strings.HasPrefix(lines[0], "application/grpc") && !strings.HasPrefix(lines[0], "application/grpc-web")
}
