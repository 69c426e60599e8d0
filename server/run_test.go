package server_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/mem"
	reflectionpb "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/protobuf/proto"

	"github.com/stint-io/stint/server"
)

// rawCodec sends bytes as they are.
type rawCodec struct{}

func (rawCodec) Marshal(v any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(v.([]byte))}, nil
}

func (rawCodec) Unmarshal(data mem.BufferSlice, v any) error {
	return proto.Unmarshal(data.Materialize(), v.(proto.Message))
}

func (rawCodec) Name() string { return "proto" }

var _ encoding.CodecV2 = rawCodec{}

var forceRaw = grpc.ForceCodecV2(rawCodec{})

// One bucket, whichever way a request comes in.
func TestOneBucketForAllProtocols(t *testing.T) {
	s := start(t, "limits:\n  - {name: per-ip, key: [ip], rate: 5/hour}\n")
	take := func() int { return s.post("/v1/take", `{"attributes":{"ip":"192.0.2.7"}}`).status }
	gate := func(path string) answer {
		return s.do(http.MethodGet, s.http+path, "", "X-Forwarded-For", "192.0.2.7", "X-Forwarded-Uri", "/x?y=z", "X-Forwarded-Method", "GET")
	}
	if got := take(); got != 200 {
		t.Fatalf("take: %d", got)
	}
	if a := gate("/v1/gate/forward-auth"); a.status != 200 || !strings.Contains(a.header.Get("RateLimit"), "r=3") {
		t.Fatalf("forward-auth: %d %v", a.status, a.header)
	}
	if a := gate("/v1/gate/nginx"); a.status/100 != 2 {
		t.Fatalf("nginx: %d", a.status)
	}
	if got := short(s.should(request("any", 1, descriptor("ip=192.0.2.7")))); got != "OK: OK 1/5" {
		t.Fatalf("gRPC: %s", got)
	}
	if a := s.post("/json", `{"domain":"any","descriptors":[{"entries":[{"key":"ip","value":"192.0.2.7"}]}]}`); a.status != 200 {
		t.Fatalf("json: %d %s", a.status, a.body)
	}
	if got := take(); got != 429 {
		t.Fatalf("take: %d", got)
	}
	if a := gate("/v1/gate/forward-auth"); a.status != 429 || a.header.Get("Retry-After") == "" {
		t.Fatalf("forward-auth: %d %v", a.status, a.header)
	}
	if a := gate("/v1/gate/nginx"); a.status != 403 || a.header.Get("X-Stint-Status") != "429" {
		t.Fatalf("nginx: %d %v", a.status, a.header)
	}
	if got := short(s.should(request("any", 1, descriptor("ip=192.0.2.7")))); got != "OVER: OVER 0/5" {
		t.Fatalf("gRPC: %s", got)
	}
}

func TestTakeAnswers(t *testing.T) {
	s := start(t, `
limits:
  - {name: api, key: [user], rate: 4/hour, soft: 50%}
  - {name: places, key: [user], algorithm: concurrency, max_in_flight: 3, timeout: 1h}
`)
	a := s.post("/v1/take", `{"attributes":{"user":"u"},"cost":3}`)
	if a.status != 200 || a.header.Get("Content-Type") != "application/json" ||
		!strings.Contains(a.body, `"allowed":true`) || !strings.Contains(a.body, `"soft":true`) || !strings.Contains(a.body, `"permit":`) {
		t.Fatalf("%d %v %s", a.status, a.header, a.body)
	}
	if got := a.header.Get("RateLimit-Policy"); !strings.HasPrefix(got, `"api";q=4;w=3600`) {
		t.Errorf("RateLimit-Policy: %s", got)
	}
	_, permit, _ := strings.Cut(a.body, `"permit":`)
	permit = permit[:strings.IndexAny(permit, ",}")]
	if a := s.post("/v1/take", `{"attributes":{"user":"u"}}`); a.status != 429 || !strings.Contains(a.body, "concurrency_exceeded") {
		t.Fatalf("%d %s", a.status, a.body)
	}
	if a := s.post("/v1/finish", `{"attributes":{"user":"u"},"permit":`+permit+`}`); a.status != 204 {
		t.Fatalf("%d %s", a.status, a.body)
	}
	// A cost of 0 asks and takes nothing.
	for range 3 {
		if a := s.post("/v1/take", `{"attributes":{"user":"u"},"cost":0}`); a.status != 200 {
			t.Fatalf("%d %s", a.status, a.body)
		}
	}
	if a := s.post("/v1/take", `{"attributes":{"user":"u"}}`); a.status != 200 {
		t.Fatalf("%d %s", a.status, a.body)
	}
	a = s.post("/v1/explain", `{"attributes":{"user":"u"}}`)
	for _, part := range []string{`"allowed":false`, `"status":429`, `"used":4`, `"line":3`, `"key":{"user":"u"}`, `"why":"applies to every request; one bucket for each user; 4 of 4 used, 1 asked: rate_exceeded"`} {
		if a.status != 200 || !strings.Contains(a.body, part) {
			t.Errorf("explain: %d, no %s in %s", a.status, part, a.body)
		}
	}
}

