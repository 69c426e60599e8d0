package access

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	crand "crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"math/big"
	"math/rand/v2"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stint-io/stint/internal/testca"
)

func sumOf(token string) string {
	sum := sha256.Sum256([]byte(token))
	return hex.EncodeToString(sum[:])
}

func parse(t *testing.T, text string, files map[string]string) *Table {
	t.Helper()
	table, err := Parse("auth.yaml", []byte(text), opener(files))
	if err != nil {
		t.Fatal(err)
	}
	return table
}

func opener(files map[string]string) func(string) ([]byte, error) {
	return func(path string) ([]byte, error) {
		if text, there := files[path]; there {
			return []byte(text), nil
		}
		return nil, os.ErrNotExist
	}
}

func leafOf(t *testing.T, ca *testca.Authority, n testca.Names) *x509.Certificate {
	t.Helper()
	return ca.Issue(n).TLS().Leaf
}

// TestFaultsOfTheFile: each fault is said with its line, its column and a way out, and never with a
// token.
func TestFaultsOfTheFile(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	const good = "identities:\n  - {name: a, token_sha256: SUM, roles: [take]}\n"
	for _, tt := range []struct{ text, place, want string }{
		{"", "auth.yaml: ", "begin with identities:"},
		{"identities: []\n", "auth.yaml:1:", "nobody may do anything"},
		{"identites:\n  - {name: a}\n", "auth.yaml:1:1: ", "did you mean identities?"},
		{"identities:\n  - {name: a, tokenfile: x, roles: [take]}\n", "auth.yaml:2:", "did you mean token_file?"},
		{"identities:\n  - take\n", "auth.yaml:2:5: ", "want an identity"},
		{"identities:\n  - {roles: [take]}\n", "auth.yaml:2:", "has no name"},
		{"identities:\n  - {name: a/b, token_sha256: SUM, roles: [take]}\n", "auth.yaml:2:12: ", "want a name of 1 to 64"},
		{good + "  - {name: a, token_sha256: SUM, roles: [take]}\n", "auth.yaml:3:12: ", `"a" is there twice, first on line 2`},
		{good + "  - {name: b, token_sha256: SUM, roles: [take]}\n", "auth.yaml:3:", "that of another identity as well"},
		{"identities:\n  - {name: a, roles: [take]}\n", "auth.yaml:2:", `nothing proves the identity "a"`},
		{"identities:\n  - {name: a, token_sha256: SUM}\n", "auth.yaml:2:", "has no roles"},
		{"identities:\n  - {name: a, token_sha256: SUM, roles: [taek]}\n", "auth.yaml:2:", "did you mean take?"},
		{"identities:\n  - {name: a, token_sha256: open-sesame-open-sesame, roles: [take]}\n", "auth.yaml:2:", "sha256sum"},
		{"identities:\n  - {name: a, token_sha256: [open-sesame-open-sesame], roles: [taek]}\n", "auth.yaml:2:", "sha256sum"},
		{"identities:\n  - {name: a, token_file: none, roles: [take]}\n", "auth.yaml:2:", "the token cannot be read"},
		{"identities:\n  - {name: a, token_file: short, roles: [take]}\n", "auth.yaml:2:", "shorter ones can be guessed"},
		{"identities:\n  - {name: a, token_file: empty, roles: [take]}\n", "auth.yaml:2:", "the file has no token"},
		{"identities:\n  - {name: a, token_file: blank, roles: [take]}\n", "auth.yaml:2:", "a line that is no token"},
		{"identities:\n  - {name: a, certificate: orders, roles: [take]}\n", "auth.yaml:2:", "spiffe://shop/orders"},
		{"identities:\n  - {name: a, certificate: {uri: x, dns: y}, roles: [take]}\n", "auth.yaml:2:", "want one name of a certificate"},
		{"identities:\n  - {name: a, certificate: {san: x}, roles: [take]}\n", "auth.yaml:2:", `unknown key "san"`},
		{"identities:\n  - {name: a, certificate: {dns: '*.shop'}, roles: [take]}\n", "auth.yaml:2:", "has no patterns"},
		{"identities:\n  - {name: a, certificate: {cn: x}, roles: [take]}\n  - {name: b, certificate: {cn: x}, roles: [take]}\n", "auth.yaml:3:", `that of the identity "a" as well`},
		{"identities:\n  - {name: a, token_sha256: SUM, roles: [{lease: {}}]}\n", "auth.yaml:2:", "no limit may be lent"},
		{"identities:\n  - {name: a, token_sha256: SUM, roles: [{lease: {limits: x, max_band: 256}}]}\n", "auth.yaml:2:", "a number from 0 to 255"},
		{"identities:\n  - {name: a, token_sha256: SUM, roles: [{lease: {limits: x, max_weight: 0}}]}\n", "auth.yaml:2:", "a number from 1"},
		{"identities:\n  - {name: a, token_sha256: SUM, roles: [{lease: {limits: x, max_stream: 1}}]}\n", "auth.yaml:2:", "did you mean max_streams?"},
		{"identities:\n\t- {name: a}\n", "auth.yaml:2:", "spaces"},
	} {
		text := strings.ReplaceAll(tt.text, "SUM", sumOf("open sesame"))
		_, err := Parse("auth.yaml", []byte(text), opener(map[string]string{"short": "secret-", "empty": "\n", "blank": "secret secret secret"}))
		if err == nil || !strings.HasPrefix(err.Error(), tt.place) || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s\nerror: %v\nwant %s with %q", text, err, tt.place, tt.want)
		}
		if err != nil && (strings.Contains(err.Error(), "secret") || strings.Contains(err.Error(), "open-sesame")) {
			t.Errorf("the error has a token: %v", err)
		}
	}
}

