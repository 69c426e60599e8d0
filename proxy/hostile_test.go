package proxy_test

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stint-io/stint/proxy"
	"github.com/stint-io/stint/server"
)

// ended waits until the other side ends the connection, and returns what it sent.
func ended(t testing.TB, c net.Conn) string {
	t.Helper()
	text, err := io.ReadAll(c)
	if timeout, ok := err.(net.Error); ok && timeout.Timeout() {
		t.Error("the connection does not end")
	}
	return string(text)
}

// A client that sends its header a byte at a time is sent away once the time is over.
func TestSlowHeader(t *testing.T) {
	p := start(t, generous, proxy.Options{
		Upstreams: []string{record(t, okAnswer).url}, Timeouts: proxy.Timeouts{Header: 100 * time.Millisecond},
	})
	c := dial(t, p)
	go func() {
		for _, b := range []byte("GET / HTTP/1.1\r\nHost: a\r\nX-A: " + strings.Repeat("a", 1<<20)) {
			if _, err := c.Write([]byte{b}); err != nil {
				return
			}
		}
	}()
	ended(t, c)
}

// A client that stops in the middle of a body, or sends a declared one too slowly, is answered 408 and the
// server behind never takes what came for whole.
func TestSlowBody(t *testing.T) {
	whole := make(chan error, 1)
	u := upstream(t, func(_ http.ResponseWriter, r *http.Request) {
		_, err := io.Copy(io.Discard, r.Body)
		whole <- err
	})
	p := start(t, generous, proxy.Options{Upstreams: []string{u}, Timeouts: proxy.Timeouts{Body: 200 * time.Millisecond}})
	for _, framing := range []string{"Content-Length: 10\r\n\r\nabc", "Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n"} {
		c := dial(t, p)
		io.WriteString(c, "POST / HTTP/1.1\r\nHost: a\r\n"+framing)
		if got := ended(t, c); !strings.HasPrefix(got, "HTTP/1.1 408 ") {
			t.Errorf("%q: answered %q", framing, got)
		}
		if err := <-whole; err == nil {
			t.Errorf("%q: the server behind took the body for whole", framing)
		}
	}
}

// A client that takes nothing of an answer does not hold the server behind for ever, over both versions.
func TestSlowReader(t *testing.T) {
	gone := make(chan struct{}, 2)
	u := upstream(t, func(w http.ResponseWriter, r *http.Request) {
		part := make([]byte, 1<<16)
		for r.Context().Err() == nil {
			if _, err := w.Write(part); err != nil {
				break
			}
		}
		gone <- struct{}{}
	})
	p := start(t, generous, proxy.Options{Upstreams: []string{u}, Timeouts: proxy.Timeouts{Body: 200 * time.Millisecond}})
	one := dial(t, p)
	io.WriteString(one, "GET / HTTP/1.1\r\nHost: a\r\n\r\n")
	<-gone
	two := http2(t, p)
	two.Write(frame(frameHeaders, endStream|endHeaders, 1, fields(":method", "GET", ":scheme", "http", ":authority", "a", ":path", "/")))
	<-gone // the client gives no more than the first window
}

func TestHeaderFloods(t *testing.T) {
	u := record(t, okAnswer)
	p := start(t, generous, proxy.Options{Upstreams: []string{u.url}})
	for name, text := range map[string]string{
		"large": "X-A: " + strings.Repeat("a", 80<<10) + "\r\n",
		"many":  strings.Repeat("A: b\r\n", 100_000),
	} {
		c := dial(t, p)
		go io.WriteString(c, "GET / HTTP/1.1\r\nHost: a\r\n"+text+"\r\n")
		if got := ended(t, c); !strings.HasPrefix(got, "HTTP/1.1 431 ") {
			t.Errorf("%s: answered %.60q", name, got)
		}
	}
	var different strings.Builder
	for i := range 300 {
		fmt.Fprintf(&different, "X-%d: a\r\n", i)
	}
	if got := converse(t, p, "GET / HTTP/1.1\r\nHost: a\r\n"+different.String()+"\r\n"); len(got) != 1 || got[0] != 431 {
		t.Errorf("300 fields: answered %v", got)
	}
	if got := u.all(); got != "" {
		t.Errorf("the server behind was sent %.100q", got)
	}
}

