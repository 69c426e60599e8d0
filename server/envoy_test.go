package server_test

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/stint-io/stint/server"
)

// envoyConfig uses years throughout, so that no window ends during a test.
const envoyConfig = `
domain: edge
descriptors:
  - {key: plain, rate_limit: {unit: year, requests_per_unit: 10, name: plain-name}}
  - {key: exact, value: a, rate_limit: {unit: YEAR, requests_per_unit: 2}}
  - {key: exact, value: "a*", rate_limit: {unit: year, requests_per_unit: 3}}
  - {key: exact, rate_limit: {unit: year, requests_per_unit: 4}}
  - {key: pool, value: "p*", share_threshold: true, rate_limit: {unit: year, requests_per_unit: 3}}
  - {key: free, rate_limit: {unlimited: true}}
  - {key: blocked, rate_limit: {unit: year, requests_per_unit: 0}}
  - {key: white}
  - {key: trial, shadow_mode: true, rate_limit: {unit: year, requests_per_unit: 1}}
  - {key: outer, rate_limit: {unit: year, requests_per_unit: 7}, descriptors: [{key: inner, rate_limit: {unit: year, requests_per_unit: 5}}]}
  - {key: basic, rate_limit: {unit: year, requests_per_unit: 2, name: basic}}
  - {key: premium, rate_limit: {unit: year, requests_per_unit: 6, name: premium, replaces: [{name: basic}]}}
  - {key: q1, quota_mode: true, rate_limit: {unit: year, requests_per_unit: 1}}
  - {key: q2, quota_mode: true, rate_limit: {unit: year, requests_per_unit: 2}}
  - {key: meta, metadata: {tier: gold}, rate_limit: {unit: year, requests_per_unit: 1}}
  - {key: second, rate_limit: {unit: second, requests_per_unit: 5}}
  - {key: week, rate_limit: {unit: week, requests_per_unit: 5}}
`

// short writes a response as "OVER: OK 4/10, OVER 0/3, OK -".
func short(resp *pb.RateLimitResponse) string {
	code := func(c pb.RateLimitResponse_Code) string { return strings.TrimSuffix(c.String(), "_LIMIT") }
	var parts []string
	for _, s := range resp.Statuses {
		text := code(s.Code) + " -"
		switch {
		case s.CurrentLimit != nil:
			text = fmt.Sprintf("%s %d/%d", code(s.Code), s.LimitRemaining, s.CurrentLimit.RequestsPerUnit)
		case s.LimitRemaining == math.MaxUint32:
			text = code(s.Code) + " max"
		case s.LimitRemaining != 0:
			text = fmt.Sprintf("%s ?%d", code(s.Code), s.LimitRemaining)
		}
		parts = append(parts, text)
	}
	return code(resp.OverallCode) + ": " + strings.Join(parts, ", ")
}

// step is one request and what it is answered.
type step struct {
	req  *pb.RateLimitRequest
	want string
}

func hits(d *ratelimitv3.RateLimitDescriptor, n uint64) *ratelimitv3.RateLimitDescriptor {
	d.HitsAddend = wrapperspb.UInt64(n)
	return d
}

func override(d *ratelimitv3.RateLimitDescriptor, n uint32, unit typev3.RateLimitUnit) *ratelimitv3.RateLimitDescriptor {
	d.Limit = &ratelimitv3.RateLimitDescriptor_RateLimitOverride{RequestsPerUnit: n, Unit: unit}
	return d
}

func TestEnvoySemantics(t *testing.T) {
	for _, table := range []map[string][]step{matching(), counting()} {
		for name, steps := range table {
			t.Run(name, func(t *testing.T) {
				s := start(t, envoyConfig)
				for i, st := range steps {
					if got := short(s.should(st.req)); got != st.want {
						t.Errorf("step %d: got %s, want %s", i+1, got, st.want)
					}
				}
			})
		}
	}
}

