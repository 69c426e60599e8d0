package server_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/stint-io/stint/server"
)

func get(t *testing.T, url string) (int, string) {
	t.Helper()
	resp, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(body)
}

// Probes made for Envoy's own service find what they ask for.
func TestEnvoyProbes(t *testing.T) {
	s := start(t, envoyConfig)
	if code, body := get(t, s.http+"/healthcheck"); code != 200 || body != "OK" {
		t.Errorf("/healthcheck: %d %q, want 200 OK", code, body)
	}
	h, err := healthpb.NewHealthClient(s.conn).Check(context.Background(), &healthpb.HealthCheckRequest{Service: "ratelimit"})
	if err != nil || h.Status != healthpb.HealthCheckResponse_SERVING {
		t.Errorf("gRPC health of ratelimit: %v, %v, want SERVING", h, err)
	}
	code, body := get(t, s.admin+"/rlconfig")
	if code != 200 {
		t.Fatalf("/rlconfig: %d", code)
	}
	for _, line := range []string{
		"edge.plain: unit=YEAR requests_per_unit=10, shadow_mode: false, quota_mode: false\n",
		"edge.free: unit=UNKNOWN requests_per_unit=0, shadow_mode: false, quota_mode: false\n",
		"edge.trial: unit=YEAR requests_per_unit=1, shadow_mode: true, quota_mode: false\n",
		"edge.outer.inner: unit=YEAR requests_per_unit=5, shadow_mode: false, quota_mode: false\n",
		"edge.q1: unit=YEAR requests_per_unit=1, shadow_mode: false, quota_mode: true\n",
	} {
		if strings.Count(body, line) != 1 {
			t.Errorf("/rlconfig has not once %q:\n%s", line, body)
		}
	}
	if n := strings.Count(body, "\n"); n != 17 || strings.Contains(body, "white") {
		t.Errorf("/rlconfig has %d lines, want one for each of the 17 rules with a rate_limit:\n%s", n, body)
	}
}

// A service that is not ready says so to probes made for Envoy's own service.
func TestHealthcheckWhileNotReady(t *testing.T) {
	s := start(t, envoyConfig, func(o *server.Options) { o.Store = "redis://127.0.0.1:1" })
	if code, body := get(t, s.http+"/healthcheck"); code != 500 || body != "" {
		t.Errorf("/healthcheck: %d %q, want 500", code, body)
	}
	h, err := healthpb.NewHealthClient(s.conn).Check(context.Background(), &healthpb.HealthCheckRequest{Service: "ratelimit"})
	if err != nil || h.Status != healthpb.HealthCheckResponse_NOT_SERVING {
		t.Errorf("gRPC health of ratelimit: %v, %v, want NOT_SERVING", h, err)
	}
}

// What Envoy's own service can be told for all requests, this one can.
func TestEnvoyModes(t *testing.T) {
	d := descriptor
	for name, c := range map[string]struct {
		set   func(*server.Options)
		steps []step
	}{
		"shadow": {func(o *server.Options) { o.RLSShadow = true }, []step{
			{request("edge", 3, d("exact=a")), "OK: OVER 0/2"},
			{request("edge", 1, d("exact=a"), d("plain=x")), "OK: OVER 0/2, OK 9/10"},
		}},
		"quota": {func(o *server.Options) { o.RLSQuota = true }, []step{
			{request("edge", 3, d("exact=a")), "OVER: OVER 0/2"},
			{request("edge", 1, d("exact=a"), d("plain=x")), "OK: OVER 0/2, OK 9/10"},
			{request("edge", 1, d("exact=a"), d("none=x")), "OK: OVER 0/2, OK -"},
			{request("edge", 1, d("exact=a"), d("free=x")), "OVER: OVER 0/2, OK max"},
			{request("edge", 1, d("exact=a"), d("blocked=x")), "OVER: OVER 0/2, OVER 0/0"},
		}},
		"count admitted": {func(o *server.Options) { o.RLSCountAdmitted = true }, []step{
			{request("edge", 6, d("plain=x")), "OK: OK 4/10"},
			{request("edge", 5, d("plain=x")), "OVER: OVER 0/10"},
			{request("edge", 4, d("plain=x"), d("exact=a")), "OVER: OK 4/10, OVER 0/2"},
			{request("edge", 4, d("plain=x")), "OK: OK 0/10"},
		}},
	} {
		t.Run(name, func(t *testing.T) {
			s := start(t, envoyConfig, c.set)
			for i, st := range c.steps {
				if got := short(s.should(st.req)); got != st.want {
					t.Errorf("step %d: got %s, want %s", i+1, got, st.want)
				}
			}
			if _, text := get(t, s.admin+"/metrics"); name == "shadow" && !strings.Contains(text, "\nstint_rls_shadowed_total 2\n") {
				t.Error("the metrics do not say that two answers were made OK")
			}
			if name == "shadow" != strings.Contains(s.log.String(), "--rls-shadow is set") {
				t.Errorf("whether all is answered OK is not in the log:\n%s", s.log)
			}
		})
	}
}

