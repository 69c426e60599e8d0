// Package httpclient is an [http.RoundTripper] that spares the servers it calls, and its program
// the requests that would be refused anyway.
//
//	transport, err := httpclient.New(nil, httpclient.Policy{})
//	...
//	client := &http.Client{Transport: transport}
//
// It throttles itself while a server refuses, tries again within a budget, obeys Retry-After and
// RateLimit, and asks a limit of one's own: see package outgoing, which says what the [Policy]
// means. Servers are told apart by the host and port of the URL.
//
// # What is not sent
//
// A request that is held back fails with a [*Refusal], within the *url.Error of the http.Client:
//
//	var refusal *httpclient.Refusal
//	if errors.As(err, &refusal) { time.AfterFunc(refusal.RetryAfter(), again) }
//
// It is an error and not a made-up answer with status 429, since no server has said so: who counts
// answers or keeps them would count and keep something that never was, and a RoundTripper must not
// return an answer that it did not get. For programs that understand nothing but a status there
// is [WithAnswers].
//
// # What is tried again
//
// A request is sent again when the server has refused it, or the connection broke before an
// answer, if its method is GET, HEAD, OPTIONS, TRACE, PUT or DELETE or it has an Idempotency-Key
// (see [WithIdempotent] for others), and its body can be had again: it has none, or GetBody, as
// those of http.NewRequest with a buffer have. If the server was never reached the method does not
// matter. When the attempts, the budget or the time are used up the last answer is returned as it
// came.
package httpclient

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/stint-io/stint/internal/answer"
	"github.com/stint-io/stint/internal/answer/reader"
	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/middleware/outgoing"
	"github.com/stint-io/stint/throttle"
)

// Policy says how requests are sent; see [outgoing.Policy].
type Policy = outgoing.Policy

// Refusal is the error of a request that was not sent; see [outgoing.Refusal].
type Refusal = outgoing.Refusal

// Stats are what a [Transport] has done; see [outgoing.Stats].
type Stats = outgoing.Stats

// Option changes what [New] builds.
type Option func(*Transport)

// WithScope sets what of a server a request is for: requests of one scope are taken to meet the
// same limits of the server, which may be others than those of the next scope. The default is the
// method and the first two parts of the path, such as "GET /v1/users". f is called once for each
// request, concurrently.
func WithScope(f func(*http.Request) string) Option { return func(t *Transport) { t.scope = f } }

// WithIdempotent sets which requests may be sent twice. f is called concurrently.
func WithIdempotent(f func(*http.Request) bool) Option {
	return func(t *Transport) { t.idempotent = f }
}

// WithRefused sets which answers are refusals. The default is the statuses 429 and 503, and 403 with a
// Retry-After, as GitHub answers. f must not read the body. It is called concurrently.
func WithRefused(f func(*http.Response) bool) Option { return func(t *Transport) { t.refused = f } }

// WithAttributes adds attributes of a request for Policy.Limit, besides host, method and path; of a
// name that occurs twice the first counts. f is called concurrently.
func WithAttributes(f func(*http.Request) []limit.Attribute) Option {
	return func(t *Transport) { t.attributes = f }
}

// WithAnswers answers requests that are not sent as package httplimit does, with status 429,
// Retry-After and a problem document, in place of an error. The header field Via, "1.1 stint-client
// (not sent)", tells these answers from those of the server.
func WithAnswers() Option { return func(t *Transport) { t.answers = true } }

// Transport is an http.RoundTripper. It is safe for concurrent use; [New] makes one.
type Transport struct {
	next       http.RoundTripper
	guard      *outgoing.Guard
	scope      func(*http.Request) string
	idempotent func(*http.Request) bool
	refused    func(*http.Response) bool
	attributes func(*http.Request) []limit.Attribute
	answers    bool
}

// New returns a Transport that sends by next; nil = http.DefaultTransport. Its error names the value
// of the policy that is out of its range. Use one Transport for all that a program sends: what it
// learns of a server is its own.
func New(next http.RoundTripper, p Policy, opts ...Option) (*Transport, error) {
	guard, err := outgoing.New(p)
	if err != nil {
		return nil, err
	}
	if next == nil {
		next = http.DefaultTransport
	}
	t := &Transport{next: next, guard: guard, scope: scope, idempotent: idempotent, refused: refused}
	for _, o := range opts {
		o(t)
	}
	return t, nil
}

