package agree

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"
)

var (
	perMinute = Rule{Key: "k", Limit: &Limit{Unit: "minute", Requests: 9}}
	pages     = Rule{Key: "page", Value: "/*", ShareThreshold: true, Limit: &Limit{Unit: "minute", Requests: 9}}
	testSet   = Set{
		Files:   []File{{Domain: "d", Descriptors: []Rule{perMinute, pages}}},
		domains: map[string][]Rule{"d": {perMinute, pages}},
	}
	noon = time.Unix(1_700_000_000, 0)
)

func descriptor(pairs ...string) *common.RateLimitDescriptor {
	d := &common.RateLimitDescriptor{}
	for i := 0; i < len(pairs); i += 2 {
		d.Entries = append(d.Entries, &common.RateLimitDescriptor_Entry{Key: pairs[i], Value: pairs[i+1]})
	}
	return d
}

func request(list ...*common.RateLimitDescriptor) *rls.RateLimitRequest {
	return &rls.RateLimitRequest{Domain: "d", Descriptors: list}
}

// answer has one status for each number, which is what is left of 9.
func answer(left ...uint32) *rls.RateLimitResponse {
	r := &rls.RateLimitResponse{OverallCode: rls.RateLimitResponse_OK}
	for _, n := range left {
		r.Statuses = append(r.Statuses, &rls.RateLimitResponse_DescriptorStatus{
			Code: rls.RateLimitResponse_OK, LimitRemaining: n, DurationUntilReset: durationpb.New(30 * time.Second),
			CurrentLimit: &rls.RateLimitResponse_RateLimit{RequestsPerUnit: 9, Unit: rls.RateLimitResponse_RateLimit_MINUTE},
		})
	}
	r.ResponseHeadersToAdd = headersOf(r)
	return r
}

// Every change of an answer that has no name is seen.
func TestCompareSeesEachChange(t *testing.T) {
	q := request(descriptor("k", "a"), descriptor("k", "b"))
	for name, change := range map[string]func(r *rls.RateLimitResponse){
		"overall":  func(r *rls.RateLimitResponse) { r.OverallCode = rls.RateLimitResponse_OVER_LIMIT },
		"code":     func(r *rls.RateLimitResponse) { r.Statuses[1].Code = rls.RateLimitResponse_OVER_LIMIT },
		"left":     func(r *rls.RateLimitResponse) { r.Statuses[0].LimitRemaining-- },
		"limit":    func(r *rls.RateLimitResponse) { r.Statuses[0].CurrentLimit.RequestsPerUnit++ },
		"unit":     func(r *rls.RateLimitResponse) { r.Statuses[0].CurrentLimit.Unit++ },
		"name":     func(r *rls.RateLimitResponse) { r.Statuses[0].CurrentLimit.Name = "x" },
		"no limit": func(r *rls.RateLimitResponse) { r.Statuses[0].CurrentLimit = nil },
		"reset":    func(r *rls.RateLimitResponse) { r.Statuses[0].DurationUntilReset.Seconds += 2 },
		"statuses": func(r *rls.RateLimitResponse) { r.Statuses = r.Statuses[1:] },
		"header":   func(r *rls.RateLimitResponse) { r.ResponseHeadersToAdd[1].Value = "3" },
		"headers": func(r *rls.RateLimitResponse) {
			r.ResponseHeadersToAdd = append(r.ResponseHeadersToAdd, &core.HeaderValue{Key: "Retry-After", Value: "1"})
		},
		"metadata": func(r *rls.RateLimitResponse) {
			r.DynamicMetadata = &structpb.Struct{Fields: map[string]*structpb.Value{"stint": structpb.NewBoolValue(true)}}
		},
		"body": func(r *rls.RateLimitResponse) { r.RawBody = []byte("x") },
	} {
		here := answer(8, 7)
		change(here)
		if known, unknown := NewLedger(testSet).Compare(q, Answer{Response: answer(8, 7)}, Answer{Response: here}, noon, noon); len(unknown) == 0 {
			t.Errorf("%s is not seen, but as %v", name, known)
		}
	}
	if known, unknown := NewLedger(testSet).Compare(q, Answer{Response: answer(8, 7)}, Answer{Response: answer(8, 7)}, noon, noon); len(known)+len(unknown) > 0 {
		t.Errorf("the same answer: %v %v", known, unknown)
	}
}