// matching says which rule a descriptor meets.
func matching() map[string][]step {
	d := descriptor
	return map[string][]step{
		"unknown domain, no rule, other depth, rule without a limit": {
			{request("nowhere", 1, d("plain=x")), "OK: OK -"},
			{request("edge", 1, d("none=x")), "OK: OK -"},
			{request("edge", 1, d("plain=x", "more=y")), "OK: OK -"},
			{request("edge", 1, d("inner=x")), "OK: OK -"},
			{request("edge", 1, d("white=x")), "OK: OK -"},
		},
		"nested rules match at their depth": {
			{request("edge", 1, d("outer=x")), "OK: OK 6/7"},
			{request("edge", 1, d("outer=x", "inner=y")), "OK: OK 4/5"},
			{request("edge", 1, d("outer=x", "inner=y", "deeper=z")), "OK: OK -"},
		},
		"unlimited and zero": {
			{request("edge", 9, d("free=x")), "OK: OK max"},
			{request("edge", 1, d("blocked=x")), "OVER: OVER 0/0"},
			{request("edge", 1, d("free=x"), d("blocked=x")), "OVER: OK max, OVER 0/0"},
		},
		"exact before wildcard before key": {
			{request("edge", 1, d("exact=a")), "OK: OK 1/2"},
			{request("edge", 1, d("exact=ab")), "OK: OK 2/3"},
			{request("edge", 1, d("exact=b")), "OK: OK 3/4"},
			{request("edge", 1, d("exact=ac")), "OK: OK 2/3"},
		},
		"a shared threshold is one counter": {
			{request("edge", 1, d("pool=p1")), "OK: OK 2/3"},
			{request("edge", 1, d("pool=p2")), "OK: OK 1/3"},
			{request("edge", 2, d("pool=p3")), "OVER: OVER 0/3"},
		},
		"refused hits are counted": {
			{request("edge", 6, d("plain=a")), "OK: OK 4/10"},
			{request("edge", 5, d("plain=a")), "OVER: OVER 0/10"},
			{request("edge", 1, d("plain=a")), "OVER: OVER 0/10"},
		},
		"hits: request, descriptor, zero": {
			{request("edge", 0, d("plain=h")), "OK: OK 9/10"},
			{request("edge", 3, d("plain=h")), "OK: OK 6/10"},
			{request("edge", 3, hits(d("plain=h"), 1)), "OK: OK 5/10"},
			{request("edge", 3, hits(d("plain=h"), 0)), "OK: OK 5/10"},
			{request("edge", 5, d("plain=h")), "OK: OK 0/10"},
			// Nothing is added, and nothing is over.
			{request("edge", 3, hits(d("plain=h"), 0)), "OK: OK 0/10"},
		},
	}
}

// counting says how the rules of a request are decided together.
func counting() map[string][]step {
	d := descriptor
	return map[string][]step{
		"several descriptors": {
			{request("edge", 2, d("plain=s"), d("exact=zz")), "OK: OK 8/10, OK 2/4"},
			{request("edge", 3, d("plain=s"), d("exact=zz")), "OVER: OK 5/10, OVER 0/4"},
			// The same one twice is charged twice.
			{request("edge", 1, d("plain=twice"), d("plain=twice")), "OK: OK 8/10, OK 8/10"},
		},
		"shadow mode": {
			{request("edge", 1, d("trial=x")), "OK: OK 0/1"},
			{request("edge", 1, d("trial=x")), "OK: OK 0/1"},
			{request("edge", 1, d("trial=x"), d("blocked=x")), "OVER: OK 0/1, OVER 0/0"},
		},
		"replaces": {
			{request("edge", 1, d("basic=r")), "OK: OK 1/2"},
			{request("edge", 1, d("basic=r"), d("premium=r")), "OK: OK -, OK 5/6"},
			{request("edge", 1, d("basic=r")), "OK: OK 0/2"},
		},
		"quota mode": {
			{request("edge", 1, d("q1=a")), "OK: OK 0/1"},
			{request("edge", 1, d("q1=a"), d("q2=a")), "OK: OVER 0/1, OK 1/2"},
			{request("edge", 1, d("q1=a"), d("q2=a")), "OK: OVER 0/1, OK 0/2"},
			{request("edge", 1, d("q1=a"), d("q2=a")), "OVER: OVER 0/1, OVER 0/2"},
			{request("edge", 1, d("q1=a")), "OVER: OVER 0/1"},
			{request("edge", 1, d("q1=a"), d("plain=q")), "OVER: OVER 0/1, OK 9/10"},
		},
		"override in the request": {
			{request("edge", 1, override(d("plain=o"), 2, typev3.RateLimitUnit_YEAR)), "OK: OK 1/2"},
			{request("edge", 1, override(d("plain=o"), 2, typev3.RateLimitUnit_YEAR)), "OK: OK 0/2"},
			{request("edge", 1, override(d("plain=o"), 2, typev3.RateLimitUnit_YEAR)), "OVER: OVER 0/2"},
			{request("edge", 1, override(d("plain=o"), 2, typev3.RateLimitUnit_MONTH)), "OK: OK 1/2"},
			{request("edge", 1, override(d("plain=p"), 2, typev3.RateLimitUnit_YEAR)), "OK: OK 1/2"},
			{request("edge", 1, d("plain=o")), "OK: OK 9/10"},
			// It wins over unlimited and over shadow, and needs no rule.
			{request("edge", 1, override(d("free=o"), 0, typev3.RateLimitUnit_YEAR)), "OVER: OVER 0/0"},
			{request("edge", 1, override(d("trial=o"), 0, typev3.RateLimitUnit_YEAR)), "OVER: OVER 0/0"},
			{request("edge", 1, override(d("none=o", "x=y"), 3, typev3.RateLimitUnit_YEAR)), "OK: OK 2/3"},
			{request("nowhere", 1, override(d("plain=o"), 0, typev3.RateLimitUnit_YEAR)), "OK: OK -"},
		},
	}
}