// TestWhoIsWho: tokens by their sums and by files, certificates by their names, and nobody else.
func TestWhoIsWho(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	table := parse(t, `identities:
  - name: edge
    token_sha256: [`+sumOf("old")+`, "`+sumOf("new")+`"]
    roles: take
  - name: orders
    token_file: orders.token
    certificate: [{uri: "spiffe://shop/orders"}, {dns: orders.shop}]
    roles: [{lease: {limits: ["orders.*", mail], max_band: 3, max_weight: 10, max_streams: 20, max_keys: 1000}}]
  - {name: ops, certificate: {cn: ops}, roles: [admin, take]}
  - {name: peer, certificate: {dns: peer.shop}, roles: [member]}
`, map[string]string{"orders.token": "orders-token-0001\n\norders-token-0002\n"})
	now := time.Now()
	ca := testca.New()
	who := func(c Credential, err error) string {
		if err == nil {
			var id *Identity
			if id, err = table.Identify(&c, now); err == nil {
				return id.Name
			}
		}
		return err.Error()
	}
	for token, want := range map[string]string{
		"old": "edge", "new": "edge", "orders-token-0001": "orders", "orders-token-0002": "orders",
		"older": ErrToken.Error(), "ol": ErrToken.Error(), sumOf("old"): ErrToken.Error(),
		"": ErrMalformed.Error(), "old new": ErrMalformed.Error(), "old,new": ErrMalformed.Error(), "old\n": ErrMalformed.Error(), "öld": ErrMalformed.Error(),
		strings.Repeat("x", maxToken): ErrToken.Error(), strings.Repeat("x", maxToken+1): ErrMalformed.Error(), strings.Repeat("x", 1<<20): ErrMalformed.Error(),
	} {
		if got := who(TokenOf(token)); got != want {
			t.Errorf("the token %.20q: %s, want %s", token, got, want)
		}
	}
	for _, tt := range []struct {
		names testca.Names
		want  string
	}{
		{testca.Names{URI: "spiffe://shop/orders"}, "orders"},
		{testca.Names{DNS: "orders.shop"}, "orders"},
		{testca.Names{DNS: "orders.shop", CommonName: "ops"}, "orders"},
		{testca.Names{URI: "spiffe://shop/orders", DNS: "peer.shop"}, "orders"},
		{testca.Names{CommonName: "ops"}, "ops"},
		{testca.Names{CommonName: "OPS"}, ErrCertificate.Error()},
		{testca.Names{CommonName: "orders.shop"}, ErrCertificate.Error()},
		{testca.Names{DNS: "ops"}, ErrCertificate.Error()},
		{testca.Names{DNS: "stranger.shop", CommonName: "ops"}, ErrCertificate.Error()},
		{testca.Names{URI: "spiffe://shop/stranger", CommonName: "ops"}, ErrCertificate.Error()},
		{testca.Names{URI: "spiffe://shop/orders/x"}, ErrCertificate.Error()},
		{testca.Names{}, ErrCertificate.Error()},
		{testca.Names{CommonName: "ops", NotBefore: -2 * time.Hour, NotAfter: -time.Minute}, ErrExpired.Error()},
	} {
		if got := who(CertificateOf(leafOf(t, ca, tt.names)), nil); got != tt.want {
			t.Errorf("%+v: %s, want %s", tt.names, got, tt.want)
		}
	}
	both := leafOf(t, ca, testca.Names{DNS: "orders.shop"})
	both.DNSNames = append(both.DNSNames, "peer.shop")
	if got := who(CertificateOf(both), nil); got != ErrAmbiguous.Error() {
		t.Errorf("the names of two identities: %s", got)
	}
	if got := who(Credential{}, nil); got != ErrNone.Error() {
		t.Errorf("nothing: %s", got)
	}
}

