package proxy_test

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stint-io/stint/proxy"
)

// recorded is a server behind the proxy that keeps each byte it is sent, so that a test sees what the
// strictest and the laxest server would see.
type recorded struct {
	url string

	listener net.Listener
	serving  sync.WaitGroup

	mu   sync.Mutex
	text map[net.Conn][]byte
}

// record starts one that answers each request with answer; the end of a request is where net/http sees it.
func record(t testing.TB, answer string) *recorded {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &recorded{url: "http://" + l.Addr().String(), listener: l, text: map[net.Conn][]byte{}}
	r.serving.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			r.serving.Go(func() { r.serve(c, answer) })
		}
	})
	t.Cleanup(func() {
		r.mu.Lock()
		for c := range r.text {
			c.Close()
		}
		r.mu.Unlock()
		r.wait()
	})
	return r
}

// wait waits until all that was sent is there; whoever sends has closed its connections.
func (r *recorded) wait() {
	r.listener.Close()
	r.serving.Wait()
}

func (r *recorded) serve(c net.Conn, answer string) {
	defer c.Close()
	r.keep(c, nil)
	in := bufio.NewReader(io.TeeReader(c, writer(func(p []byte) { r.keep(c, p) })))
	for {
		req, err := http.ReadRequest(in)
		if err != nil {
			return
		}
		if _, err := io.Copy(io.Discard, req.Body); err != nil {
			return
		}
		if _, err := io.WriteString(c, answer); err != nil {
			return
		}
	}
}

func (r *recorded) keep(c net.Conn, p []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.text[c] = append(r.text[c], p...)
}

// all is what came on all connections.
func (r *recorded) all() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var b bytes.Buffer
	for _, text := range r.text {
		b.Write(text)
	}
	return b.String()
}

type writer func([]byte)

func (w writer) Write(p []byte) (int, error) {
	w(p)
	return len(p), nil
}

const okAnswer = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"

// dial connects to the proxy for a raw conversation.
func dial(t testing.TB, p *running) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", p.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	if err := c.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
		t.Fatal(err)
	}
	return c
}

// converse sends text, and returns the statuses of all answers until the connection ends.
func converse(t testing.TB, p *running, text string) (statuses []int) {
	t.Helper()
	c := dial(t, p)
	if _, err := io.WriteString(c, text); err != nil {
		t.Fatal(err)
	}
	in := bufio.NewReader(c)
	for {
		res, err := http.ReadResponse(in, nil)
		if err != nil {
			return statuses
		}
		statuses = append(statuses, res.StatusCode)
		if _, err := io.Copy(io.Discard, res.Body); err != nil {
			return statuses
		}
	}
}

