package rls

import (
	"context"
	"strings"
	"testing"

	"github.com/stint-io/stint/internal/seeding"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/stint-io/stint/internal/engine"
	"github.com/stint-io/stint/rules"
	"github.com/stint-io/stint/store/memory"
)

// TestLongValuesCount: a value of any length counts as itself, in Envoy's format and in
// ours, and the request's other limits refuse beside it as they would alone.
func TestLongValuesCount(t *testing.T) {
	set, err := rules.Parse("edge.yaml", []byte("domain: edge\ndescriptors:\n  - {key: token, rate_limit: {unit: day, requests_per_unit: 2}}\n  - {key: full, rate_limit: {unit: day, requests_per_unit: 0}}\n"))
	if err != nil {
		t.Fatal(err)
	}
	e, err := engine.New(memory.New(memory.Options{}), set, engine.Options{})
	if err != nil {
		t.Fatal(err)
	}
	s := New(e, Options{})
	descriptor := func(key, value string) *ratelimitv3.RateLimitDescriptor {
		return &ratelimitv3.RateLimitDescriptor{Entries: []*ratelimitv3.RateLimitDescriptor_Entry{{Key: key, Value: value}}}
	}
	ask := func(ds ...*ratelimitv3.RateLimitDescriptor) *pb.RateLimitResponse {
		t.Helper()
		r, err := s.ShouldRateLimit(context.Background(), &pb.RateLimitRequest{Domain: "edge", Descriptors: ds})
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	const ok, over = pb.RateLimitResponse_OK, pb.RateLimitResponse_OVER_LIMIT
	random := seeding.Rand(t)
	for n := 1; n < 4<<20; n = n*3 + random.IntN(n+1) {
		for _, last := range []string{"a", "b"} { // which differ in their last byte
			value := strings.Repeat("v", n) + last
			for i, want := range []pb.RateLimitResponse_Code{ok, ok, over, over} {
				if got := ask(descriptor("token", value)).OverallCode; got != want {
					t.Fatalf("%d bytes, request %d: %v, want %v", n, i, got, want)
				}
			}
			r := ask(descriptor("unknown", value), descriptor("full", "x"), descriptor("token", value+"c"))
			if r.OverallCode != over || r.Statuses[0].Code != ok || r.Statuses[1].Code != over || r.Statuses[2].Code != ok {
				t.Fatalf("%d bytes beside a limit that is full: %v", n, r)
			}
		}
	}
}