// TestCommonNameCountsAlone: a certificate with a subject alternative name of any kind is never known by its
// common name.
func TestCommonNameCountsAlone(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	table := parse(t, "identities: [{name: ops, certificate: [{cn: ops}, {dns: ops.shop}, {uri: \"spiffe://shop/ops\"}], roles: [admin]}]", nil)
	key, err := ecdsa.GenerateKey(elliptic.P256(), crand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	for range 200 {
		template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), Subject: pkix.Name{CommonName: "ops"}}
		known, named := false, false
		for _, kind := range random.Perm(5)[:random.IntN(4)] {
			named = true
			switch mine := random.IntN(4) == 0; kind {
			case 0:
				template.DNSNames, known = []string{map[bool]string{true: "ops.shop", false: "ops"}[mine]}, known || mine
			case 1:
				u := &url.URL{Scheme: "spiffe", Host: "shop", Path: map[bool]string{true: "/ops", false: "/other"}[mine]}
				template.URIs, known = []*url.URL{u}, known || mine
			case 2:
				template.IPAddresses = []net.IP{net.IPv4(192, 0, 2, 7)}
			case 3:
				template.EmailAddresses = []string{"ops@shop.example"}
			case 4: // a name of a kind that package x509 does not read: registeredID
				if !known && len(template.DNSNames)+len(template.URIs)+len(template.IPAddresses)+len(template.EmailAddresses) == 0 {
					template.ExtraExtensions = []pkix.Extension{{Id: subjectAltName, Value: []byte{0x30, 0x04, 0x88, 0x02, 0x2a, 0x03}}}
				}
			}
		}
		if len(template.ExtraExtensions) > 0 { // it replaces the names of all other kinds
			known = false
		}
		der, err := x509.CreateCertificate(crand.Reader, template, template, &key.PublicKey, key)
		if err != nil {
			t.Fatal(err)
		}
		leaf, err := x509.ParseCertificate(der)
		if err != nil {
			t.Fatal(err)
		}
		c := CertificateOf(leaf)
		id, err := table.Identify(&c, time.Now())
		if want := known || !named; (err == nil) != want {
			t.Errorf("DNS %v, URIs %v, IPs %v, email %v, other %v: %v, %v, want known: %v",
				leaf.DNSNames, leaf.URIs, leaf.IPAddresses, leaf.EmailAddresses, template.ExtraExtensions, id, err, want)
		}
	}
}

// TestRoles: each identity has its own and no other; a member may lease everything.
func TestRoles(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	roles := []Role{Any, Take, Lease, Admin, Member}
	for text, want := range map[string][]Role{
		"take": {Any, Take}, "admin": {Any, Admin}, "member": {Any, Lease, Member}, "lease": {Any, Lease}, "{lease: {limits: m}}": {Any, Lease},
	} {
		id := parse(t, "identities: [{name: a, token_sha256: '"+sumOf("t")+"', roles: ["+text+"]}]", nil).identities[0]
		for _, r := range roles {
			if id.May(r) != slices.Contains(want, r) {
				t.Errorf("%s: may %v: %v", text, r, id.May(r))
			}
			if err := id.Refuses(r); (err == nil) != slices.Contains(want, r) || err != nil && !strings.Contains(err.Error(), "lacks the role "+r.String()+": add it") {
				t.Errorf("%s: %v: %v", text, r, err)
			}
		}
		if (id.Leases() == nil) != (text == "member" || text == "take" || text == "admin") {
			t.Errorf("%s: %+v", text, id.Leases())
		}
	}
	bounds := *parse(t, "identities: [{name: a, token_sha256: '"+sumOf("t")+"', roles: [lease]}]", nil).identities[0].Leases()
	if bounds.MaxBand != 0 || bounds.MaxWeight != 1 || bounds.MaxStreams != DefaultMaxStreams || bounds.MaxKeys != DefaultMaxKeys || !bounds.Covers("anything") {
		t.Errorf("the role lease alone: %+v", bounds)
	}
}