// Nobody knows when a place in flight comes free, so no protocol names the time-out
// as the moment to wait for.
func TestPlacesHaveNoReset(t *testing.T) {
	s := start(t, "limits:\n  - {name: places, key: [user], algorithm: concurrency, max_in_flight: 1, timeout: 1h}\n",
		func(o *server.Options) { o.XRateLimit = true })
	for _, want := range []string{"OK: OK 0/1", "OVER: OVER 0/1"} {
		resp := s.should(request("any", 1, descriptor("user=u")))
		if got := short(resp); got != want || resp.Statuses[0].DurationUntilReset != nil {
			t.Errorf("%s, want %s: %v", got, want, resp)
		}
	}
	a := s.post("/v1/take", `{"attributes":{"user":"u"}}`)
	if a.header.Get("Retry-After") != "1" || a.header.Get("X-RateLimit-Reset") != "1" || a.header.Get("RateLimit") != `"places";r=0;t=1` {
		t.Errorf("%d %v", a.status, a.header)
	}
}

func TestReload(t *testing.T) {
	s := start(t, "limits:\n  - {name: per-ip, key: [ip], rate: 5/hour}\n  - {name: gone, rate: 100/hour}\n")
	take := func() answer { return s.post("/v1/take", `{"attributes":{"ip":"192.0.2.7"},"cost":2}`) }
	if a := take(); a.status != 200 {
		t.Fatalf("%d", a.status)
	}
	write(t, s.path, "limits:\n  - {name: per-ip, key: [ip], rate: -1/s}\n  - {name: x, raet: 1/s}\n")
	err := s.Reload()
	if err == nil || !strings.Contains(err.Error(), s.path+":2:") || !strings.Contains(err.Error(), "raet") {
		t.Fatalf("a bad file was loaded: %v", err)
	}
	if a := s.do("POST", s.admin+"/admin/reload", ""); a.status != 422 || !strings.Contains(a.body, "raet") {
		t.Fatalf("reload answered %d %s", a.status, a.body)
	}
	if a := s.do("GET", s.admin+"/metrics", ""); !strings.Contains(a.body, "\nstint_config_last_reload_successful 0\n") || strings.Contains(a.body, "\nstint_config_load_errors_total 0\n") {
		t.Fatalf("the metrics do not tell of the bad file:\n%s", a.body)
	}
	if a := take(); a.status != 200 {
		t.Fatalf("the last good configuration is not in force: %d", a.status)
	}
	write(t, s.path, "limits:\n  - {name: per-ip, key: [ip], rate: 6/hour}\n  - {name: new, rate: 100/hour}\n")
	if a := s.do("POST", s.admin+"/admin/reload", ""); a.status != 200 {
		t.Fatalf("reload answered %d %s", a.status, a.body)
	}
	if got := s.remaining(`{"ip":"192.0.2.7"}`); got != 2 && got != 1 {
		t.Fatalf("%d are left of 6 after 4", got)
	}
	if log := s.log.String(); !strings.Contains(log, "removed=gone") || !strings.Contains(log, "added=new") || !strings.Contains(log, "changed=per-ip") {
		t.Errorf("the log does not tell what changed:\n%s", log)
	}
	if a := s.do("GET", s.admin+"/metrics", ""); !strings.Contains(a.body, "\nstint_config_last_reload_successful 1\n") {
		t.Errorf("metrics:\n%s", a.body)
	}
}

