//go:build linux

package gateways_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stint-io/stint/internal/gatewaytest"
)

// shouldRateLimit asks through grpcurl, which learns the service by reflection, as
// a person would.
func shouldRateLimit(t *testing.T, s *service, domain, key, value string) (code string) {
	t.Helper()
	request := map[string]any{
		"domain": domain,
		"descriptors": []any{map[string]any{
			"entries": []any{map[string]any{"key": key, "value": value}},
		}},
	}
	body, err := json.Marshal(request)
	if err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), grpcurlBinary, "-plaintext", "-d", string(body), s.GRPC,
		"envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit").CombinedOutput()
	if err != nil {
		t.Fatalf("grpcurl: %v\n%s", err, out)
	}
	var response struct {
		OverallCode string
		Statuses    []struct{ Code string }
	}
	if err := json.Unmarshal(out, &response); err != nil {
		t.Fatalf("grpcurl: %v\n%s", err, out)
	}
	if len(response.Statuses) != 1 || response.Statuses[0].Code != response.OverallCode {
		t.Fatalf("want one status that agrees with the whole:\n%s", out)
	}
	return response.OverallCode
}

// TestEnvoyLimits: the limits file in Envoy's format beside envoy.yaml.
func TestEnvoyLimits(t *testing.T) {
	s := startStint(t, filepath.Join("envoy", "limits.yaml"))
	minute := func() time.Time { return time.Now().Truncate(time.Minute) }
	for begin := minute(); ; begin = minute() { // again if a minute has ended, and a new one counts anew
		client := fmt.Sprintf("192.0.2.%d", 100+begin.Minute())
		for i := range 5 {
			if code := shouldRateLimit(t, s, "edge", "remote_address", client); code != "OK" {
				t.Fatalf("request %d: %s, want OK", i+1, code)
			}
		}
		code := shouldRateLimit(t, s, "edge", "remote_address", client)
		if minute() != begin {
			continue
		}
		if code != "OVER_LIMIT" {
			t.Errorf("request 6: %s, want OVER_LIMIT", code)
		}
		break
	}
	if code := shouldRateLimit(t, s, "edge", "remote_address", "192.0.2.8"); code != "OK" {
		t.Errorf("another client: %s, want OK", code)
	}
	if code := shouldRateLimit(t, s, "elsewhere", "remote_address", "192.0.2.7"); code != "OK" {
		t.Errorf("another domain: %s, want OK", code)
	}
}

// TestEnvoyConfigurations has Envoy itself check every published file.
func TestEnvoyConfigurations(t *testing.T) {
	files, err := filepath.Glob("envoy/*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	checked := 0
	for _, name := range files {
		if strings.HasSuffix(name, "limits.yaml") {
			continue
		}
		checked++
		if out, err := exec.CommandContext(t.Context(), envoyBinary, "--mode", "validate", "-c", name, "--log-level", "error").CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", name, err, out)
		}
	}
	if checked < 4 {
		t.Errorf("%d files were checked: the search is wrong", checked)
	}
}