// TestPatterns: a star stands for any text, everything else for itself.
func TestPatterns(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	for _, tt := range []struct {
		pattern, text string
		want          bool
	}{
		{"a", "a", true},
		{"a", "ab", false},
		{"a", "", false},
		{"*", "", true},
		{"*", "a.b/c", true},
		{"a.*", "a.b", true},
		{"a.*", "a.", true},
		{"a.*", "ab", false},
		{"*.a", "x.a", true},
		{"*.a", "x.ab", false},
		{"a*c", "abc", true},
		{"a*c", "ac", true},
		{"a*a", "a", false},
		{"a*b*c", "a1b2c", true},
		{"a*b*c", "acb", false},
		{"*b*", "abc", true},
		{"[a]", "a", false},
	} {
		if got := matches(tt.pattern, tt.text); got != tt.want {
			t.Errorf("%q matches %q: %v", tt.pattern, tt.text, got)
		}
	}
	of := func(limits ...string) *Leases { return &Leases{Limits: limits} }
	for _, tt := range []struct {
		wide, narrow *Leases
		want         bool
	}{
		{of("*"), of("a", "b.*"), true}, {of("a", "b"), of("a"), true}, {of("a"), of("a", "b"), false}, {of("a.*"), of("a.*"), true}, {of("a.*"), of("*"), false}, {of("a.b"), of("a.*"), false},
	} {
		if got := tt.wide.Includes(tt.narrow); got != tt.want {
			t.Errorf("%q includes %q: %v", tt.wide.Limits, tt.narrow.Limits, got)
		}
	}
	for _, tt := range []struct {
		band   uint8
		weight uint32
		want   bool
	}{{3, 10, true}, {2, 10, false}, {3, 9, false}, {4, 11, true}} {
		wide := &Leases{Limits: []string{"*"}, MaxBand: tt.band, MaxWeight: tt.weight}
		if got := wide.Includes(&Leases{Limits: []string{"a"}, MaxBand: 3, MaxWeight: 10}); got != tt.want {
			t.Errorf("band %d and weight %d include 3 and 10: %v", tt.band, tt.weight, got)
		}
	}
}

// TestTokensAreFoundWithoutALeak: a token is searched for under a keyed hash, whose key is drawn anew by
// each reading, and is then compared in constant time: how long a search takes tells nobody how much of a
// token was right. A token that lands where another one lies is not it.
func TestTokensAreFoundWithoutALeak(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	text := "identities: [{name: a, token_sha256: '" + sumOf("right") + "', roles: [take]}]"
	one, two := parse(t, text, nil), parse(t, text, nil)
	right, _ := TokenOf("right")
	if one.place(right.sum) == two.place(right.sum) || one.place(right.sum) == right.sum {
		t.Error("where a token lies can be foretold")
	}
	wrong, _ := TokenOf("wrong")
	one.tokens[one.place(wrong.sum)] = one.tokens[one.place(right.sum)]
	if id, err := one.Identify(&wrong, time.Now()); !errors.Is(err, ErrToken) {
		t.Errorf("another token at that place is %v, %v", id, err)
	}
	if id, err := new(Table).Identify(&Credential{hasToken: true}, time.Now()); !errors.Is(err, ErrToken) {
		t.Errorf("a sum of zeros is %v, %v", id, err)
	}
	source, err := os.ReadFile("table.go")
	if err != nil || strings.Count(string(source), "subtle.ConstantTimeCompare") != 1 || strings.Contains(string(source), "bytes.Equal") {
		t.Errorf("tokens are not compared in constant time, in one place: %v", err)
	}
}