// The counts of the reference service's own test: what is left of a limit after
// some hits, of which some came before.
func TestEnvoyArithmetic(t *testing.T) {
	s := start(t, `
domain: edge
descriptors:
  - {key: n15, rate_limit: {unit: year, requests_per_unit: 15}}
  - {key: n20, rate_limit: {unit: year, requests_per_unit: 20}}
  - {key: n8, rate_limit: {unit: year, requests_per_unit: 8}}
  - {key: n10, rate_limit: {unit: year, requests_per_unit: 10}}
`)
	for i, c := range []struct {
		limit, hits, after uint32
		want               string
	}{
		{15, 1, 11, "OK: OK 4/15"},
		{15, 1, 13, "OK: OK 2/15"},
		{15, 1, 16, "OVER: OVER 0/15"},
		{20, 3, 5, "OK: OK 15/20"},
		{8, 2, 7, "OK: OK 1/8"},
		{20, 3, 19, "OK: OK 1/20"},
		{20, 3, 22, "OVER: OVER 0/20"},
		{20, 7, 22, "OVER: OVER 0/20"},
		{10, 3, 30, "OVER: OVER 0/10"},
	} {
		key := fmt.Sprintf("n%d=case%d", c.limit, i)
		s.should(request("edge", c.after-c.hits, descriptor(key)))
		if got := short(s.should(request("edge", c.hits, descriptor(key)))); got != c.want {
			t.Errorf("%+v: got %s", c, got)
		}
	}
}

func TestEnvoyStatusDetails(t *testing.T) {
	s := start(t, envoyConfig, func(o *server.Options) { o.RLSHeaders, o.RLSMetadata = true, true })
	for key, unit := range map[string]struct {
		unit   pb.RateLimitResponse_RateLimit_Unit
		period time.Duration
	}{
		"plain":  {pb.RateLimitResponse_RateLimit_YEAR, 365 * 24 * time.Hour},
		"second": {pb.RateLimitResponse_RateLimit_SECOND, time.Second},
		"week":   {pb.RateLimitResponse_RateLimit_WEEK, 7 * 24 * time.Hour},
	} {
		for _, n := range []uint64{0, 1} {
			before := time.Now()
			resp := s.should(request("edge", 1, hits(descriptor(key+"=x"), n)))
			after := time.Now()
			st := resp.Statuses[0]
			if st.CurrentLimit.Unit != unit.unit {
				t.Errorf("%s: unit %v, want %v", key, st.CurrentLimit.Unit, unit.unit)
			}
			least := left(after, unit.period).Truncate(time.Second)
			most := left(before, unit.period) + time.Second
			if least > most { // a window ended in between
				least = 0
				most = unit.period
			}
			if got := st.DurationUntilReset.AsDuration(); got < least || got > most || got%time.Second != 0 {
				t.Errorf("%s: resets in %v, want whole seconds from %v to %v", key, got, least, most)
			}
		}
	}
	resp := s.should(request("edge", 2, descriptor("plain=y"), descriptor("exact=a")))
	if got := resp.Statuses[0].CurrentLimit.Name; got != "plain-name" {
		t.Errorf("the name is %q", got)
	}
	if got := resp.Statuses[1].CurrentLimit.Name; got != "" {
		t.Errorf("a rule without a name is called %q", got)
	}
	if got := headers(resp); got != "RateLimit-Limit=2 RateLimit-Remaining=0 RateLimit-Reset=*" {
		t.Errorf("headers %s", got)
	}
	// No wait mends a limit of 0, so there is no Retry-After.
	resp = s.should(request("edge", 1, descriptor("exact=a"), descriptor("blocked=y"), descriptor("plain=y")))
	if got := headers(resp); got != "RateLimit-Limit=0 RateLimit-Remaining=0 RateLimit-Reset=*" {
		t.Errorf("headers %s", got)
	}
	resp = s.should(request("edge", 1, descriptor("exact=ax"), descriptor("exact=a"), descriptor("plain=y")))
	if got := headers(resp); got != "Retry-After=* RateLimit-Limit=2 RateLimit-Remaining=0 RateLimit-Reset=*" {
		t.Errorf("headers %s", got)
	}
	if got := headers(s.should(request("edge", 1, descriptor("none=y")))); got != "" {
		t.Errorf("headers %s", got)
	}
}

func left(at time.Time, period time.Duration) time.Duration {
	return period - time.Duration(at.UnixNano()%int64(period))
}