// A client that cancels requests as fast as it opens them is cut off, and the server behind never has more
// of them than a connection may have.
func TestRapidReset(t *testing.T) {
	var now, most atomic.Int64
	u := upstream(t, func(_ http.ResponseWriter, r *http.Request) {
		n := now.Add(1)
		for old := most.Load(); n > old && !most.CompareAndSwap(old, n); old = most.Load() {
		}
		<-r.Context().Done()
		now.Add(-1)
	})
	p := start(t, generous, proxy.Options{Upstreams: []string{u}})
	c := http2(t, p)
	go func() {
		for id := uint32(1); ; id += 2 {
			text := frame(frameHeaders, endStream|endHeaders, id, fields(":method", "GET", ":scheme", "http", ":authority", "a", ":path", "/"))
			text = append(text, frame(frameReset, 0, id, []byte{0, 0, 0, 8})...)
			if _, err := c.Write(text); err != nil {
				return
			}
		}
	}()
	in := bufio.NewReader(c)
	for {
		if kind, _, _ := readFrame(in); kind == 255 || kind == frameGoAway {
			break
		}
	}
	p.end(t)
	if most.Load() > 250 {
		t.Errorf("the server behind had %d requests at a time, want at most 250", most.Load())
	}
}

// A client that cancels each request once the server behind works on it is cut off as well: net/http alone
// would let it go on for ever.
func TestSteadyReset(t *testing.T) {
	// With room for one: the last request may come when nobody waits for it any more.
	began, left := make(chan struct{}, 1), make(chan struct{}, 1)
	u := upstream(t, func(_ http.ResponseWriter, r *http.Request) {
		began <- struct{}{}
		<-r.Context().Done()
		left <- struct{}{}
	})
	p := start(t, generous, proxy.Options{Upstreams: []string{u}})
	c := http2(t, p)
	gone := make(chan struct{})
	go func() { io.Copy(io.Discard, c); close(gone) }()
	for i := uint32(0); ; i++ {
		if i > 1000 {
			t.Fatal("1,000 requests were cancelled, and the connection is still there")
		}
		id := 2*i + 1
		c.Write(frame(frameHeaders, endStream|endHeaders, id, fields(":method", "GET", ":scheme", "http", ":authority", "a", ":path", "/")))
		select {
		case <-began:
		case <-gone:
			if i < 200 {
				t.Errorf("the connection ended after %d requests, want at least 200", i)
			}
			return
		}
		c.Write(frame(frameReset, 0, id, []byte{0, 0, 0, 8}))
		<-left
	}
}

