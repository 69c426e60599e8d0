//go:build linux

package gateways_test

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stint-io/stint/internal/gatewaytest"
)

const hostileLimits = `limits:
  - name: per-key
    key: ["header:x-api-key"]
    rate: 20/s
    burst: 20
    missing: all
`

// TestHostileClientsOfEnvoy has clients behind a real Envoy send what they like: fields of any length up to what Envoy
// takes, bytes that are not UTF-8, fields twice, encoded paths, made-up keys, and connections that they drop. Clients
// that stay below their own limits are served as without them, one that does not stays at its limit, and no connection
// that requests share ends.
func TestHostileClientsOfEnvoy(t *testing.T) {
	for _, file := range []string{"envoy.yaml", "ext-authz.yaml"} {
		t.Run(file, func(t *testing.T) {
			seed := uint64(time.Now().UnixNano())
			t.Logf("seed %d", seed)
			limits := filepath.Join(t.TempDir(), "limits.yaml")
			if err := os.WriteFile(limits, []byte(hostileLimits), 0o600); err != nil {
				t.Fatal(err)
			}
			s := gatewaytest.StartService(t, stintBinary, limits, "--http-host", "www.example.com")
			gatewaytest.AwaitReady(t, s.Admin)
			folder, admin := traced(t, file)
			front := gatewaytest.StartEnvoy(t, envoyBinary, folder, file, s, gatewaytest.StartApplication(t))
			h := &hostility{front: front, seed: seed}
			alone := h.play(t, false)
			before := destroyed(t, admin)
			beside := h.play(t, true)
			t.Logf("honest clients get %d of %d alone, %d of %d beside; the greedy one %d of at most %d; %d hostile requests",
				alone.served, alone.sent, beside.served, beside.sent, beside.greedy, beside.most, beside.hostile)
			if float64(alone.served) < 0.95*float64(alone.sent) || float64(beside.served)*float64(alone.sent) < 0.95*float64(alone.served)*float64(beside.sent) {
				t.Errorf("honest clients get %d of %d alone and %d of %d beside hostile ones", alone.served, alone.sent, beside.served, beside.sent)
			}
			if beside.greedy > beside.most || beside.greedy < beside.most/2 {
				t.Errorf("one client above its limit got %d, want at most %d, and half of that", beside.greedy, beside.most)
			}
			if beside.hostile < 100 {
				t.Errorf("%d hostile requests were made", beside.hostile)
			}
			if file == "envoy.yaml" { // over HTTP/1 a connection has one request at a time
				if after := destroyed(t, admin); after != before {
					t.Errorf("%d connections to stint ended, %d before", after, before)
				}
			}
		})
	}
}

// traced copies the folder, with a tracer, which has Envoy send what clients say of their traces on the connections
// that all requests share, and with an admin port.
func traced(t *testing.T, file string) (folder, admin string) {
	t.Helper()
	folder, admin = t.TempDir(), gatewaytest.FreeAddrs(t, 1)[0]
	if err := os.CopyFS(folder, os.DirFS("envoy")); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join("envoy", file))
	if err != nil {
		t.Fatal(err)
	}
	_, port, err := net.SplitHostPort(admin)
	if err != nil {
		t.Fatal(err)
	}
	const prefix = "                stat_prefix: public\n"
	if n := strings.Count(string(text), prefix); n != 1 {
		t.Fatalf("%s has %d lines %q", file, n, prefix)
	}
	changed := strings.Replace(string(text), prefix, prefix+`                tracing:
                  provider:
                    name: envoy.tracers.opentelemetry
                    typed_config:
                      "@type": type.googleapis.com/envoy.config.trace.v3.OpenTelemetryConfig
                      service_name: edge
                      grpc_service: { envoy_grpc: { cluster_name: app }, timeout: 0.25s }
`, 1)
	changed += "admin: { address: { socket_address: { address: 127.0.0.1, port_value: " + port + " } } }\n"
	if err := os.WriteFile(filepath.Join(folder, file), []byte(changed), 0o600); err != nil {
		t.Fatal(err)
	}
	return folder, admin
}

// destroyed is how many connections to stint ended while requests were on them, or that stint ended.
func destroyed(t *testing.T, admin string) (n int) {
	t.Helper()
	res, err := http.Get("http://" + admin + "/stats?filter=cluster.stint.upstream_cx_(destroy_remote|protocol_error)")
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if _, value, ok := strings.Cut(line, ": "); ok {
			count, err := strconv.Atoi(strings.TrimSpace(value))
			if err != nil {
				t.Fatal(err)
			}
			n += count
		}
	}
	return n
}

// hostility is clients of an Envoy.
type hostility struct {
	front string
	seed  uint64
}

// figures are what clients got.
type figures struct{ sent, served, greedy, most, hostile int }

// played is for how long clients ask; every is how often an honest one does, at half its limit.
const (
	played = 4 * time.Second
	every  = 100 * time.Millisecond
)

