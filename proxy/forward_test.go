package proxy_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/stint-io/stint/proxy"
)

// client returns a client of one version of HTTP alone.
func client(h2 bool) *http.Client {
	t := &http.Transport{Protocols: new(http.Protocols)}
	t.Protocols.SetHTTP1(!h2)
	t.Protocols.SetUnencryptedHTTP2(h2)
	return &http.Client{Transport: t}
}

// Bodies come through whole, both ways at once, over both versions, with and without a length, with their
// trailers; and the server behind gets what it would without the proxy.
func TestBodiesIntact(t *testing.T) {
	u := upstream(t, func(w http.ResponseWriter, r *http.Request) {
		if r.ProtoMajor == 1 {
			http.NewResponseController(w).EnableFullDuplex()
		}
		w.Header().Set("Trailer", "X-Sum")
		w.Header().Set("X-Encoding", r.Header.Get("Accept-Encoding"))
		sum := sha256.New()
		part := make([]byte, 7000)
		for {
			n, err := r.Body.Read(part)
			sum.Write(part[:n])
			w.Write(part[:n])
			http.NewResponseController(w).Flush()
			if err != nil {
				break
			}
		}
		w.Header().Set("X-Sum", strings.TrimSpace(fmt.Sprintf("%x %s", sum.Sum(nil), r.Trailer.Get("X-From"))))
	})
	p := start(t, generous, proxy.Options{Upstreams: []string{u}})
	for _, h2 := range []bool{false, true} {
		for _, size := range []int{1, 4096, 300_000, 2_000_000} {
			body := make([]byte, size)
			rand.Read(body)
			for _, declared := range []bool{false, true} {
				r, err := http.NewRequest("POST", p.url, io.MultiReader(bytes.NewReader(body)))
				if err != nil {
					t.Fatal(err)
				}
				r.Header.Set("Accept-Encoding", "br")
				from := ""
				if declared {
					r.ContentLength = int64(size)
				} else {
					from = "client"
					r.Trailer = http.Header{"X-From": {from}}
				}
				c := client(h2)
				res, err := c.Do(r)
				if err != nil {
					t.Fatal(err)
				}
				got, err := io.ReadAll(res.Body)
				if err != nil || !bytes.Equal(got, body) {
					t.Errorf("h2 %v, %d bytes, declared %v: %d bytes came back, %v", h2, size, declared, len(got), err)
				}
				if want := strings.TrimSpace(fmt.Sprintf("%x %s", sha256.Sum256(body), from)); res.Trailer.Get("X-Sum") != want {
					t.Errorf("h2 %v, %d bytes, declared %v: the trailer is %q, want %q", h2, size, declared, res.Trailer.Get("X-Sum"), want)
				}
				if res.Header.Get("X-Encoding") != "br" || res.Header.Get("Content-Encoding") != "" {
					t.Errorf("the encoding was changed: %v", res.Header)
				}
				res.Body.Close()
				c.CloseIdleConnections()
			}
		}
	}
}

// An event reaches the client when it is sent, not when the answer ends.
func TestEvents(t *testing.T) {
	next := make(chan struct{})
	u := upstream(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		for i := range 3 {
			fmt.Fprintf(w, "data: %d\n\n", i)
			http.NewResponseController(w).Flush()
			select {
			case <-next:
			case <-r.Context().Done():
			}
		}
	})
	p := start(t, generous, proxy.Options{Upstreams: []string{u}})
	for _, h2 := range []bool{false, true} {
		c := client(h2)
		res, err := c.Get(p.url)
		if err != nil {
			t.Fatal(err)
		}
		in := bufio.NewReader(res.Body)
		for i := range 3 {
			if line, err := in.ReadString('\n'); line != fmt.Sprintf("data: %d\n", i) {
				t.Fatalf("event %d: %q, %v", i, line, err)
			}
			in.ReadString('\n')
			next <- struct{}{}
		}
		res.Body.Close()
		c.CloseIdleConnections()
	}
}

