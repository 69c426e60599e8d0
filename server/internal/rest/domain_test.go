package rest_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/stint-io/stint/internal/engine"
	"github.com/stint-io/stint/internal/seeding"
	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/rules"
	"github.com/stint-io/stint/server/internal/rls"
	"github.com/stint-io/stint/store/memory"
)

const edge = `
domain: edge
descriptors:
  - {key: ip, rate_limit: {unit: day, requests_per_unit: 4}, descriptors: [{key: path, value: /login, rate_limit: {unit: hour, requests_per_unit: 2, name: login}}]}
  - {key: pool, value: "p*", share_threshold: true, rate_limit: {unit: day, requests_per_unit: 3}}
  - {key: free, rate_limit: {unlimited: true}}
  - {key: white}
  - {key: basic, rate_limit: {unit: day, requests_per_unit: 1, name: basic}}
  - {key: premium, rate_limit: {unit: day, requests_per_unit: 5, replaces: [{name: basic}]}}
`

// entries writes a descriptor of NAME=VALUE.
func entries(pairs ...string) string {
	var out []string
	for _, p := range pairs {
		k, v, _ := strings.Cut(p, "=")
		out = append(out, fmt.Sprintf(`{"key":%q,"value":%q}`, k, v))
	}
	return `{"entries":[` + strings.Join(out, ",") + `]}`
}

func ask(descriptors ...string) string {
	return `{"domain":"edge","descriptors":[` + strings.Join(descriptors, ",") + `]}`
}

// Rules in Envoy's format are met by those who name their domain: by the attributes,
// in their order, and by each descriptor.
func TestTakeOfADomain(t *testing.T) {
	s := newService(t, edge)
	a := s.call("/v1/take", `{"domain":"edge","attributes":{"ip":"192.0.2.7","path":"/login"},"descriptors":[`+entries("ip=192.0.2.7")+`]}`)
	if a.code != 200 || len(a.Limits) != 2 || a.Limits[0].Name != "edge.ip.path_/login" || a.Limits[0].Remaining != 1 || a.Limits[1].Name != "edge.ip" || a.Limits[1].Remaining != 3 {
		t.Fatalf("%d %+v", a.code, a.Limits)
	}
	// The order counts, and so does the depth.
	if a := s.call("/v1/take", `{"domain":"edge","attributes":{"path":"/login","ip":"192.0.2.7"}}`); a.code != 200 || len(a.Limits) != 0 {
		t.Errorf("another order: %+v", a)
	}
	// Each descriptor has its own cost; 0 takes nothing.
	for i, want := range []int64{1, 1} {
		a := s.call("/v1/take", `{"domain":"edge","cost":2,"descriptors":[`+entries("pool=p1")+`,{"entries":[{"key":"ip","value":"x"}],"cost":0}]}`)
		if i == 0 && (a.code != 200 || a.Limits[0].Remaining != want || a.Limits[1].Remaining != 4) {
			t.Errorf("costs: %d %+v", a.code, a)
		}
		if i == 1 && (a.code != http.StatusTooManyRequests || len(a.Violated) != 1 || a.Violated[0] != "edge.pool_p*") {
			t.Errorf("costs again: %d %+v", a.code, a)
		}
	}
	// Without the domain nothing is met, as before.
	if a := s.call("/v1/take", `{"attributes":{"ip":"192.0.2.7"}}`); a.code != 200 || len(a.Limits) != 0 {
		t.Errorf("without a domain: %+v", a)
	}
	// What only asks takes nothing.
	for range 3 {
		if a := s.call("/v1/take", `{"domain":"edge","cost":0,"attributes":{"basic":"u"}}`); a.code != 200 || a.Limits[0].Remaining != 1 {
			t.Errorf("cost 0: %+v", a)
		}
	}
}

