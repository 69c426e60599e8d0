package admin

import (
	"errors"
	"fmt"
	"iter"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/stint-io/stint/internal/engine"
	"github.com/stint-io/stint/internal/tally"
	"github.com/stint-io/stint/limit"
)

// port is the admin handler with answers that the test sets.
type port struct {
	ready   bool
	text    string
	fault   error
	reloads int
	o       Options
}

func newPort() *port {
	p := &port{ready: true}
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(NewCollector(func() iter.Seq[tally.Tally] { return func(func(tally.Tally) bool) {} }, func() Figures { return Figures{Version: "v7"} }))
	p.o = Options{
		Metrics: registry,
		Ready:   func() (bool, string) { return p.ready, p.text },
		Reload:  func() error { p.reloads++; return p.fault },
	}
	return p
}

func (p *port) ask(method, path string, header ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, path, nil)
	r.Host = "127.0.0.1:8082"
	for i := 0; i < len(header); i += 2 {
		if header[i] == "Host" {
			r.Host = header[i+1]
		}
		r.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	New(p.o).ServeHTTP(w, r)
	return w
}

func want(t *testing.T, w *httptest.ResponseRecorder, code int, body string) {
	t.Helper()
	if w.Code != code || !strings.Contains(w.Body.String(), body) {
		t.Errorf("answered %d %q, want %d with %q", w.Code, w.Body, code, body)
	}
}

func TestHealthAndReadiness(t *testing.T) {
	p := newPort()
	want(t, p.ask("GET", "/healthz"), 200, "ok\n")
	want(t, p.ask("GET", "/readyz"), 200, "ready\n")
	p.text = "the store is slow"
	want(t, p.ask("GET", "/readyz"), 200, "degraded: the store is slow\n")
	p.ready = false
	want(t, p.ask("GET", "/readyz"), 503, "not ready: the store is slow\n")
	want(t, p.ask("GET", "/healthz"), 200, "ok\n")
	for _, path := range []string{"/readyz", "/healthz"} {
		w := p.ask("POST", path)
		want(t, w, 405, "")
		if allow := w.Header().Get("Allow"); allow != "GET, HEAD" {
			t.Errorf("POST %s: Allow is %q", path, allow)
		}
	}
	want(t, p.ask("GET", "/nothing"), 404, "the dashboard is at /ui, metrics at /metrics")
	want(t, p.ask("POST", "/metrics"), 405, "")
}

func TestReload(t *testing.T) {
	p := newPort()
	want(t, p.ask("GET", "/admin/reload"), 405, "")
	if p.reloads != 0 {
		t.Error("a GET reloads")
	}
	want(t, p.ask("POST", "/admin/reload"), 200, "reloaded\n")
	p.fault = errors.New("line 3 is wrong")
	want(t, p.ask("POST", "/admin/reload"), 422, "line 3 is wrong\n")
	if p.reloads != 2 {
		t.Errorf("%d reloads, want 2", p.reloads)
	}
}

// What there is depends on the options: leases, profiles, metrics.
func TestWhatIsServed(t *testing.T) {
	p := newPort()
	want(t, p.ask("GET", "/metrics"), 200, `stint_build_info{version="v7"} 1`)
	profiles := []string{"/debug/pprof/", "/debug/pprof/cmdline", "/debug/pprof/symbol", "/debug/pprof/profile?seconds=0", "/debug/pprof/trace?seconds=0"}
	for _, path := range append(slices.Clone(profiles), "/v1/leases") {
		want(t, p.ask("GET", path), 404, "")
	}
	p.o.Leases = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, "lent "+r.URL.RawQuery) })
	want(t, p.ask("GET", "/v1/leases?limit=a"), 200, "lent limit=a")
	want(t, p.ask("POST", "/v1/leases"), 405, "")
	p.o.Profiles = true
	for _, path := range profiles[:3] {
		want(t, p.ask("GET", path), 200, "")
	}
}

