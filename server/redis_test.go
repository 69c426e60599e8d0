package server_test

import (
	"context"
	"path/filepath"
	"strings"
	"testing"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/stint-io/stint/internal/redistest"
	"github.com/stint-io/stint/server"
)

// password is that of the Redis servers of these tests; it is to be seen nowhere.
const password = "s3cret-of-redis"

const oneOfEach = `
limits:
  - {name: open, match: {kind: open}, rate: 5/hour}
  - {name: closed, match: {kind: closed}, rate: 5/hour, on_store_failure: reject}
  - {name: share, match: {kind: share}, rate: 5/hour, on_store_failure: local}
`

const envoyFile = `
domain: edge
descriptors:
  - {key: user, rate_limit: {unit: hour, requests_per_unit: 5}}
`

// patient ends the URL of a Redis that is there: a busy machine may take more than 50 ms.
const patient = "?timeout=10s"

// startRedis is start with the counters in r.
func startRedis(t *testing.T, r *redistest.Server, yaml string, adjust ...func(*server.Options)) *service {
	t.Helper()
	url := "redis://:" + password + "@" + r.Addr() + patient
	return start(t, yaml, append([]func(*server.Options){func(o *server.Options) { o.Store = url }}, adjust...)...)
}

// await asks until ok says yes.
func await(t *testing.T, what string, ok func() bool) {
	t.Helper()
	begun := time.Now()
	for pause := 5 * time.Millisecond; !ok(); pause = min(pause+pause/4, 100*time.Millisecond) {
		if time.Since(begun) > time.Minute {
			t.Fatalf("in vain: %s", what)
		}
		<-time.After(pause)
	}
}

// awaitReadiness waits until /readyz has that status and text, and the gRPC health
// service says the same.
func (s *service) awaitReadiness(code int, text string) {
	s.t.Helper()
	want := healthpb.HealthCheckResponse_SERVING
	if code != 200 {
		want = healthpb.HealthCheckResponse_NOT_SERVING
	}
	await(s.t, "readiness "+text, func() bool {
		a := s.do("GET", s.admin+"/readyz", "")
		if strings.Contains(a.body, password) {
			s.t.Fatalf("the password is in %s", a.body)
		}
		h, err := healthpb.NewHealthClient(s.conn).Check(s.t.Context(), &healthpb.HealthCheckRequest{})
		return a.status == code && strings.HasPrefix(a.body, text) && strings.Count(a.body, "\n") == 1 && err == nil && h.Status == want
	})
}

func kind(name string) string { return `{"attributes":{"kind":"` + name + `"}}` }

// The counters are in Redis: two services spend one limit, and a restart forgets
// nothing.
func TestRedisIsShared(t *testing.T) {
	r := redistest.Start(t, "--requirepass", password)
	a, b := startRedis(t, r, oneOfEach), startRedis(t, r, oneOfEach)
	a.awaitReadiness(200, "ready")
	b.awaitReadiness(200, "ready")
	for i, s := range []*service{a, b, a, b} {
		if x := s.post("/v1/take", kind("closed")); x.status != 200 || strings.Contains(x.body, "store_failed") {
			t.Fatalf("request %d: %d %s", i+1, x.status, x.body)
		}
	}
	if err := a.stop(); err != nil {
		t.Fatal(err)
	}
	c := startRedis(t, r, oneOfEach)
	c.awaitReadiness(200, "ready")
	if x := c.post("/v1/take", kind("closed")); x.status != 200 || x.header.Get("RateLimit") == "" {
		t.Fatalf("the fifth: %d %v", x.status, x.header)
	}
	if x := b.post("/v1/take", kind("closed")); x.status != 429 {
		t.Fatalf("the sixth: %d %s", x.status, x.body)
	}
	for _, s := range []*service{a, b, c} {
		if strings.Contains(s.log.String(), password) || strings.Contains(s.Store(), password) || !strings.HasSuffix(s.Store(), r.Addr()+patient) {
			t.Errorf("store %s, log\n%s", s.Store(), s.log)
		}
	}
	m := c.do("GET", c.admin+"/metrics", "").body
	for _, want := range []string{
		"\nstint_store_up 1\n", "\nstint_store_breaker_open 0\n", "\nstint_store_batch_size_bucket{le=\"256\"} ",
		"\nstint_store_calls_total ", "\nstint_store_round_trip_seconds 0.0", "\nstint_store_keys 0\n",
	} {
		if !strings.Contains(m, want) {
			t.Errorf("no %q in the metrics", want)
		}
	}
}