// TestReloadsNeverGoBack checks that the configuration in force after Reload returns stays the latest that was written,
// while the watcher of the file reads it as well.
func TestReloadsNeverGoBack(t *testing.T) {
	if testing.Short() {
		t.Skip("TestReload has the same goroutines: nothing for the race detector")
	}
	t.Parallel()             // it waits for most of its time
	var long strings.Builder // limits that take time to read
	for i := range 200 {
		fmt.Fprintf(&long, "  - {name: other%d, match: {path: /%d}, rate: 1/s}\n", i, i)
	}
	version := func(i int) string {
		return fmt.Sprintf("limits:\n  - {name: a, rate: %d/hour}\n%s", i, long.String())
	}
	s := start(t, version(1))
	for i := 2; i < 40; i++ {
		<-time.After(98*time.Millisecond + rand.N(15*time.Millisecond)) // about when the watcher reads the former version
		write(t, s.path+".new", version(i))
		if err := os.Rename(s.path+".new", s.path); err != nil {
			t.Fatal(err)
		}
		if err := s.Reload(); err != nil {
			t.Fatal(err)
		}
		for range 10 {
			if got := s.remaining(`{}`); got != int64(i) {
				t.Fatalf("after the reload of version %d version %d is in force", i, got)
			}
		}
	}
}

// lines passes on what is written, line by line.
type lines chan string

func (l lines) Write(p []byte) (int, error) {
	l <- string(p)
	return len(p), nil
}

func TestWatchedFile(t *testing.T) {
	log := make(lines, 100)
	s := start(t, "limits:\n  - {name: a, rate: 5/hour}\n", func(o *server.Options) {
		o.Logger = slog.New(slog.NewTextHandler(log, nil))
	})
	write(t, s.path, "limits:\n  - {name: b, rate: 5/hour}\n")
	for line := range log {
		if strings.Contains(line, "configuration loaded") {
			break
		}
	}
	if got := s.Limits().Limits()[0].Name; got != "b" {
		t.Fatalf("the limit is %s", got)
	}
}

func TestMetricsHoldNoKeys(t *testing.T) {
	s := start(t, "limits:\n  - {name: per-user, key: [user], rate: 1/hour}\n")
	for _, user := range []string{"secret-1", "secret-1", "secret-2"} {
		s.post("/v1/take", `{"attributes":{"user":"`+user+`"}}`)
	}
	s.should(request("secret-domain", 1, descriptor("user=secret-3"), descriptor("secret-key=x")))
	a := s.do("GET", s.admin+"/metrics", "")
	for _, line := range []string{
		`stint_decisions_total{limit="per-user",outcome="allowed",reason=""} 3`,
		`stint_decisions_total{limit="per-user",outcome="refused",reason="rate_exceeded"} 1`,
		`stint_rls_responses_total{code="OK"} 1`, `stint_store_keys 3`, `stint_config_limits 1`,
	} {
		if !strings.Contains(a.body, line+"\n") {
			t.Errorf("no line %s", line)
		}
	}
	if strings.Contains(a.body, "secret") || strings.Contains(s.log.String(), "secret") {
		t.Error("a key is in the metrics or in the log")
	}
}

func TestAdminIsGuarded(t *testing.T) {
	s := start(t, "limits: [{name: a, rate: 1/s}]\n", func(o *server.Options) { o.AdminToken, o.AdminHosts = "open sesame", []string{"stint.internal"} })
	for _, c := range []struct {
		method, path string
		header       []string
		status       int
	}{
		{"GET", "/healthz", nil, 200},
		{"GET", "/readyz", nil, 200},
		{"GET", "/metrics", nil, 401},
		{"GET", "/metrics", []string{"Authorization", "Bearer open"}, 401},
		{"GET", "/metrics", []string{"Authorization", "open sesame"}, 401},
		{"GET", "/metrics", []string{"Authorization", "Bearer open sesame"}, 200},
		{"GET", "/readyz", []string{"Host", "evil.example"}, 421},
		{"GET", "/readyz", []string{"Host", "evil.example:8082"}, 421},
		{"GET", "/readyz", []string{"Host", "stint.internal:8082"}, 200},
		{"GET", "/readyz", []string{"Host", "localhost"}, 200},
		{"GET", "/readyz", []string{"Host", "[::1]:8082"}, 200},
		{"POST", "/admin/reload", []string{"Authorization", "Bearer open sesame", "Origin", "https://evil.example"}, 403},
		{"POST", "/admin/reload", []string{"Authorization", "Bearer open sesame"}, 200},
		{"GET", "/admin/reload", []string{"Authorization", "Bearer open sesame"}, 405},
		{"GET", "/debug/pprof/", []string{"Authorization", "Bearer open sesame"}, 404},
	} {
		if a := s.do(c.method, s.admin+c.path, "", c.header...); a.status != c.status {
			t.Errorf("%s %s %v: %d, want %d", c.method, c.path, c.header, a.status, c.status)
		}
	}
	// Probes that speak HTTP/1.0 name no host.
	conn, err := net.Dial("tcp", s.Addrs().Admin.String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, "GET /readyz HTTP/1.0\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(conn).ReadString('\n'); err != nil || !strings.Contains(line, "200 OK") {
		t.Errorf("HTTP/1.0: %q %v", line, err)
	}
}