// With a token everything but health and readiness asks for it, profiles and leases too.
func TestToken(t *testing.T) {
	p := newPort()
	p.o.Token, p.o.Profiles = "open sesame", true
	p.o.Leases = http.NotFoundHandler()
	for _, path := range []string{"/healthz", "/readyz"} {
		want(t, p.ask("GET", path), 200, "")
	}
	for _, path := range []string{"/metrics", "/v1/leases", "/debug/pprof/", "/nothing"} {
		for _, given := range []string{"", "open sesame", "Bearer ", "Bearer open", "Bearer open sesame ", "bearer open sesame", "Basic open sesame"} {
			w := p.ask("GET", path, "Authorization", given)
			want(t, w, 401, "token")
			if w.Header().Get("WWW-Authenticate") != "Bearer" {
				t.Errorf("%s: the answer does not say how to authenticate: %v", path, w.Header())
			}
		}
	}
	want(t, p.ask("POST", "/admin/reload"), 401, "")
	if p.reloads != 0 {
		t.Error("reloaded without the token")
	}
	want(t, p.ask("GET", "/metrics", "Authorization", "Bearer open sesame"), 200, "stint_")
	want(t, p.ask("POST", "/admin/reload", "Authorization", "Bearer open sesame"), 200, "")
}

func TestHosts(t *testing.T) {
	p := newPort()
	p.o.Hosts = []string{"Stint.Internal"}
	for host, code := range map[string]int{
		"": 200, "localhost": 200, "LOCALHOST:1": 200, "localhost.": 200, "10.0.0.1": 200, "10.0.0.1:99": 200, "[::1]": 200, "[2001:db8::1]:99": 200,
		"stint.internal": 200, "STINT.internal.:8082": 200, "stint": 421, "evil.example": 421, "localhost.evil.example:8082": 421, "xstint.internal": 421, "10.0.0.1.evil.example": 421, "a:b:c": 421,
	} {
		if w := p.ask("GET", "/readyz", "Host", host); w.Code != code {
			t.Errorf("as %q: %d, want %d", host, w.Code, code)
		}
	}
}

// A page in somebody's browser reloads nothing.
func TestOtherOrigins(t *testing.T) {
	p := newPort()
	want(t, p.ask("POST", "/admin/reload", "Origin", "https://evil.example"), 403, "")
	want(t, p.ask("POST", "/admin/reload", "Sec-Fetch-Site", "cross-site"), 403, "")
	want(t, p.ask("POST", "/admin/reload", "Origin", "http://127.0.0.1:8082"), 200, "")
	if p.reloads != 1 {
		t.Errorf("%d reloads, want 1", p.reloads)
	}
}

// everyFigure has a value of its own in each place.
func everyFigure() (Figures, tally.Tally) {
	f := Figures{
		Version: "v1", Limits: 3, ReloadOK: true, ReloadTime: 1234.5, ReloadErrors: 4, ReloadAttempts: 5,
		StoreKeys: 6, StoreBytes: 7, StoreMaxBytes: 8, StoreOverflows: map[string]int64{"a": 9}, RLSOK: 10, RLSOverLimit: 11, RLSErrors: 12,
		NotReturned: 13,
		Shared: &SharedStore{
			Up: true, Calls: 14, Called: 15, Failures: 16, Timeouts: 17, LocalRefusals: 18, RoundTrip: 0.019, BreakersOpen: 20, Instances: 21,
		},
		Leases: &Leases{
			Streams: 22, Instances: 23, Resources: 24, Unlent: 62, Asks: 63, Reports: 25, Grants: 26, StreamsRefused: 27, Expired: 28, Failures: 29, Refused: map[string]uint64{"unknown_limit": 30},
			Usage: []LeaseUsage{{Limit: "a", Admitted: 60, Refused: 61}},
			Limits: []LeasedLimit{
				{Limit: "a", Capacity: 31, Lent: 32, Wanted: 33, Free: 34, SaturatedSeconds: 35},
				{Limit: "b", Suppressed: true, Reject: 0.36},
			},
		},
	}
	f.RLSShadowed = 50
	a := tally.Tally{Limit: "a", Allowed: 40, Soft: 41, NearLimit: 51}
	a.Refused[limit.ReasonRate], a.Refused[limit.ReasonBanned], a.ShadowRefused[limit.ReasonCost] = 45, 46, 47
	a.Unlimited[engine.MissingKey], a.Unlimited[engine.ConditionFailed], a.Unlimited[engine.StoreFailed], a.Unlimited[engine.NoCoordinator] = 48, 49, 42, 43
	f.Unlimited = []uint64{engine.NoService: 52, engine.NoMatch: 53, engine.UnknownDomain: 44}
	return f, a
}

