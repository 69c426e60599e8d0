//go:build linux

package gateways_test

import (
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
)

// asking is how a gateway that cannot be had here asks, as its source or its manual says: what becomes of the header
// fields of a client.
type asking struct {
	file   string
	passes []string // header fields of the client that it passes on
}

// TestContract sends stint what Traefik, Kong and APISIX send by the published configurations: for each client five
// requests pass, the sixth is refused in a way that such a gateway hands on as it is, and forgeries do not help.
func TestContract(t *testing.T) {
	for name, g := range map[string]asking{
		// pkg/middlewares/auth/forward.go of v3.7.13: writeHeader, with trustForwardHeader: false.
		"traefik": {file: "traefik/dynamic.yml", passes: []string{"X-Api-Key"}},
		"kong":    {file: "kong/kong.yml", passes: []string{"X-Api-Key"}},
		"apisix":  {file: "apisix/apisix.yaml", passes: []string{"X-Api-Key"}},
	} {
		t.Run(name, func(t *testing.T) {
			text, err := os.ReadFile(g.file)
			if err != nil {
				t.Fatal(err)
			}
			var whole map[string]any
			if err := yaml.UnmarshalWithOptions(text, &whole, yaml.Strict()); err != nil || len(whole) == 0 {
				t.Fatalf("%s is no YAML: %v", g.file, err)
			}
			addresses := regexp.MustCompile(`http://127\.0\.0\.1:8080(/[^\s"]*)`).FindAllStringSubmatch(string(text), -1)
			if len(addresses) != 1 {
				t.Fatalf("%s has the address of stint %d times", g.file, len(addresses))
			}
			s := startStint(t, "limits.yaml")
			ask := func(client string, own http.Header) *http.Response {
				h := http.Header{}
				for _, field := range g.passes {
					if v := own.Values(field); len(v) > 0 {
						h[field] = v
					}
				}
				maps.Copy(h, http.Header{
					"X-Forwarded-For": {client}, "X-Forwarded-Method": {http.MethodPost}, "X-Forwarded-Proto": {"https"},
					"X-Forwarded-Host": {"shop.example:443"}, "X-Forwarded-Uri": {"/orders?cost=0&key=evil"}, "X-Forwarded-Port": {"443"},
				})
				return get(t, "http://"+s.http+addresses[0][1], h)
			}
			for want := 4; want >= 0; want-- {
				res := ask("192.0.2.7", http.Header{"X-Api-Key": {fmt.Sprint(want)}})
				if left := fmt.Sprintf("r=%d;", want); res.StatusCode != http.StatusOK || res.Header.Get("X-Stint-Decision") != "allow" || !strings.Contains(res.Header.Get("RateLimit"), left) {
					t.Errorf("%d, %v, want 200 with %s", res.StatusCode, res.Header, left)
				}
			}
			for _, forged := range []http.Header{{}, {"X-Forwarded-For": {"203.0.113.9"}}, {"X-Original-Uri": {"/elsewhere"}}, {"Forwarded": {"for=203.0.113.9"}}, {"X-Api-Key": {"other"}}} {
				res := ask("192.0.2.7", forged)
				s, err := strconv.Atoi(res.Header.Get("Retry-After"))
				if res.StatusCode != http.StatusTooManyRequests || err != nil || s < 1 || s > 60 || res.Header.Get("X-Stint-Decision") != "reject" ||
					!strings.HasPrefix(res.Header.Get("Content-Type"), "application/problem+json") {
					t.Errorf("with %v: %d, %v, want a 429 with Retry-After", forged, res.StatusCode, res.Header)
				}
			}
			if res := ask("192.0.2.8", nil); res.StatusCode != http.StatusOK {
				t.Errorf("another client: %d", res.StatusCode)
			}
		})
	}
}

// get asks with these header fields, and no other but those of its own connection.
func get(t *testing.T, url string, h http.Header) *http.Response {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header = h
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	_, _ = io.Copy(io.Discard, res.Body)
	res.Body.Close()
	return res
}
