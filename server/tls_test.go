package server_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/stint-io/stint/internal/testca"
	"github.com/stint-io/stint/server"
)

// guarded is a server whose listeners serve TLS, and what is needed to reach it.
type guarded struct {
	*service
	ca  *testca.Authority
	dir string
}

// startTLS starts a server with a certificate, and with authorities of clients where mutual says so.
func startTLS(t *testing.T, yaml string, mutual bool, adjust ...func(*server.Options)) *guarded {
	t.Helper()
	g := &guarded{ca: testca.New(), dir: t.TempDir()}
	files := server.TLSFiles{}
	files.Cert, files.Key = g.ca.Issue(testca.Names{Server: true}).Write(g.dir, "tls")
	if mutual {
		files.ClientCA = testca.File(g.dir, "ca.crt", g.ca.PEM)
	}
	g.service = start(t, yaml, append([]func(*server.Options){func(o *server.Options) { o.TLS = files }}, adjust...)...)
	return g
}

// config is that of a client with the certificate, if it has a name.
func (g *guarded) config(n *testca.Names) *tls.Config {
	c := &tls.Config{RootCAs: g.ca.Pool()}
	if n != nil {
		c.Certificates = []tls.Certificate{g.ca.Issue(*n).TLS()}
	}
	return c
}

// web returns an HTTP client with connections of its own.
func (g *guarded) web(c *tls.Config, http2 bool) *http.Client {
	transport := &http.Transport{TLSClientConfig: c, ForceAttemptHTTP2: http2}
	g.t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport, Timeout: time.Minute}
}

