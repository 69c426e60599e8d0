//go:build linux

// Package gateways_test runs the published gateway configurations for real: the
// stint binary, nginx, HAProxy and Caddy as Debian packages them, a small
// application behind them, and clients at addresses of their own.
package gateways_test

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/dunglas/httpsfv"

	"github.com/stint-io/stint/internal/gatewaytest"
)

// gateway is one published configuration and what its README promises.
type gateway struct {
	name  string
	start func(t *testing.T, s *service, app *application) (addr string)

	// unreachable is the status of a request while stint hangs or is dead.
	unreachable []int
	// waits: the gateway waits longer for a stint that hangs than a test can.
	waits bool
	// silent: the gateway passes no field of an admitted request on to its client.
	silent bool
	// own: the gateway writes its own status and fields, from the figures that it gets.
	own bool
	// strict: a request whose Connection field names one of the gateway's own is a 400.
	strict bool
	// aborted is the status of a request whose answer the application does not end; 0 = 502.
	aborted int
}

func gateways() []gateway {
	open := []int{http.StatusOK}
	return []gateway{
		{name: "nginx", start: in("nginx", gatewaytest.StartNginx), unreachable: open},
		{name: "haproxy", start: in("haproxy", gatewaytest.StartHAProxy), unreachable: open},
		{name: "haproxy spoe", start: startSPOE(false), unreachable: open},
		{name: "haproxy spoe fail-closed", start: startSPOE(true), unreachable: []int{http.StatusServiceUnavailable}},
		{name: "caddy", start: startCaddy("Caddyfile"), unreachable: []int{http.StatusBadGateway, http.StatusGatewayTimeout}},
		{name: "caddy fail-open", start: startCaddy("Caddyfile.failopen"), unreachable: open},
		{name: "traefik", start: startTraefik, unreachable: []int{http.StatusInternalServerError}, waits: true, silent: true},
		{name: "envoy ratelimit", start: startEnvoy("envoy.yaml"), unreachable: open, own: true, strict: true, aborted: http.StatusServiceUnavailable},
		{name: "envoy ext_authz", start: startEnvoy("ext-authz.yaml"), unreachable: open, strict: true, aborted: http.StatusServiceUnavailable},
	}
}

// in starts a gateway with the configuration in a folder.
func in(folder string, start func(testing.TB, string, *service, *application) string) func(*testing.T, *service, *application) string {
	return func(t *testing.T, s *service, app *application) string { return start(t, folder, s, app) }
}

func startSPOE(closed bool) func(*testing.T, *service, *application) string {
	return func(t *testing.T, s *service, app *application) string {
		return gatewaytest.StartSPOE(t, "haproxy", closed, s, app)
	}
}

func startCaddy(file string) func(*testing.T, *service, *application) string {
	return func(t *testing.T, s *service, app *application) string {
		return gatewaytest.StartCaddy(t, "caddy", file, s, app)
	}
}

func startTraefik(t *testing.T, s *service, app *application) string {
	return gatewaytest.StartTraefik(t, traefikBinary, "traefik", s, app)
}

func startEnvoy(file string) func(*testing.T, *service, *application) string {
	return func(t *testing.T, s *service, app *application) string {
		return gatewaytest.StartEnvoy(t, envoyBinary, "envoy", file, s, app)
	}
}

// unreachableBound is how long a request may take while stint cannot be asked.
// The configurations wait for 50 ms to connect and 100 ms for an answer; the rest
// is for a busy machine.
const unreachableBound = 2 * time.Second

// TestGateways holds every promise of this folder's READMEs that does not need
// the service to fail.
func TestGateways(t *testing.T) {
	for _, g := range gateways() {
		t.Run(g.name, func(t *testing.T) {
			app := gatewaytest.StartApplication(t)
			s := startStint(t, "limits.yaml")
			s.Timeout = "1s" // a busy machine does not always answer in time
			gate := g.journey(t, s, app)

			gate.fivePassAndTheSixthIsRefused("127.0.0.2")
			gate.forgeriesDoNotHelp("127.0.0.2")
			gate.sameBucketOverGRPC(s, "127.0.0.2", "127.0.0.3")
			gate.applicationErrorsAreLeftAlone("127.0.0.4")
		})
	}
}

