package httpclient

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/middleware/outgoing"
)

// TestPermitsInFlight: a permit is held until the answer has been read or closed.
func TestPermitsInFlight(t *testing.T) {
	own := &permits{}
	tr := transport(t, always(200), Policy{Limit: own})
	resp, err := tr.RoundTrip(get(t, "http://a/"))
	if err != nil || own.held != 1 {
		t.Fatalf("%v, %d held, want 1", err, own.held)
	}
	_, _ = io.ReadAll(resp.Body)
	_ = resp.Body.Close()
	if own.held != 0 {
		t.Errorf("%d held after the body was read and closed", own.held)
	}
	broken := transport(t, &backend{answer: func(int, *http.Request) (*http.Response, error) { return nil, io.EOF }}, Policy{Limit: own})
	if _, err := broken.RoundTrip(get(t, "http://a/")); err == nil || own.held != 0 {
		t.Errorf("%v, %d held after an error", err, own.held)
	}
}

type permits struct{ held int }

func (p *permits) Take(context.Context, limit.Request) (limit.Decision, error) {
	p.held++
	return limit.Decision{Allowed: true, Permit: 1}, nil
}

func (p *permits) Finish(context.Context, limit.Request, uint64) error {
	p.held--
	return nil
}

// TestBodiesAreClosed: that of a request that is not sent as well.
func TestBodiesAreClosed(t *testing.T) {
	tr := transport(t, always(429, "Retry-After", "30"), Policy{Retry: outgoing.Retry{Attempts: 1}})
	for range 2 {
		body := &closing{Reader: strings.NewReader("x")}
		req := get(t, "http://a/")
		req.Body = body
		if resp, err := tr.RoundTrip(req); err == nil {
			_ = resp.Body.Close()
		}
		if !body.closed {
			t.Error("the body was not closed")
		}
	}
}

type closing struct {
	io.Reader
	closed bool
}

func (c *closing) Close() error {
	c.closed = true
	return nil
}

// TestEarlierAnswersAreClosed: those that a retry replaces, and not the one that is returned.
func TestEarlierAnswersAreClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var bodies []*closing
		b := &backend{answer: func(int, *http.Request) (*http.Response, error) {
			resp := respond(503)
			body := &closing{Reader: strings.NewReader(strings.Repeat("x", 100_000))}
			resp.Body = body
			bodies = append(bodies, body)
			return resp, nil
		}}
		resp, err := transport(t, b, retries).RoundTrip(get(t, "http://a/"))
		if err != nil || len(bodies) != 3 || !bodies[0].closed || !bodies[1].closed || bodies[2].closed {
			t.Fatalf("%v: %+v, want the first two closed", err, bodies)
		}
		if text, _ := io.ReadAll(resp.Body); len(text) != 100_000 {
			t.Errorf("%d bytes of the answer are left", len(text))
		}
		_ = resp.Body.Close()
	})
}

// TestBodyThatCannotBeHadAgain: the error of GetBody is the request's.
func TestBodyThatCannotBeHadAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gone := errors.New("the file is gone")
		req := get(t, "http://a/")
		req.Body, req.GetBody = io.NopCloser(strings.NewReader("x")), func() (io.ReadCloser, error) { return nil, gone }
		b := always(503)
		if resp, err := transport(t, b, retries).RoundTrip(req); !errors.Is(err, gone) || resp != nil || len(b.seen) != 1 {
			t.Errorf("%v, %v after %d attempts, want the error", resp, err, len(b.seen))
		}
	})
}

// TestPermitAtTheEndOfTheBody: a permit is free when the answer has been read, before it is closed;
// an answer that takes messages still does.
func TestPermitAtTheEndOfTheBody(t *testing.T) {
	own := &permits{}
	resp, err := transport(t, always(200), Policy{Limit: own}).RoundTrip(get(t, "http://a/"))
	if err != nil {
		t.Fatal(err)
	}
	if _, _ = io.ReadAll(resp.Body); own.held != 0 {
		t.Errorf("%d held at the end of the body", own.held)
	}
	_ = resp.Body.Close()
	upgraded := &backend{answer: func(int, *http.Request) (*http.Response, error) {
		resp := respond(101)
		resp.Body = struct {
			io.ReadCloser
			io.Writer
		}{resp.Body, io.Discard}
		return resp, nil
	}}
	if resp, err = transport(t, upgraded, Policy{Limit: own}).RoundTrip(get(t, "http://a/")); err != nil {
		t.Fatal(err)
	}
	if _, ok := resp.Body.(io.Writer); !ok || own.held != 1 {
		t.Errorf("writer %v, %d held, want a connection with one", ok, own.held)
	}
	if _ = resp.Body.Close(); own.held != 0 {
		t.Errorf("%d held after the end", own.held)
	}
}
