package rls

import (
	"strconv"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/stint-io/stint/internal/engine"
	"github.com/stint-io/stint/limit"
)

// The names of the header fields, as Envoy's service spells them.
const (
	headerLimit      = "RateLimit-Limit"
	headerRemaining  = "RateLimit-Remaining"
	headerReset      = "RateLimit-Reset"
	headerRetryAfter = "Retry-After"
)

// addHeaders adds Retry-After to a refusal that a wait can mend, and the three
// fields of Envoy's service when they are wanted: of the status with the least
// remaining or, in a refusal, of the last one that is over its limit.
func (s *Service) addHeaders(resp *pb.RateLimitResponse, d *limit.Decision) {
	add := func(key string, n int64) {
		resp.ResponseHeadersToAdd = append(resp.ResponseHeadersToAdd, &corev3.HeaderValue{Key: key, Value: strconv.FormatInt(n, 10)})
	}
	if wait := d.RetryAfter(); !d.Allowed && wait < limit.Never {
		add(headerRetryAfter, max(ceilSeconds(wait), 1))
	}
	if !s.opts.Headers {
		return
	}
	var chosen *pb.RateLimitResponse_DescriptorStatus
	for _, st := range resp.Statuses {
		over := st.Code == pb.RateLimitResponse_OVER_LIMIT
		switch {
		case st.CurrentLimit == nil:
		case chosen == nil, over:
			chosen = st
		case chosen.Code != pb.RateLimitResponse_OVER_LIMIT && st.LimitRemaining < chosen.LimitRemaining:
			chosen = st
		}
	}
	if chosen != nil {
		add(headerLimit, int64(chosen.CurrentLimit.RequestsPerUnit))
		add(headerRemaining, int64(chosen.LimitRemaining))
		add(headerReset, chosen.DurationUntilReset.GetSeconds())
	}
}

// addMetadata names the limits that fired under the key "stint", so that access
// logs and later filters can tell them apart; an ordinary admission has nothing
// to tell and costs nothing. Keys are never in it.
func (s *Service) addMetadata(resp *pb.RateLimitResponse, req *pb.RateLimitRequest, q *engine.Query) {
	fields := map[string]*structpb.Value(nil)
	if m := fired(&q.Decision); m != nil {
		fields = map[string]*structpb.Value{"stint": structpb.NewStructValue(&structpb.Struct{Fields: m})}
	}
	if s.opts.Metadata {
		if fields == nil {
			fields = make(map[string]*structpb.Value, 4)
		}
		s.addEnvoyMetadata(fields, req, q)
	}
	if fields != nil {
		resp.DynamicMetadata = &structpb.Struct{Fields: fields}
	}
}

// fired returns the limits that refused, would have refused, warn, or were decided
// without their store, and how many seconds an admitted request should be held back; nil when there is nothing
// of the kind.
func fired(d *limit.Decision) map[string]*structpb.Value {
	var m map[string]*structpb.Value
	add := func(key, name string) {
		if m == nil {
			m = make(map[string]*structpb.Value, 4)
		}
		list := m[key].GetListValue()
		if list == nil {
			list = &structpb.ListValue{}
			m[key] = structpb.NewListValue(list)
		}
		for _, v := range list.Values {
			if v.GetStringValue() == name {
				return
			}
		}
		list.Values = append(list.Values, structpb.NewStringValue(name))
	}
	for i := range d.Results {
		r := &d.Results[i]
		switch {
		case !r.Allowed && r.Shadow:
			add("shadow", r.Limit)
		case !r.Allowed:
			add("limits", r.Limit)
		case r.Soft:
			add("soft", r.Limit)
		}
		if r.StoreFailed {
			add("store_failed", r.Limit)
		}
	}
	if d.Delay > 0 {
		if m == nil {
			m = make(map[string]*structpb.Value, 1)
		}
		m["delay"] = structpb.NewNumberValue(d.Delay.Seconds())
	}
	if r := d.Refused(); r != nil && !d.Allowed {
		m["reason"] = structpb.NewStringValue(r.Reason.String())
		if wait := d.RetryAfter(); wait < limit.Never {
			m["retry_after"] = structpb.NewNumberValue(float64(max(ceilSeconds(wait), 1)))
		}
	}
	return m
}

// addEnvoyMetadata adds what Envoy's service adds when its response metadata is
// switched on.
func (s *Service) addEnvoyMetadata(fields map[string]*structpb.Value, req *pb.RateLimitRequest, q *engine.Query) {
	fields["domain"] = structpb.NewStringValue(req.Domain)
	descriptors := &structpb.ListValue{}
	merged := map[string]*structpb.Value{}
	for i, d := range req.Descriptors {
		entries := &structpb.ListValue{}
		for _, e := range d.GetEntries() {
			entries.Values = append(entries.Values, structpb.NewStringValue(e.GetKey()+"="+e.GetValue()))
		}
		descriptors.Values = append(descriptors.Values, structpb.NewStructValue(&structpb.Struct{
			Fields: map[string]*structpb.Value{"entries": structpb.NewListValue(entries)},
		}))
		mergePassed(merged, q, i)
	}
	fields["descriptors"] = structpb.NewListValue(descriptors)
	if req.HitsAddend != 0 {
		fields["hitsAddend"] = structpb.NewNumberValue(float64(req.HitsAddend))
	}
	if len(merged) > 0 {
		fields["metadata"] = structpb.NewStructValue(&structpb.Struct{Fields: merged})
	}
}

// mergePassed merges the metadata of the rules that descriptor i met and passed;
// where two rules have the same name, the first one's stays.
func mergePassed(into map[string]*structpb.Value, q *engine.Query, i int) {
	for _, h := range q.HitsOf(i) {
		if h.Limit == nil || len(h.Limit.Metadata) == 0 {
			continue
		}
		if h.Result >= 0 {
			if r := &q.Decision.Results[h.Result]; !r.Allowed && !r.Shadow {
				continue
			}
		}
		for name, value := range h.Limit.Metadata {
			if _, taken := into[name]; taken {
				continue
			}
			if v, err := structpb.NewValue(value); err == nil {
				into[name] = v
			}
		}
	}
}
