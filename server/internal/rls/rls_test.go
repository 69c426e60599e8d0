package rls

import (
	"context"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"testing"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/stint-io/stint/internal/engine"
	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/rules"
	"github.com/stint-io/stint/store/memory"
)

const native = "limits:\n  - {name: n, key: [ip], rate: 1G/s}\n  - {name: t, key: [ip, path], rate: 3/s, algorithm: sliding_window_log}\n"

const edge = `
domain: edge
descriptors:
  - {key: k, rate_limit: {unit: second, requests_per_unit: 3}, descriptors: [{key: j, value: "a*", rate_limit: {unit: day, requests_per_unit: 1}}]}
  - {key: q, quota_mode: true, rate_limit: {unit: minute, requests_per_unit: 1}}
`

func newService(t testing.TB, opts Options, observers ...engine.DecisionObserver) *Service {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{"native.yaml": native, "edge.yaml": edge} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	set, err := rules.Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	e, err := engine.New(memory.New(memory.Options{MaxBytes: 1 << 20}), set, engine.Options{MaxOverrides: 8, Decisions: observers})
	if err != nil {
		t.Fatal(err)
	}
	return New(e, opts)
}

func TestUnits(t *testing.T) {
	for _, c := range []struct {
		p    limit.Policy
		want string
	}{
		{limit.Policy{Rate: limit.PerSecond(5)}, "5 SECOND"},
		{limit.Policy{Rate: limit.Rate{Count: 5, Period: 30 * time.Second}}, "5 30 SECOND"},
		{limit.Policy{Rate: limit.Rate{Count: 1, Period: 14 * 24 * time.Hour}}, "1 2 WEEK"},
		{limit.Policy{Rate: limit.Rate{Count: 1, Period: 365 * 24 * time.Hour}}, "1 YEAR"},
		{limit.Policy{Rate: limit.Rate{Count: 1 << 40, Period: time.Hour}}, "4294967295 HOUR"},
		{limit.Policy{Rate: limit.Rate{Count: 7, Period: 1500 * time.Millisecond}}, "7 UNKNOWN"},
		{limit.Policy{Algorithm: limit.Concurrency, MaxInFlight: 9}, "9 UNKNOWN"},
		{limit.Policy{Rate: limit.Rate{Count: 1, Period: math.MaxUint32 * time.Second}}, "1 4294967295 SECOND"},
		{limit.Policy{Rate: limit.Rate{Count: 1, Period: (math.MaxUint32 + 2) * time.Second}}, "1 UNKNOWN"},
	} {
		var to pb.RateLimitResponse_RateLimit
		setRate(&to, c.p)
		got := fmt.Sprintf("%d %v", to.RequestsPerUnit, to.Unit)
		if to.UnitMultiplier != nil {
			got = fmt.Sprintf("%d %d %v", to.RequestsPerUnit, to.UnitMultiplier.Value, to.Unit)
		}
		if got != c.want {
			t.Errorf("%+v: %s, want %s", c.p, got, c.want)
		}
	}
}

// The periods of limits that come with requests are bounded, and those that are
// known go on.
func TestOverridesAreBounded(t *testing.T) {
	s := newService(t, Options{})
	ask := func(n uint32) error {
		d := &ratelimitv3.RateLimitDescriptor{
			Entries: []*ratelimitv3.RateLimitDescriptor_Entry{{Key: "k", Value: "v"}},
			Limit:   &ratelimitv3.RateLimitDescriptor_RateLimitOverride{RequestsPerUnit: 9, Unit: 4, UnitMultiplier: wrapperspb.UInt32(n + 1)},
		}
		_, err := s.ShouldRateLimit(context.Background(), &pb.RateLimitRequest{Domain: "edge", Descriptors: []*ratelimitv3.RateLimitDescriptor{d}})
		return err
	}
	for n := range uint32(8) {
		if err := ask(n); err != nil {
			t.Fatal(err)
		}
	}
	if err := ask(8); status.Code(err) != codes.InvalidArgument {
		t.Fatalf("a ninth override: %v", err)
	}
	if err := ask(3); err != nil {
		t.Fatal(err)
	}
}

