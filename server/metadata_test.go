package server_test

import (
	"context"
	"math/rand/v2"
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

// TestLargeMetadata: a call with metadata of up to 64 KiB is decided. One with more fails alone: other streams of its
// connection go on.
func TestLargeMetadata(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	s := start(t, "limits:\n  - {name: per-user, key: [user], rate: 1000000/hour}\n")
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
		// Of all sizes up to 900 KiB, in one field or in several.
		size := 1 << random.IntN(20)
		size += random.IntN(size)
		size = min(size, 900<<10)
		pairs, parts := []string{}, 1+random.IntN(5)
		for range parts {
			pairs = append(pairs, "tracestate", strings.Repeat(string(rune('a'+random.IntN(26))), size/parts))
		}
		ctx := metadata.AppendToOutgoingContext(t.Context(), pairs...)
		_, err := limits.ShouldRateLimit(ctx, request("any", 1, descriptor("user=u")))
		switch sent := parts * (size/parts + len("tracestate")); {
		case sent < 60<<10: // beside what gRPC sends itself
			if decided++; err != nil {
				t.Fatalf("%d bytes of metadata: %v", sent, err)
			}
		case sent > 64<<10:
			if refused++; status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), "want at most 65536") {
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
}
