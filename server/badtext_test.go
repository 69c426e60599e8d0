package server_test

import (
	"bytes"
	"context"
	"strings"
	"testing"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	quotapb "github.com/envoyproxy/go-control-plane/envoy/service/rate_limit_quota/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
)

// latin writes messages as Envoy does, which does not look whether texts are UTF-8: each § in them becomes one byte
// that is not.
type latin struct{ encoding.CodecV2 }

func (c latin) Marshal(v any) (mem.BufferSlice, error) {
	data, err := c.CodecV2.Marshal(v)
	if err != nil {
		return nil, err
	}
	return mem.BufferSlice{mem.SliceBuffer(bytes.ReplaceAll(data.Materialize(), []byte("§"), []byte{0xff, 0xfe}))}, nil
}

func (s *service) latin() *grpc.ClientConn {
	s.t.Helper()
	conn, err := grpc.NewClient(s.Addrs().GRPC.String(), grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.ForceCodecV2(latin{encoding.GetCodecV2("proto")})))
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// TestRequestsWithBadText: Envoy passes bytes of header fields on, and lets a request through whose question failed. So
// a field that is not UTF-8 is counted as a key of its own.
func TestRequestsWithBadText(t *testing.T) {
	s := start(t, "limits:\n  - {name: per-user, key: [user], rate: 1/hour}\n")
	envoy := pb.NewRateLimitServiceClient(s.latin())
	for i, want := range []pb.RateLimitResponse_Code{pb.RateLimitResponse_OK, pb.RateLimitResponse_OVER_LIMIT} {
		a, err := envoy.ShouldRateLimit(context.Background(), &pb.RateLimitRequest{
			Domain: "edge", Descriptors: []*ratelimitv3.RateLimitDescriptor{{Entries: []*ratelimitv3.RateLimitDescriptor_Entry{{Key: "user", Value: "m§ller"}}}},
		})
		if err != nil || a.OverallCode != want {
			t.Errorf("request %d: %v, %v, want %v", i+1, a.GetOverallCode(), err, want)
		}
	}
}

// TestQuotasWithBadText: nor may one request with such a field, or with one that is very long, end the stream that
// all buckets of an Envoy are assigned by.
func TestQuotasWithBadText(t *testing.T) {
	if testing.Short() {
		t.Skip("one request after another: nothing for the race detector")
	}
	s := leasing(t, quotas)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	stream, err := quotapb.NewRateLimitQuotaServiceClient(s.latin()).StreamRateLimitQuotas(ctx)
	if err != nil {
		t.Fatal(err)
	}
	q := &quotaStream{stream, t}
	q.report("edge", usageOf(1, 0, "name", "api", "user", "m§ller"), usageOf(1, 0, "name", "api", "user", strings.Repeat("u", 100_000)), usageOf(1, 0, "name", "web"))
	for name := ""; name != "web"; {
		for _, a := range func() []*quotapb.RateLimitQuotaResponse_BucketAction {
			m, err := q.Recv()
			if err != nil {
				t.Fatal(err)
			}
			return m.BucketAction
		}() {
			if (len(a.BucketId.Bucket["user"]) > 1000) != (a.GetAbandonAction() != nil) {
				t.Error("a bucket with a value of 100 kB is assigned, or another one is abandoned")
			}
			if name != "web" {
				name = a.BucketId.Bucket["name"]
			}
		}
	}
}