// Of every published vector of request smuggling the server behind sees either nothing, or requests that the
// proxy has decided about, each with one framing alone: whoever reads it sees the same requests.
func TestSmuggling(t *testing.T) {
	const hidden = "GET /hidden HTTP/1.1\r\nHost: a\r\n\r\n"
	const last = "GET /last HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
	for name, v := range map[string]struct {
		text string
		want []int // statuses until the connection ends
	}{
		"CL.TE":                      {"POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 38\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + hidden, []int{400}},
		"TE.CL":                      {"POST /a HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n21\r\n" + hidden + "\r\n0\r\n\r\n", []int{400}},
		"CL.TE with spaces":          {"POST /a HTTP/1.1\r\nHost: a\r\ncontent-length:   6\r\ntransfer-encoding:  chunked\r\n\r\n0\r\n\r\nX", []int{400}},
		"TE.TE, unknown coding":      {"POST /a HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n" + hidden, []int{501}},
		"TE.TE, two lines":           {"POST /a HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: x\r\n\r\n0\r\n\r\n" + hidden, []int{501}},
		"TE.TE, identity behind":     {"POST /a HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n" + hidden, []int{501}},
		"TE, tab in front":           {"POST /a HTTP/1.1\r\nHost: a\r\nTransfer-Encoding:\tchunked\r\nContent-Length: 3\r\n\r\n0\r\n\r\n" + hidden, []int{400}},
		"TE, space before the colon": {"POST /a HTTP/1.1\r\nHost: a\r\nTransfer-Encoding : chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n" + hidden, []int{400}},
		"TE, vertical tab":           {"POST /a HTTP/1.1\r\nHost: a\r\nTransfer-Encoding:\vchunked\r\n\r\n0\r\n\r\n" + hidden, []int{400}},
		"TE in HTTP/1.0":             {"POST /a HTTP/1.0\r\nHost: a\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n" + hidden, []int{200}},
		"two lengths":                {"POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\nContent-Length: 33\r\n\r\n" + hidden, []int{400}},
		"a list of lengths":          {"POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 0, 33\r\n\r\n" + hidden, []int{400}},
		"length with a sign":         {"POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: +33\r\n\r\n" + hidden, []int{400}},
		"length, hexadecimal":        {"POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 0x21\r\n\r\n" + hidden, []int{400}},
		"length, negative":           {"POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n" + hidden, []int{400}},
		"CL.0":                       {"GET /a HTTP/1.1\r\nHost: a\r\nContent-Length: 33\r\n\r\n" + hidden + last, []int{200, 200}},
		"0.CL":                       {"GET /a HTTP/1.1\r\nHost: a\r\nContent-Length : 33\r\n\r\n" + hidden, []int{400}},
		"obs-fold of TE":             {"POST /a HTTP/1.1\r\nHost: a\r\nTransfer-Encoding:\r\n chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n" + hidden, []int{400}},
		"obs-fold of a field":        {"GET /a HTTP/1.1\r\nHost: a\r\nX-A: b\r\n c: d\r\n\r\n" + last, []int{200, 200}},
		"line feed in a field":       {"GET /a HTTP/1.1\r\nHost: a\r\nX-A: b\nContent-Length: 5\r\n\r\n12345" + last, []int{200, 200}},
		"carriage return in a field": {"GET /a HTTP/1.1\r\nHost: a\r\nX-A: b\rTransfer-Encoding: chunked\r\n\r\n" + hidden, []int{400}},
		"NUL in a field":             {"GET /a HTTP/1.1\r\nHost: a\r\nX-A: b\x00c\r\n\r\n" + hidden, []int{400}},
		"chunk extension":            {"POST /a HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n2;a=\"x\"\r\nab\r\n0\r\n\r\n" + last, []int{200, 200}},
		"chunk extension, line feed": {"POST /a HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n2;\nxx\r\n22\r\n0\r\n\r\n" + hidden, []int{400}},
		"chunk size too large":       {"POST /a HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n10000000000000002\r\nab\r\n0\r\n\r\n" + hidden, []int{400}},
		"chunk size with a sign":     {"POST /a HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n+2\r\nab\r\n0\r\n\r\n" + hidden, []int{400}},
		"chunk without its end":      {"POST /a HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nabXX0\r\n\r\n" + hidden, []int{400}},
		"trailer with a length":      {"POST /a HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nTrailer: X-T\r\n\r\n2\r\nab\r\n0\r\nX-T: 1\r\n\r\n" + last, []int{200, 200}},
		"forbidden trailer":          {"POST /a HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nTrailer: Content-Length\r\n\r\n0\r\nContent-Length: 5\r\n\r\n" + hidden, []int{400}},
		"two hosts":                  {"GET /a HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n" + hidden, []int{400}},
		"host with a path":           {"GET /a HTTP/1.1\r\nHost: a/b\r\n\r\n" + hidden, []int{400}},
		"h2c":                        {"GET /a HTTP/1.1\r\nHost: a\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQCAAAAAAIAAAAA\r\n\r\n" + last, []int{200, 200}},
		"upgrade with a body":        {"POST /a HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: x\r\nContent-Length: 33\r\n\r\n" + hidden, []int{400}},
		"WebSocket, another version": {"GET /a HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 777\r\nSec-WebSocket-Key: x\r\n\r\n" + hidden, []int{400}},
		"CONNECT":                    {"CONNECT b:80 HTTP/1.1\r\nHost: b:80\r\n\r\n" + hidden, []int{501}},
		"TRACE":                      {"TRACE /a HTTP/1.1\r\nHost: a\r\n\r\n" + hidden, []int{501}},
		"space in the target":        {"GET /a HTTP/1.1 /b HTTP/1.1\r\nHost: a\r\n\r\n" + hidden, []int{400}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			u := record(t, okAnswer)
			p := start(t, generous, proxy.Options{Upstreams: []string{u.url}})
			got := converse(t, p, v.text)
			if len(got) != len(v.want) || len(got) > 0 && got[0] != v.want[0] {
				t.Errorf("answers %v until the connection ended, want %v", got, v.want)
			}
			p.end(t)
			requests := checkFraming(t, u.all())
			if strings.Contains(strings.Join(requests, " "), "/hidden") {
				t.Errorf("the server behind saw %q", requests)
			}
		})
	}
}

