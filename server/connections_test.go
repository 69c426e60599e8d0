package server

import (
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/stint-io/stint/internal/connlimit"
)

// TestIdleConnectionsKeepNobodyOut: a source opens more idle connections than a listener admits in all, and clients
// elsewhere are answered on each of them; the metric counts what was closed.
func TestIdleConnectionsKeepNobodyOut(t *testing.T) {
	const most = 50
	s, err := New(Options{Logger: slog.New(slog.DiscardHandler), HTTPAddr: "127.0.0.1:0", GRPCAddr: "127.0.0.1:0", AdminAddr: "127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	for name := range s.connections {
		s.connections[name] = connlimit.New(most)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	defer func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()
	<-s.Ready()
	addrs := s.Addrs()
	for _, addr := range []net.Addr{addrs.HTTP, addrs.GRPC, addrs.Admin} {
		for range 2 * most {
			idle, err := net.Dial("tcp", addr.String())
			if err != nil {
				t.Fatal(err)
			}
			defer idle.Close()
		}
	}
	elsewhere := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2)}}
	web := &http.Client{Transport: &http.Transport{DialContext: elsewhere.DialContext, DisableKeepAlives: true}, Timeout: 30 * time.Second}
	get := func(url string) string {
		t.Helper()
		res, err := web.Get(url)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		text, err := io.ReadAll(res.Body)
		if err != nil || res.StatusCode != http.StatusOK {
			t.Fatalf("%s: %s, %v", url, res.Status, err)
		}
		return string(text)
	}
	get("http://" + addrs.HTTP.String() + "/healthz")
	conn, err := grpc.NewClient(addrs.GRPC.String(), grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) {
			return elsewhere.DialContext(ctx, "tcp", addr)
		}))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := healthpb.NewHealthClient(conn).Check(t.Context(), &healthpb.HealthCheckRequest{}); err != nil {
		t.Errorf("gRPC: %v", err)
	}
	metrics := get("http://" + addrs.Admin.String() + "/metrics")
	for _, name := range []string{"http", "grpc", "admin"} {
		if text := `stint_refused_connections_total{listener="` + name + `"} `; !strings.Contains(metrics, text) || strings.Contains(metrics, text+"0\n") {
			t.Errorf("the metrics do not count connections that were closed on %s", name)
		}
	}
}