// An explanation says of each descriptor which rule it met, and why none counts.
func TestExplainOfADomain(t *testing.T) {
	s := newService(t, edge)
	for range 2 { // it takes nothing
		a := s.call("/v1/explain", ask(entries("basic=u"), entries("premium=u"), entries("white=w"), entries("free=f"), entries("ip=x", "path=/other"), entries("pool=p7")))
		if !a.Allowed || len(a.Limits) != 3 || a.Limits[0].Name != "edge.premium" || a.Limits[1].Name != "edge.free" || a.Limits[2].Name != "edge.pool_p*" {
			t.Fatalf("%+v", a)
		}
		if l := a.Limits[0]; l.Key["premium"] != "u" || l.Used != 0 || l.Remaining != 5 || l.File != "test.yaml" || l.Line == 0 || l.Algorithm != "fixed_window" {
			t.Errorf("%+v", l)
		}
		if l := a.Limits[2]; l.Key["pool"] != "p*" {
			t.Errorf("the bucket of a shared threshold: %+v", l)
		}
		want := []metJSON{
			{[]string{"basic=u"}, "edge.basic", false, "another rule of the request replaces it"},
			{[]string{"premium=u"}, "edge.premium", true, ""},
			{[]string{"white=w"}, "edge.white", false, "the rule has no rate_limit"},
			{[]string{"free=f"}, "edge.free", true, ""},
			{[]string{"ip=x", "path=/other"}, "", false, "no rule of the domain has these entries, in this order and number"},
			{[]string{"pool=p7"}, "edge.pool_p*", true, ""},
		}
		if fmt.Sprint(a.Descriptors) != fmt.Sprint(want) {
			t.Errorf("descriptors %+v, want %+v", a.Descriptors, want)
		}
		if a.UnmatchedCount != 2 {
			t.Errorf("%d rules of the domain are not met, want 2", a.UnmatchedCount)
		}
	}
	a := s.call("/v1/explain", `{"domain":"egde","attributes":{"ip":"x"}}`)
	if len(a.Descriptors) != 1 || a.Descriptors[0].Why != "no file in Envoy's format has the domain" {
		t.Errorf("a wrong domain: %+v", a)
	}
	if a := s.call("/v1/explain", `{"attributes":{"ip":"x"}}`); a.Descriptors != nil || a.UnmatchedCount != 0 {
		t.Errorf("without a domain: %+v", a)
	}
}

// A key that stands twice in a descriptor is told twice.
func TestExplainOfAKeyTwice(t *testing.T) {
	s := newService(t, "domain: edge\ndescriptors: [{key: k, descriptors: [{key: k, rate_limit: {unit: day, requests_per_unit: 4}}]}]\n")
	a := s.call("/v1/explain", ask(entries("k=a", "k=b")))
	if len(a.Limits) != 1 || len(a.Limits[0].Key) != 2 || a.Limits[0].Key["k"] != "a" || a.Limits[0].Key["k 2"] != "b" {
		t.Errorf("%+v", a.Limits)
	}
}

// A place in flight that a descriptor took is given back by what took it.
func TestFinishOfADomain(t *testing.T) {
	s := newService(t, "limits: [{name: places, match: {domain: edge}, key: [ip], algorithm: concurrency, max_in_flight: 1}]\n")
	body := ask(entries("ip=192.0.2.7"))
	a := s.call("/v1/take", body)
	if a.code != 200 || a.Permit == 0 {
		t.Fatalf("%d %+v", a.code, a)
	}
	if a := s.call("/v1/take", body); a.code != http.StatusTooManyRequests {
		t.Fatalf("a second place: %d", a.code)
	}
	if a := s.call("/v1/finish", fmt.Sprintf(`{"permit":%d,%s`, a.Permit, body[1:])); a.code != http.StatusNoContent {
		t.Fatalf("finish: %d %+v", a.code, a)
	}
	if a := s.call("/v1/take", body); a.code != 200 {
		t.Fatalf("the place did not come back: %d", a.code)
	}
}

// What cannot be asked is said, with its place, and nothing is taken.
func TestWrongDomains(t *testing.T) {
	s := newService(t, edge)
	many := strings.TrimSuffix(strings.Repeat(entries("a=b")+",", 101), ",")
	for body, want := range map[string]string{
		`{"descriptors":[` + entries("ip=x") + `]}`:                 `add "domain"`,
		`{"domain":"edge"}`:                                         `add one of them`,
		`{"domain":"edge","descriptors":[]}`:                        `add one of them`,
		`{"domain":""}`:                                             "line 1, column 11: the domain is empty",
		`{"domain":7}`:                                              "the domain is a number, want a string",
		`{"domain":"` + strings.Repeat("d", 257) + `"}`:             "the domain has 257 characters",
		`{"domain":"edge","descriptors":{}}`:                        "found an object, want a list",
		`{"domain":"edge","descriptors":[{}]}`:                      "a descriptor has no entries",
		`{"domain":"edge","descriptors":[{"entries":[]}]}`:          "a descriptor has no entries",
		`{"domain":"edge","descriptors":[{"entries":[{}]}]}`:        "an entry has no key",
		`{"domain":"edge","descriptors":[{"entries":[{"k":1}]}]}`:   `unknown field "k"`,
		`{"domain":"edge","descriptors":[{"entries":[{"key":1}]}]}`: "the key is a number",
		`{"domain":"edge","descriptors":[{"limit":1}]}`:             `unknown field "limit"`,
		`{"domain":"edge","descriptors":[{"cost":-1}]}`:             "cost is -1",
		`{"domain":"edge","descriptors":[` + many + `]}`:            "more than 100 descriptors",
		`{"domain":"edge","descriptors":[` + entries(strings.Split(strings.Repeat("a=b ", 33), " ")[:33]...) + `]}`: "more than 32 entries",
		`{"domain":"edge","descriptors":[` + entries(strings.Repeat("k", 257)+"=v") + `]}`:                          "has 257 characters",
		`{"domain":"edge","descriptors":[` + entries("ip=x"):                                                        "the body ends too early",
	} {
		for _, path := range []string{"/v1/take", "/v1/explain"} {
			if a := s.call(path, body); a.code != http.StatusBadRequest || !strings.Contains(a.Detail, want) || !strings.HasPrefix(a.Detail, "line 1, column ") {
				t.Errorf("%s %.80s: %d %q, want %q", path, body, a.code, a.Detail, want)
			}
		}
	}
	if a := s.call("/v1/explain", ask(entries("ip=x"))); a.Limits[0].Used != 0 {
		t.Errorf("something was taken: %+v", a.Limits[0])
	}
}