// A page that points its own name at this machine is of the same origin to its browser,
// and is refused by the name.
func TestStrangeHostsAreRefused(t *testing.T) {
	s := start(t, "limits:\n  - {name: per-ip, key: [ip], rate: 50/hour}\n", func(o *server.Options) { o.HTTPHosts = []string{"Limits.Example"} })
	own, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	const attributes = `{"ip":"192.0.2.7"}`
	take := `{"attributes":` + attributes + `}`
	for path, body := range map[string]string{
		"/v1/take": take, "/v1/explain": take, "/v1/finish": `{"attributes":` + attributes + `,"permit":1}`,
		"/json": `{"domain":"d","descriptors":[{"entries":[{"key":"ip","value":"192.0.2.7"}]}]}`, "/": "",
	} {
		for _, host := range []string{"evil.example", "evil.example:8080", "127.0.0.1.evil.example", "evil.example.", "limits.example.evil.example", "x.limits.example", "localhost.evil.example", "stint.shop", "stint.svc.evil.example", "evilsvc.example", "notcluster.local"} {
			if a := s.do(http.MethodPost, s.http+path, body, "Host", host); a.status != 421 || !strings.Contains(a.body, "--http-host") {
				t.Errorf("%s as %s: %d %s", path, host, a.status, a.body)
			}
		}
	}
	if n := strings.Count(s.log.String(), "--http-host"); n != 1 || !strings.Contains(s.log.String(), "evil.example") {
		t.Errorf("%d log lines about names, want 1: %s", n, s.log)
	}
	if left := s.remaining(attributes); left != 50 {
		t.Errorf("%d remaining, want 50: refused requests took something", left)
	}
	for _, host := range []string{"127.0.0.1", "127.0.0.1:8080", "[::1]:8080", "10.1.2.3", "localhost:8080", "LOCALHOST", "stint", "stint:8080", "stint.", "stint.:8080", "stint.shop.svc", "stint.shop.svc.cluster.local:8080", "stint.shop.Svc.Cluster.Local.", "limits.corp.internal", "a.localhost", own, own + ":8080", "limits.example", "LIMITS.example.:8080"} {
		if a := s.do(http.MethodPost, s.http+"/v1/take", take, "Host", host); a.status != 200 {
			t.Errorf("as %s: %d %s", host, a.status, a.body)
		}
	}
	for _, path := range []string{"/healthz", "/healthcheck"} {
		if a := s.do(http.MethodGet, s.http+path, "", "Host", "shop.example"); a.status/100 != 2 {
			t.Errorf("%s as shop.example: %d %s", path, a.status, a.body)
		}
	}
	if a := s.do(http.MethodGet, s.http+"/v1/gate/forward-auth", "", "Host", "limits.example", "X-Forwarded-For", "192.0.2.8"); a.status != 200 {
		t.Errorf("a gateway that is allowed a name: %d %s", a.status, a.body)
	}
}

