package proxy

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stint-io/stint/internal/answer"
	"github.com/stint-io/stint/internal/forwarded"
	"github.com/stint-io/stint/throttle"
)

// forwarder hands requests to an upstream, and its answers back.
type forwarder struct {
	reverse httputil.ReverseProxy
	pool    *pool
	trusted *forwarded.Trusted
	body    time.Duration // between two parts of a request; 0 = no bound
	maxBody int64         // 0 = no bound
	log     *slog.Logger

	unhealthy atomic.Uint64   // requests without an upstream
	cut       context.Context // ends when what is in progress is cut
}

func newForwarder(o *Options, p *pool, trusted *forwarded.Trusted) *forwarder {
	f := &forwarder{
		pool: p, trusted: trusted, maxBody: o.MaxBody, cut: context.Background(),
		body: o.Timeouts.Body, log: o.Decide.Logger,
	}
	f.reverse = httputil.ReverseProxy{
		Rewrite: f.rewrite,

		ModifyResponse: answerBegins,
		Transport:      p,
		ErrorHandler:   f.failed,
		BufferPool:     &buffers{},
		ErrorLog:       slog.NewLogLogger(o.Decide.Logger.Handler(), slog.LevelDebug),
	}
	return f
}

// buffers are those by which answers are copied.
type buffers struct{ pool sync.Pool }

// bufferSize is that of one. Not smaller: a large answer costs a call for each. Not larger: each request in
// progress has one.
const bufferSize = 32 << 10

// Get implements [httputil.BufferPool].
func (b *buffers) Get() []byte {
	if one, ok := b.pool.Get().(*[bufferSize]byte); ok {
		return one[:]
	}
	return make([]byte, bufferSize)
}

// Put implements [httputil.BufferPool].
func (b *buffers) Put(one []byte) { b.pool.Put((*[bufferSize]byte)(one)) }

// ServeHTTP implements [http.Handler].
func (f *forwarder) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.ContentLength != 0 && r.Body != nil {
		body := r.Body
		if f.maxBody > 0 {
			body = http.MaxBytesReader(nil, body, f.maxBody)
		}
		own := *r
		steady := &steadyBody{
			ReadCloser: body, control: http.NewResponseController(w), pause: f.body, until: f.least(r.ContentLength),
			trailer: r.Trailer,
		}
		own.Body = steady
		if a := replyOf(w); a != nil {
			a.body = steady
		}
		r = &own
	}
	if a := replyOf(w); a != nil {
		a.keep()
	}
	r, end := outlive(r, f.cut)
	defer end()
	f.reverse.ServeHTTP(w, r)
}

// leastRate is how many bytes a second a client has to send of a body of known length, on average. Not more:
// phones at the edge of a cell send a few thousand. Not less: a client that sends a byte before each
// time-out would hold a connection of the upstream for days.
const leastRate = 1 << 10

// longest bounds the time for a body, so that no sum overflows.
const longest = 10 * 365 * 24 * time.Hour

// least returns when a body of that length has to be there; the zero time = whenever it comes.
func (f *forwarder) least(length int64) time.Time {
	if length < 0 || f.body == 0 {
		return time.Time{}
	}
	seconds := min(length/leastRate, int64(longest/time.Second)) // a length is what a client says
	return time.Now().Add(min(f.body, longest) + time.Duration(seconds)*time.Second)
}

// steadyBody is a client's body that must not stop coming.
type steadyBody struct {
	io.ReadCloser
	control *http.ResponseController
	pause   time.Duration // the longest between two parts; 0 = no bound
	until   time.Time     // when it has to be whole; zero = whenever
	trailer http.Header   // has its fields once the body has ended
	ended   bool

	deadline atomic.Int64 // of the present Read, Unix nanoseconds; 0 = there is none
}

// Read implements [io.Reader].
func (b *steadyBody) Read(p []byte) (int, error) {
	if b.pause == 0 || b.ended {
		n, err := b.ReadCloser.Read(p)
		withoutVouched(b.trailer)
		return n, err
	}
	at := time.Now().Add(b.pause)
	if !b.until.IsZero() && b.until.Before(at) {
		at = b.until
	}
	// A server that cannot has no slow clients: there is none but in tests.
	_ = b.control.SetReadDeadline(at)
	b.deadline.Store(at.UnixNano())
	n, err := b.ReadCloser.Read(p)
	if err == io.EOF {
		// From here on the server looks whether the client goes, for as long as the answer takes. After
		// any other error the deadline stays: the server reads on to see what is left of the body.
		b.ended = true
		withoutVouched(b.trailer)
		b.deadline.Store(0)
		_ = b.control.SetReadDeadline(time.Time{})
	}
	return n, err
}