// dial returns a client of the gRPC listener with a connection of its own.
func (g *guarded) dial(c *tls.Config, more ...grpc.DialOption) *grpc.ClientConn {
	g.t.Helper()
	conn, err := grpc.NewClient(g.Addrs().GRPC.String(), append(more, grpc.WithTransportCredentials(credentials.NewTLS(c)))...)
	if err != nil {
		g.t.Fatal(err)
	}
	g.t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// fetch asks and returns the status and the body.
func fetch(c *http.Client, method, url, body string, header ...string) (int, string, error) {
	req, err := http.NewRequest(method, url, strings.NewReader(body))
	if err != nil {
		return 0, "", err
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Add(header[i], header[i+1])
	}
	resp, err := c.Do(req)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	return resp.StatusCode, resp.Proto + " " + string(text), err
}

const manyPerUser = "limits:\n  - {name: per-user, key: [user], rate: 1/hour, burst: 1000000}\n"

const takeOfU = `{"attributes":{"user":"u"}}`

// TestTLSOnEveryPort: with one certificate all listeners serve TLS, HTTP/2 too, and none answers plain
// text.
func TestTLSOnEveryPort(t *testing.T) {
	g := startTLS(t, manyPerUser, false)
	for _, http2 := range []bool{false, true} {
		web, proto := g.web(g.config(nil), http2), map[bool]string{false: "HTTP/1.1", true: "HTTP/2.0"}[http2]
		if code, body, err := fetch(web, "POST", "https://"+g.Addrs().HTTP.String()+"/v1/take", takeOfU); code != 200 || !strings.HasPrefix(body, proto) {
			t.Errorf("take: %d %s, %v", code, body, err)
		}
		if code, body, err := fetch(web, "GET", "https://"+g.Addrs().Admin.String()+"/metrics", ""); code != 200 || !strings.HasPrefix(body, proto) ||
			!strings.Contains(body, `stint_tls_last_reload_successful{listener="grpc"} 1`) || !strings.Contains(body, `stint_tls_certificate_expiry_timestamp_seconds{listener="admin"}`) {
			t.Errorf("metrics: %d, %v\n%s", code, err, body)
		}
	}
	if _, err := pb.NewRateLimitServiceClient(g.dial(g.config(nil))).ShouldRateLimit(t.Context(), request("any", 1, descriptor("user=u"))); err != nil {
		t.Errorf("gRPC: %v", err)
	}
	for name, addr := range map[string]net.Addr{"http": g.Addrs().HTTP, "admin": g.Addrs().Admin} {
		if code, _, err := fetch(http.DefaultClient, "GET", "http://"+addr.String()+"/healthz", ""); err == nil && code != http.StatusBadRequest {
			t.Errorf("%s: plain text is answered %d", name, code)
		}
	}
	if _, err := g.rls.ShouldRateLimit(t.Context(), request("any", 1, descriptor("user=u"))); err == nil {
		t.Error("gRPC: plain text is answered")
	}
}

// TestStrangersOnEveryPort: where client certificates are asked for, nobody without one of ours gets an
// answer from any listener.
func TestStrangersOnEveryPort(t *testing.T) {
	g, foreign := startTLS(t, manyPerUser, true), testca.New()
	ask := func(c *tls.Config) (errs [3]error) {
		web := g.web(c, false)
		_, _, errs[0] = fetch(web, "GET", "https://"+g.Addrs().HTTP.String()+"/healthz", "")
		_, _, errs[1] = fetch(web, "GET", "https://"+g.Addrs().Admin.String()+"/readyz", "")
		_, errs[2] = pb.NewRateLimitServiceClient(g.dial(c)).ShouldRateLimit(t.Context(), request("any", 1, descriptor("user=u")))
		return errs
	}
	if errs := ask(g.config(&testca.Names{CommonName: "ours"})); errors.Join(errs[:]...) != nil {
		t.Errorf("one of ours: %v", errs)
	}
	stranger := g.config(nil)
	stranger.Certificates = []tls.Certificate{foreign.Issue(testca.Names{CommonName: "ours"}).TLS()}
	old := g.config(&testca.Names{CommonName: "ours"})
	old.MinVersion, old.MaxVersion = tls.VersionTLS10, tls.VersionTLS11
	for what, c := range map[string]*tls.Config{
		"without a certificate":  g.config(nil),
		"of a foreign authority": stranger,
		"expired":                g.config(&testca.Names{CommonName: "ours", NotBefore: -2 * time.Hour, NotAfter: -time.Minute}),
		"with TLS 1.1":           old,
	} {
		for i, err := range ask(c) {
			if err == nil {
				t.Errorf("%s: %s answers", what, []string{"http", "admin", "grpc"}[i])
			}
		}
	}
}

// TestRefusedClientsAreCounted: each listener counts clients by what is wrong with their certificate, and logs
// the first for a minute, with its address and the way out.
func TestRefusedClientsAreCounted(t *testing.T) {
	g, foreign := startTLS(t, manyPerUser, true), testca.New()
	names := testca.Names{CommonName: "worker-7"}
	stranger := g.config(nil)
	stranger.Certificates = []tls.Certificate{foreign.Issue(names).TLS()}
	expired := g.config(&testca.Names{CommonName: "worker-7", NotBefore: -2 * time.Hour, NotAfter: -time.Minute})
	metrics := func() string {
		t.Helper()
		_, body, err := fetch(g.web(g.config(&names), true), "GET", "https://"+g.Addrs().Admin.String()+"/metrics", "")
		if err != nil {
			t.Fatal(err)
		}
		return body
	}
	await := func(line string) {
		t.Helper()
		body := ""
		for begun := time.Now(); time.Since(begun) < 30*time.Second; <-time.After(20 * time.Millisecond) {
			if body = metrics(); strings.Contains(body, line) {
				return
			}
		}
		t.Errorf("no %s in\n%s", line, regexp.MustCompile(`(?m)^stint_tls_clients.*`).FindAllString(body, -1))
	}
	for listener, addr := range map[string]net.Addr{"http": g.Addrs().HTTP, "grpc": g.Addrs().GRPC, "admin": g.Addrs().Admin} {
		if want := fmt.Sprintf(`stint_tls_clients_refused_total{listener=%q,reason="invalid"} 0`, listener); !strings.Contains(metrics(), want) {
			t.Errorf("no %s before any client was refused", want)
		}
		for _, c := range []struct {
			reason string
			config *tls.Config
		}{{"foreign", stranger}, {"expired", expired}, {"missing", g.config(nil)}} {
			for range 2 {
				config := c.config.Clone()
				config.NextProtos = []string{"h2"}
				conn, err := tls.Dial("tcp", addr.String(), config)
				if err == nil { // with TLS 1.3 the client is done before its certificate is checked
					_, err = conn.Read(make([]byte, 1))
					_ = conn.Close() // the server has ended it
				}
				if err == nil {
					t.Errorf("%s: %s was let in", listener, c.reason)
				}
			}
			await(fmt.Sprintf(`stint_tls_clients_refused_total{listener=%q,reason=%q} 2`, listener, c.reason))
		}
	}
	lines := regexp.MustCompile(`(?m)^.*a client was refused because of its certificate.*$`).FindAllString(g.log.String(), -1)
	for _, line := range lines {
		if !regexp.MustCompile(`listener=(http|grpc|admin) peer=127\.0\.0\.1:\d+ reason=foreign subject="?CN=worker-7"? error=.*signed by unknown authority.* advice=".*--tls-client-ca`).MatchString(line) {
			t.Errorf("the line is %s", line)
		}
	}
	if len(lines) != 3 {
		t.Errorf("%d lines, want one of each listener:\n%s", len(lines), g.log.String())
	}
}

// TestRotationUnderLoad: the certificate is replaced many times while requests come, on kept
// connections and on new ones, and none fails. The last certificate is the one that is shown.
func TestRotationUnderLoad(t *testing.T) {
	g := startTLS(t, manyPerUser, true)
	me := &testca.Names{CommonName: "ours"}
	var stop atomic.Bool
	var load sync.WaitGroup
	var done [3]atomic.Int64
	failed := make(chan error, 3)
	keep := func(i int, ask func() error) {
		load.Go(func() {
			for !stop.Load() {
				if err := ask(); err != nil {
					failed <- fmt.Errorf("%s: %w", []string{"kept gRPC", "kept HTTP", "new HTTP"}[i], err)
					return
				}
				done[i].Add(1)
			}
		})
	}
	rls := pb.NewRateLimitServiceClient(g.dial(g.config(me)))
	take := func(c *http.Client) error {
		code, body, err := fetch(c, "POST", "https://"+g.Addrs().HTTP.String()+"/v1/take", takeOfU)
		if err == nil && code != 200 {
			err = fmt.Errorf("%d %s", code, body)
		}
		return err
	}
	keep(0, func() error {
		_, err := rls.ShouldRateLimit(context.Background(), request("any", 1, descriptor("user=u")))
		return err
	})
	kept, config := g.web(g.config(me), true), g.config(me)
	keep(1, func() error { return take(kept) })
	keep(2, func() error {
		fresh := g.web(config.Clone(), false)
		defer fresh.CloseIdleConnections()
		return take(fresh)
	})
	shown := func() string {
		conn, err := tls.Dial("tcp", g.Addrs().GRPC.String(), &tls.Config{RootCAs: g.ca.Pool(), ServerName: "127.0.0.1", Certificates: config.Certificates, NextProtos: []string{"h2"}})
		if err != nil {
			t.Error(err)
			return ""
		}
		defer conn.Close()
		return conn.ConnectionState().PeerCertificates[0].Subject.CommonName
	}
	for i := range 5 {
		name := fmt.Sprintf("certificate %d", i)
		g.ca.Issue(testca.Names{Server: true, CommonName: name}).Write(g.dir, "tls")
		before := done[2].Load()
		await(t, name+" to be in use", func() bool {
			return len(failed) > 0 || shown() == name && done[2].Load() >= before+3
		})
		if got := shown(); got != name {
			t.Fatalf("%s is not in use, %s is\n%s", name, got, g.log)
		}
	}
	// A broken file changes nothing, and a metric says so.
	testca.File(g.dir, "tls.crt", []byte("broken"))
	web, metrics := g.web(g.config(me), false), ""
	await(t, "the fault to be shown", func() bool {
		_, metrics, _ = fetch(web, "GET", "https://"+g.Addrs().Admin.String()+"/metrics", "")
		return strings.Contains(metrics, `stint_tls_last_reload_successful{listener="http"} 0`)
	})
	// More than one where a certificate was read before its key was written.
	if strings.Contains(metrics, `stint_tls_reload_errors_total{listener="http"} 0`) || shown() != "certificate 4" {
		t.Errorf("after a broken file %q is shown and the metrics are\n%s", shown(), metrics)
	}
	stop.Store(true)
	load.Wait()
	select {
	case err := <-failed:
		t.Errorf("a request failed: %v\n%s", err, g.log)
	default:
		t.Logf("%d, %d and %d requests", done[0].Load(), done[1].Load(), done[2].Load())
	}
}

// TestAddressesThatOthersReach: an address beyond loopback wants TLS and a proof of who comes, and the
// error names the flags.
func TestAddressesThatOthersReach(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	dir := t.TempDir()
	ca := testca.New()
	certified := server.TLSFiles{}
	certified.Cert, certified.Key = ca.Issue(testca.Names{Server: true}).Write(dir, "tls")
	mutual := certified
	mutual.ClientCA = testca.File(dir, "ca.crt", ca.PEM)
	none := server.TLSFiles{Cert: server.NoFile}
	for name, tt := range map[string]struct {
		opts server.Options
		want []string // in the error; nil = there is none
	}{
		"loopback":                  {server.Options{}, nil},
		"http in plain text":        {server.Options{HTTPAddr: "0.0.0.0:0"}, []string{"http address 0.0.0.0:0", "--tls-cert", "--tls-client-ca", "--insecure"}},
		"grpc in plain text":        {server.Options{GRPCAddr: "[::]:0"}, []string{"grpc address [::]:0", "--tls-cert", "--insecure"}},
		"every address":             {server.Options{GRPCAddr: ":0"}, []string{"grpc address :0"}},
		"TLS alone":                 {server.Options{GRPCAddr: "0.0.0.0:0", TLS: certified}, []string{"--tls-client-ca"}},
		"mutual TLS":                {server.Options{HTTPAddr: "0.0.0.0:0", GRPCAddr: "0.0.0.0:0", AdminAddr: "0.0.0.0:0", TLS: mutual}, nil},
		"mutual TLS but for http":   {server.Options{HTTPAddr: "0.0.0.0:0", TLS: mutual, HTTPTLS: none}, []string{"http address"}},
		"insecure":                  {server.Options{HTTPAddr: "0.0.0.0:0", GRPCAddr: "0.0.0.0:0", Insecure: true}, nil},
		"insecure admin":            {server.Options{AdminAddr: "0.0.0.0:0", Insecure: true}, []string{"--admin-token-file"}},
		"insecure admin with token": {server.Options{AdminAddr: "0.0.0.0:0", Insecure: true, AdminToken: "t"}, nil},
		"token in plain text":       {server.Options{AdminAddr: "0.0.0.0:0", AdminToken: "t"}, []string{"admin address", "--insecure"}},
		"token by TLS":              {server.Options{AdminAddr: "0.0.0.0:0", AdminToken: "t", AdminTLS: certified}, nil},
		"half a pair":               {server.Options{GRPCTLS: server.TLSFiles{Cert: certified.Cert}}, []string{"grpc", "--tls-key"}},
		"no such file":              {server.Options{GRPCTLS: server.TLSFiles{Cert: filepath.Join(dir, "none"), Key: certified.Key}}, []string{"grpc listener", "none"}},
	} {
		t.Run(name, func(t *testing.T) {
			s, err := server.New(tt.opts)
			if err == nil {
				ended, end := context.WithCancel(context.Background())
				end()
				if err := s.Run(ended); err != nil {
					t.Error(err)
				}
			}
			for _, part := range tt.want {
				if err == nil || !strings.Contains(err.Error(), part) {
					t.Errorf("%v, want something of %q", err, part)
				}
			}
			if tt.want == nil && err != nil {
				t.Error(err)
			}
		})
	}
}
