package server_test

import (
	"math/rand/v2"
	"net/http"
	"strings"
	"testing"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
)

// TestPathsOverEnvoy: a limit by path refuses over Envoy's protocol what it refuses through the gate, whatever the
// path looks like and whatever Envoy calls it.
func TestPathsOverEnvoy(t *testing.T) {
	if testing.Short() {
		t.Skip("one request after another: nothing for the race detector")
	}
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	s := start(t, `
limits:
  - {name: login, match: {path: "/path/login"}, rate: 1/year}
  - {name: below, match: {path: ["/a/*", "*/admin"]}, rate: 1/year}
`)
	overEnvoy := func(key, uri string) bool {
		return s.should(request("edge", 1, descriptor("user=u", key+"="+uri))).OverallCode == pb.RateLimitResponse_OVER_LIMIT
	}
	overGate := func(uri string) bool {
		return s.do(http.MethodGet, s.http+"/v1/gate/forward-auth/from=x-forwarded/cost=1", "", "X-Forwarded-Uri", uri, "X-Forwarded-For", "192.0.2.7").status == http.StatusTooManyRequests
	}
	overEnvoy(":path", "/path/login")
	overEnvoy(":path", "/a/b")
	pieces := strings.Fields("/ / path login a b admin . .. %2e %2f %2F %61 %6cogin ; // % %zz")
	draw := func() string {
		uri := "/"
		for range random.IntN(8) {
			uri += pieces[random.IntN(len(pieces))]
		}
		switch random.IntN(4) {
		case 0:
			uri = "/path" + uri + "/../../path/login"
		case 1:
			uri = "/path/./login"
		}
		if random.IntN(2) == 0 {
			uri += "?x=/path/login"
		}
		return uri
	}
	refused, passed := 0, 0
	for range 400 {
		uri := draw()
		want := overGate(uri)
		if want {
			refused++
		} else {
			passed++
		}
		for _, key := range []string{":path", "path"} {
			if got := overEnvoy(key, uri); got != want {
				t.Errorf("%s %s: refused is %v over Envoy's protocol, %v through the gate", key, uri, got, want)
			}
		}
	}
	if refused < 40 || passed < 40 {
		t.Errorf("%d are refused, %d pass: paths are not mixed", refused, passed)
	}
}

// TestAddressesOverEnvoy: a limit by ip counts what Envoy calls remote_address, in any form of the address, and a file in
// Envoy's format goes on matching that name and text.
func TestAddressesOverEnvoy(t *testing.T) {
	if testing.Short() {
		t.Skip("one request after another: nothing for the race detector")
	}
	const own = "limits:\n  - {name: per-client, key: [ip], rate: 2/year}\n"
	const file = "domain: edge\ndescriptors:\n  - {key: remote_address, rate_limit: {unit: year, requests_per_unit: 2}}\n  - {key: ip, rate_limit: {unit: year, requests_per_unit: 0}}\n"
	for name, yaml := range map[string]string{"own": own, "envoy": file} {
		t.Run(name, func(t *testing.T) {
			s := start(t, yaml)
			for i, address := range []string{"192.0.2.7", "192.0.2.7", "192.0.2.7", "::ffff:192.0.2.7", "192.0.2.8"} {
				want := i == 2 || i == 3 && name == "own"
				if got := s.should(request("edge", 1, descriptor("remote_address="+address))).OverallCode == pb.RateLimitResponse_OVER_LIMIT; got != want {
					t.Errorf("request %d, of %s: refused is %v, want %v", i+1, address, got, want)
				}
			}
			// explain shows what arrived, and what limits see of it.
			for _, body := range []string{
				`{"domain":"edge","descriptors":[{"entries":[{"key":"remote_address","value":"192.0.2.7"}]}]}`,
				`{"domain":"edge","attributes":{"remote_address":"192.0.2.7"}}`,
			} {
				x := s.do(http.MethodPost, s.http+"/v1/explain", body).body
				for _, part := range map[string][]string{
					"own":   {`"key":{"ip":"192.0.2.7"}`, `"entries":["remote_address=192.0.2.7"]`},
					"envoy": {`"key":{"remote_address":"192.0.2.7"}`, `"entries":["remote_address=192.0.2.7"]`},
				}[name] {
					if !strings.Contains(x, part) {
						t.Errorf("%s lacks %s: %s", body, part, x)
					}
				}
			}
		})
	}
}

// TestKeyInAnotherDescriptor: a limit finds its key in whichever descriptor of a request has it, whatever else Envoy
// sends beside, and missing concerns requests of which no descriptor has it.
func TestKeyInAnotherDescriptor(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	for _, missing := range []string{"skip", "all", "reject"} {
		t.Run(missing, func(t *testing.T) {
			s := start(t, "limits:\n  - {name: per-key, key: [\"header:x-api-key\", ip], missing: "+missing+", rate: 2/year}\n")
			others := []string{"remote_address=192.0.2.7", "path=/", "method=GET", "generic_key=x"}
			for i := range 20 {
				for n := range 3 {
					r := request("edge", 1, descriptor("header:x-api-key="+string(rune('a'+i)), "remote_address=192.0.2.7"))
					for range random.IntN(4) {
						r.Descriptors = append(r.Descriptors, descriptor(others[random.IntN(len(others))]))
					}
					random.Shuffle(len(r.Descriptors), func(a, b int) { r.Descriptors[a], r.Descriptors[b] = r.Descriptors[b], r.Descriptors[a] })
					if got, want := s.should(r).OverallCode == pb.RateLimitResponse_OVER_LIMIT, n == 2; got != want {
						t.Fatalf("request %d of a key, %v: refused is %v, want %v", n+1, r.Descriptors, got, want)
					}
				}
			}
			if page := s.do(http.MethodGet, s.admin+"/metrics", "").body; strings.Contains(page, `stint_unlimited_total{limit="per-key",reason="missing_key"} `) &&
				!strings.Contains(page, `stint_unlimited_total{limit="per-key",reason="missing_key"} 0`) {
				t.Error("requests with a key count as without")
			}
			for n := range 3 {
				refused := s.should(request("edge", 1, descriptor("path=/"), descriptor("remote_address=192.0.2.7"))).OverallCode == pb.RateLimitResponse_OVER_LIMIT
				if want := missing == "reject" || missing == "all" && n == 2; refused != want {
					t.Errorf("request %d without a key: refused is %v, want %v", n+1, refused, want)
				}
			}
		})
	}
}