// headers writes response headers; times as a star.
func headers(resp *pb.RateLimitResponse) string {
	var parts []string
	for _, h := range resp.ResponseHeadersToAdd {
		v := h.Value
		if h.Key == "RateLimit-Reset" || h.Key == "Retry-After" {
			v = "*"
		}
		parts = append(parts, h.Key+"="+v)
	}
	return strings.Join(parts, " ")
}

func TestEnvoyMetadata(t *testing.T) {
	s := start(t, envoyConfig, func(o *server.Options) { o.RLSMetadata = true })
	m := s.should(request("edge", 1, descriptor("meta=x"), descriptor("plain=y"))).DynamicMetadata.AsMap()
	if m["domain"] != "edge" || m["hitsAddend"] != 1.0 || m["stint"] != nil {
		t.Errorf("metadata %v", m)
	}
	if got := fmt.Sprint(m["descriptors"]); got != "[map[entries:[meta=x]] map[entries:[plain=y]]]" {
		t.Errorf("descriptors %s", got)
	}
	if got := fmt.Sprint(m["metadata"]); got != "map[tier:gold]" {
		t.Errorf("metadata of rules: %s", got)
	}
	m = s.should(request("edge", 1, descriptor("meta=x"))).DynamicMetadata.AsMap()
	if m["metadata"] != nil {
		t.Errorf("a rule that refused passed on its metadata: %v", m["metadata"])
	}
}

func TestRefusalNamesItsLimits(t *testing.T) {
	s := start(t, `
limits:
  - {name: per-ip, key: [ip], rate: 2/hour}
  - {name: trial, key: [ip], rate: 1/hour, shadow: true}
  - {name: warns, key: [ip], rate: 100/hour, soft: 1%}
`)
	req := request("any", 1, descriptor("ip=192.0.2.7"))
	resp := s.should(req)
	if resp.DynamicMetadata != nil || len(resp.ResponseHeadersToAdd) != 0 {
		t.Fatalf("an ordinary admission tells %v", resp)
	}
	if got, want := fmt.Sprint(s.should(req).DynamicMetadata.AsMap()), "map[stint:map[shadow:[trial] soft:[warns]]]"; got != want {
		t.Fatalf("metadata %s, want %s", got, want)
	}
	resp = s.should(req)
	m, _ := resp.DynamicMetadata.AsMap()["stint"].(map[string]any)
	if resp.OverallCode != pb.RateLimitResponse_OVER_LIMIT || fmt.Sprint(m["limits"]) != "[per-ip]" || m["reason"] != "rate_exceeded" || m["retry_after"] != 1800.0 {
		t.Fatalf("refused with %v", resp)
	}
	if st := resp.Statuses[0]; st.CurrentLimit.GetName() != "per-ip" || st.CurrentLimit.RequestsPerUnit != 2 || st.CurrentLimit.Unit != pb.RateLimitResponse_RateLimit_HOUR {
		t.Fatalf("status %v", st)
	}
	if strings.Contains(resp.String(), "192.0.2.7") {
		t.Fatal("the answer holds a key")
	}
}

// A limit of stint's own that several descriptors of one request meet is charged
// once, and a refusal charges nothing.
func TestNativeLimitsOverSeveralDescriptors(t *testing.T) {
	s := start(t, `
limits:
  - {name: per-ip, key: [ip], rate: 10/hour}
  - {name: per-user, key: [user], rate: 1/hour}
`)
	req := request("any", 1, descriptor("ip=192.0.2.7"), descriptor("ip=192.0.2.7", "path=/x"), descriptor("user=u"))
	for i, want := range []string{"OK: OK 9/10, OK 9/10, OK 0/1", "OVER: OK 9/10, OK 9/10, OVER 0/1", "OVER: OK 9/10, OK 9/10, OVER 0/1"} {
		if got := short(s.should(req)); got != want {
			t.Errorf("request %d: got %s, want %s", i+1, got, want)
		}
	}
	dearer := request("any", 1, hits(descriptor("ip=192.0.2.8"), 2), hits(descriptor("ip=192.0.2.8", "path=/x"), 5))
	if got := short(s.should(dearer)); got != "OK: OK 5/10, OK 5/10" {
		t.Errorf("got %s, want the dearer of both costs", got)
	}
}

func TestNegativeHitsGiveBack(t *testing.T) {
	s := start(t, "limits:\n  - {name: tokens, key: [user], rate: 10/hour}\n")
	back := hits(descriptor("user=u"), 3)
	back.IsNegativeHits = true
	for i, st := range []step{
		{request("any", 8, descriptor("user=u")), "OK: OK 2/10"},
		{request("any", 1, back), "OK: OK 5/10"},
		{request("any", 4, descriptor("user=u")), "OK: OK 1/10"},
	} {
		if got := short(s.should(st.req)); got != st.want {
			t.Errorf("step %d: got %s, want %s", i+1, got, st.want)
		}
	}
}
