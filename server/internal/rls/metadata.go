package rls

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/stint-io/stint/internal/engine"
	"github.com/stint-io/stint/limit"
)

// The names of the header fields, as Envoy's service spells them.
const (
	HeaderLimit      = "RateLimit-Limit"
	HeaderRemaining  = "RateLimit-Remaining"
	HeaderReset      = "RateLimit-Reset"
	headerRetryAfter = "Retry-After"
)

func addHeader(resp *pb.RateLimitResponse, key string, n int64) {
	resp.ResponseHeadersToAdd = append(resp.ResponseHeadersToAdd, &corev3.HeaderValue{Key: key, Value: strconv.FormatInt(n, 10)})
}

// addRetryAfter adds Retry-After to a refusal that a wait can mend.
func addRetryAfter(resp *pb.RateLimitResponse, wait time.Duration) {
	if wait < limit.Never {
		addHeader(resp, headerRetryAfter, max(ceilSeconds(wait), 1))
	}
}

// addHeaders adds the three fields of Envoy's service: of the status with the least
// remaining, the first of several, or of the last one that is over a limit that
// refuses by itself.
func (s *Service) addHeaders(resp *pb.RateLimitResponse, q *engine.Query) {
	var chosen *pb.RateLimitResponse_DescriptorStatus
	for i, st := range resp.Statuses {
		// What refuses has nothing remaining, so no later one has less.
		switch {
		case st.CurrentLimit == nil:
		case chosen == nil, st.LimitRemaining < chosen.LimitRemaining, refusesAlone(q, i):
			chosen = st
		}
	}
	if chosen != nil {
		addHeader(resp, s.opts.LimitHeader, int64(chosen.CurrentLimit.RequestsPerUnit))
		addHeader(resp, s.opts.RemainingHeader, int64(chosen.LimitRemaining))
		addHeader(resp, s.opts.ResetHeader, chosen.DurationUntilReset.GetSeconds())
	}
}

// refusesAlone reports whether a limit that descriptor i met refuses the request
// whatever other quotas say.
func refusesAlone(q *engine.Query, i int) bool {
	hits := q.HitsOf(i)
	for j := range hits {
		if h := &hits[j]; h.Result >= 0 && !q.InQuota(h) {
			if r := &q.Decision.Results[h.Result]; !r.Allowed && !r.Shadow {
				return true
			}
		}
	}
	return false
}

// addMetadata names the limits that fired under the key "stint", so that access
// logs and later filters can distinguish them; an ordinary admission adds nothing
// and costs nothing. Keys are never in it.
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

// fired returns the limits that refused, would have refused, tag the request, warn, or were decided
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
		case r.Tagged:
			add("tagged", r.Limit)
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
	merged := &structpb.Struct{Fields: map[string]*structpb.Value{}}
	for i, d := range req.Descriptors {
		descriptors.Values = append(descriptors.Values, structpb.NewStructValue(describe(d)))
		mergePassed(merged, q, i)
	}
	fields["descriptors"] = structpb.NewListValue(descriptors)
	if req.HitsAddend != 0 {
		fields["hitsAddend"] = structpb.NewNumberValue(float64(req.HitsAddend))
	}
	if len(merged.Fields) > 0 {
		fields["metadata"] = structpb.NewStructValue(merged)
	}
}

// describe writes a descriptor as it came.
func describe(d *ratelimitv3.RateLimitDescriptor) *structpb.Struct {
	entries := &structpb.ListValue{}
	for _, e := range d.GetEntries() {
		entries.Values = append(entries.Values, structpb.NewStringValue(e.GetKey()+"="+e.GetValue()))
	}
	fields := map[string]*structpb.Value{"entries": structpb.NewListValue(entries)}
	if o := d.GetLimit(); o != nil {
		// The text form of the message, without the spaces that it varies.
		var parts []string
		if n := o.GetRequestsPerUnit(); n != 0 {
			parts = append(parts, fmt.Sprintf("requests_per_unit:%d", n))
		}
		parts = append(parts, fmt.Sprintf("unit:%v", o.GetUnit()))
		if m := o.GetUnitMultiplier(); m != nil {
			parts = append(parts, fmt.Sprintf("unit_multiplier:{value:%d}", m.GetValue()))
		}
		fields["limit"] = structpb.NewStringValue(strings.Join(parts, " "))
	}
	if h := d.GetHitsAddend(); h != nil {
		fields["hitsAddend"] = structpb.NewNumberValue(float64(h.GetValue()))
	}
	return &structpb.Struct{Fields: fields}
}

// mergePassed merges the metadata of the rules that descriptor i met and passed. A
// rule that has no limit, is unlimited or was replaced passed nothing.
func mergePassed(into *structpb.Struct, q *engine.Query, i int) {
	hits := q.HitsOf(i)
	for j := range hits {
		h := &hits[j]
		if h.Limit == nil || len(h.Limit.Metadata) == 0 || h.Result < 0 || h.Variant.Policy.Unlimited {
			continue
		}
		if r := &q.Decision.Results[h.Result]; !r.Allowed && !r.Shadow {
			continue
		}
		// What rules hold has the form of JSON, which always has this one.
		if s, err := structpb.NewStruct(h.Limit.Metadata); err == nil {
			mergeInto(into, s)
		}
	}
}

// mergeInto adds what into has not. Where both have a map, the maps are merged;
// else what is there stays.
func mergeInto(into, from *structpb.Struct) {
	for name, value := range from.Fields {
		was, taken := into.Fields[name]
		if !taken {
			into.Fields[name] = value
			continue
		}
		if a, b := was.GetStructValue(), value.GetStructValue(); a != nil && b != nil {
			mergeInto(a, b)
		}
	}
}