// FuzzRequests: whatever a client sends, the server behind is sent whole requests with one framing each, no more
// of them than the proxy has counted, and the proxy goes on.
func FuzzRequests(f *testing.F) {
	for _, text := range []string{
		"GET / HTTP/1.1\r\nHost: a\r\n\r\n", "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabcGET /b HTTP/1.1\r\nHost: a\r\n\r\n",
		"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3;x=y\r\nabc\r\n0\r\nX: y\r\n\r\n",
		"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /b",
		"GET http://b/ HTTP/1.1\r\nHost: a\r\nConnection: close, x\r\n\r\n", "GET /%0d%0a HTTP/1.0\n\n", "OPTIONS * HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\n\r\n",
		"GET / HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: upgrade\r\nSec-WebSocket-Key: x\r\nSec-WebSocket-Version: 13\r\n\r\n\x81\x00",
		preface + string(frame(frameSetting, 0, 0, nil)) + string(frame(frameHeaders, endStream|endHeaders, 1, fields(":method", "GET", ":scheme", "http", ":authority", "a", ":path", "/"))),
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		u := record(t, okAnswer)
		p := start(t, generous, proxy.Options{Upstreams: []string{u.url}, Grace: time.Second})
		c := dial(t, p)
		c.Write(text)
		c.(*net.TCPConn).CloseWrite()
		io.Copy(io.Discard, c)
		c.Close()
		p.end(t)
		u.wait()
		seen := 0
		for _, sent := range u.text {
			seen += len(checkFraming(t, string(sent)))
		}
		if counted, _ := p.Totals(); seen > counted {
			t.Fatalf("the server behind was sent %d requests, the proxy has counted %d", seen, counted)
		}
	})
}

// checkFraming reads what came as strictly as can be, and returns the targets of the requests: each line ends
// with CR LF, names are tokens, and the body has one framing.
func checkFraming(t *testing.T, text string) (targets []string) {
	t.Helper()
	in := bufio.NewReader(strings.NewReader(text))
	for {
		if _, err := in.Peek(1); err != nil {
			return targets
		}
		head := ""
		for !strings.HasSuffix(head, "\r\n\r\n") {
			line, err := in.ReadString('\n')
			if err != nil || !strings.HasSuffix(line, "\r\n") || strings.Count(line, "\r") != 1 {
				t.Fatalf("the server behind was sent %q in %q", line, text)
			}
			head += line
		}
		lines := strings.Split(strings.TrimSuffix(head, "\r\n\r\n"), "\r\n")
		targets = append(targets, lines[0])
		lengths, chunks := 0, 0
		for _, line := range lines[1:] {
			name, _, ok := strings.Cut(line, ":")
			if !ok || strings.TrimSpace(name) != name {
				t.Errorf("the server behind was sent the field %q", line)
			}
			switch strings.ToLower(name) {
			case "content-length":
				lengths++
			case "transfer-encoding":
				chunks++
			case "http2-settings":
				t.Errorf("the server behind was sent %q", line)
			case "upgrade":
				if line != "Upgrade: websocket" {
					t.Errorf("the server behind was sent %q", line)
				}
			}
		}
		if lengths+chunks > 1 {
			t.Errorf("the server behind was sent two framings: %q", head)
		}
		req, err := http.ReadRequest(bufio.NewReader(io.MultiReader(strings.NewReader(head), in)))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.Copy(io.Discard, req.Body); err != nil {
			return targets // it was broken off, as the client's was
		}
		if lengths+chunks > 0 {
			return targets // what follows is in the buffer of the parser; one request is enough here
		}
	}
}

// http2 frames, by hand: no library sends what is malformed.

func frame(kind, flags byte, stream uint32, payload []byte) []byte {
	b := make([]byte, 9, 9+len(payload))
	b[0], b[1], b[2] = byte(len(payload)>>16), byte(len(payload)>>8), byte(len(payload))
	b[3], b[4] = kind, flags
	binary.BigEndian.PutUint32(b[5:], stream)
	return append(b, payload...)
}

// fields encodes header fields literally, without indexing.
func fields(pairs ...string) (b []byte) {
	for i := 0; i < len(pairs); i += 2 {
		b = append(b, 0)
		for _, s := range pairs[i : i+2] {
			if len(s) > 126 {
				panic("too long for this encoder")
			}
			b = append(append(b, byte(len(s))), s...)
		}
	}
	return b
}