// Stats returns what the Transport has done so far, for metrics.
func (t *Transport) Stats() Stats { return t.guard.Stats() }

// CloseIdleConnections closes those of the Transport below, as http.Client asks for.
func (t *Transport) CloseIdleConnections() {
	if c, ok := t.next.(interface{ CloseIdleConnections() }); ok {
		c.CloseIdleConnections()
	}
}

// RoundTrip implements http.RoundTripper. It does not change req.
func (t *Transport) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.URL == nil {
		closeBody(req)
		return nil, errors.New("httpclient: the request has no URL")
	}
	call := outgoing.Call{
		Host: req.URL.Host, Scope: t.scope(req),
		Attributes: []limit.Attribute{{Name: "method", Value: req.Method}, {Name: "path", Value: req.URL.Path}},
	}
	if t.attributes != nil {
		call.Attributes = append(t.attributes(req), call.Attributes...)
	}
	send := req
	if field := req.Header.Get(throttle.Header); field != "" {
		if i, err := throttle.ParseImportance(field); err == nil {
			call.Criticality = i.Criticality
		}
	} else if i := outgoing.ImportanceOf(req.Context()); i.Criticality != throttle.Default {
		send = withHeader(req, throttle.Header, i.String())
	}
	s := sending{t: t, req: send}
	attempt, err := t.guard.Do(req.Context(), call, s.try)
	if err != nil {
		closeBody(req)
		return t.notSent(req, err)
	}
	if s.err != nil {
		attempt.Release()
		return nil, s.err
	}
	if attempt.Holds() {
		s.resp.Body = released(s.resp.Body, attempt)
	}
	return s.resp, nil
}

// sending is one request, and how its last attempt went.
type sending struct {
	t    *Transport
	req  *http.Request
	resp *http.Response
	err  error
}

func (s *sending) try(n int) outgoing.Result {
	req := s.req
	if n > 1 {
		// Do lets only a request come here whose body can be had again.
		drain(s.resp)
		s.resp, s.err = nil, nil
		if req = s.again(); req == nil {
			return outgoing.Result{Outcome: outgoing.Dropped}
		}
	}
	s.resp, s.err = s.t.next.RoundTrip(req)
	if s.err == nil && s.resp == nil {
		s.err = errors.New("httpclient: the transport below returned neither an answer nor an error")
	}
	return s.result()
}

// again returns the request with its body from the start.
func (s *sending) again() *http.Request {
	req := *s.req
	if req.GetBody != nil {
		body, err := req.GetBody()
		if err != nil {
			s.err = err
			return nil
		}
		req.Body = body
	}
	return &req
}

func (s *sending) result() outgoing.Result {
	replayable := s.req.Body == nil || s.req.Body == http.NoBody || s.req.GetBody != nil
	if s.err == nil {
		res := outgoing.Result{Outcome: outgoing.Accepted, Standing: reader.Read(s.resp.Header, time.Now())}
		if s.t.refused(s.resp) {
			res.Outcome, res.Again = outgoing.Refused, replayable && s.t.idempotent(s.req)
		}
		return res
	}
	switch ctx := s.req.Context(); {
	case errors.Is(ctx.Err(), context.Canceled):
		return outgoing.Result{Outcome: outgoing.Dropped}
	case neverSent(s.err):
		return outgoing.Result{Outcome: outgoing.Dropped, Again: replayable}
	case errors.Is(ctx.Err(), context.DeadlineExceeded) || timedOut(s.err):
		return outgoing.Result{Outcome: outgoing.Unanswered, Again: replayable && s.t.idempotent(s.req)}
	default:
		return outgoing.Result{Outcome: outgoing.Refused, Again: replayable && s.t.idempotent(s.req)}
	}
}