// A rule in shadow that is a quota has room as long as it is a shadow.
func TestShadowOfAQuota(t *testing.T) {
	s := start(t, `
domain: edge
descriptors:
  - {key: q, quota_mode: true, rate_limit: {unit: year, requests_per_unit: 0}}
  - {key: s, quota_mode: true, shadow_mode: true, rate_limit: {unit: year, requests_per_unit: 0}}
`)
	if got := short(s.should(request("edge", 1, descriptor("q=x"), descriptor("s=x")))); got != "OK: OVER 0/0, OK 0/0" {
		t.Errorf("got %s", got)
	}
	if got := short(s.should(request("edge", 1, descriptor("q=x")))); got != "OVER: OVER 0/0" {
		t.Errorf("got %s", got)
	}
}

// The names of the header fields can be chosen, as those of Envoy's own service.
func TestEnvoyHeaderNames(t *testing.T) {
	s := start(t, envoyConfig, func(o *server.Options) {
		o.RLSHeaders, o.RLSLimitHeader, o.RLSRemainingHeader, o.RLSResetHeader = true, "X-L", "X-Left", "X-Until"
	})
	var names []string
	for _, h := range s.should(request("edge", 1, descriptor("plain=x"))).ResponseHeadersToAdd {
		names = append(names, h.Key)
	}
	if got := strings.Join(names, " "); got != "X-L X-Left X-Until" {
		t.Errorf("header fields %s", got)
	}
	for want, o := range map[string]server.Options{
		"--rls-limit-header is":     {RLSHeaders: true, RLSLimitHeader: "a b"},
		"--rls-remaining-header is": {RLSHeaders: true, RLSRemainingHeader: "ä"},
		"--rls-reset-header is":     {RLSHeaders: true, RLSResetHeader: "a:"},
		"add --rls-headers":         {RLSLimitHeader: "X-L"},
		"--rls-near-limit is":       {RLSNearLimit: 1.5},
		"-0.5":                      {RLSNearLimit: -0.5},
	} {
		if _, err := server.New(o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %s", o, err, want)
		}
	}
}

// Several files of one domain are put together where that is wished, also at a
// reload, and are a fault where it is not.
func TestMergedDomains(t *testing.T) {
	dir := t.TempDir()
	write := func(file, key, value string) {
		text := fmt.Sprintf("domain: edge\ndescriptors:\n  - {key: %s, value: %q, rate_limit: {unit: year, requests_per_unit: 3}}\n", key, value)
		if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("a.yaml", "k", "1")
	write("b.yaml", "k", "2")
	if _, err := server.New(server.Options{ConfigPaths: []string{dir}}); err == nil || !strings.Contains(err.Error(), "duplicate domain 'edge'") || !strings.Contains(err.Error(), "--rls-merge-domains") {
		t.Errorf("two files of one domain: %v", err)
	}
	s := start(t, "", func(o *server.Options) { o.ConfigPaths, o.RLSMergeDomains = []string{dir}, true })
	check := func(want string) {
		t.Helper()
		if got := short(s.should(request("edge", 1, descriptor("k=1"), descriptor("k=2"), descriptor("k=3")))); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
	check("OK: OK 2/3, OK 2/3, OK -")
	write("c.yaml", "k", "3")
	if err := s.Reload(); err != nil {
		t.Fatal(err)
	}
	check("OK: OK 1/3, OK 1/3, OK 2/3")
	write("c.yaml", "k", "1")
	if err := s.Reload(); err == nil || !strings.Contains(err.Error(), "duplicate descriptor composite key 'edge.k_1'") {
		t.Errorf("a rule twice: %v", err)
	}
	check("OK: OK 0/3, OK 0/3, OK 1/3")
}

// The hits near a limit are counted, those of refused requests are not.
func TestNearLimit(t *testing.T) {
	s := start(t, envoyConfig, func(o *server.Options) { o.RLSNearLimit = 0.5 })
	for _, n := range []uint32{4, 3, 1, 5} { // near from the sixth on
		s.should(request("edge", n, descriptor("plain=x")))
	}
	if _, text := get(t, s.admin+"/metrics"); !strings.Contains(text, "\nstint_rls_near_limit_hits_total{limit=\"edge.plain\"} 3\n") {
		t.Error("the metrics do not say that three hits were near the limit")
	}
}