// TestServiceHungAndDead stops the service with SIGSTOP and SIGKILL: requests pass
// or fail as documented, in bounded time, and nothing is forgotten in between.
func TestServiceHungAndDead(t *testing.T) {
	for _, g := range gateways() {
		t.Run(g.name, func(t *testing.T) {
			app := gatewaytest.StartApplication(t)
			s := startStint(t, "limits.yaml")
			gate := g.journey(t, s, app)
			gatewaytest.Eventually(t, "the client to have spent its five", func() bool {
				return gate.send("127.0.0.2", http.MethodGet, "/", nil, nil).status == http.StatusTooManyRequests
			})

			if !g.waits {
				s.Hang(t)
				gate.serviceUnreachable("hung", g.unreachable)
				s.Signal(t, syscall.SIGCONT)
				// HAProxy may have marked the service down and takes a moment to
				// see it again.
				gatewaytest.Eventually(t, "the resumed service to refuse the spent client", func() bool {
					return gate.send("127.0.0.2", http.MethodGet, "/", nil, nil).status == http.StatusTooManyRequests
				})
			}

			s.Kill(t)
			gate.serviceUnreachable("dead", g.unreachable)
		})
	}
}

// TestNginxAsksTwiceAndIsChargedOnce: an index file is an internal redirect, which
// passes nginx's access phase again.
func TestNginxAsksTwiceAndIsChargedOnce(t *testing.T) {
	app := gatewaytest.StartApplication(t)
	s := startStint(t, "limits.yaml")
	gate := &journey{t: t, app: app, url: "http://" + gatewaytest.StartNginx(t, "nginx", s, app)}
	for want := int64(4); want >= 0; want-- {
		a := gate.send("127.0.0.2", http.MethodGet, "/static/", nil, nil)
		if a.status != http.StatusOK || string(a.body) != "the index" {
			t.Fatalf("got %v, want the index", a)
		}
		if got := a.remaining(t); got != want {
			t.Fatalf("remaining is %d, want %d: one request is charged once", got, want)
		}
	}
	if a := gate.send("127.0.0.2", http.MethodGet, "/static/", nil, nil); a.status != http.StatusTooManyRequests {
		t.Fatalf("got %v, want 429", a)
	}
}

// journey is what clients do at one gateway.
type journey struct {
	t   *testing.T
	app *application
	url string
	gateway
}

// journey starts the gateway.
func (g gateway) journey(t *testing.T, s *service, app *application) *journey {
	t.Helper()
	return &journey{t: t, app: app, url: "http://" + g.start(t, s, app), gateway: g}
}

func (j *journey) fivePassAndTheSixthIsRefused(client string) {
	t := j.t
	t.Helper()
	body := bytes.Repeat([]byte("x"), 48_000)
	for want := int64(4); want >= 0; want-- {
		method, payload := http.MethodGet, []byte(nil)
		if want%2 == 1 {
			method, payload = http.MethodPost, body
		}
		a := j.send(client, method, "/five?cost=0&q=1", nil, payload)
		told := fmt.Sprintf("application: %s /five?cost=0&q=1 with %d bytes", method, len(payload))
		if a.status != http.StatusOK || string(a.body) != told {
			t.Fatalf("got %v, want 200 and %q", a, told)
		}
		if j.silent {
			continue
		}
		if got := a.remaining(t); got != want {
			t.Fatalf("remaining is %d, want %d", got, want)
		}
		a.policyIsFivePerMinute(t)
	}
	a := j.send(client, http.MethodGet, "/sixth", nil, nil)
	if a.status != http.StatusTooManyRequests {
		t.Fatalf("the sixth request: got %v, want 429", a)
	}
	if got := a.remaining(t); got != 0 {
		t.Errorf("remaining of a refusal is %d, want 0", got)
	}
	a.policyIsFivePerMinute(t)
	if s, err := strconv.Atoi(a.header.Get("Retry-After")); err != nil || s < 1 || s > 60 {
		t.Errorf("Retry-After is %q, want 1 to 60 seconds", a.header.Get("Retry-After"))
	}
	if ct := a.header.Get("Content-Type"); !j.own && !strings.HasPrefix(ct, "application/problem+json") {
		t.Errorf("Content-Type of a refusal is %q, want application/problem+json", ct)
	}
	if n := j.app.Count("/sixth"); n != 0 {
		t.Errorf("the refused request reached the application %d times", n)
	}
}