// timedOut reports whether an error is a timeout, such as that of http.Transport.ResponseHeaderTimeout.
func timedOut(err error) bool {
	var e net.Error
	return errors.As(err, &e) && e.Timeout()
}

// notSent returns what a request that was held back gets.
func (t *Transport) notSent(req *http.Request, err error) (*http.Response, error) {
	var r *Refusal
	if !t.answers || !errors.As(err, &r) {
		return nil, err
	}
	w := made{header: http.Header{"Via": {"1.1 stint-client (not sent)"}}}
	answer.WriteRefusal(&w, &r.Decision, answer.Options{})
	return &http.Response{
		Status: fmt.Sprintf("%d %s", w.status, http.StatusText(w.status)), StatusCode: w.status, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: w.header, Body: io.NopCloser(&w.body), ContentLength: int64(w.body.Len()), Request: req,
	}, nil
}

// made is an answer that is not sent anywhere.
type made struct {
	header http.Header
	status int
	body   bytes.Buffer
}

func (w *made) Header() http.Header         { return w.header }
func (w *made) WriteHeader(status int)      { w.status = status }
func (w *made) Write(b []byte) (int, error) { return w.body.Write(b) }

// neverSent reports whether an error says that there was no connection on which the request could
// have been sent.
func neverSent(err error) bool {
	var op *net.OpError
	var dns *net.DNSError
	var certificate *tls.CertificateVerificationError
	var record tls.RecordHeaderError
	return errors.As(err, &op) && (op.Op == "dial" || op.Op == "proxyconnect") ||
		errors.As(err, &dns) || errors.As(err, &certificate) || errors.As(err, &record)
}

// scope is the method and the first two parts of the path.
func scope(req *http.Request) string {
	path := req.URL.Path
	end := len(path)
	for i, slashes := 0, 0; i < len(path); i++ {
		if path[i] == '/' {
			if slashes++; slashes == 3 {
				end = i
				break
			}
		}
	}
	return req.Method + " " + path[:end]
}

func idempotent(req *http.Request) bool {
	switch req.Method {
	case "", http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace, http.MethodPut, http.MethodDelete:
		return true
	default:
		return req.Header.Get("Idempotency-Key") != ""
	}
}

func refused(resp *http.Response) bool {
	switch resp.StatusCode {
	case http.StatusTooManyRequests, http.StatusServiceUnavailable:
		return true
	case http.StatusForbidden:
		return resp.Header.Get("Retry-After") != ""
	default:
		return false
	}
}

func withHeader(req *http.Request, name, value string) *http.Request {
	clone := *req
	clone.Header = req.Header.Clone()
	if clone.Header == nil {
		clone.Header = http.Header{}
	}
	clone.Header.Set(name, value)
	return &clone
}

const (
	// maxDrain bounds what is read of an answer that is not returned, so that its connection can be
	// used again. Not less: a problem document fits.
	maxDrain = 4 << 10
	// drainTime bounds the time for that. Not more: a server that sends no body would hold up the
	// retry. Not less: bodies come with their header, or a round trip later.
	drainTime = 100 * time.Millisecond
)

func drain(resp *http.Response) {
	if resp == nil {
		return
	}
	late := time.AfterFunc(drainTime, func() { _ = resp.Body.Close() })
	_, _ = io.CopyN(io.Discard, resp.Body, maxDrain)
	if late.Stop() {
		_ = resp.Body.Close()
	}
}

func closeBody(req *http.Request) {
	if req.Body != nil {
		_ = req.Body.Close()
	}
}

// released returns body, which releases the attempt when it is closed or has ended.
func released(body io.ReadCloser, a *outgoing.Attempt) io.ReadCloser {
	b := &releasing{ReadCloser: body, attempt: a}
	if w, ok := body.(io.Writer); ok { // a connection that was upgraded
		return struct {
			*releasing
			io.Writer
		}{b, w}
	}
	return b
}

type releasing struct {
	io.ReadCloser
	attempt *outgoing.Attempt
}

func (b *releasing) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil {
		b.attempt.Release()
	}
	return n, err
}

func (b *releasing) Close() error {
	defer b.attempt.Release()
	return b.ReadCloser.Close()
}
