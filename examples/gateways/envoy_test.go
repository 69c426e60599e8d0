//go:build linux

package gateways_test

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/rate_limit_quota/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ratelimit/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/router/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"github.com/goccy/go-yaml"
	"google.golang.org/protobuf/encoding/protojson"
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

// TestEnvoyLimits: the limits file beside envoy.yaml, for the descriptors that
// envoy.yaml makes Envoy send. Envoy itself is in no Debian package.
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

// TestEnvoyConfiguration holds envoy.yaml and quota.yaml against Envoy's own definition of its
// configuration: every field exists, every message is complete.
func TestEnvoyConfiguration(t *testing.T) {
	for _, name := range []string{"envoy.yaml", "quota.yaml"} {
		src, err := os.ReadFile(filepath.Join("envoy", name))
		if err != nil {
			t.Fatal(err)
		}
		asJSON, err := yaml.YAMLToJSON(src)
		if err != nil {
			t.Fatal(err)
		}
		var bootstrap bootstrapv3.Bootstrap
		if err := protojson.Unmarshal(asJSON, &bootstrap); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if err := bootstrap.ValidateAll(); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if n := len(bootstrap.GetStaticResources().GetClusters()); n != 2 {
			t.Errorf("%s: got %d clusters, want 2", name, n)
		}
	}
}