// A kind explains what it says and nothing more.
func TestKindsExplainNoMore(t *testing.T) {
	twice := request(descriptor("page", "/a"), descriptor("page", "/b"))
	for _, c := range []struct {
		name        string
		q           *rls.RateLimitRequest
		there, here *rls.RateLimitResponse
		kind        Deviation // zero = unexplained
	}{
		{"one counter", twice, answer(8, 7), answer(7, 7), OneCounter},
		{"one counter, the last differs", twice, answer(8, 7), answer(6, 6), Deviation{}},
		{"one counter, the first is neither", twice, answer(8, 7), answer(6, 7), Deviation{}},
		{"two counters", request(descriptor("k", "a"), descriptor("k", "b")), answer(8, 7), answer(7, 7), Deviation{}},
		{"no counter", request(descriptor("none", "a")), answer(8), answer(7), Deviation{}},
	} {
		known, unknown := NewLedger(testSet).Compare(c.q, Answer{Response: c.there}, Answer{Response: c.here}, noon, noon)
		if c.kind == (Deviation{}) && len(unknown) == 0 || c.kind != (Deviation{}) && (len(unknown) > 0 || !slices.Contains(known, c.kind)) {
			t.Errorf("%s: %v, unexplained %q", c.name, known, unknown)
		}
	}
	small, large := descriptor("k", "a"), descriptor("k", "a")
	small.Limit = &common.RateLimitDescriptor_RateLimitOverride{RequestsPerUnit: 5, Unit: 2}
	large.Limit = &common.RateLimitDescriptor_RateLimitOverride{RequestsPerUnit: 9, Unit: 2}
	there, here := answer(4, 7), answer(3, 3)
	there.Statuses[0].CurrentLimit.RequestsPerUnit, here.Statuses[0].CurrentLimit.RequestsPerUnit = 5, 5
	there.ResponseHeadersToAdd, here.ResponseHeadersToAdd = headersOf(there), headersOf(here)
	if known, unknown := NewLedger(testSet).Compare(request(small, large), Answer{Response: there}, Answer{Response: here}, noon, noon); len(unknown) > 0 || !slices.Contains(known, TwoLimits) {
		t.Errorf("two limits on one counter: %v %q", known, unknown)
	}
	l := NewLedger(testSet)
	limited := descriptor("k", "a")
	limited.Limit = &common.RateLimitDescriptor_RateLimitOverride{RequestsPerUnit: 5, Unit: 2}
	l.remember(request(limited), noon, noon)
	if known, unknown := l.Compare(request(descriptor("k", "a")), Answer{Response: answer(7)}, Answer{Response: answer(8)}, noon, noon); len(unknown) > 0 || !slices.Contains(known, JoinedCounters) {
		t.Errorf("after a limit of a request: %v %q", known, unknown)
	}
}

// Drawn requests are of all kinds, and the same again for the same seed.
func TestDraw(t *testing.T) {
	a, b := rand.New(rand.NewPCG(1, 0)), rand.New(rand.NewPCG(1, 0))
	var several, peeks, limits, refusals int
	for range 2000 {
		q := testSet.Draw(a)
		if !proto.Equal(q, testSet.Draw(b)) {
			t.Fatal("the same seed draws other requests")
		}
		if q.Domain == "" || len(q.Descriptors) == 0 {
			refusals++
		}
		if len(q.Descriptors) > 1 {
			several++
		}
		for _, d := range q.Descriptors {
			if d.HitsAddend != nil && d.HitsAddend.Value == 0 {
				peeks++
			}
			if d.Limit != nil {
				limits++
			}
		}
	}
	if several < 500 || peeks < 100 || limits < 100 || refusals < 5 {
		t.Errorf("%d with several descriptors, %d descriptors that only ask, %d with a limit, %d to be refused", several, peeks, limits, refusals)
	}
}
