package proxy_test

import (
	"bufio"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/stint-io/stint/proxy"
)

// next reads an answer to its end.
func next(t *testing.T, in *bufio.Reader) *http.Response {
	t.Helper()
	res, err := http.ReadResponse(in, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(io.Discard, res.Body); err != nil {
		t.Fatal(err)
	}
	return res
}

// A head that comes in pieces hides its Content-Length before a piece that looks like a whole head. Its
// connection ends with it all the same.
func TestFramingInPieces(t *testing.T) {
	r := record(t, okAnswer)
	p := start(t, generous, proxy.Options{Upstreams: []string{r.url}})
	c := dial(t, p)
	in := bufio.NewReader(c)
	send := func(text string) {
		if _, err := io.WriteString(c, text); err != nil {
			t.Fatal(err)
		}
	}
	send("GET /y HTTP/1.1\r\nHost: a\r\n\r\nPOST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 6\r\nTransfer-Encoding: chunked\r\nX: ")
	next(t, in)
	send("POST /x HTTP/1.1\r\nY: a\r\n\r\n0\r\n\r\n")
	next(t, in)
	// What follows here may have been the body of another request for a proxy in front.
	_, _ = io.WriteString(c, "GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n")
	if res, err := http.ReadResponse(in, nil); err == nil {
		t.Error("the connection goes on: ", res.Status)
	}
}

// A chunked request that comes alone keeps its connection.
func TestFramingKnown(t *testing.T) {
	r := record(t, okAnswer)
	p := start(t, generous, proxy.Options{Upstreams: []string{r.url}})
	c := dial(t, p)
	in := bufio.NewReader(c)
	for range 3 {
		if _, err := io.WriteString(c, "POST /x HTTP/1.1\r\nHost: a\r\nTrailer: X-Sum\r\nA: 1\r\nA: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX-Sum: 1\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		if res := next(t, in); res.StatusCode != http.StatusOK || res.Close {
			t.Fatalf("%s, close %v", res.Status, res.Close)
		}
	}
}

// HTTP/1.0 has no chunks: a connection on which they are announced ends with the request.
func TestChunksOfHTTP10(t *testing.T) {
	r := record(t, okAnswer)
	p := start(t, generous, proxy.Options{Upstreams: []string{r.url}})
	got := converse(t, p, "POST / HTTP/1.0\r\nHost: a\r\nConnection: keep-alive\r\nTransfer-Encoding: chunked\r\n\r\nGET /smuggled HTTP/1.0\r\nHost: a\r\n\r\n")
	r.finish(t, p)
	if len(got) != 1 || strings.Contains(r.all(), "/smuggled") {
		t.Errorf("statuses %v, upstream %q", got, r.all())
	}
}

// Fields that servers behind believe come from the proxy alone, whatever their spelling or place.
func TestVouchedFieldsHaveOneSpelling(t *testing.T) {
	r := record(t, okAnswer)
	p := start(t, generous, proxy.Options{Upstreams: []string{r.url}})
	for _, text := range []string{
		"GET / HTTP/1.1\r\nHost: a\r\nX_Forwarded_For: 6.6.6.6\r\nX-Forwarded_For: 6.6.6.6\r\nX_REAL_IP: 6.6.6.6\r\nX_Criticality: 6.6.6.6\r\nConnection: close\r\n\r\n",
		"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nTrailer: X-Criticality, X-Sum\r\nConnection: close\r\n\r\n1\r\na\r\n0\r\nX-Criticality: 6.6.6.6\r\nX-Forwarded-For: 6.6.6.6\r\nX-Sum: 7.7.7.7\r\n\r\n",
	} {
		if got := converse(t, p, text); len(got) != 1 || got[0] != http.StatusOK {
			t.Fatalf("statuses %v", got)
		}
	}
	r.finish(t, p)
	if all := r.all(); strings.Contains(all, "6.6.6.6") || !strings.Contains(all, "7.7.7.7") {
		t.Errorf("the server behind is sent %q", all)
	}
}

// finish ends the proxy, which closes its connections, and waits until all that was sent is there.
func (r *recorded) finish(t *testing.T, p *running) {
	t.Helper()
	p.end(t)
	r.wait()
}

// An answer that cannot be passed on is none, and leaves nothing in progress.
func TestStatusBelow100(t *testing.T) {
	r := record(t, "HTTP/1.1 099 Strange\r\nContent-Length: 2\r\n\r\nok")
	p := start(t, generous, proxy.Options{Upstreams: []string{r.url}})
	if res, _ := get(t, p.url); res.StatusCode != http.StatusBadGateway {
		t.Error(res.Status)
	}
	if _, n := p.Totals(); n != 0 {
		t.Errorf("%d are in progress", n)
	}
}