// TestEnvoyTokens: with the published files the tokens that an answer says it has used are charged when it has ended, and
// before it a request costs nothing. A request without a key is refused, and an answer that says nothing is free.
func TestEnvoyTokens(t *testing.T) {
	app := gatewaytest.StartApplication(t)
	limits := filepath.Join(t.TempDir(), "limits.yaml")
	text, err := os.ReadFile(filepath.Join("envoy", "tokens-limits.yaml"))
	if err != nil || strings.Count(string(text), "1M/hour") != 1 {
		t.Fatal(err)
	}
	writeFile(t, limits, strings.Replace(string(text), "1M/hour", "10/year", 1))
	s := startStint(t, limits)
	s.Timeout = "2s" // a busy machine does not always answer in time
	j := &journey{t: t, app: app, url: "http://" + gatewaytest.StartEnvoy(t, envoyBinary, "envoy", "tokens.yaml", s, app)}
	spent := func(key string) (n int64) {
		body := fmt.Sprintf(`{"attributes":{"header:x-api-key":%q},"cost":0}`, key)
		res, err := http.Post("http://"+s.HTTP+"/v1/take", "application/json", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		return 10 - answer{header: res.Header}.remaining(t)
	}
	ask := func(key, body string, charged int64) answer {
		t.Helper()
		before := int64(0)
		header := http.Header{}
		if key != "" {
			before = spent(key)
			header.Set("X-Api-Key", key)
		}
		a := j.send("127.0.0.2", http.MethodPost, "/json", header, []byte(body))
		if key != "" {
			want := min(before+charged, 10) // what is owed beyond is not shown
			gatewaytest.Eventually(t, fmt.Sprintf("%d tokens to be charged for %s", charged, body), func() bool { return spent(key) == want })
		}
		return a
	}
	for i, step := range []struct {
		key, body string
		charged   int64
		status    int
	}{
		{"acme", `{"usage":{"total_tokens":6}}`, 6, http.StatusOK},
		{"acme", `{"usage":{}}`, 0, http.StatusOK},
		{"acme", `not JSON`, 0, http.StatusOK},
		{"acme", `{"usage":{"total_tokens":0}}`, 0, http.StatusOK},
		{"acme", `{"usage":{"total_tokens":6}}`, 6, http.StatusOK},
		{"acme", `{"usage":{"total_tokens":6}}`, 0, http.StatusTooManyRequests},
		{"other", `{"usage":{"total_tokens":1}}`, 1, http.StatusOK},
		{"", `{"usage":{"total_tokens":1}}`, 0, http.StatusTooManyRequests},
	} {
		if a := ask(step.key, step.body, step.charged); a.status != step.status {
			t.Fatalf("request %d, %+v: %v", i+1, step, a)
		}
	}
}

// TestEnvoyAuthorizes: what only the published file for ext_authz can carry arrives, and a field that is there twice or is
// empty is read as the application reads it.
func TestEnvoyAuthorizes(t *testing.T) {
	limits := filepath.Join(t.TempDir(), "limits.yaml")
	writeFile(t, limits, `
limits:
  - {name: down, match: {path: /down}, rate: 1/h, on_exceed: {reject: {status: 503, body: "<p>busy</p>", content_type: text/html, header: {X-Reason: quota}}}}
  - {name: keys, match: {path: /keys}, key: ["header:x-api-key"], missing: reject, rate: 1/h}
  - {name: site, match: {host: api.example.com}, rate: 1/h}
`)
	app := gatewaytest.StartApplication(t)
	s := gatewaytest.StartService(t, stintBinary, limits, "--http-host", "api.example.com")
	gatewaytest.AwaitReady(t, s.Admin)
	s.Timeout = "2s"
	j := &journey{t: t, app: app, url: "http://" + gatewaytest.StartEnvoy(t, envoyBinary, "envoy", "ext-authz.yaml", s, app)}
	get := func(path string, header http.Header) answer {
		return j.send("127.0.0.2", http.MethodGet, path, header, nil)
	}
	if a := get("/down", nil); a.status != http.StatusOK {
		t.Errorf("%v", a)
	}
	for range 3 {
		// Envoy takes a 503 of its authorization service for an outage.
		if a := get("/down", nil); a.status != http.StatusTooManyRequests || a.header.Get("X-Stint-Status") != "503" || string(a.body) != "<p>busy</p>" ||
			!strings.HasPrefix(a.header.Get("Content-Type"), "text/html") || a.header.Get("X-Reason") != "quota" {
			t.Errorf("over the limit: %v", a)
		}
	}
	for i, step := range []struct {
		keys   []string
		status int
	}{{[]string{"a"}, 200}, {[]string{"a"}, 429}, {[]string{"a", "new"}, 429}, {[]string{"new", "a"}, 200}, {nil, 429}, {[]string{""}, 429}} {
		if a := get("/keys", http.Header{"X-Api-Key": step.keys}); a.status != step.status {
			t.Errorf("request %d, with %q: %v, want %d", i+1, step.keys, a, step.status)
		}
	}
	// Under the name of a site, which is not the service's own.
	for _, want := range []int{200, 429} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, j.url+"/", http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		req.Host = "api.example.com"
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		if res.StatusCode != want {
			t.Errorf("under the name of a site: %d, want %d", res.StatusCode, want)
		}
	}
}