// TestPagesCannotAskAsGateways: a page in a user's browser takes nothing by the calls of gateways, with any method
// and all header fields that it can send, whether it is of another origin or has pointed its own name at the service.
func TestPagesCannotAskAsGateways(t *testing.T) {
	if testing.Short() {
		t.Skip("one request after another: nothing for the race detector")
	}
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	s := start(t, "limits:\n  - {name: per-user, key: [user], rate: 5/hour}\n")
	some := func(pairs ...string) []string {
		var list []string
		for i := 0; i < len(pairs); i += 2 {
			if random.IntN(2) == 0 {
				list = append(list, pairs[i], pairs[i+1])
			}
		}
		return list
	}
	for range 100 {
		method := []string{"GET", "HEAD", "POST", "OPTIONS"}[random.IntN(4)]
		gateway := []string{"forward-auth", "nginx"}[random.IntN(2)]
		path := "/v1/gate/" + gateway + []string{"", "/from=x-forwarded", "/from=x-original"}[random.IntN(3)] + "/attr.user=acme/cost=3"
		header := some("Sec-Fetch-Site", "cross-site", "Sec-Fetch-Dest", "image", "Origin", "https://evil.example", "Referer", "https://evil.example/",
			"Accept", "image/*", "Content-Type", "text/plain", "Access-Control-Request-Method", "GET", "Access-Control-Request-Headers", "x-forwarded-for")
		want := http.StatusForbidden
		if random.IntN(2) == 0 { // to the browser the page is of the same origin: it can set nearly every field
			want = http.StatusMisdirectedRequest
			header = append(header, some("X-Forwarded-For", "192.0.2.7", "X-Forwarded-Uri", "/", "X-Original-Uri", "/", "X-Forwarded-Host", "shop.example")...)
			header = append(header, "Host", "rebound.example:"+fmt.Sprint(1+random.IntN(60000)))
		}
		a := s.do(method, s.http+path, "", header...)
		status := a.status
		if gateway == "nginx" {
			if a.status != http.StatusForbidden {
				t.Errorf("%s %s %q: %d", method, path, header, a.status)
			}
			status, _ = strconv.Atoi(a.header.Get("X-Stint-Status"))
		}
		if status != want || a.header.Get("X-Stint-Decision") != "reject" {
			t.Errorf("%s %s %q: %d %s, want the refusal %d", method, path, header, status, a.body, want)
		}
	}
	if left := s.remaining(`{"user":"acme"}`); left != 5 {
		t.Errorf("%d are left of 5", left)
	}
	if a := s.do("GET", s.http+"/v1/gate/forward-auth/attr.user=acme/cost=3", "", "X-Forwarded-For", "192.0.2.7", "Sec-Fetch-Site", "cross-site"); a.status != 200 {
		t.Errorf("a gateway that passes on the fields of a browser: %d %s", a.status, a.body)
	}
}

// With a star every name is good.
func TestAnyHost(t *testing.T) {
	s := start(t, "limits: [{name: a, rate: 1/s}]\n", func(o *server.Options) { o.HTTPHosts = []string{"*"} })
	if a := s.do(http.MethodPost, s.http+"/v1/take", "{}", "Host", "limits.example"); a.status != 200 {
		t.Errorf("%d %s", a.status, a.body)
	}
}

// A page in somebody's browser cannot spend the limits of a service on the same
// machine.
func TestPagesOfOtherOriginsAreRefused(t *testing.T) {
	if testing.Short() {
		t.Skip("one request after another: nothing for the race detector")
	}
	s := start(t, "limits:\n  - {name: per-ip, key: [ip], rate: 5/hour}\n")
	for path, body := range map[string]string{
		"/v1/take": `{"attributes":{"ip":"192.0.2.7"}}`,
		"/json":    `{"domain":"d","descriptors":[{"entries":[{"key":"ip","value":"192.0.2.7"}]}]}`,
	} {
		if a := s.do("POST", s.http+path, body, "Sec-Fetch-Site", "cross-site"); a.status != 403 {
			t.Errorf("%s: %d %s", path, a.status, a.body)
		}
		if got := s.remaining(`{"ip":"192.0.2.7"}`); got != 5 {
			t.Errorf("%s: %d are left of 5", path, got)
		}
	}
}

func TestOptionsAreChecked(t *testing.T) {
	dir := t.TempDir()
	bad := filepath.Join(dir, "bad.yaml")
	redis := filepath.Join(dir, "redis.yaml")
	write(t, bad, "limits:\n  - {name: a, rate: NaN}\n")
	write(t, redis, "store: redis://\nlimits: [{name: a, rate: 1/s}]\n")
	for name, c := range map[string]struct {
		opts server.Options
		text string
	}{
		"address":     {server.Options{HTTPAddr: "8080"}, "http address"},
		"open admin":  {server.Options{AdminAddr: "0.0.0.0:8082"}, "--admin-token-file"},
		"any admin":   {server.Options{AdminAddr: ":8082"}, "--admin-token-file"},
		"store":       {server.Options{Store: "redis"}, `unknown store "redis"`},
		"file store":  {server.Options{ConfigPaths: []string{redis}}, "store: in the files"},
		"draft":       {server.Options{RateLimitHeaders: "draft-99"}, "draft-99"},
		"proxy":       {server.Options{TrustedProxies: []string{"10.0.0.0/99"}}, "10.0.0.0/99"},
		"grace":       {server.Options{Grace: -1}, "negative"},
		"max bytes":   {server.Options{MaxBytes: 1}, "max bytes is 1, want at least 65536"},
		"no bytes":    {server.Options{MaxBytes: -1}, "max bytes is -1, want at least 65536"},
		"config":      {server.Options{ConfigPaths: []string{bad}}, "bad.yaml:2:"},
		"config gone": {server.Options{ConfigPaths: []string{filepath.Join(dir, "none.yaml")}}, "none.yaml"},
	} {
		if _, err := server.New(c.opts); err == nil || !strings.Contains(err.Error(), c.text) {
			t.Errorf("%s: %v, want %q", name, err, c.text)
		}
	}
}