// Informational answers go through, and what limits say of themselves stays on the final one.
func TestEarlyHints(t *testing.T) {
	u := upstream(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Link", "</a.css>")
		w.WriteHeader(http.StatusEarlyHints)
		io.WriteString(w, "ok")
	})
	p := start(t, generous, proxy.Options{Upstreams: []string{u}})
	c := dial(t, p)
	io.WriteString(c, "GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
	text := ended(t, c)
	hint, answer, _ := strings.Cut(text, "\r\n\r\n")
	if !strings.HasPrefix(hint, "HTTP/1.1 103 ") || strings.Contains(hint, "Ratelimit") || !strings.HasPrefix(answer, "HTTP/1.1 200 ") || strings.Count(answer, "Ratelimit:") != 1 {
		t.Errorf("the client got %q", text)
	}
}

// A client that waits for 100 Continue is told to go on only if its request is admitted.
func TestExpectContinue(t *testing.T) {
	u := upstream(t, func(w http.ResponseWriter, r *http.Request) { io.Copy(w, r.Body) })
	p := start(t, "limits: [{name: one, rate: 1/hour}]\n", proxy.Options{Upstreams: []string{u}})
	ask := func() (net.Conn, *bufio.Reader) {
		c := dial(t, p)
		io.WriteString(c, "POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n")
		return c, bufio.NewReader(c)
	}
	c, in := ask()
	if line, err := in.ReadString('\n'); !strings.HasPrefix(line, "HTTP/1.1 100 ") {
		t.Fatalf("admitted: %q, %v", line, err)
	}
	in.ReadString('\n')
	io.WriteString(c, "abc")
	res, err := http.ReadResponse(in, nil)
	if err != nil {
		t.Fatal(err)
	}
	if body, err := io.ReadAll(res.Body); string(body) != "abc" || res.StatusCode != 200 {
		t.Errorf("admitted: %d %q, %v", res.StatusCode, body, err)
	}
	c, _ = ask()
	if got := ended(t, c); !strings.HasPrefix(got, "HTTP/1.1 429 ") || strings.Contains(got, " 100 ") {
		t.Errorf("refused: %q", got)
	}
}

// echo is a server behind that speaks as much of WebSocket as a proxy sees: it switches, and sends back what
// it gets.
func echo(t testing.TB) string {
	return upstream(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Upgrade") != "websocket" {
			w.WriteHeader(http.StatusUpgradeRequired)
			return
		}
		c, brw, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer c.Close()
		io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: x\r\n\r\n")
		io.Copy(c, brw)
	})
}

// upgrade opens a WebSocket through the proxy.
func upgrade(t testing.TB, p *running) (net.Conn, *bufio.Reader) {
	t.Helper()
	c := dial(t, p)
	io.WriteString(c, "GET /chat HTTP/1.1\r\nHost: a\r\nConnection: keep-alive, Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n")
	in := bufio.NewReader(c)
	res, err := http.ReadResponse(in, nil)
	if err != nil || res.StatusCode != http.StatusSwitchingProtocols {
		t.Fatalf("the upgrade: %v, %v", res, err)
	}
	return c, in
}

func say(t testing.TB, c net.Conn, in *bufio.Reader, text string) {
	t.Helper()
	io.WriteString(c, text+"\n")
	if got, err := in.ReadString('\n'); got != text+"\n" {
		t.Fatalf("said %q, heard %q, %v", text, got, err)
	}
}

// A WebSocket is one request to the limits, carries both ways, and ends when it is silent.
func TestWebSocket(t *testing.T) {
	p := start(t, "limits: [{name: one, rate: 1/hour}]\n", proxy.Options{Upstreams: []string{echo(t)}, Timeouts: proxy.Timeouts{Stream: 300 * time.Millisecond}})
	c, in := upgrade(t, p)
	for i := range 100 {
		say(t, c, in, fmt.Sprint("message ", i))
	}
	if m := p.metrics(t); !strings.Contains(m, "stint_proxy_websockets 1\n") || !strings.Contains(m, `stint_proxy_upstream_requests_in_flight{`) {
		t.Error("the WebSocket is not in the metrics")
	}
	if got := converse(t, p, "GET /chat HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: x\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"); len(got) == 0 || got[0] != 429 {
		t.Errorf("the second upgrade is answered %v, want 429", got)
	}
	ended(t, c)
}