// TestEnvoyTwoServices: with the published file Envoy leaves out one of two services that was killed or that hangs, and
// takes it again when it is back. While one drains no request goes without a decision.
func TestEnvoyTwoServices(t *testing.T) {
	limits := filepath.Join(t.TempDir(), "limits.yaml")
	writeFile(t, limits, "limits:\n  - {name: per-client, key: [ip], rate: 1M/h}\n")
	for _, fault := range []struct {
		name   string
		begin  func(*service)
		end    func(*service)
		drains bool // no request is lost
	}{
		{"killed", func(s *service) { s.Kill(t) }, func(s *service) { s.Restart(t) }, false},
		{"hung", func(s *service) { s.Hang(t) }, func(s *service) { s.Signal(t, syscall.SIGCONT) }, false},
		{"drained", func(s *service) { s.Signal(t, syscall.SIGTERM); s.AwaitEnd(t) }, func(s *service) { s.Restart(t) }, true},
	} {
		t.Run(fault.name, func(t *testing.T) {
			app := gatewaytest.StartApplication(t)
			start := func() *service {
				s := gatewaytest.StartService(t, stintBinary, limits, "--drain-delay", "2s")
				gatewaytest.AwaitReady(t, s.Admin)
				s.Timeout = "1s" // a busy machine does not always answer in time
				return s
			}
			stays, goes := start(), start()
			url := "http://" + gatewaytest.StartEnvoy(t, envoyBinary, "envoy", "envoy.yaml", stays, app, goes) + "/"
			decided := func() bool {
				res, err := http.Get(url)
				if err != nil {
					t.Fatal(err)
				}
				defer res.Body.Close()
				if _, err := io.Copy(io.Discard, res.Body); err != nil || res.StatusCode != http.StatusOK {
					t.Fatalf("%d, %v", res.StatusCode, err)
				}
				return res.Header.Get("X-RateLimit-Limit") != "" // Envoy has no figures without a decision
			}
			row := func(n int) bool { // n decisions, one after the other
				for range n {
					if !decided() {
						return false
					}
				}
				return true
			}
			gatewaytest.Eventually(t, "both services to decide", func() bool { return row(20) })
			if fault.drains {
				ended := make(chan struct{})
				go func() {
					defer close(ended)
					fault.begin(goes)
				}()
				for asked := 0; ; asked++ {
					if !decided() {
						t.Fatalf("request %d of the drain has no decision", asked+1)
					}
					select {
					case <-ended:
						t.Logf("%d requests were decided during the drain", asked)
					default:
						continue
					}
					break
				}
			} else {
				fault.begin(goes)
				begin, last := time.Now(), time.Duration(0)
				gatewaytest.Eventually(t, "Envoy to leave the service out", func() bool {
					if row(30) {
						return true
					}
					last = time.Since(begin)
					return false
				})
				t.Logf("the last request without a decision was %v after the fault", last.Round(time.Millisecond))
			}
			// It stays out for as long as it is gone.
			if !row(300) {
				t.Errorf("a request has no decision though one service is well")
			}
			fault.end(goes)
			gatewaytest.AwaitReady(t, goes.Admin)
			gatewaytest.Eventually(t, "Envoy to ask the service that is back", func() bool { return row(10) && answered(t, goes) })
		})
	}
}

// answered reports whether the service has given an answer to Envoy since it began.
func answered(t *testing.T, s *service) bool {
	t.Helper()
	res, err := http.Get("http://" + s.Admin + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return !strings.Contains(string(text), "stint_rls_responses_total{code=\"OK\"} 0\n")
}