// forgeriesDoNotHelp tries what a client would do to be taken for another one, or
// for a repeat of a request that was let through.
func (j *journey) forgeriesDoNotHelp(spent string) {
	j.t.Helper()
	for _, forged := range []http.Header{
		{"X-Forwarded-For": {"203.0.113.9"}},
		{"X-Forwarded-For": {"203.0.113.9", "203.0.113.10"}},
		{"X-Forwarded-For": {"203.0.113.9, 127.0.0.1"}},
		{"Forwarded": {"for=203.0.113.9"}},
		{"Forwarded": {`for="[2001:db8::1]";by=127.0.0.1`}},
		{"X-Real-Ip": {"203.0.113.9"}},
		{"X-Forwarded-Uri": {"/elsewhere"}, "X-Original-Uri": {"/elsewhere"}, "X-Original-Url": {"http://elsewhere/"}},
		{"X-Forwarded-Host": {"elsewhere"}, "X-Forwarded-Method": {"OPTIONS"}, "X-Original-Method": {"OPTIONS"}},
		{"X-Request-Id": {"one"}},
		{"X-Request-Id": {"one"}, "Forwarded": {"for=203.0.113.9"}},
		{"Connection": {"X-Forwarded-For"}},
		{"X-Stint-Status": {"200"}, "Ratelimit": {`"forged";r=9`}},
	} {
		a := j.send(spent, http.MethodGet, "/forged", forged, nil)
		want := http.StatusTooManyRequests
		if j.strict && forged.Get("Connection") != "" {
			want = http.StatusBadRequest
		}
		if a.status != want {
			j.t.Errorf("with %v: got %v, want %d", forged, a, want)
		}
	}
	// The same id from a client that is not spent is not worth another's answer
	// either: each request is charged.
	for want := int64(4); want >= 0; want-- {
		a := j.send("127.0.0.9", http.MethodGet, "/", http.Header{"X-Request-Id": {"same"}}, nil)
		if j.silent {
			continue
		}
		if got := a.remaining(j.t); got != want {
			j.t.Errorf("with a repeated X-Request-Id: remaining is %d, want %d", got, want)
		}
	}
	if a := j.send("127.0.0.9", http.MethodGet, "/", http.Header{"X-Request-Id": {"same"}}, nil); a.status != http.StatusTooManyRequests {
		j.t.Errorf("the sixth request with a repeated X-Request-Id: %v", a)
	}
	if n := j.app.Count("/forged"); n != 0 {
		j.t.Errorf("%d forged requests reached the application", n)
	}
}

// sameBucketOverGRPC: a client that the gateway has seen spends the same bucket
// through Envoy's protocol, and the other way round.
func (j *journey) sameBucketOverGRPC(s *service, spent, fresh string) {
	j.t.Helper()
	if code := shouldRateLimit(j.t, s, "any", "ip", spent); code != "OVER_LIMIT" {
		j.t.Errorf("ShouldRateLimit for the spent client: %s, want OVER_LIMIT", code)
	}
	for i := range 5 {
		if code := shouldRateLimit(j.t, s, "any", "ip", fresh); code != "OK" {
			j.t.Errorf("ShouldRateLimit %d for a fresh client: %s, want OK", i+1, code)
		}
	}
	if a := j.send(fresh, http.MethodGet, "/", nil, nil); a.status != http.StatusTooManyRequests {
		j.t.Errorf("the client that spent its five over gRPC: got %v, want 429", a)
	}
}

// applicationErrorsAreLeftAlone: a 403 of the application is not a refusal of
// stint's, and its death is not stint's either: it gets no request twice.
func (j *journey) applicationErrorsAreLeftAlone(client string) {
	j.t.Helper()
	a := j.send(client, http.MethodGet, "/forbidden", nil, nil)
	if a.status != http.StatusForbidden || !strings.HasPrefix(string(a.body), "application:") {
		j.t.Errorf("the application's own 403 became %v", a)
	}
	a = j.send(client, http.MethodPost, "/abort", nil, []byte("x"))
	if want := cmp.Or(j.aborted, http.StatusBadGateway); a.status != want {
		j.t.Errorf("the application's death became %v, want %d", a, want)
	}
	if n := j.app.Count("/abort"); n != 1 {
		j.t.Errorf("the application got the request %d times, want once", n)
	}
}

