//go:build linux

package gateways_test

import (
	"net/http"
	"path/filepath"
	"testing"

	"github.com/stint-io/stint/internal/gatewaytest"
)

// TestActions: redirect, tag and ban through each gateway.
func TestActions(t *testing.T) {
	limits := filepath.Join(t.TempDir(), "limits.yaml")
	writeFile(t, limits, `
limits:
  - {name: away, match: {path: /away}, key: [ip], rate: 1/h, on_exceed: {redirect: "https://example.com/busy?a=b"}}
  - {name: less, match: {path: /less}, key: [ip], rate: 1/h, on_exceed: tag}
  - {name: attempts, match: {path: /ban}, key: [ip], rate: 1/h, on_exceed: {reject: 403, ban: {for: 1h, after: 2/h, from: now}}}
`)
	for _, g := range gateways() {
		t.Run(g.name, func(t *testing.T) {
			app := gatewaytest.StartApplication(t)
			s := startStint(t, limits)
			s.Timeout = "1s" // a busy machine does not always answer in time
			gate := g.journey(t, s, app)
			forged := http.Header{"X-Ratelimit-Degraded": {"forged"}}
			seen := func(a answer) string {
				if a.status != http.StatusOK {
					t.Errorf("%v", a)
				}
				return a.header.Get("X-Seen-Degraded")
			}
			if got := seen(gate.send("127.0.0.2", http.MethodGet, "/less", forged, nil)); got != "" {
				t.Errorf("the application was told %q by the client", got)
			}
			for range 2 {
				if got := seen(gate.send("127.0.0.2", http.MethodGet, "/less", forged, nil)); got != "less" {
					t.Errorf("over the limit the application was told %q, want less", got)
				}
			}
			if got := seen(gate.send("127.0.0.2", http.MethodGet, "/free", forged, nil)); got != "" {
				t.Errorf("without a limit the application was told %q", got)
			}

			seen(gate.send("127.0.0.2", http.MethodGet, "/away", nil, nil))
			if a := gate.send("127.0.0.2", http.MethodGet, "/away", nil, nil); a.status != g.status(http.StatusFound) || a.header.Get("Location") != "https://example.com/busy?a=b" {
				t.Errorf("away: %v", a)
			}

			seen(gate.send("127.0.0.2", http.MethodGet, "/ban", nil, nil))
			for range 4 {
				if a := gate.send("127.0.0.2", http.MethodGet, "/ban", nil, nil); a.status != g.status(http.StatusForbidden) {
					t.Errorf("ban: %v", a)
				}
			}
			if n := app.Count("/ban"); n != 1 {
				t.Errorf("the application was asked %d times by who is banned, want once", n)
			}
		})
	}
}

// status is that of a refusal through the gateway.
func (g gateway) status(own int) int {
	if g.own {
		return http.StatusTooManyRequests
	}
	return own
}