// A service starts without Redis, and each limit answers as it says. It is not ready
// before it has found Redis.
func TestRedisComesLate(t *testing.T) {
	r := redistest.Start(t, "--requirepass", password)
	r.Kill()
	s := startRedis(t, r, oneOfEach)
	s.awaitReadiness(503, "not ready: store redis://"+r.Addr()+patient+" was not reached yet: ")
	s.withoutRedis(t, 1)
	r.Restart()
	s.awaitReadiness(200, "ready")
	if a := s.post("/v1/take", kind("closed")); a.status != 200 || strings.Contains(a.body, "store_failed") {
		t.Errorf("with Redis: %d %s", a.status, a.body)
	}
}

// withoutRedis asks each limit while Redis does not answer, and this process has that
// share of 5.
func (s *service) withoutRedis(t *testing.T, share int) {
	t.Helper()
	if a := s.post("/v1/take", kind("open")); a.status != 200 || !strings.Contains(a.body, `"store_failed":true`) || a.header.Get("RateLimit") != "" {
		t.Errorf("open: %d %v %s", a.status, a.header, a.body)
	}
	if a := s.post("/v1/take", kind("closed")); a.status != 503 || a.header.Get("Retry-After") == "" || a.header.Get("RateLimit") != "" ||
		!strings.Contains(a.body, `"reason":"store_failure"`) {
		t.Errorf("closed: %d %v %s", a.status, a.header, a.body)
	}
	if a := s.post("/v1/explain", kind("closed")); a.status != 200 || !strings.Contains(a.body, "its store does not answer, and on_store_failure is reject") ||
		!strings.Contains(a.body, `"store_failed":true`) || !strings.Contains(a.body, `"status":503`) {
		t.Errorf("explain: %d %s", a.status, a.body)
	}
	for i := range 6 {
		if a, want := s.post("/v1/take", kind("share")), i < share; (a.status == 200) != want {
			t.Errorf("share, request %d: %d %s", i+1, a.status, a.body)
		}
	}
	a := s.do("GET", s.http+"/v1/gate/forward-auth/attr.kind=closed", "", "X-Forwarded-For", "192.0.2.7")
	if a.status != 503 || a.header.Get("X-Stint-Decision") != "reject" || a.header.Get("RateLimit") == "" {
		t.Errorf("gate: %d %v", a.status, a.header)
	}
}

// When Redis dies the service stays ready, and says what is amiss.
func TestRedisDies(t *testing.T) {
	r := redistest.Start(t, "--requirepass", password)
	s := startRedis(t, r, oneOfEach)
	s.awaitReadiness(200, "ready")
	r.Kill()
	await(t, "a decision without Redis", func() bool {
		return strings.Contains(s.post("/v1/take", kind("open")).body, "store_failed")
	})
	s.awaitReadiness(200, "degraded: store redis://"+r.Addr()+patient+" does not answer: ")
	s.withoutRedis(t, 5)
	m := s.do("GET", s.admin+"/metrics", "").body
	for _, want := range []string{
		"\nstint_store_up 0\n", "\nstint_store_breaker_open 1\n", "\nstint_store_keys 1\n",
		"\nstint_unlimited_total{limit=\"share\",reason=\"store_failed\"} 5\n",
		"\nstint_decisions_total{limit=\"closed\",outcome=\"refused\",reason=\"store_failure\"} 2\n",
	} {
		if !strings.Contains(m, want) {
			t.Errorf("no %q in the metrics", want)
		}
	}
	r.Restart()
	s.awaitReadiness(200, "ready")
	if strings.Contains(s.log.String(), password) {
		t.Errorf("the password is in the log:\n%s", s.log)
	}
}

// A service that refuses everything without Redis stays ready, too: a gateway that
// takes it for gone may let everything pass.
func TestRefusingWithoutRedisIsReady(t *testing.T) {
	r := redistest.Start(t, "--requirepass", password)
	s := startRedis(t, r, "limits:\n  - {name: closed, rate: 5/hour, on_store_failure: reject}\n", withEnvoy(t))
	s.awaitReadiness(200, "ready")
	r.Kill()
	await(t, "a refusal without Redis", func() bool { return s.post("/v1/take", `{"attributes":{}}`).status == 503 })
	s.awaitReadiness(200, "degraded: store redis://"+r.Addr()+patient+" does not answer: ")
	r.Restart()
	s.awaitReadiness(200, "ready")
}

// withEnvoy adds a file in Envoy's format.
func withEnvoy(t *testing.T) func(*server.Options) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "envoy.yaml")
	write(t, path, envoyFile)
	return func(o *server.Options) { o.ConfigPaths = append(o.ConfigPaths, path) }
}