// Each figure is a metric of its own: no two are confused, and no limit's label stands
// for another's.
func TestMetrics(t *testing.T) {
	f, a := everyFigure()
	tallies := func() iter.Seq[tally.Tally] { return slices.Values([]tally.Tally{a, {Limit: "b"}}) }
	lines := scrape(t, NewCollector(tallies, func() Figures { return f }))
	for _, line := range strings.Split(strings.TrimSpace(`
stint_build_info{version="v1"} 1
stint_config_limits 3
stint_config_last_reload_successful 1
stint_config_last_reload_success_timestamp_seconds 1234.5
stint_config_load_errors_total 4
stint_config_reloads_total 5
stint_store_keys 6
stint_store_bytes 7
stint_store_max_bytes 8
stint_store_overflow_takes_total{limit="a"} 9
stint_rls_responses_total{code="OK"} 10
stint_rls_responses_total{code="OVER_LIMIT"} 11
stint_rls_responses_total{code="error"} 12
stint_store_not_returned_total 13
stint_store_up 1
stint_store_calls_total 14
stint_store_call_failures_total 16
stint_store_timeouts_total 17
stint_store_local_refusals_total 18
stint_store_round_trip_seconds 0.019
stint_store_breaker_open 20
stint_store_instances 21
stint_lease_streams 22
stint_lease_instances 23
stint_lease_resources 24
stint_lease_recovering 0
stint_lease_asked_keys 62
stint_lease_asks_total 63
stint_lease_reports_total 25
stint_lease_grants_total 26
stint_lease_streams_refused_total 27
stint_lease_expired_total 28
stint_lease_failures_total 29
stint_lease_refused_total{status="unknown_limit"} 30
stint_lease_decided_total{limit="a",outcome="allowed"} 60
stint_lease_decided_total{limit="a",outcome="refused"} 61
stint_lease_capacity{limit="a"} 31
stint_lease_lent{limit="a"} 32
stint_lease_demand{limit="a"} 33
stint_lease_free{limit="a"} 34
stint_lease_saturated{limit="a"} 0
stint_lease_saturated_seconds_total{limit="a"} 35
stint_suppression_reject_fraction{limit="b"} 0.36
stint_decisions_total{limit="a",outcome="allowed",reason=""} 40
stint_soft_exceeded_total{limit="a"} 41
stint_unlimited_total{limit="a",reason="store_failed"} 42
stint_unlimited_total{limit="a",reason="no_coordinator"} 43
stint_unlimited_total{limit="",reason="unknown_domain"} 44
stint_unlimited_total{limit="",reason="no_service"} 52
stint_unlimited_total{limit="",reason="no_match"} 53
stint_decisions_total{limit="a",outcome="refused",reason="rate_exceeded"} 45
stint_decisions_total{limit="a",outcome="refused",reason="banned"} 46
stint_decisions_total{limit="a",outcome="shadow_refused",reason="cost_exceeds_limit"} 47
stint_rls_shadowed_total 50
stint_rls_near_limit_hits_total{limit="a"} 51
stint_unlimited_total{limit="a",reason="missing_key"} 48
stint_unlimited_total{limit="a",reason="condition_failed"} 49
stint_decisions_total{limit="b",outcome="allowed",reason=""} 0`), "\n") {
		if !slices.Contains(lines, line) {
			t.Errorf("no %s", line)
		}
	}
	for _, line := range lines {
		for _, never := range []string{`stint_soft_exceeded_total{limit="b"}`, `stint_suppression_reject_fraction{limit="a"}`, `stint_unlimited_total{limit="b"`, `limit="b",outcome="refused"`} {
			if strings.HasPrefix(line, never) || strings.HasPrefix(line, "stint_decisions") && strings.Contains(line, never) {
				t.Errorf("%s", line)
			}
		}
	}
	f.ReloadOK = false
	lines = scrape(t, NewCollector(tallies, func() Figures { return f }))
	if line := "stint_config_last_reload_successful 0"; !slices.Contains(lines, line) {
		t.Errorf("no %s", line)
	}
}
