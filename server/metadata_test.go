package server_test

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/status"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/stint-io/stint/server"
)

// connections counts those that a client has begun.
type connections struct {
	mu    sync.Mutex
	begun int
}

func (c *connections) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context   { return ctx }
func (c *connections) HandleRPC(context.Context, stats.RPCStats)                         {}
func (c *connections) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }

func (c *connections) HandleConn(_ context.Context, s stats.ConnStats) {
	if _, ok := s.(*stats.ConnBegin); ok {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.begun++
	}
}

// TestLargeMetadata: a call with metadata up to the bound is decided. One with more, up to what Envoy can be told to
// admit, fails alone: other streams of its connection go on. It is counted, and logged once a minute.
func TestLargeMetadata(t *testing.T) {
	if testing.Short() {
		t.Skip("one request after another: nothing for the race detector")
	}
	for _, bound := range []int{0, 1 << 20} {
		t.Run(fmt.Sprint(bound), func(t *testing.T) {
			s := start(t, "limits:\n  - {name: per-user, key: [user], rate: 1000000/hour}\n", func(o *server.Options) { o.GRPCMetadata = int64(bound) })
			largeMetadata(t, s, cmp.Or(bound, 64<<10))
		})
	}
}

func largeMetadata(t *testing.T, s *service, bound int) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	var seen connections
	conn, err := grpc.NewClient(s.Addrs().GRPC.String(), grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithStatsHandler(&seen))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	other, err := healthpb.NewHealthClient(conn).Watch(t.Context(), &healthpb.HealthCheckRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := other.Recv(); err != nil {
		t.Fatal(err)
	}
	limits := pb.NewRateLimitServiceClient(conn)
	decided, refused := 0, 0
	for range 60 {
		// Of all sizes up to 8 MiB, in one field or in several.
		size := 1 << random.IntN(23)
		size += random.IntN(size)
		pairs, parts := []string{}, 1+random.IntN(5)
		for range parts {
			pairs = append(pairs, "tracestate", strings.Repeat(string(rune('a'+random.IntN(26))), size/parts))
		}
		ctx := metadata.AppendToOutgoingContext(t.Context(), pairs...)
		_, err := limits.ShouldRateLimit(ctx, request("any", 1, descriptor("user=u")))
		switch sent := parts * (size/parts + len("tracestate")); {
		case sent < bound-4<<10: // beside what gRPC sends itself
			if decided++; err != nil {
				t.Fatalf("%d bytes of metadata: %v", sent, err)
			}
		case sent > bound:
			if refused++; status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), fmt.Sprint("want at most ", bound)) {
				t.Fatalf("%d bytes of metadata: %v", sent, err)
			}
		}
	}
	if decided == 0 || refused == 0 {
		t.Fatalf("%d calls were decided and %d refused: sizes are not mixed", decided, refused)
	}
	if seen.begun != 1 {
		t.Errorf("%d connections, want one for all calls", seen.begun)
	}
	if err := other.CloseSend(); err != nil || other.Context().Err() != nil {
		t.Errorf("the other stream: %v, %v", err, other.Context().Err())
	}
	if n := metric(t, s, `stint_grpc_refused_total{reason="metadata_too_large"}`); n < refused {
		t.Errorf("%d calls were counted, want at least %d", n, refused)
	}
	if n := strings.Count(s.log.String(), "reason=metadata_too_large"); n != 1 {
		t.Errorf("it was logged %d times, want once:\n%s", n, s.log)
	}
}

// TestRefusedCallsAreSeen: each call over gRPC that is refused for its form is counted, and the first of a kind is logged.
// A proxy that fails open shows nothing else.
func TestRefusedCallsAreSeen(t *testing.T) {
	dir := t.TempDir()
	auth := filepath.Join(dir, "auth.yaml")
	write(t, auth, "identities:\n  - {name: edge, token_file: take.token, roles: [take]}\n  - {name: ops, token_file: admin.token, roles: [admin]}\n")
	write(t, filepath.Join(dir, "take.token"), takeToken)
	write(t, filepath.Join(dir, "admin.token"), adminToken)
	s := start(t, "limits:\n  - {name: per-user, key: [user], rate: 1000000/hour}\n", func(o *server.Options) { o.AuthFile = auth })
	good := request("any", 1, descriptor("user=u"))
	entries := make([]string, 101)
	for i := range entries {
		entries[i] = "user=u"
	}
	ask := func(token string, req *pb.RateLimitRequest) error {
		_, err := s.rls.ShouldRateLimit(metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer "+token), req)
		return err
	}
	if err := ask(takeToken, good); err != nil {
		t.Fatal(err)
	}
	for reason, refused := range map[string]func() error{
		"bad_request":       func() error { return ask(takeToken, request("any", 1, descriptor(entries...))) },
		"message_too_large": func() error { return ask(takeToken, request("any", 1, descriptor("user="+strings.Repeat("u", 4<<20)))) },
		"unauthenticated":   func() error { return ask("token-of-nobody-at-all", good) },
		"denied":            func() error { return ask(adminToken, good) },
		"malformed": func() error {
			var out pb.RateLimitResponse
			return s.conn.Invoke(t.Context(), pb.RateLimitService_ShouldRateLimit_FullMethodName, bytes.Repeat([]byte{0xff}, 100), &out, forceRaw)
		},
	} {
		counted := fmt.Sprintf("stint_grpc_refused_total{reason=%q}", reason)
		if n := metric(t, s, counted, "Authorization", "Bearer "+adminToken); n != 0 {
			t.Errorf("%s is %d before", counted, n)
		}
		for range 3 {
			if err := refused(); err == nil {
				t.Errorf("%s: the call was not refused", reason)
			}
		}
		// gRPC answers a message that it cannot read before the call has ended.
		await(t, counted+" to be 3", func() bool { return metric(t, s, counted, "Authorization", "Bearer "+adminToken) == 3 })
		if n := strings.Count(s.log.String(), "reason="+reason+" method="+pb.RateLimitService_ShouldRateLimit_FullMethodName); n != 1 {
			t.Errorf("%s was logged %d times, want once:\n%s", reason, n, s.log)
		}
	}
	if strings.Contains(s.log.String(), "token-of-") {
		t.Errorf("the log has a token:\n%s", s.log)
	}
}
