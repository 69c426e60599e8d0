package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	"github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	control "github.com/envoyproxy/go-control-plane/pkg/server/v3"
	pb "github.com/envoyproxy/go-control-plane/ratelimit/config/ratelimit/v3"
	"github.com/goccy/go-yaml"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/encoding/protojson"
)

// The rules of the cases: every shape of the published configurations of envoyproxy/ratelimit, in windows that no
// test outlives.
const envoyRules = `
domain: edge
descriptors:
  - {key: one, rate_limit: {unit: year, requests_per_unit: 1}}
  - {key: account, value: gold, rate_limit: {unit: Year, requests_per_unit: 4, replaces: [{name: pair}]}}
  - key: from
    value: proxy
    descriptors:
      - {key: to, value: a, rate_limit: {unit: year, requests_per_unit: 2}}
      - {key: to, rate_limit: {unit: year, requests_per_unit: 1, name: pair}}
  - {key: path, value: "/files/*", rate_limit: {unit: year, requests_per_unit: 2}}
  - {key: path, value: "/files/exact", rate_limit: {unit: year, requests_per_unit: 1}}
  - {key: shady, shadow_mode: true, rate_limit: {unit: year, requests_per_unit: 1}}
  - {key: free, rate_limit: {unlimited: true}}
  - {key: blocked, rate_limit: {unit: year, requests_per_unit: 0}}
  - {key: listed}
  - {key: detail, detailed_metric: true, rate_limit: {unit: year, requests_per_unit: 10}}
  - {key: quota, value: a, quota_mode: true, metadata: {team: a}, rate_limit: {unit: year, requests_per_unit: 1}}
  - {key: quota, value: b, quota_mode: true, metadata: {team: b}, rate_limit: {unit: year, requests_per_unit: 2}}
`

// envoyCase is a request, and what that service answers: for each descriptor the code, the limit and what is left.
type envoyCase struct{ request, answer string }

// The requests are asked one after the other. Each descriptor is key=value,key=value, and +N its own hits; -hits N are those of the request.
var envoyCases = []envoyCase{
	{"one=x", "OK: OK 1 0"},
	{"one=x", "OVER_LIMIT: OVER_LIMIT 1 0"},
	{"one=y", "OK: OK 1 0"},    // a value has its own counter
	{"one=y +0", "OK: OK 1 0"}, // 0 asks: at the limit is not over it
	{"one=z +2", "OVER_LIMIT: OVER_LIMIT 1 0"},
	{"one=z", "OVER_LIMIT: OVER_LIMIT 1 0"}, // what was refused is counted
	{"nobody=x", "OK: OK"},
	{"one=x,more=y", "OK: OK"}, // deeper than the rule
	{"from=proxy", "OK: OK"},   // not as deep as one
	{"from=proxy,to=a", "OK: OK 2 1"},
	{"from=proxy,to=a -hits 1", "OK: OK 2 0"},
	{"from=proxy,to=b", "OK: OK 1 0"},
	{"from=proxy,to=b", "OVER_LIMIT: OVER_LIMIT 1 0"},
	{"account=gold from=proxy,to=b", "OK: OK 4 3; OK"}, // replaced: not counted, not asked
	{"path=/files/a", "OK: OK 2 1"},
	{"path=/files/exact", "OK: OK 1 0"}, // exact before a star
	{"path=/files/a -hits 3", "OVER_LIMIT: OVER_LIMIT 2 0"},
	{"path=/files/b", "OK: OK 2 1"},
	{"path=/other", "OK: OK"},
	{"shady=x", "OK: OK 1 0"},
	{"shady=x", "OK: OK 1 0"}, // over, and let pass
	{"free=x", "OK: OK 4294967295"},
	{"blocked=x", "OVER_LIMIT: OVER_LIMIT 0 0"},
	{"listed=x", "OK: OK"},
	{"detail=v -hits 3", "OK: OK 10 7"},
	{"detail=v +4", "OK: OK 10 3"},
	{"one=w blocked=x", "OVER_LIMIT: OK 1 0; OVER_LIMIT 0 0"},
	{"one=w", "OVER_LIMIT: OVER_LIMIT 1 0"}, // it was counted, though another refused
	{"quota=a quota=b", "OK: OK 1 0; OK 2 1"},
	{"quota=a quota=b", "OK: OVER_LIMIT 1 0; OK 2 0"}, // one of the quotas has room
	{"quota=a quota=b", "OVER_LIMIT: OVER_LIMIT 1 0; OVER_LIMIT 2 0"},
	{"quota=a", "OVER_LIMIT: OVER_LIMIT 1 0"},
}