func TestAllocations(t *testing.T) {
	s := newService(t, Options{})
	ctx := context.Background()
	req := &pb.RateLimitRequest{Domain: "other", Descriptors: []*ratelimitv3.RateLimitDescriptor{{
		Entries: []*ratelimitv3.RateLimitDescriptor_Entry{{Key: "ip", Value: "192.0.2.7"}},
	}}}
	var resp *pb.RateLimitResponse
	got := testing.AllocsPerRun(200, func() {
		var err error
		if resp, err = s.ShouldRateLimit(ctx, req); err != nil || resp.OverallCode != pb.RateLimitResponse_OK {
			t.Fatal(resp, err)
		}
	})
	// The response is one; the race detector empties pools now and then.
	if got > 1+poolSlack {
		t.Errorf("an admission allocates %v times, want 1", got)
	}
}

// Whatever descriptors come in, the service answers as many statuses or an error
// that blames the request, and the response has a wire form.
func FuzzDescriptors(f *testing.F) {
	s := newService(f, Options{Headers: true, Metadata: true})
	add := func(r *pb.RateLimitRequest) {
		b, err := proto.Marshal(r)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	entry := func(k, v string) []*ratelimitv3.RateLimitDescriptor_Entry {
		return []*ratelimitv3.RateLimitDescriptor_Entry{{Key: k, Value: v}}
	}
	add(&pb.RateLimitRequest{})
	add(&pb.RateLimitRequest{Domain: "edge", HitsAddend: 4, Descriptors: []*ratelimitv3.RateLimitDescriptor{
		{Entries: entry("k", "v")}, {Entries: entry("q", "v"), HitsAddend: wrapperspb.UInt64(1 << 63)},
	}})
	add(&pb.RateLimitRequest{Domain: "edge", Descriptors: []*ratelimitv3.RateLimitDescriptor{
		{Entries: append(entry("k", "v"), entry("j", "abc")...), IsNegativeHits: true, HitsAddend: wrapperspb.UInt64(3)},
		{Entries: entry("k", ""), Limit: &ratelimitv3.RateLimitDescriptor_RateLimitOverride{RequestsPerUnit: 1, Unit: 1, UnitMultiplier: wrapperspb.UInt32(1 << 31)}},
		{Entries: entry("ip", "::1"), Limit: &ratelimitv3.RateLimitDescriptor_RateLimitOverride{Unit: 0}},
		{},
	}})
	f.Fuzz(func(t *testing.T, wire []byte) {
		var req pb.RateLimitRequest
		if proto.Unmarshal(wire, &req) != nil {
			return
		}
		resp, err := s.ShouldRateLimit(context.Background(), &req)
		if err != nil {
			if status.Code(err) != codes.InvalidArgument {
				t.Fatalf("%v: %v", &req, err)
			}
			return
		}
		if len(resp.Statuses) != len(req.Descriptors) {
			t.Fatalf("%d statuses for %v", len(resp.Statuses), &req)
		}
		if _, err := proto.Marshal(resp); err != nil {
			t.Fatalf("%v: %v", resp, err)
		}
	})
}

func BenchmarkShouldRateLimit(b *testing.B) {
	s := newService(b, Options{})
	req := &pb.RateLimitRequest{Domain: "other", Descriptors: []*ratelimitv3.RateLimitDescriptor{{
		Entries: []*ratelimitv3.RateLimitDescriptor_Entry{{Key: "ip", Value: "192.0.2.7"}},
	}}}
	b.ReportAllocs()
	for b.Loop() {
		if r, err := s.ShouldRateLimit(context.Background(), req); err != nil || r.OverallCode != pb.RateLimitResponse_OK {
			b.Fatal(r, err)
		}
	}
}