// What a stranger says of itself is replaced; what a trusted proxy says is kept, and its address added.
func TestForwardedFields(t *testing.T) {
	seen := make(chan http.Header, 1)
	u := upstream(t, func(_ http.ResponseWriter, r *http.Request) {
		h := r.Header.Clone()
		h.Set("Host", r.Host)
		h.Set("Query", r.URL.RawQuery)
		seen <- h
	})
	ask := func(p *running, pairs ...string) http.Header {
		t.Helper()
		r, err := http.NewRequest("GET", p.url+"/a?x=1;y=%zz&z", nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Host = "shop.example"
		for i := 0; i < len(pairs); i += 2 {
			r.Header.Add(pairs[i], pairs[i+1])
		}
		res, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		return <-seen
	}
	spoofed := []string{
		"X-Forwarded-For", "203.0.113.7", "X-Forwarded-For", "10.1.1.1", "X-Real-Ip", "203.0.113.8",
		"Forwarded", "for=203.0.113.9", "X-Forwarded-Proto", "https", "X-Forwarded-Host", "evil.example",
	}
	stranger := start(t, generous, proxy.Options{Upstreams: []string{u}})
	trusting := start(t, generous, proxy.Options{Upstreams: []string{u}, Decide: server.Options{TrustedProxies: []string{"127.0.0.1", "10.0.0.0/8"}}})
	for name, c := range map[string]struct {
		p    *running
		want map[string]string
	}{
		"of a stranger": {stranger, map[string]string{
			"X-Forwarded-For": "127.0.0.1", "X-Real-Ip": "127.0.0.1", "Forwarded": "",
			"X-Forwarded-Proto": "http", "X-Forwarded-Host": "shop.example", "Host": "shop.example", "Query": "x=1;y=%zz&z",
		}},
		"of a trusted proxy": {trusting, map[string]string{
			"X-Forwarded-For": "203.0.113.7, 10.1.1.1, 127.0.0.1", "X-Real-Ip": "203.0.113.7", "Forwarded": "for=203.0.113.9, for=127.0.0.1",
			"X-Forwarded-Proto": "https", "X-Forwarded-Host": "evil.example", "Host": "shop.example", "Query": "x=1;y=%zz&z",
		}},
	} {
		got := ask(c.p, spoofed...)
		for field, want := range c.want {
			if got.Get(field) != want || len(got.Values(field)) > 1 {
				t.Errorf("%s: %s is %q, want %q", name, field, got.Values(field), want)
			}
		}
	}
}

// A limit by address is not got around by X-Forwarded-For.
func TestSpoofedAddress(t *testing.T) {
	p := start(t, "limits: [{name: per-ip, key: [ip], rate: 1/hour}]\n", proxy.Options{Upstreams: []string{record(t, okAnswer).url}})
	text := ""
	for i := range 3 {
		text += fmt.Sprintf("GET / HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: 192.0.2.%d\r\nForwarded: for=192.0.2.%d\r\n\r\n", i, i)
	}
	got := converse(t, p, text+"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
	if fmt.Sprint(got) != "[200 429 429 429]" {
		t.Errorf("answered %v", got)
	}
}

// A client cannot have a field taken out by naming it in Connection.
func TestHopByHop(t *testing.T) {
	u := record(t, okAnswer)
	p := start(t, generous, proxy.Options{Upstreams: []string{u.url}})
	for _, named := range []string{"X-Forwarded-For", "Authorization", "close, X-Api-Key", "Host", "Content-Length", "Cookie"} {
		if got := converse(t, p, "GET / HTTP/1.1\r\nHost: a\r\nAuthorization: b\r\nConnection: "+named+"\r\n\r\n"); len(got) != 1 || got[0] != 400 {
			t.Errorf("Connection: %s: answered %v", named, got)
		}
	}
	if got := u.all(); got != "" {
		t.Errorf("the server behind was sent %q", got)
	}
	converse(t, p, "GET / HTTP/1.1\r\nHost: a\r\nAuthorization: b\r\nKeep-Alive: timeout=5\r\nProxy-Authorization: c\r\nTE: trailers, deflate\r\nConnection: keep-alive, TE\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
	got := u.all()
	for _, want := range []string{"Authorization: b\r\n", "Te: trailers\r\n"} {
		if !strings.Contains(got, want) {
			t.Errorf("the server behind was not sent %q: %q", want, got)
		}
	}
	for _, bad := range []string{"Keep-Alive", "Proxy-Auth", "deflate", "Connection"} {
		if strings.Contains(got, bad) {
			t.Errorf("the server behind was sent %q: %q", bad, got)
		}
	}
}

func TestMaxBody(t *testing.T) {
	whole := make(chan error, 1)
	u := upstream(t, func(_ http.ResponseWriter, r *http.Request) {
		_, err := io.Copy(io.Discard, r.Body)
		whole <- err
	})
	p := start(t, generous, proxy.Options{Upstreams: []string{u}, MaxBody: 1000})
	body := strings.Repeat("a", 1001)
	if got := converse(t, p, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1001\r\n\r\n"+body); len(got) != 1 || got[0] != 413 {
		t.Errorf("declared: answered %v", got)
	}
	if got := converse(t, p, "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3e9\r\n"+body+"\r\n0\r\n\r\n"); len(got) != 1 || got[0] != 413 {
		t.Errorf("chunked: answered %v", got)
	}
	if err := <-whole; err == nil {
		t.Error("the server behind took the beginning of a body for whole")
	}
	if got := converse(t, p, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\nConnection: close\r\n\r\n"+body[1:]); len(got) != 1 || got[0] != 200 {
		t.Errorf("as large as allowed: answered %v", got)
	}
	if err := <-whole; err != nil {
		t.Error(err)
	}
}

// answering is a server behind that sends one text on each connection and then does what then says.
func answering(t testing.TB, text string, then func(net.Conn)) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	all.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			all.Go(func() {
				defer c.Close()
				if _, err := http.ReadRequest(bufio.NewReader(c)); err == nil {
					io.WriteString(c, text)
					then(c)
				}
			})
		}
	})
	t.Cleanup(func() { l.Close(); all.Wait() })
	return "http://" + l.Addr().String()
}

