package rls

import (
	"fmt"
	"testing"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/stint-io/stint/internal/engine"
	"github.com/stint-io/stint/rules"
	"github.com/stint-io/stint/store/memory"
)

// TestActions: what Envoy is told of each kind of on_exceed. It adds response headers to what the
// client gets, request headers to what the upstream gets, and sends raw_body with a refusal.
func TestActions(t *testing.T) {
	set, err := rules.Parse("l.yaml", []byte(`
limits:
  - {name: own, match: {path: /own}, rate: 1/h, on_exceed: {reject: {body: '{"later":true}', header: {X-Reason: quota}}}}
  - {name: away, match: {path: /away}, rate: 1/h, on_exceed: {redirect: /busy}}
  - {name: less, match: {path: /less}, rate: 1/h, on_exceed: tag}
  - {name: slow, match: {path: /slow}, rate: 1/h, on_exceed: {queue: {max_wait: 1m}}}
  - {name: ban, match: {path: /ban}, rate: 1/h, on_exceed: {ban: {for: 1h, after: 1/h, from: now}}}
`))
	if err != nil {
		t.Fatal(err)
	}
	e, err := engine.New(memory.New(memory.Options{}), set, engine.Options{})
	if err != nil {
		t.Fatal(err)
	}
	s := New(e, Options{})
	ask := func(path string) string {
		t.Helper()
		resp, err := s.ShouldRateLimit(t.Context(), &pb.RateLimitRequest{Domain: "edge", Descriptors: []*ratelimitv3.RateLimitDescriptor{{
			Entries: []*ratelimitv3.RateLimitDescriptor_Entry{{Key: "path", Value: path}},
		}}})
		if err != nil {
			t.Fatal(err)
		}
		text := resp.OverallCode.String()
		for _, h := range resp.ResponseHeadersToAdd {
			text += fmt.Sprintf(" <%s: %s", h.Key, h.Value)
		}
		for _, h := range resp.RequestHeadersToAdd {
			text += fmt.Sprintf(" >%s: %s", h.Key, h.Value)
		}
		if tagged := resp.GetDynamicMetadata().GetFields()["stint"].GetStructValue().GetFields(); tagged["shadow"] != nil {
			t.Errorf("%s: the metadata calls a tag a shadow: %v", path, tagged)
		} else if list := tagged["tagged"].GetListValue().GetValues(); len(list) > 0 {
			text += " tagged by " + list[0].GetStringValue()
		}
		return text + " " + string(resp.RawBody)
	}
	for path, want := range map[string]string{
		"/own":  `OVER_LIMIT <Retry-After: 3600 <X-Reason: quota <Content-Type: application/json {"later":true}`,
		"/away": "OVER_LIMIT <Retry-After: 3600 <Location: /busy ",
		"/less": "OK >X-RateLimit-Degraded: less tagged by less ",
		"/slow": "OVER_LIMIT <Retry-After: 3600 ", // at once
		"/ban":  "OVER_LIMIT <Retry-After: 3600 ",
	} {
		if got := ask(path); got != "OK " {
			t.Errorf("%s: the first request: %s", path, got)
		}
		if got := ask(path); got != want {
			t.Errorf("%s: %s, want %s", path, got, want)
		}
	}
}