// Envoy decides about its own rules while Redis does not answer; about limits in
// stint's format it gets an answer, with no figures that nobody knows.
func TestEnvoyWithoutRedis(t *testing.T) {
	r := redistest.Start(t, "--requirepass", password)
	r.Kill()
	s := startRedis(t, r, oneOfEach, withEnvoy(t), func(o *server.Options) { o.RLSHeaders = true })
	ask := func(d *ratelimitv3.RateLimitDescriptor) (*pb.RateLimitResponse, error) {
		return s.rls.ShouldRateLimit(context.Background(), request("edge", 0, d))
	}
	if _, err := ask(descriptor("user=u")); status.Code(err) != codes.Unavailable || strings.Contains(err.Error(), password) {
		t.Errorf("Envoy's rule: %v, want Unavailable", err)
	}
	for name, want := range map[string]pb.RateLimitResponse_Code{"open": pb.RateLimitResponse_OK, "closed": pb.RateLimitResponse_OVER_LIMIT} {
		resp, err := ask(descriptor("kind=" + name))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		st := resp.Statuses[0]
		if resp.OverallCode != want || st.Code != want || st.CurrentLimit != nil || st.LimitRemaining != 0 || st.DurationUntilReset != nil {
			t.Errorf("%s: %v", name, resp)
		}
		list := resp.DynamicMetadata.GetFields()["stint"].GetStructValue().GetFields()["store_failed"].GetListValue().GetValues()
		if len(list) != 1 || list[0].GetStringValue() != name {
			t.Errorf("%s: metadata %v", name, resp.DynamicMetadata)
		}
		headers := 0
		if want == pb.RateLimitResponse_OVER_LIMIT {
			headers = 1
		}
		if len(resp.ResponseHeadersToAdd) != headers || headers == 1 && resp.ResponseHeadersToAdd[0].Key != "Retry-After" {
			t.Errorf("%s: headers %v", name, resp.ResponseHeadersToAdd)
		}
	}
}

// Counters do not move: another store in the files takes a restart.
func TestStoreStaysOverReload(t *testing.T) {
	r := redistest.Start(t, "--requirepass", password)
	url := "redis://:" + password + "@" + r.Addr()
	s := start(t, "store: "+url+"\nlimits: [{name: a, rate: 5/hour}]\n")
	s.awaitReadiness(200, "ready")
	for _, other := range []string{"memory", url + "/1", "redis://:other-" + password + "@" + r.Addr()} {
		write(t, s.path, "store: "+other+"\nlimits: [{name: b, rate: 5/hour}]\n")
		err := s.Reload()
		if err == nil || !strings.Contains(err.Error(), "restart") || !strings.Contains(err.Error(), r.Addr()) || strings.Contains(err.Error(), password) {
			t.Errorf("%s: %v", other, err)
		}
		if s.Limits().Limits()[0].Name != "a" {
			t.Errorf("%s is in force", other)
		}
	}
	write(t, s.path, "store: "+url+"\nlimits: [{name: b, rate: 5/hour}]\n")
	if err := s.Reload(); err != nil || s.Limits().Limits()[0].Name != "b" {
		t.Errorf("the same store: %v", err)
	}
	if strings.Contains(s.log.String(), password) {
		t.Errorf("the password is in the log:\n%s", s.log)
	}

	// Who says by a flag where the counters are, does not care what the files say.
	s = start(t, "limits: [{name: a, rate: 5/hour}]\n", func(o *server.Options) { o.Store = "memory" })
	write(t, s.path, "store: redis://127.0.0.1:1\nlimits: [{name: b, rate: 5/hour}]\n")
	if err := s.Reload(); err != nil || s.Store() != "memory" {
		t.Errorf("%v, store %s", err, s.Store())
	}
}

// A store that cannot be is an error before anything starts, and shows no password.
func TestWrongStores(t *testing.T) {
	path := filepath.Join(t.TempDir(), "stint.yaml")
	for name, want := range map[string]string{
		"redis": `unknown store "redis"`, "memory:": `unknown store "..."`, "redis:" + password + "@h": `unknown store "redis"`,
		"postgres://u:" + password + "@h": `unknown store "postgres"`, "redis://:" + password + "@h/x": "db wants a number",
		"redis://:" + password + "@h?timeuot=1s": "timeout", "redis+sentinel://:" + password + "@h": "master",
	} {
		_, err := server.New(server.Options{Store: name})
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), password) {
			t.Errorf("%s: %v, want %q", name, err, want)
		}
		if !strings.HasPrefix(name, "redis://") {
			continue
		}
		write(t, path, "store: "+name+"\nlimits: [{name: a, rate: 1/s}]\n")
		_, err = server.New(server.Options{ConfigPaths: []string{path}})
		if err == nil || !strings.Contains(err.Error(), "store: in the files: ") || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), password) {
			t.Errorf("%s in a file: %v, want %q", name, err, want)
		}
	}
}