// late reports whether the body did not come in time. The server cancels a request then, before who reads
// the body knows.
func (b *steadyBody) late() bool {
	if b == nil {
		return false
	}
	at := b.deadline.Load()
	return at != 0 && time.Now().UnixNano() >= at
}

// rewrite makes the request that the upstream gets.
func (f *forwarder) rewrite(pr *httputil.ProxyRequest) {
	in, out := pr.In, pr.Out
	out.URL.RawQuery = in.URL.RawQuery // as it came: it is not ours to judge
	// The same map, not a copy: net/http puts the trailers into it once the body has ended.
	out.Trailer = in.Trailer
	withoutVouched(out.Trailer)
	peer, trusted := f.trusted.Peer(in.RemoteAddr)
	client, _ := f.trusted.ClientIP(in.RemoteAddr, in.Header)
	proto := "http"
	if in.TLS != nil {
		proto = "https"
	}
	h := out.Header
	withoutLookalikes(h)
	text := address(peer)
	forwardedFor := text
	h.Del("X-Real-Ip")
	if trusted {
		if before := in.Header["X-Forwarded-For"]; len(before) > 0 {
			forwardedFor = strings.Join(before, ", ") + ", " + text
		}
		for _, name := range [...]string{"X-Forwarded-Proto", "X-Forwarded-Host"} {
			if lines := in.Header[name]; len(lines) > 0 {
				h[name] = lines
			}
		}
		if before := in.Header["Forwarded"]; len(before) > 0 {
			h["Forwarded"] = []string{strings.Join(before, ", ") + ", for=" + quoted(peer)}
		}
	}
	values := make([]string, 4) // one allocation for all
	set := func(i int, name, value string) {
		values[i] = value
		h[name] = values[i : i+1 : i+1]
	}
	if forwardedFor != "" {
		set(0, "X-Forwarded-For", forwardedFor)
	}
	if client.IsValid() {
		if client == peer {
			set(1, "X-Real-Ip", text)
		} else {
			set(1, "X-Real-Ip", address(client))
		}
	}
	if len(h["X-Forwarded-Proto"]) == 0 {
		set(2, "X-Forwarded-Proto", proto)
	}
	if len(h["X-Forwarded-Host"]) == 0 && in.Host != "" {
		set(3, "X-Forwarded-Host", in.Host)
	}
}

func address(a netip.Addr) string {
	if !a.IsValid() {
		return ""
	}
	return a.String()
}

// quoted is an address as the field Forwarded has it.
func quoted(a netip.Addr) string {
	switch {
	case !a.IsValid():
		return "unknown"
	case a.Is6():
		return `"[` + a.String() + `]"`
	}
	return a.String()
}

// failed answers a request that no upstream has answered.
func (f *forwarder) failed(w http.ResponseWriter, r *http.Request, err error) {
	var tooLarge *http.MaxBytesError
	var timeout net.Error
	var up *upstreamError
	late := false
	if a := replyOf(w); a != nil {
		a.forwarded = false
		late = a.body.late()
	}
	switch {
	case errors.As(err, &tooLarge):
		w.Header().Set("Connection", "close")
		answer.WriteError(w, refusedBody.status, refusedBody.detail)
	case late:
		w.Header().Set("Connection", "close")
		answer.WriteError(w, http.StatusRequestTimeout, "the body did not come in time")
	case errors.Is(err, errNoUpstream):
		f.unhealthy.Add(1)
		w.Header().Set("Retry-After", "1")
		answer.WriteError(w, http.StatusServiceUnavailable, "no server can take the request now")
	case errors.As(err, &up):
		f.log.Debug("an upstream did not answer", "upstream", up.upstream.name, "method", r.Method, "path", r.URL.Path, "error", up.err)
		if errors.As(err, &timeout) && timeout.Timeout() && !isDial(err) {
			answer.WriteError(w, http.StatusGatewayTimeout, "the server did not answer in time")
			return
		}
		answer.WriteError(w, http.StatusBadGateway, "the server did not answer")
	case context.Cause(r.Context()) == throttle.ErrCancelled:
		w.Header().Set("Retry-After", "1")
		answer.WriteError(w, http.StatusServiceUnavailable, "the request was cancelled to protect the server")
	case errors.Is(r.Context().Err(), context.Canceled), errors.Is(err, errClientGone):
		// The client has gone, or the proxy ends: whoever still listens is told.
		answer.WriteError(w, http.StatusServiceUnavailable, "the request was cancelled")
	default:
		w.Header().Set("Connection", "close")
		answer.WriteError(w, http.StatusBadRequest, "the body could not be read")
	}
}

func isDial(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) && op.Op == "dial"
}