func TestAddressInUse(t *testing.T) {
	s := start(t, "limits: [{name: a, rate: 1/s}]\n")
	second, err := server.New(server.Options{
		HTTPAddr: "127.0.0.1:0", GRPCAddr: s.Addrs().GRPC.String(), AdminAddr: "127.0.0.1:0",
		Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := second.Run(context.Background()); err == nil || !strings.Contains(err.Error(), "--grpc") {
		t.Fatalf("a second server on the same port: %v", err)
	}
}

func TestHealthAndReflection(t *testing.T) {
	s := start(t, "limits: [{name: a, rate: 1/s}]")
	ctx := context.Background()
	for _, name := range []string{"", "envoy.service.ratelimit.v3.RateLimitService"} {
		h, err := healthpb.NewHealthClient(s.conn).Check(ctx, &healthpb.HealthCheckRequest{Service: name})
		if err != nil || h.Status != healthpb.HealthCheckResponse_SERVING {
			t.Errorf("health of %q: %v %v", name, h, err)
		}
	}
	stream, err := reflectionpb.NewServerReflectionClient(s.conn).ServerReflectionInfo(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Send(&reflectionpb.ServerReflectionRequest{MessageRequest: &reflectionpb.ServerReflectionRequest_ListServices{}}); err != nil {
		t.Fatal(err)
	}
	list, err := stream.Recv()
	if err != nil || !strings.Contains(list.String(), "envoy.service.ratelimit.v3.RateLimitService") {
		t.Errorf("reflection: %v %v", list, err)
	}
	if err := stream.CloseSend(); err != nil {
		t.Error(err)
	}
	if _, err := stream.Recv(); err != io.EOF {
		t.Errorf("reflection ended with %v", err)
	}
}

// A request that is under way when the server is told to stop is answered, and
// Run returns only then.
func TestDrain(t *testing.T) {
	s := start(t, "limits:\n  - {name: a, rate: 5/hour}\n")
	conn, err := net.Dial("tcp", s.Addrs().HTTP.String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	body := `{"attributes":{}}`
	// Expect: 100-continue makes the server say that the handler is reading.
	if _, err := io.WriteString(conn, "POST /v1/take HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 17\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	r := bufio.NewReader(conn)
	if line, err := r.ReadString('\n'); err != nil || !strings.Contains(line, "100 Continue") {
		t.Fatalf("%q %v", line, err)
	}
	stopped := make(chan error, 1)
	go func() { stopped <- s.stop() }()
	// The health service tells of the end first.
	watch, err := healthpb.NewHealthClient(s.conn).Watch(context.Background(), &healthpb.HealthCheckRequest{})
	if err == nil {
		for {
			h, err := watch.Recv()
			if err != nil || h.Status == healthpb.HealthCheckResponse_NOT_SERVING {
				break
			}
		}
	}
	select {
	case err := <-stopped:
		t.Fatalf("Run returned with a request under way: %v", err)
	default:
	}
	if a := s.do("GET", s.admin+"/readyz", ""); a.status != 503 {
		t.Errorf("readyz is %d while draining", a.status)
	}
	if _, err := io.WriteString(conn, body); err != nil {
		t.Fatal(err)
	}
	if _, err := r.ReadString('\n'); err != nil { // the empty line behind 100 Continue
		t.Fatal(err)
	}
	if line, err := r.ReadString('\n'); err != nil || !strings.Contains(line, "200 OK") {
		t.Fatalf("%q %v", line, err)
	}
	if err := <-stopped; err != nil {
		t.Fatal(err)
	}
	if _, err := net.Dial("tcp", s.Addrs().HTTP.String()); err == nil {
		t.Fatal("the listener is still open")
	}
}

func TestDemoLimitsLoad(t *testing.T) {
	s := start(t, "", func(o *server.Options) { o.ConfigPaths = nil })
	for i := range 6 {
		if got, want := s.post("/v1/take", `{"attributes":{"ip":"192.0.2.7"}}`).status == 200, i < 5; got != want {
			t.Fatalf("request %d: allowed %v", i+1, got)
		}
	}
	if _, err := os.Stat(s.path); err != nil {
		t.Fatal(err)
	}
}
