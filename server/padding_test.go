package server_test

import (
	"net/http"
	"strings"
	"testing"
)

// A client cannot push what it asks for out of the limiter's sight, by length or by
// a malformed escape, nor make the limiter fail: gateways are often told to let
// requests pass then.
func TestNothingIsPaddedOutOfSight(t *testing.T) {
	s := start(t, `
limits:
  - {name: login, match: {path: /login}, rate: 1/hour}
  - {name: download, match: {path: /files/*/download}, rate: 1/hour}
  - {name: api, match: {path: /api/*}, rate: 1/hour}
  - {name: tenant, key: ["query:tenant"], rate: 1/hour}
`)
	gate := func(uri string, header ...string) int {
		return s.do(http.MethodGet, s.http+"/v1/gate/forward-auth", "", append(header, "X-Forwarded-For", "192.0.2.7", "X-Forwarded-Uri", uri)...).status
	}
	for _, uri := range []string{"/login", "/files/a/download", "/api/x", "/y?tenant=t"} {
		if got := gate(uri); got != http.StatusOK {
			t.Fatalf("%s: %d", uri, got)
		}
	}
	for _, uri := range []string{
		"/" + strings.Repeat("./", 10<<10) + "login",
		"/files/" + strings.Repeat("a", 10<<10) + "/download",
		"/%61pi/%zz",
		"/y?p=" + strings.Repeat("a", 20<<10) + "&tenant=t",
	} {
		if got := gate(uri); got != http.StatusTooManyRequests {
			t.Errorf("%.20s (%d bytes): %d", uri, len(uri), got)
		}
	}
	if got := gate("/login", "Cookie", strings.Repeat("c", 30<<10)); got != http.StatusTooManyRequests {
		t.Errorf("cookies of 30 KiB: %d", got)
	}
}
