package grpcserver

import (
	"context"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/test/bufconn"
)

// TestStreamsOutliveTheAge: a connection that has reached its age takes no new calls, and its streams go on: an Envoy
// whose stream of quotas ends has no assignments until its next report.
func TestStreamsOutliveTheAge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		streams, end := context.WithCancel(context.Background())
		s := grpc.NewServer(Options(Config{Streams: streams, Fault: func(string, any) {}})...)
		h := health.NewServer()
		healthpb.RegisterHealthServer(s, h)
		l := bufconn.Listen(1 << 16)
		go func() { _ = s.Serve(l) }()
		dials := 0
		conn, err := grpc.NewClient("passthrough:///s", grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			dials++
			return l.DialContext(ctx)
		}))
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			end()
			s.GracefulStop()
			if err := conn.Close(); err != nil {
				t.Error(err)
			}
		}()
		watch, err := healthpb.NewHealthClient(conn).Watch(t.Context(), &healthpb.HealthCheckRequest{})
		if err != nil {
			t.Fatal(err)
		}
		receive := func(want healthpb.HealthCheckResponse_ServingStatus) {
			t.Helper()
			if m, err := watch.Recv(); err != nil || m.Status != want {
				t.Fatalf("%v, %v", m, err)
			}
		}
		receive(healthpb.HealthCheckResponse_SERVING)
		time.Sleep(3 * connectionAge)
		if _, err := healthpb.NewHealthClient(conn).Check(t.Context(), &healthpb.HealthCheckRequest{}); err != nil || dials < 2 {
			t.Errorf("a call after the age: %v, with %d connections", err, dials)
		}
		h.SetServingStatus("", healthpb.HealthCheckResponse_NOT_SERVING)
		receive(healthpb.HealthCheckResponse_NOT_SERVING)
	})
}