// A stop lets requests in progress end, and WebSockets until the grace time is over; new connections find
// nobody.
func TestDrain(t *testing.T) {
	began, finish := make(chan struct{}), make(chan struct{})
	slow := upstream(t, func(w http.ResponseWriter, r *http.Request) {
		close(began)
		<-finish
		io.WriteString(w, "whole")
	})
	p := start(t, generous, proxy.Options{Upstreams: []string{slow}})
	answered := make(chan string, 1)
	go func() {
		res, err := http.Get(p.url)
		if err != nil {
			answered <- err.Error()
			return
		}
		defer res.Body.Close()
		body, _ := io.ReadAll(res.Body)
		answered <- string(body)
	}()
	<-began
	p.stop()
	for { // until the listener is closed
		c, err := net.Dial("tcp", p.Addr().String())
		if err != nil {
			break
		}
		c.Close()
	}
	close(finish)
	if got := <-answered; got != "whole" {
		t.Errorf("the request in progress got %q", got)
	}
	p.end(t)

	const grace = 300 * time.Millisecond
	p = start(t, generous, proxy.Options{Upstreams: []string{echo(t)}, Grace: grace})
	c, in := upgrade(t, p)
	begin := time.Now()
	p.stop()
	say(t, c, in, "still there")
	ended(t, c)
	p.end(t)
	if took := time.Since(begin); took < grace {
		t.Errorf("the WebSocket ended after %v, want %v", took, grace)
	}

	p = start(t, generous, proxy.Options{Upstreams: []string{echo(t)}, Grace: 20 * time.Second})
	c, in = upgrade(t, p)
	say(t, c, in, "hello")
	p.stop()
	c.Close()
	p.end(t) // at once: the last WebSocket has ended
}

// An upstream that refuses connections loses no request while another one is there, is taken out, and comes
// back by itself; with none, requests are answered 503 and the proxy is not ready.
func TestHealth(t *testing.T) {
	addr := func() string {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		return l.Addr().String()
	}()
	other := upstream(t, func(w http.ResponseWriter, r *http.Request) { io.Copy(w, r.Body); io.WriteString(w, "other") })
	o := proxy.Options{Upstreams: []string{"http://" + addr, other}, Health: proxy.Health{Interval: 20 * time.Millisecond}}
	p := start(t, generous, o)
	for i := range 50 {
		res, err := http.Post(p.url, "text/plain", strings.NewReader("from the "))
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(res.Body)
		res.Body.Close()
		if string(body) != "from the other" {
			t.Fatalf("request %d: %q, %v", i, body, err)
		}
	}
	up := `stint_proxy_upstream_up{upstream="http://` + addr + `"} `
	if !strings.Contains(p.metrics(t), up+"0\n") {
		t.Error("the upstream that refuses is not taken out")
	}
	if res, body := get(t, "http://"+p.AdminAddr().String()+"/readyz"); res.StatusCode != 200 || !strings.Contains(body, "1 of 2 upstreams") {
		t.Errorf("readyz: %d %q", res.StatusCode, body)
	}
	l, err := net.Listen("tcp", addr)
	if err != nil {
		t.Fatal("the port was taken by somebody else: ", err)
	}
	s := &httptest.Server{Listener: l, Config: &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "back") })}}
	s.Start()
	t.Cleanup(s.Close)
	for deadline := time.Now().Add(10 * time.Second); ; {
		if _, body := get(t, p.url); body == "back" {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the upstream does not come back")
		}
	}

	alone := start(t, generous, proxy.Options{Upstreams: []string{"http://127.0.0.1:1"}})
	for _, want := range []int{502, 503} {
		if res, _ := get(t, alone.url); res.StatusCode != want {
			t.Errorf("without upstreams: %d, want %d", res.StatusCode, want)
		}
	}
	if res, _ := get(t, "http://"+alone.AdminAddr().String()+"/readyz"); res.StatusCode != 503 {
		t.Errorf("readyz without upstreams: %d", res.StatusCode)
	}
}