// envoyRequest reads a case.
func envoyRequest(t *testing.T, text string) *rls.RateLimitRequest {
	t.Helper()
	text, hits, given := strings.Cut(text, " -hits ")
	q := map[string]any{"domain": "edge"}
	if given {
		q["hitsAddend"] = json.Number(hits)
	}
	var list []map[string]any
	for _, word := range strings.Fields(text) {
		if own, ok := strings.CutPrefix(word, "+"); ok {
			list[len(list)-1]["hitsAddend"] = own
			continue
		}
		var entries []map[string]string
		for pair := range strings.SplitSeq(word, ",") {
			key, value, _ := strings.Cut(pair, "=")
			entries = append(entries, map[string]string{"key": key, "value": value})
		}
		list = append(list, map[string]any{"entries": entries})
	}
	q["descriptors"] = list
	src, err := json.Marshal(q)
	if err != nil {
		t.Fatal(err)
	}
	req := new(rls.RateLimitRequest)
	if err := protojson.Unmarshal(src, req); err != nil {
		t.Fatalf("%s: %v", src, err)
	}
	return req
}

func envoyAnswer(r *rls.RateLimitResponse) string {
	var list []string
	for _, s := range r.Statuses {
		text := s.Code.String()
		if s.CurrentLimit != nil {
			text += fmt.Sprintf(" %d", s.CurrentLimit.RequestsPerUnit)
		}
		if s.CurrentLimit != nil || s.LimitRemaining > 0 {
			text += fmt.Sprintf(" %d", s.LimitRemaining)
		}
		list = append(list, text)
	}
	return r.OverallCode.String() + ": " + strings.Join(list, "; ")
}