// An upstream that hangs, lies or breaks off is answered for within the time, and no part of an answer is
// ever taken for a whole one.
func TestBadUpstreams(t *testing.T) {
	ends := func(net.Conn) {}
	hangs := func(c net.Conn) { io.Copy(io.Discard, c) } // until the proxy gives up
	for name, v := range map[string]struct {
		text string
		then func(net.Conn)
		want string // status, or that the answer is cut
		body string
	}{
		"hangs":                        {"", hangs, "504", ""},
		"hangs in its header":          {"HTTP/1.1 200 OK\r\nX-A:", hangs, "504", ""},
		"ends without an answer":       {"", ends, "502", ""},
		"no HTTP":                      {"\x1b[31mSSH-2.0\r\n\r\n", ends, "502", ""},
		"line break in the status":     {"HTTP/1.1 abc\r\n\r\n", ends, "502", ""},
		"fewer bytes than declared":    {"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc", ends, "cut", ""},
		"stops in its body":            {"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc", hangs, "cut", ""},
		"more bytes than declared":     {"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabcdefHTTP/1.1 200 OK\r\n\r\n", ends, "200", "abc"},
		"stops in its chunks":          {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n", hangs, "cut", ""},
		"ends in its chunks":           {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n", ends, "cut", ""},
		"chunks that are none":         {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\nabc\r\n", ends, "cut", ""},
		"two lengths":                  {"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nContent-Length: 5\r\n\r\nabcde", ends, "502", ""},
		"length and chunks":            {"HTTP/1.1 200 OK\r\nContent-Length: 50\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n", ends, "200", "abc"},
		"a flood of header":            {"HTTP/1.1 200 OK\r\n" + strings.Repeat("X-A: b\r\n", 20_000) + "\r\n", ends, "502", ""},
		"a flood of 1xx":               {strings.Repeat("HTTP/1.1 103 Early Hints\r\nLink: a\r\n\r\n", 20_000), ends, "502 or 504", ""},
		"switches without being asked": {"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n", hangs, "502", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := start(t, generous, proxy.Options{
				Upstreams: []string{answering(t, v.text, v.then)},
				Timeouts:  proxy.Timeouts{Response: 300 * time.Millisecond, Stream: 300 * time.Millisecond},
				Grace:     2 * time.Second,
			})
			c := dial(t, p)
			io.WriteString(c, "GET / HTTP/1.1\r\nHost: a\r\n\r\n")
			in := bufio.NewReader(c)
			res, err := http.ReadResponse(in, nil)
			for err == nil && res.StatusCode < 200 {
				res, err = http.ReadResponse(in, nil)
			}
			got, body := "cut", []byte(nil)
			if err == nil {
				body, err = io.ReadAll(res.Body)
				if err == nil {
					got = fmt.Sprint(res.StatusCode)
				}
			}
			if timeout, ok := err.(net.Error); ok && timeout.Timeout() {
				got = "nothing"
			}
			if !strings.Contains(v.want, got) || v.want == "200" && string(body) != v.body {
				t.Errorf("the client sees %s %q, %v, want %s %q", got, body, err, v.want, v.body)
			}
		})
	}
}

// What a client or an upstream puts into its text never reaches the log as a control character.
func TestLogHasNoControlCharacters(t *testing.T) {
	var mu sync.Mutex
	var log bytes.Buffer
	logger := slog.New(slog.NewTextHandler(writer(func(p []byte) {
		mu.Lock()
		defer mu.Unlock()
		log.Write(p)
	}), &slog.HandlerOptions{Level: slog.LevelDebug}))
	p := start(t, generous, proxy.Options{
		Upstreams: []string{answering(t, "HTTP/1.1 \x1b[31mabc\x07\r\n\r\n", func(net.Conn) {})},
		Decide:    server.Options{Logger: logger},
	})
	converse(t, p, "GET /a%0d%0alevel=ERROR%20msg=forged%1b[2J HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
	converse(t, p, "GET /\x1b[31m HTTP/1.1\r\nHost: \x1b[31m\r\n\r\n")
	p.end(t)
	mu.Lock()
	defer mu.Unlock()
	if !strings.Contains(log.String(), "did not answer") {
		t.Fatalf("the log does not tell of the failure: %q", log.String())
	}
	for _, line := range strings.Split(strings.TrimSpace(log.String()), "\n") {
		if !strings.HasPrefix(line, "time=") || strings.ContainsFunc(line, func(r rune) bool { return r < ' ' || r == 0x7f }) {
			t.Errorf("the log has %q", line)
		}
	}
}
