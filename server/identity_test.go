package server_test

import (
	"crypto/ed25519"
	"crypto/rand"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	"github.com/maxmind/mmdbwriter"
	"github.com/maxmind/mmdbwriter/mmdbtype"
)

// regions writes a database of countries.
func regions(t *testing.T, path string, of map[string]string) {
	t.Helper()
	w, err := mmdbwriter.New(mmdbwriter.Options{DatabaseType: "Test", IncludeReservedNetworks: true})
	if err != nil {
		t.Fatal(err)
	}
	for network, code := range of {
		p := netip.MustParsePrefix(network)
		n := &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
		if err := w.Insert(n, mmdbtype.Map{"country": mmdbtype.Map{"iso_code": mmdbtype.String(code)}}); err != nil {
			t.Fatal(err)
		}
	}
	f, err := os.Create(path + ".new")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := w.WriteTo(f); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
}

// bearer is a token for a tenant, as the Authorization field has it.
func bearer(t *testing.T, key ed25519.PrivateKey, tenant string) string {
	t.Helper()
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.EdDSA, Key: jose.JSONWebKey{Key: key, KeyID: "k"}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	// As long as those of real issuers, which name many roles.
	s, err := jwt.Signed(signer).Claims(map[string]any{"roles": strings.Repeat("role ", 500), "tenant": tenant, "exp": time.Now().Add(time.Hour).Unix()}).Serialize()
	if err != nil {
		t.Fatal(err)
	}
	return "Bearer " + s
}

// gate asks the gate about a path, as a proxy at 192.0.2.7's side of which the client pretends to be another.
func (s *service) gate(path string, header ...string) int {
	s.t.Helper()
	req, err := http.NewRequestWithContext(s.t.Context(), http.MethodGet, s.http+"/v1/gate/nginx", nil)
	if err != nil {
		s.t.Fatal(err)
	}
	req.Header.Set("X-Original-URI", path)
	req.Header.Set("X-Forwarded-For", "203.0.113.1, 192.0.2.7") // the client wrote the first
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		s.t.Fatal(err)
	}
	res.Body.Close()
	return res.StatusCode
}

// Limits by claim, region and user_ip through the gate of a real server: who is trusted says the address, a forged token has
// no claims, and a database that changes is followed.
func TestIdentityThroughTheGate(t *testing.T) {
	dir := t.TempDir()
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	keys, err := json.Marshal(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: public, KeyID: "k", Use: "sig"}}})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "keys.json"), keys, 0o600); err != nil {
		t.Fatal(err)
	}
	mmdb := filepath.Join(dir, "country.mmdb")
	regions(t, mmdb, map[string]string{"192.0.2.0/24": "DE"})
	h := start(t, `identity:
  jwt: {jwks: `+dir+`/keys.json}
  geoip: {country: `+mmdb+`}
  user_ip_headers: [X-Real]
limits:
  - {name: tenant, key: "claim:tenant", match: {path: /claim}, rate: 1/hour, missing: reject}
  - {name: germany, match: {path: /region, region: DE}, rate: 0/s}
  - {name: user, key: user_ip, match: {path: /user}, rate: 1/hour}
`)
	_, stranger, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	for i, tt := range []struct {
		path    string
		header  []string
		refused bool
	}{
		{"/claim", []string{"Authorization", bearer(t, private, "acme")}, false},
		{"/claim", []string{"Authorization", bearer(t, private, "acme")}, true},
		{"/claim", []string{"Authorization", bearer(t, private, "other")}, false},
		{"/claim", []string{"Authorization", bearer(t, stranger, "third")}, true},
		{"/claim", []string{"Claim-Tenant", "fourth"}, true},
		{"/claim", nil, true},
		{"/region", nil, true},
		{"/region", []string{"X-Forwarded-For", "192.0.2.7, 203.0.113.1"}, false}, // spoofed: the proxy saw the last
		{"/user", []string{"X-Real", "198.51.100.1"}, false},
		{"/user", []string{"X-Real", "198.51.100.1"}, true},
		{"/user", []string{"X-Real", "198.51.100.2"}, false},
		{"/user", []string{"X-Real", "nonsense"}, false}, // the address
		{"/user", nil, true},
	} {
		if got := h.gate(tt.path, tt.header...); got >= 400 != tt.refused {
			t.Errorf("%d: %s %.40q: %d", i, tt.path, tt.header, got)
		}
	}
	regions(t, mmdb, map[string]string{"192.0.2.0/24": "FR"})
	for deadline := time.Now().Add(30 * time.Second); h.gate("/region") >= 400; {
		if time.Now().After(deadline) {
			t.Fatal("a database that was replaced is not followed")
		}
	}
	res, err := http.Get(h.admin + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	raw, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	if text := string(raw); !strings.Contains(text, `stint_jwt_tokens_total{result="verified"} 3`) || !strings.Contains(text, `stint_geoip_last_reload_successful{database="country"} 1`) {
		t.Error(text)
	}
}