// askEnvoyCases asks p everything. It returns a client for more.
func askEnvoyCases(t *testing.T, p *process) rls.RateLimitServiceClient {
	t.Helper()
	conn, err := grpc.NewClient(regexp.MustCompile(`grpc +(\S+)`).FindStringSubmatch(p.greeting)[1], grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	c := rls.NewRateLimitServiceClient(conn)
	for i, one := range envoyCases {
		r, err := c.ShouldRateLimit(t.Context(), envoyRequest(t, one.request))
		if err != nil {
			t.Fatalf("case %d, %s: %v", i, one.request, err)
		}
		if got := envoyAnswer(r); got != one.answer {
			t.Errorf("case %d, %s:\n%s\nwant %s", i, one.request, got, one.answer)
		}
	}
	return c
}

// rejected are configurations that envoyproxy/ratelimit refuses, with its words. Those without a form in the protocol
// are for files alone.
var rejected = []struct {
	name, text, message string
	fileOnly            bool
}{
	{"a unit", "domain: a\ndescriptors: [{key: k, rate_limit: {unit: foo, requests_per_unit: 1}}]", "invalid rate limit unit 'foo'", true},
	{"no unit", "domain: a\ndescriptors: [{key: k, rate_limit: {requests_per_unit: 1}}]", "invalid rate limit unit '", false},
	{"broken YAML", "domain: a\ndescriptors: [{key", "", true},
	{"a key twice", "domain: a\ndescriptors: [{key: k, value: v}, {key: k, value: v}]", "duplicate descriptor composite key 'a.k_v'", false},
	{"no domain", "domain: ''\ndescriptors: [{key: k}]", "config file cannot have empty domain", false},
	{"no key", "domain: a\ndescriptors: [{value: v}]", "descriptor has empty key", false},
	{"a misspelled key", "domain: a\ndescriptors: [{key: k, ratelimit: {unit: day}}]", "config error, unknown key 'ratelimit'", true},
	{"another misspelled key", "domain: a\ndescriptors: [{key: k, rate_limit: {unit: day, requestsperunit: 1}}]", "config error, unknown key 'requestsperunit'", true},
	{"a list of words", "domain: a\ndescriptors: [a]", "config error, yaml file contains list of type other than map: a", true},
	{"a key that is a number", "domain: a\ndescriptors: [{key: k, 0.25: x}]", "config error, key is not of type string: 0.25", true},
	{"an empty replaces", "domain: a\ndescriptors: [{key: k, rate_limit: {unit: day, name: n, replaces: [{name: ''}]}}]", "should not have an empty replaces entry", false},
	{"replaces itself", "domain: a\ndescriptors: [{key: k, rate_limit: {unit: day, name: n, replaces: [{name: n}]}}]", "replaces should not contain name of same descriptor", false},
	{"unlimited with a unit", "domain: a\ndescriptors: [{key: k, rate_limit: {unit: day, unlimited: true}}]", "should not specify rate limit unit when unlimited", false},
	{"a domain twice", "domain: edge\ndescriptors: [{key: k, rate_limit: {unit: day, requests_per_unit: 1}}]", "duplicate domain 'edge' in config file", false},
	{"shared without a star", "domain: a\ndescriptors: [{key: k, value: v, share_threshold: true, rate_limit: {unit: day, requests_per_unit: 1}}]", "share_threshold can only be used with wildcard values (containing '*'), but found key 'k_v'", true},
}

// TestEnvoyCasesByFile: the answers of envoyproxy/ratelimit, from a folder as it is mounted there; then every file that it
// refuses, which changes nothing.
func TestEnvoyCasesByFile(t *testing.T) {
	root := t.TempDir()
	folder := filepath.Join(root, "config")
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(folder, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(folder, 0o700); err != nil {
		t.Fatal(err)
	}
	write("edge.yaml", envoyRules)
	p := asEnvoys(t, "RUNTIME_ROOT="+root, "USE_PROMETHEUS=true", "PROMETHEUS_ADDR=127.0.0.1:0", "LOG_LEVEL=info")
	prometheus := p.find(`listener=envoy-prometheus address=(\S+)`)
	c := askEnvoyCases(t, p)
	_, text := page(t, "http://"+prometheus+"/metrics")
	for _, want := range []string{
		`ratelimit_service_rate_limit_total_hits{domain="edge",key1="one"} 8`, `ratelimit_service_rate_limit_within_limit{domain="edge",key1="one"} 3`,
		`ratelimit_service_rate_limit_total_hits{domain="edge",key1="detail_v"} 7`, `ratelimit_service_rate_limit_over_limit{domain="edge",key1="from_proxy",key2="to"} 1`,
		`ratelimit_service_rate_limit_shadow_mode{domain="edge",key1="shady"} 1`, `ratelimit_service_config_load_success 1`, fmt.Sprintf(`ratelimit_service_total_requests{grpc_method="ShouldRateLimit"} %d`, len(envoyCases)),
	} {
		if !strings.Contains(text, want+"\n") {
			t.Errorf("the metrics have no %s:\n%s", want, text)
		}
	}
	for _, bad := range rejected {
		write("z.yaml", bad.text)
		if err := p.cmd.Process.Signal(syscall.SIGHUP); err != nil {
			t.Fatal(err)
		}
		if bad.message == "" {
			p.await("configuration refused")
		} else {
			p.await(bad.message)
		}
		if r, err := c.ShouldRateLimit(t.Context(), envoyRequest(t, "one=x")); err != nil || envoyAnswer(r) != "OVER_LIMIT: OVER_LIMIT 1 0" {
			t.Errorf("%s: %v %v", bad.name, r, err)
		}
	}
	if code := p.end(syscall.SIGTERM); code != exitOK {
		t.Errorf("exit code %d", code)
	}
}

// resourceOf is what a file says, as a resource. A unit has its name in capitals there.
func resourceOf(t *testing.T, name, text string) types.Resource {
	t.Helper()
	var file any
	if err := yaml.Unmarshal([]byte(regexp.MustCompile(`\bunit: *\w+`).ReplaceAllStringFunc(text, strings.ToUpper)), &file); err != nil {
		t.Fatal(err)
	}
	src, err := json.Marshal(file)
	if err != nil {
		t.Fatal(err)
	}
	c := new(pb.RateLimitConfig)
	if err := protojson.Unmarshal([]byte(strings.ReplaceAll(string(src), `"UNIT"`, `"unit"`)), c); err != nil {
		t.Fatalf("%s: %v", src, err)
	}
	c.Name = name
	return c
}

// TestEnvoyCasesByXDS: the same answers, from go-control-plane as Envoy Gateway has it; then every resource that
// envoyproxy/ratelimit refuses, and none at all: the server is told why, and nothing changes. The service is there before
// the configuration is.
func TestEnvoyCasesByXDS(t *testing.T) {
	states := cache.NewSnapshotCache(false, cache.IDHash{}, nil)
	nacks, acks := make(chan string, 1000), make(chan string, 1000)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	g := grpc.NewServer()
	discovery.RegisterAggregatedDiscoveryServiceServer(g, control.NewServer(t.Context(), states, control.CallbackFuncs{StreamRequestFunc: func(_ int64, r *discovery.DiscoveryRequest) error {
		if r.ErrorDetail != nil {
			nacks <- r.ErrorDetail.Message
		} else {
			acks <- r.VersionInfo
		}
		return nil
	}}))
	var serving sync.WaitGroup
	serving.Go(func() { _ = g.Serve(l) }) // ends with Stop
	defer serving.Wait()
	defer g.Stop()
	version := 0
	put := func(list ...types.Resource) {
		t.Helper()
		version++
		s, err := cache.NewSnapshot(fmt.Sprint(version), map[resource.Type][]types.Resource{resource.RateLimitConfigType: list})
		if err == nil {
			err = states.SetSnapshot(context.Background(), "envoy-ratelimit", s)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	p := asEnvoys(t, "CONFIG_TYPE=GRPC_XDS_SOTW", "CONFIG_GRPC_XDS_SERVER_URL="+l.Addr().String(), "CONFIG_GRPC_XDS_NODE_ID=envoy-ratelimit", "LOG_LEVEL=info", "FORCE_START_WITHOUT_INITIAL_CONFIG=true")
	if status, _ := page(t, p.http+"/healthcheck"); status != 200 {
		t.Errorf("healthcheck before the configuration: %d", status)
	}
	good := resourceOf(t, "edge", envoyRules)
	put(good)
	p.await("configuration loaded")
	c := askEnvoyCases(t, p)
	for _, bad := range rejected {
		if bad.fileOnly {
			continue
		}
		put(good, resourceOf(t, "z", bad.text))
		for !strings.Contains(<-nacks, bad.message) { // the one before may be told again
		}
		if r, err := c.ShouldRateLimit(t.Context(), envoyRequest(t, "one=x")); err != nil || envoyAnswer(r) != "OVER_LIMIT: OVER_LIMIT 1 0" {
			t.Errorf("%s: %v %v", bad.name, r, err)
		}
		put(good) // refusals in a row are slowed down
		for <-acks != fmt.Sprint(version) {
		}
	}
	last := version
	put()
	for !strings.Contains(<-nacks, "there is no resource, so that nothing would be limited") {
	}
	if _, text := page(t, p.admin+"/readyz"); !strings.Contains(text, fmt.Sprintf("config version %d stays in force, version %d is refused: server: there is no resource", last, version)) {
		t.Errorf("%s", text)
	}
	put(resourceOf(t, "edge", "domain: edge\ndescriptors: [{key: one, rate_limit: {unit: year, requests_per_unit: 999}}]"))
	for <-acks != fmt.Sprint(version) {
	}
	if r, err := c.ShouldRateLimit(t.Context(), envoyRequest(t, "one=x")); err != nil || !strings.HasPrefix(envoyAnswer(r), "OK: OK 999") {
		t.Errorf("after the correction: %v %v", r, err)
	}
	if code := p.end(syscall.SIGTERM); code != exitOK {
		t.Errorf("exit code %d", code)
	}
}

// TestEnvoyHasNoConfigurationYet: without FORCE_START_WITHOUT_INITIAL_CONFIG the service is not healthy before a
// configuration has come; with or without, Envoy's protocol is answered with an error, as there.
func TestEnvoyHasNoConfigurationYet(t *testing.T) {
	p := asEnvoys(t, "CONFIG_TYPE=GRPC_XDS_SOTW", "CONFIG_GRPC_XDS_SERVER_URL=127.0.0.1:1")
	if status, _ := page(t, p.http+"/healthcheck"); status != 500 {
		t.Errorf("healthcheck: %d", status)
	}
	if _, text := page(t, p.admin+"/readyz"); !strings.Contains(text, "no configuration has come from 127.0.0.1:1 yet") {
		t.Errorf("%s", text)
	}
	conn, err := grpc.NewClient(regexp.MustCompile(`grpc +(\S+)`).FindStringSubmatch(p.greeting)[1], grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := rls.NewRateLimitServiceClient(conn).ShouldRateLimit(t.Context(), envoyRequest(t, "one=x")); err == nil || !strings.Contains(err.Error(), "no rate limit configuration loaded") {
		t.Errorf("%v", err)
	}
}
