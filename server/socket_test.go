package server_test

import (
	"context"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/stint-io/stint/server"
	"github.com/stint-io/stint/stintpb"
)

// TestUnixSockets: every listener can be a socket of this machine, without TLS or a proof of who comes.
func TestUnixSockets(t *testing.T) {
	dir := t.TempDir()
	socket := func(name string) string { return filepath.Join(dir, name) }
	s := start(t, "limits: [{name: per-ip, key: [ip], missing: skip, rate: 1/hour}, {name: all, rate: 100/s}]", func(o *server.Options) {
		o.HTTPAddr, o.GRPCAddr, o.AdminAddr = "unix:"+socket("http"), "unix://"+socket("grpc"), "unix:"+socket("admin")
		o.RESPAddr = "unix:" + socket("resp")
	})
	ask := func(name, method, path, body string) (int, string) {
		t.Helper()
		client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", socket(name))
		}}}
		req, err := http.NewRequestWithContext(t.Context(), method, "http://localhost"+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		resp, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, string(text)
	}
	if code, text := ask("http", http.MethodPost, "/v1/take", `{"attributes":{"user":"u"}}`); code != http.StatusOK || !strings.Contains(text, `"name":"all"`) {
		t.Errorf("HTTP: %d %s", code, text)
	}
	if code, text := ask("http", http.MethodGet, "/ui", ""); code != http.StatusNotFound || !strings.Contains(text, "http+unix://%2F") {
		t.Errorf("the dashboard on the HTTP port: %d %s, want where it is", code, text)
	}
	if code, text := ask("admin", http.MethodGet, "/readyz", ""); code != http.StatusOK {
		t.Errorf("admin: %d %s", code, text)
	}
	conn, err := grpc.NewClient("unix:"+socket("grpc"), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	if d, err := stintpb.NewLimitsClient(conn).Take(t.Context(), &stintpb.TakeRequest{Attributes: map[string]string{"user": "u"}}); err != nil || !d.GetAllowed() {
		t.Errorf("gRPC: %v, %v", d, err)
	}
	if err := conn.Close(); err != nil {
		t.Error(err)
	}
	raw, err := net.Dial("unix", socket("resp"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := raw.Write([]byte("PING\r\n")); err != nil {
		t.Error(err)
	}
	answer := make([]byte, 7)
	if _, err := io.ReadFull(raw, answer); err != nil || string(answer) != "+PONG\r\n" {
		t.Errorf("Redis: %q, %v", answer, err)
	}
	if err := raw.Close(); err != nil {
		t.Error(err)
	}
	if strings.Contains(s.log.String(), "beyond this machine") {
		t.Errorf("a socket is not beyond this machine:\n%s", s.log)
	}
	if err := s.stop(); err != nil {
		t.Error(err)
	}
	if left, err := filepath.Glob(filepath.Join(dir, "*")); err != nil || len(left) > 0 {
		t.Errorf("%v is left, %v", left, err)
	}
}