// The calls decide as Envoy's protocol does: the same requests, drawn at random, put
// to one engine by the one and to its twin by the other, are answered the same.
func TestDomainsAsByEnvoysProtocol(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	pools := map[string][]string{
		"ip": {"a", "b"}, "path": {"/login", "/x"}, "pool": {"p1", "p2", "q"}, "free": {"f"}, "white": {"w"}, "basic": {"u"}, "premium": {"u"},
	}
	keys := slices.Sorted(maps.Keys(pools))
	refused := 0
	for seed := range seeding.Draw(t, 50) {
		r := rand.New(rand.NewPCG(seed, 3))
		s := newService(t, edge)
		set, err := rules.Parse("test.yaml", []byte(edge))
		if err != nil {
			t.Fatal(err)
		}
		e, err := engine.New(memory.New(memory.Options{Now: func() limit.Time { return limit.Time(s.now.Load()) }}), set, engine.Options{})
		if err != nil {
			t.Fatal(err)
		}
		twin := rls.New(e, rls.Options{})
		for range 40 {
			req := &pb.RateLimitRequest{Domain: "edge", HitsAddend: uint32(1 + r.IntN(2))}
			var list []string
			for range 1 + r.IntN(3) {
				d := &ratelimitv3.RateLimitDescriptor{}
				var pairs []string
				for range 1 + r.IntN(2) {
					key := keys[r.IntN(len(keys))]
					value := pools[key][r.IntN(len(pools[key]))]
					d.Entries = append(d.Entries, &ratelimitv3.RateLimitDescriptor_Entry{Key: key, Value: value})
					pairs = append(pairs, key+"="+value)
				}
				text := entries(pairs...)
				if r.IntN(3) == 0 {
					d.HitsAddend = wrapperspb.UInt64(uint64(r.IntN(3)))
					text = fmt.Sprintf(`%s,"cost":%d}`, strings.TrimSuffix(text, "}"), d.HitsAddend.Value)
				}
				req.Descriptors, list = append(req.Descriptors, d), append(list, text)
			}
			body := fmt.Sprintf(`{"cost":%d,"domain":"edge","descriptors":[%s]}`, req.HitsAddend, strings.Join(list, ","))
			want, err := twin.ShouldRateLimit(t.Context(), req)
			if err != nil {
				t.Fatal(err)
			}
			got := s.call("/v1/take", body)
			if (got.code == 200) != (want.OverallCode == pb.RateLimitResponse_OK) {
				t.Fatalf("seed %d: %s is answered %d, by Envoy's protocol %v", seed, body, got.code, want.OverallCode)
			}
			if got.code != 200 {
				refused++
				continue
			}
			var left []uint32
			for _, st := range want.Statuses {
				if st.CurrentLimit != nil {
					left = append(left, st.LimitRemaining)
				}
			}
			for _, l := range got.Limits {
				switch {
				case l.Unlimited:
				case len(left) == 0 || int64(left[0]) != l.Remaining:
					t.Fatalf("seed %d: %s leaves %+v, by Envoy's protocol %v", seed, body, got.Limits, want)
				default:
					left = left[1:]
				}
			}
		}
		s.advance(time.Hour)
	}
	if refused < 200 {
		t.Errorf("%d refusals: the requests try nothing", refused)
	}
}