// TestReloadOfTheFile: a change takes effect, in the file and in one that it names; a fault changes nothing
// and is said once.
func TestReloadOfTheFile(t *testing.T) {
	dir := t.TempDir()
	put := func(name, text string) string { return testca.File(dir, name, []byte(text)) }
	const file = "identities:\n  - {name: a, token_file: a.token, roles: [%s]}\n"
	put("a.token", "token-of-a-number-1")
	var log strings.Builder
	l, err := Open(put("auth.yaml", fmt.Sprintf(file, "take")), slog.New(slog.NewTextHandler(&log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	may := func(token string, r Role) bool {
		c, _ := TokenOf(token)
		id, err := l.Identify(&c)
		return err == nil && id.May(r)
	}
	c, _ := TokenOf("token-of-a-number-1")
	session := l.Begin(c)
	if id, err := session.Identity(); err != nil || id.Name != "a" {
		t.Errorf("%v, %v", id, err)
	}
	if err := l.Reload(); err != nil || l.Figures().Reloads != 0 {
		t.Errorf("nothing has changed: %v, %+v", err, l.Figures())
	}
	put("a.token", "token-of-a-number-2\ntoken-of-a-number-1")
	if err := l.Reload(); err != nil || !may("token-of-a-number-1", Take) || !may("token-of-a-number-2", Take) {
		t.Errorf("two tokens: %v", err)
	}
	put("a.token", "token-of-a-number-2")
	if err := l.Reload(); err != nil || may("token-of-a-number-1", Take) || !may("token-of-a-number-2", Take) {
		t.Errorf("the new token alone: %v", err)
	}
	if _, err := session.Identity(); !errors.Is(err, ErrToken) {
		t.Errorf("a session goes on after its token was taken back: %v", err)
	}
	for range 3 {
		put("auth.yaml", fmt.Sprintf(file, "everything"))
		if l.Reload() == nil {
			t.Error("a file with a fault is taken")
		}
	}
	if f := l.Figures(); f.OK || f.Failures != 1 || f.Reloads != 2 || strings.Count(log.String(), "level=ERROR") != 1 || !may("token-of-a-number-2", Take) {
		t.Errorf("%+v\n%s", f, log.String())
	}
	if strings.Contains(log.String(), "token-of-a") {
		t.Errorf("the log has a token:\n%s", log.String())
	}
	put("auth.yaml", fmt.Sprintf(file, "admin"))
	if err := l.Reload(); err != nil || may("token-of-a-number-2", Take) || !may("token-of-a-number-2", Admin) || !l.Figures().OK {
		t.Errorf("other roles: %v", err)
	}
	if err := os.Remove(filepath.Join(dir, "a.token")); err != nil {
		t.Fatal(err)
	}
	if err := l.Reload(); err == nil || !may("token-of-a-number-2", Admin) {
		t.Errorf("a token file that has gone: %v", err)
	}
	put("a.token", "token-of-a-number-2")
	if err := l.Reload(); err != nil || !l.Figures().OK {
		t.Errorf("the former content again: %v, %+v", err, l.Figures())
	}
}

// TestSessionsEndWithTheirCertificate: a stream that lasts longer than the certificate it began with is
// not served on.
func TestSessionsEndWithTheirCertificate(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	dir := t.TempDir()
	l, err := Open(testca.File(dir, "auth.yaml", []byte("identities: [{name: a, certificate: {cn: a}, roles: [lease]}]")), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	leaf := leafOf(t, testca.New(), testca.Names{CommonName: "a"})
	s := l.Begin(CertificateOf(leaf))
	if _, err := s.Identity(); err != nil {
		t.Fatal(err)
	}
	leaf.NotAfter = time.Now().Add(-time.Second)
	if _, err := s.Identity(); !errors.Is(err, ErrExpired) {
		t.Errorf("%v", err)
	}
}

// TestFaultsShowNoToken: whatever is wrong with a file, what somebody may have written as a token into it is
// in no error.
func TestFaultsShowNoToken(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	const secret = "hunter2-SECRET"
	for _, text := range []string{
		"identities:\n  - {name: a, token: " + secret + ", roles: [take]}\n",
		"identities:\n  - {name: a, token_file: " + secret + ", roles: [take]}\n",
		"identities:\n  - {name: a, token_sha256: " + secret + ", roles: [take]}\n",
		"identities:\n  - {name: a, token: " + secret + ", roles: [take]\n",
		"identities:\n  - {name: a, certificate: x, roles: [take], token: [" + secret + "]}\n",
	} {
		_, err := Parse("auth.yaml", []byte(text), os.ReadFile)
		if err == nil || strings.Contains(err.Error(), secret) {
			t.Errorf("%s: %v", text, err)
		}
	}
}