func (j *journey) serviceUnreachable(state string, want []int) {
	j.t.Helper()
	path := "/" + state
	var slowest time.Duration
	for i, method := range []string{http.MethodGet, http.MethodPost, http.MethodGet} {
		payload := []byte(nil)
		if method == http.MethodPost {
			payload = bytes.Repeat([]byte("x"), 48_000)
		}
		before := j.app.Count(path)
		a := j.send("127.0.0.5", method, path, nil, payload)
		slowest = max(slowest, a.took)
		if !slices.Contains(want, a.status) {
			j.t.Errorf("service %s, request %d: got %v, want %v", state, i+1, a, want)
		}
		if a.took > unreachableBound {
			j.t.Errorf("service %s, request %d took %v, want at most %v", state, i+1, a.took, unreachableBound)
		}
		reached := j.app.Count(path) - before
		if passed := a.status == http.StatusOK; passed != (reached == 1) || reached > 1 {
			j.t.Errorf("service %s, request %d: status %d, but it reached the application %d times", state, i+1, a.status, reached)
		}
		if a.status == http.StatusOK && !strings.HasSuffix(string(a.body), fmt.Sprintf("with %d bytes", len(payload))) {
			j.t.Errorf("service %s: the application got %q", state, a.body)
		}
		if rl := a.header.Get("RateLimit"); rl != "" {
			j.t.Errorf("service %s: RateLimit is %q, want none", state, rl)
		}
	}
	j.t.Logf("service %s: slowest answer in %v", state, slowest)
}

// answer is what a client got.
type answer struct {
	status int
	header http.Header
	body   []byte
	took   time.Duration
}

func (a answer) String() string {
	return fmt.Sprintf("%d in %v, %v, %.200q", a.status, a.took, a.header, a.body)
}

// remaining reads the RateLimit field as a client would.
func (a answer) remaining(t *testing.T) int64 {
	t.Helper()
	if n, err := strconv.ParseInt(a.header.Get("X-RateLimit-Remaining"), 10, 64); err == nil && a.header.Get("RateLimit") == "" {
		return n // as Envoy writes it
	}
	item := a.onlyItem(t, "RateLimit")
	r, _ := item.Params.Get("r")
	n, ok := r.(int64)
	if !ok {
		t.Fatalf("RateLimit %q has no remaining", a.header.Get("RateLimit"))
	}
	return n
}

func (a answer) policyIsFivePerMinute(t *testing.T) {
	t.Helper()
	if text := a.header.Get("X-RateLimit-Limit"); text == `5, 5;w=60;name="per-client", 5;w=60;name="per-client"` && a.header.Get("RateLimit-Policy") == "" {
		return // as Envoy writes it, of both descriptors
	}
	item := a.onlyItem(t, "RateLimit-Policy")
	q, _ := item.Params.Get("q")
	w, _ := item.Params.Get("w")
	if item.Value != "per-client" || q != int64(5) || w != int64(60) {
		t.Errorf(`RateLimit-Policy is %q, want "per-client";q=5;w=60`, a.header.Get("RateLimit-Policy"))
	}
}

func (a answer) onlyItem(t *testing.T, field string) httpsfv.Item {
	t.Helper()
	list, err := httpsfv.UnmarshalList(a.header.Values(field))
	if err != nil || len(list) != 1 {
		t.Fatalf("%s is %q in %v, want one item: %v", field, a.header.Values(field), a, err)
	}
	item, ok := list[0].(httpsfv.Item)
	if !ok {
		t.Fatalf("%s is %q, want an item", field, a.header.Values(field))
	}
	return item
}

// send makes one request from a loopback address of the client's own.
func (j *journey) send(client, method, path string, header http.Header, body []byte) answer {
	j.t.Helper()
	req, err := http.NewRequestWithContext(j.t.Context(), method, j.url+path, bytes.NewReader(body))
	if err != nil {
		j.t.Fatal(err)
	}
	for name, values := range header {
		req.Header[name] = values
	}
	dialer := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(client)}}
	transport := &http.Transport{DialContext: dialer.DialContext}
	defer transport.CloseIdleConnections()
	begin := time.Now()
	asIs := func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	res, err := (&http.Client{Transport: transport, Timeout: gatewaytest.Patience, CheckRedirect: asIs}).Do(req)
	if err != nil {
		j.t.Fatalf("%s %s from %s: %v", method, path, client, err)
	}
	defer res.Body.Close()
	got, err := io.ReadAll(res.Body)
	if err != nil {
		j.t.Fatalf("%s %s from %s: reading the answer: %v", method, path, client, err)
	}
	return answer{res.StatusCode, res.Header, got, time.Since(begin)}
}

func writeFile(t *testing.T, name, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}