// play has four honest clients ask, one that asks for five times its limit, and four hostile ones if they are wanted.
func (h *hostility) play(t *testing.T, hostile bool) (f figures) {
	t.Helper()
	var mu sync.Mutex
	var all sync.WaitGroup
	begin := time.Now()
	ask := func(client *http.Client, key string) (ok bool) {
		q, err := http.NewRequest(http.MethodGet, "http://"+h.front+"/", nil)
		if err != nil {
			t.Error(err)
			return false
		}
		q.Host = "www.example.com"
		q.Header.Set("X-Api-Key", key)
		res, err := client.Do(q)
		if err != nil {
			return false
		}
		_, err = io.Copy(io.Discard, res.Body)
		return err == nil && res.Body.Close() == nil && res.StatusCode == http.StatusOK
	}
	repeat := func(every time.Duration, do func(*http.Client)) {
		client := &http.Client{Transport: &http.Transport{}, Timeout: 5 * time.Second}
		defer client.CloseIdleConnections()
		tick := time.NewTicker(every)
		defer tick.Stop()
		for time.Since(begin) < played {
			do(client)
			<-tick.C
		}
	}
	for i := range 4 {
		all.Go(func() {
			repeat(every, func(c *http.Client) {
				ok := ask(c, fmt.Sprint("honest", i, hostile))
				mu.Lock()
				defer mu.Unlock()
				f.sent++
				if ok {
					f.served++
				}
			})
		})
	}
	all.Go(func() {
		repeat(10*time.Millisecond, func(c *http.Client) {
			if ask(c, fmt.Sprint("greedy", hostile)) {
				mu.Lock()
				defer mu.Unlock()
				f.greedy++
			}
		})
	})
	if hostile {
		for i := range uint64(4) {
			all.Go(func() {
				r := rand.New(rand.NewPCG(h.seed, i))
				repeat(10*time.Millisecond, func(*http.Client) {
					h.harm(r)
					mu.Lock()
					defer mu.Unlock()
					f.hostile++
				})
			})
		}
	}
	all.Wait()
	f.most = 20 + int(20*time.Since(begin).Seconds())
	return f
}

// harm makes one connection and sends a request or two that no browser would.
func (h *hostility) harm(r *rand.Rand) {
	c, err := net.DialTimeout("tcp", h.front, time.Second)
	if err != nil {
		return
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(100 * time.Millisecond))
	for range 1 + r.IntN(3) {
		if _, err := c.Write(hostileRequest(r)); err != nil || r.IntN(4) == 0 {
			return // without waiting for the answer
		}
		part := make([]byte, 1+r.IntN(2000))
		if _, err := c.Read(part); err != nil {
			return
		}
	}
}

// hostileRequest draws a request: some are none.
func hostileRequest(r *rand.Rand) []byte {
	var b bytes.Buffer
	paths := []string{"/", "/%2e%2e/%2e%2e/", "/a%00b", "//x//y", "/%ff%fe", "/a;b=c", "/..%2f..%2f", "/" + strings.Repeat("a", r.IntN(8000)), "*", "http://other/"}
	methods := []string{"GET", "POST", "OPTIONS", "PURGE", "HEAD"}
	fmt.Fprintf(&b, "%s %s HTTP/1.1\r\nHost: %s\r\n", methods[r.IntN(len(methods))], paths[r.IntN(len(paths))], []string{"www.example.com", "", "a b", "[::1]:80", "www.example.com:99999"}[r.IntN(5)])
	names := []string{"x-api-key", "X_Api_Key", "tracestate", "traceparent", "cookie", "x-forwarded-for", "x-request-id", "user-agent", "x-envoy-external-address", "baggage", "authorization", "x-ratelimit-degraded"}
	for range r.IntN(6) {
		name := names[r.IntN(len(names))]
		for range 1 + r.IntN(2) {
			fmt.Fprintf(&b, "%s: %s\r\n", name, hostileValue(r))
		}
	}
	if r.IntN(2) == 0 {
		fmt.Fprintf(&b, "x-api-key: made-up-%d\r\n", r.IntN(20000))
	}
	if r.IntN(3) == 0 {
		fmt.Fprintf(&b, "traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\r\ntracestate: a=%s\r\n", strings.Repeat("x", r.IntN(50_000)))
	}
	b.WriteString("Content-Length: 0\r\n\r\n")
	return b.Bytes()
}

func hostileValue(r *rand.Rand) string {
	switch r.IntN(5) {
	case 0:
		return ""
	case 1:
		return strings.Repeat("a", r.IntN(60<<10))
	case 2:
		text := make([]byte, 1+r.IntN(40))
		for i := range text {
			text[i] = 0x80 | byte(r.Uint32())
		}
		return string(text)
	case 3:
		return "\xff\xfe, \"=;,%0d%0a"
	}
	return fmt.Sprint(r.Uint64())
}
