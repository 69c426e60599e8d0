package rls

import (
	"context"
	"slices"
	"testing"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/stint-io/stint/internal/engine"
	"github.com/stint-io/stint/internal/hits"
	"github.com/stint-io/stint/internal/tally"
	"github.com/stint-io/stint/rules"
	"github.com/stint-io/stint/store/memory"
)

// What a call counts is what its descriptors were, each under its own rule; a call without a configuration counts nothing.
func TestCallsCountHits(t *testing.T) {
	table := hits.New(0)
	s := newService(t, Options{}, table)
	entry := func(key, value string) *ratelimitv3.RateLimitDescriptor_Entry {
		return &ratelimitv3.RateLimitDescriptor_Entry{Key: key, Value: value}
	}
	req := &pb.RateLimitRequest{Domain: "edge", HitsAddend: 2, Descriptors: []*ratelimitv3.RateLimitDescriptor{
		{Entries: []*ratelimitv3.RateLimitDescriptor_Entry{entry("k", "x"), entry("j", "ab")}},
		{Entries: []*ratelimitv3.RateLimitDescriptor_Entry{entry("none", "x")}},
		{Entries: []*ratelimitv3.RateLimitDescriptor_Entry{entry("k", "x")}},
		{Entries: []*ratelimitv3.RateLimitDescriptor_Entry{entry("own", "x")}, Limit: &ratelimitv3.RateLimitDescriptor_RateLimitOverride{RequestsPerUnit: 5, Unit: 4}},
	}}
	if _, err := s.ShouldRateLimit(context.Background(), req); err != nil {
		t.Fatal(err)
	}
	s.opts.Loaded = func() bool { return false }
	if _, err := s.ShouldRateLimit(context.Background(), req); err == nil || s.Counts().Unavailable.Load() != 1 {
		t.Errorf("%v", err)
	}
	got := map[string]hits.Counts{}
	table.Read(func(name string, c hits.Counts) { got[name] = c })
	if len(got) != 3 || got["edge.k.j_a*"] != (hits.Counts{Total: 2, Over: 2}) || got["edge.k"] != (hits.Counts{Total: 2, Within: 2}) && got["edge.k"].Total != 2 || got["edge.own_x"].Total != 2 {
		t.Errorf("%v", got)
	}
}

// BenchmarkHits is one admitted call of the protocol without and with the counting of hits, in batches that take turns,
// so that both meet the same machine. It reports the medians, and their ratio.
func BenchmarkHits(b *testing.B) {
	set, err := rules.Parse("edge.yaml", []byte("domain: edge\ndescriptors: [{key: k, rate_limit: {unit: year, requests_per_unit: 4000000000}}]"))
	if err != nil {
		b.Fatal(err)
	}
	var services [2]*Service
	for i, observers := range [2][]engine.DecisionObserver{{tally.New(tally.Options{})}, {tally.New(tally.Options{}), hits.New(0)}} {
		e, err := engine.New(memory.New(memory.Options{MaxBytes: 1 << 20}), set, engine.Options{Decisions: observers})
		if err != nil {
			b.Fatal(err)
		}
		services[i] = New(e, Options{})
	}
	req := &pb.RateLimitRequest{Domain: "edge", Descriptors: []*ratelimitv3.RateLimitDescriptor{{Entries: []*ratelimitv3.RateLimitDescriptor_Entry{{Key: "k", Value: "x"}}}}}
	const batch = 500
	var took [2][]float64
	for b.Loop() {
		for i, s := range services {
			begin := time.Now()
			for range batch {
				if r, err := s.ShouldRateLimit(context.Background(), req); err != nil || r.OverallCode != pb.RateLimitResponse_OK {
					b.Fatal(r, err)
				}
			}
			took[i] = append(took[i], float64(time.Since(begin).Nanoseconds())/batch)
		}
	}
	var median [2]float64
	for i := range took {
		slices.Sort(took[i])
		median[i] = took[i][len(took[i])/2]
	}
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(median[0], "ns/uncounted")
	b.ReportMetric(median[1], "ns/counted")
	b.ReportMetric(median[1]/median[0], "ratio")
}