// An upstream whose health path fails is taken out, though it answers everything else.
func TestHealthPath(t *testing.T) {
	var mu sync.Mutex
	sick := true
	u := upstream(t, func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		if r.URL.Path == "/healthz" && sick {
			w.WriteHeader(500)
		}
	})
	p := start(t, generous, proxy.Options{Upstreams: []string{u}, Health: proxy.Health{Path: "/healthz", Interval: 10 * time.Millisecond}})
	await := func(want int) {
		t.Helper()
		for deadline := time.Now().Add(10 * time.Second); ; {
			if res, _ := get(t, p.url); res.StatusCode == want {
				return
			}
			if time.Now().After(deadline) {
				t.Fatalf("no answer is %d", want)
			}
		}
	}
	await(503)
	mu.Lock()
	sick = false
	mu.Unlock()
	await(200)
}

// watching is a health service whose streams end at the third message with a status of their own.
type watching struct {
	*health.Server
}

func (watching) Watch(r *healthpb.HealthCheckRequest, s grpc.ServerStreamingServer[healthpb.HealthCheckResponse]) error {
	for range 3 {
		if err := s.Send(&healthpb.HealthCheckResponse{Status: healthpb.HealthCheckResponse_SERVING}); err != nil {
			return err
		}
	}
	s.SetTrailer(metadata.Pairs("x-end", "of "+r.GetService()))
	return status.Error(codes.DataLoss, "100% lost\n")
}

// gRPC goes through with its trailers, over upstreams named by http and by h2c; a refusal is a status of gRPC.
func TestGRPC(t *testing.T) {
	s := grpc.NewServer()
	healthpb.RegisterHealthServer(s, watching{health.NewServer()})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go s.Serve(l)
	t.Cleanup(s.Stop)
	for _, scheme := range []string{"http", "h2c"} {
		p := start(t, "limits: [{name: few, match: {path: /grpc.health.v1.Health/Check}, rate: 2/hour}]\n", proxy.Options{Upstreams: []string{scheme + "://" + l.Addr().String()}})
		conn, err := grpc.NewClient(p.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			t.Fatal(err)
		}
		c, ctx := healthpb.NewHealthClient(conn), context.Background()
		if r, err := c.Check(ctx, &healthpb.HealthCheckRequest{}); err != nil || r.GetStatus() != healthpb.HealthCheckResponse_SERVING {
			t.Errorf("%s: %v, %v", scheme, r, err)
		}
		if _, err := c.Check(ctx, &healthpb.HealthCheckRequest{Service: "none"}); status.Code(err) != codes.NotFound {
			t.Errorf("%s: %v", scheme, err)
		}
		var trailer metadata.MD
		if _, err := c.Check(ctx, &healthpb.HealthCheckRequest{}, grpc.Trailer(&trailer)); status.Code(err) != codes.ResourceExhausted {
			t.Errorf("%s: above the limit: %v", scheme, err)
		}
		w, err := c.Watch(ctx, &healthpb.HealthCheckRequest{Service: "a"})
		if err != nil {
			t.Fatal(err)
		}
		for range 3 {
			if _, err := w.Recv(); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := w.Recv(); status.Code(err) != codes.DataLoss || status.Convert(err).Message() != "100% lost\n" || fmt.Sprint(w.Trailer().Get("x-end")) != "[of a]" {
			t.Errorf("%s: the stream ended with %v, trailer %v", scheme, err, w.Trailer())
		}
		conn.Close()
		p.end(t)
	}
}

// As many requests at once as before need no further connection to the upstream.
func TestConnectionsAreKept(t *testing.T) {
	const atOnce = 16
	var arrived sync.WaitGroup
	var opened atomic.Int64
	u := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		arrived.Done()
		arrived.Wait()
	}))
	u.Config.ConnState = func(_ net.Conn, s http.ConnState) {
		if s == http.StateNew {
			opened.Add(1)
		}
	}
	u.Start()
	t.Cleanup(u.Close)
	p := start(t, generous, proxy.Options{Upstreams: []string{u.URL}})
	for range 3 {
		arrived.Add(atOnce)
		var all sync.WaitGroup
		for range atOnce {
			all.Go(func() { get(t, p.url) })
		}
		all.Wait() // and net/http keeps a connection before it hands over an answer without a body
	}
	if n := opened.Load(); n != atOnce {
		t.Errorf("%d connections for %d requests at a time", n, atOnce)
	}
}