const (
	preface      = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
	frameData    = 0
	frameHeaders = 1
	frameReset   = 3
	frameSetting = 4
	frameGoAway  = 7
	endStream    = 1
	endHeaders   = 4
)

// http2 opens a connection of HTTP/2 without TLS.
func http2(t testing.TB, p *running) net.Conn {
	t.Helper()
	c := dial(t, p)
	if _, err := c.Write(append([]byte(preface), frame(frameSetting, 0, 0, nil)...)); err != nil {
		t.Fatal(err)
	}
	return c
}

// readFrame returns the next frame; kind is 255 once the connection has ended.
func readFrame(in *bufio.Reader) (kind byte, stream uint32, payload []byte) {
	var head [9]byte
	if _, err := io.ReadFull(in, head[:]); err != nil {
		return 255, 0, nil
	}
	payload = make([]byte, int(head[0])<<16|int(head[1])<<8|int(head[2]))
	if _, err := io.ReadFull(in, payload); err != nil {
		return 255, 0, nil
	}
	return head[3], binary.BigEndian.Uint32(head[5:]) & (1<<31 - 1), payload
}

// What HTTP/2 carries in a field and HTTP/1.1 would take for another field or request never reaches the
// server behind.
func TestDowngrade(t *testing.T) {
	base := []string{":method", "GET", ":scheme", "http", ":authority", "a", ":path", "/x"}
	for name, pairs := range map[string][]string{
		"line break in a value":     append(base, "x-a", "b\r\nTransfer-Encoding: chunked"),
		"line feed in a value":      append(base, "x-a", "b\nHost: c"),
		"NUL in a value":            append(base, "x-a", "b\x00c"),
		"line break in a name":      append(base, "x\r\nhost", "b"),
		"colon in a name":           append(base, "x: y", "b"),
		"space in a name":           append(base, "x y", "b"),
		"upper case in a name":      append(base, "X-A", "b"),
		"transfer-encoding":         append(base, "transfer-encoding", "chunked"),
		"connection":                append(base, "connection", "keep-alive"),
		"line break in the method":  {":method", "GET /h HTTP/1.1\r\nHost: b\r\n\r\nGET", ":scheme", "http", ":authority", "a", ":path", "/x"},
		"space in the method":       {":method", "GET /h", ":scheme", "http", ":authority", "a", ":path", "/x"},
		"line break in the path":    {":method", "GET", ":scheme", "http", ":authority", "a", ":path", "/x HTTP/1.1\r\nHost: b\r\n\r\nGET /h"},
		"path without a slash":      {":method", "GET", ":scheme", "http", ":authority", "a", ":path", "x"},
		"absolute path":             {":method", "GET", ":scheme", "http", ":authority", "a", ":path", "http://b/x"},
		"line break in the host":    {":method", "GET", ":scheme", "http", ":authority", "a\r\nX-B: c", ":path", "/x"},
		"space in the host":         {":method", "GET", ":scheme", "http", ":authority", "a b", ":path", "/x"},
		"user in the host":          {":method", "GET", ":scheme", "http", ":authority", "u@a", ":path", "/x"},
		"two paths":                 append(base, ":path", "/h"),
		"pseudo field behind":       append(base, "x-a", "b", ":method", "POST"),
		"two lengths":               append(base, "content-length", "0", "content-length", "5"),
		"length, no number":         append(base, "content-length", "+5"),
		"length of what never ends": append(base, "content-length", "7"),
		"extended CONNECT":          {":method", "CONNECT", ":protocol", "websocket", ":scheme", "http", ":authority", "a", ":path", "/x"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			u := record(t, okAnswer)
			p := start(t, generous, proxy.Options{Upstreams: []string{u.url}})
			c := http2(t, p)
			c.Write(frame(frameHeaders, endStream|endHeaders, 1, fields(pairs...)))
			in := bufio.NewReader(c)
			for answered := false; !answered; {
				switch kind, stream, _ := readFrame(in); {
				case kind == 255 || kind == frameGoAway || stream == 1 && (kind == frameReset || kind == frameHeaders):
					answered = true
				}
			}
			c.Close()
			p.end(t)
			if got := u.all(); got != "" {
				t.Errorf("the server behind was sent %q", got)
			}
		})
	}
}
