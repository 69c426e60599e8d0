package rls

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/stint-io/stint/internal/engine"
	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/rules"
	"github.com/stint-io/stint/store"
	"github.com/stint-io/stint/store/memory"
)

// newServiceOf returns a service that decides by one file.
func newServiceOf(t testing.TB, opts Options, text string) *Service {
	t.Helper()
	return newServiceOn(t, memory.New(memory.Options{}), opts, text)
}

func newServiceOn(t testing.TB, st store.Store, opts Options, text string) *Service {
	t.Helper()
	set, err := rules.Parse("test.yaml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	e, err := engine.New(st, set, engine.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return New(e, opts)
}

// describing makes a descriptor of NAME=VALUE.
func describing(pairs ...string) *ratelimitv3.RateLimitDescriptor {
	d := &ratelimitv3.RateLimitDescriptor{}
	for _, p := range pairs {
		k, v, _ := strings.Cut(p, "=")
		d.Entries = append(d.Entries, &ratelimitv3.RateLimitDescriptor_Entry{Key: k, Value: v})
	}
	return d
}

func asking(ds ...*ratelimitv3.RateLimitDescriptor) *pb.RateLimitRequest {
	return &pb.RateLimitRequest{Domain: "edge", Descriptors: ds}
}

func (s *Service) must(t testing.TB, req *pb.RateLimitRequest) *pb.RateLimitResponse {
	t.Helper()
	resp, err := s.ShouldRateLimit(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	return resp
}

// times returns n of v.
func times[T any](n int, v T) []T {
	out := make([]T, n)
	for i := range out {
		out[i] = v
	}
	return out
}

// A request at a bound is taken, one above it is an error that says which; it takes
// nothing and is counted.
func TestBounds(t *testing.T) {
	s := newServiceOf(t, Options{}, "domain: edge\ndescriptors: [{key: k, rate_limit: {unit: year, requests_per_unit: 1}}]\n")
	pairs := func(n int) []string { return times(n, "k=v") }
	hits := func(n uint64) *ratelimitv3.RateLimitDescriptor {
		d := describing("other=v")
		d.HitsAddend = wrapperspb.UInt64(n)
		return d
	}
	override := func(unit typev3.RateLimitUnit, times uint32) *ratelimitv3.RateLimitDescriptor {
		d := describing("other=v")
		d.Limit = &ratelimitv3.RateLimitDescriptor_RateLimitOverride{RequestsPerUnit: 9, Unit: unit, UnitMultiplier: wrapperspb.UInt32(times)}
		return d
	}
	domain := func(n int) *pb.RateLimitRequest {
		return &pb.RateLimitRequest{Domain: strings.Repeat("d", n), Descriptors: []*ratelimitv3.RateLimitDescriptor{describing("a=b")}}
	}
	years := uint32(limit.Never / (365 * 24 * time.Hour))
	failed := uint64(0)
	for i, c := range []struct {
		req  *pb.RateLimitRequest
		want string // "" = taken
	}{
		{domain(MaxDomainBytes), ""},
		{domain(MaxDomainBytes + 1), "the domain has 257 bytes, at most 256 are taken"},
		{domain(0), "rate limit domain must not be empty"},
		{asking(), "rate limit descriptor list must not be empty"},
		{asking(times(MaxDescriptors, describing("a=b"))...), ""},
		{asking(times(MaxDescriptors+1, describing("k=v"))...), "the request has 1001 descriptors, at most 1000 are taken"},
		{asking(describing(pairs(MaxEntries)...)), ""},
		{asking(describing("k=v"), describing(pairs(MaxEntries+1)...)), "descriptor 1 has 101 entries, at most 100 are taken"},
		{asking(times(MaxDescriptors, describing(pairs(MaxEntries)...))...), ""},
		{asking(describing(strings.Repeat("k", MaxKeyBytes) + "=v")), ""},
		{asking(describing("k=v"), describing("a=b", strings.Repeat("k", MaxKeyBytes+1)+"=v")), "entry 1 of descriptor 1 has a key of 257 bytes, at most 256 are taken"},
		{asking(describing("other=" + strings.Repeat("v", 20<<10))), ""},
		{asking(hits(limit.MaxCount)), ""},
		{asking(describing("k=v"), hits(limit.MaxCount+1)), "hits_addend of descriptor 1 is 4611686018427387905, at most 4611686018427387904 is taken"},
		{asking(override(typev3.RateLimitUnit_YEAR, years)), ""},
		{asking(override(typev3.RateLimitUnit_YEAR, years+1)), fmt.Sprintf("has the unit_multiplier %d, want 1 to %d with YEAR", years+1, years)},
		{asking(override(typev3.RateLimitUnit_SECOND, 0)), "the limit override of descriptor 0 has the unit_multiplier 0"},
		{asking(override(typev3.RateLimitUnit_UNKNOWN, 1)), "has the unit UNKNOWN, set unit to one of"},
		{asking(override(99, 1)), "has the unit 99, set unit to one of"},
		{asking(nil), ""},
	} {
		_, err := s.ShouldRateLimit(t.Context(), c.req)
		if c.want == "" {
			if err != nil {
				t.Errorf("request %d: %v, want it to be taken", i, err)
			}
			continue
		}
		failed++
		if status.Code(err) != codes.InvalidArgument || !strings.HasPrefix(status.Convert(err).Message(), "rls: ") || !strings.Contains(err.Error(), c.want) {
			t.Errorf("request %d: %v, want %q", i, err, c.want)
		}
	}
	if n := s.Counts().Errors.Load(); n != failed {
		t.Errorf("%d errors are counted, want %d", n, failed)
	}
	if got := s.must(t, asking(describing("k=v"))); got.OverallCode != pb.RateLimitResponse_OK {
		t.Error("a request that was refused as wrong has taken something")
	}
}

// A limit that comes with a request counts by itself, in units of any length.
func TestOverrideUnits(t *testing.T) {
	s := newServiceOf(t, Options{}, "domain: edge\ndescriptors: [{key: k}]\n")
	for i, c := range []struct {
		unit typev3.RateLimitUnit
		n    *wrapperspb.UInt32Value
		want pb.RateLimitResponse_RateLimit_Unit
	}{
		{typev3.RateLimitUnit_MINUTE, nil, pb.RateLimitResponse_RateLimit_MINUTE},
		{typev3.RateLimitUnit_HOUR, wrapperspb.UInt32(1), pb.RateLimitResponse_RateLimit_HOUR},
		{typev3.RateLimitUnit_MONTH, wrapperspb.UInt32(2), pb.RateLimitResponse_RateLimit_MONTH},
	} {
		d := describing(fmt.Sprintf("k=%d", i))
		d.Limit = &ratelimitv3.RateLimitDescriptor_RateLimitOverride{RequestsPerUnit: 7, Unit: c.unit, UnitMultiplier: c.n}
		st := s.must(t, asking(d)).Statuses[0]
		if st.LimitRemaining != 6 || st.CurrentLimit.RequestsPerUnit != 7 || st.CurrentLimit.Unit != c.want || st.CurrentLimit.Name != "" {
			t.Errorf("%v: %v", c, st)
		}
		if n := st.CurrentLimit.UnitMultiplier; (n != nil) != (c.n.GetValue() > 1) || n.GetValue() != c.n.GetValue() && n != nil {
			t.Errorf("%v: multiplier %v", c, n)
		}
	}
}

// Errors have the code of their cause: the request's, the caller's, the store's.
func TestErrorCodes(t *testing.T) {
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	late, cancel := context.WithDeadline(t.Context(), time.Unix(0, 0))
	defer cancel()
	bad := fmt.Errorf("x: %w", engine.ErrBadRequest)
	for i, c := range []struct {
		ctx  context.Context
		err  error
		want codes.Code
		text string
	}{
		{t.Context(), bad, codes.InvalidArgument, bad.Error()},
		{cancelled, bad, codes.InvalidArgument, bad.Error()},
		{cancelled, errors.New("x"), codes.Canceled, context.Canceled.Error()},
		{late, errors.New("x"), codes.DeadlineExceeded, context.DeadlineExceeded.Error()},
		{t.Context(), invalid("y"), codes.InvalidArgument, "rls: y"},
		{t.Context(), store.ErrUnavailable, codes.Unavailable, store.ErrUnavailable.Error()},
	} {
		st := status.Convert(toStatus(c.ctx, c.err))
		if st.Code() != c.want || st.Message() != c.text {
			t.Errorf("case %d: %v %q, want %v %q", i, st.Code(), st.Message(), c.want, c.text)
		}
	}
}

// A scratch that one request made large is not kept for the next.
func TestLargeScratchIsDropped(t *testing.T) {
	for _, c := range []struct {
		attrs int
		kept  bool
	}{{256, true}, {257, false}} {
		s := newServiceOf(t, Options{}, "domain: edge\ndescriptors: [{key: k}]\n")
		s.calls.New = nil
		kept := false
		for range 20 { // the race detector drops some of what is put into a pool
			s.release(&call{attrs: make([]limit.Attribute, 0, c.attrs)})
			kept = kept || s.calls.Get() != nil
		}
		if kept != c.kept {
			t.Errorf("a scratch of %d attributes: kept %v, want %v", c.attrs, kept, c.kept)
		}
	}
}
