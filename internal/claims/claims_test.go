package claims

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stint-io/stint/internal/seeding"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
)

// issuer signs tokens.
type issuer struct {
	t   *testing.T
	alg jose.SignatureAlgorithm
	key crypto.Signer
	id  string
}

func newIssuer(t *testing.T, alg jose.SignatureAlgorithm, id string) *issuer {
	t.Helper()
	i := &issuer{t: t, alg: alg, id: id}
	var err error
	switch alg {
	case jose.EdDSA:
		_, i.key, err = ed25519.GenerateKey(rand.Reader)
	case jose.ES256:
		i.key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	default:
		i.key, err = rsa.GenerateKey(rand.Reader, 2048)
	}
	if err != nil {
		t.Fatal(err)
	}
	return i
}

func (i *issuer) sign(claims any) string {
	i.t.Helper()
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: i.alg, Key: jose.JSONWebKey{Key: i.key, KeyID: i.id}}, nil)
	if err != nil {
		i.t.Fatal(err)
	}
	token, err := jwt.Signed(signer).Claims(claims).Serialize()
	if err != nil {
		i.t.Fatal(err)
	}
	return token
}

func (i *issuer) public() jose.JSONWebKey {
	return jose.JSONWebKey{Key: i.key.Public(), KeyID: i.id, Algorithm: string(i.alg), Use: "sig"}
}

func keySetOf(t *testing.T, keys ...jose.JSONWebKey) []byte {
	t.Helper()
	raw, err := json.Marshal(jose.JSONWebKeySet{Keys: keys})
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

func verifierOf(t *testing.T, o Options, keys ...jose.JSONWebKey) *Verifier {
	t.Helper()
	path := filepath.Join(t.TempDir(), "keys.json")
	if err := os.WriteFile(path, keySetOf(t, keys...), 0o600); err != nil {
		t.Fatal(err)
	}
	k, err := OpenKeys(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	o.Keys = k
	return New(o)
}

type m = map[string]any

func in(d time.Duration) int64 { return time.Now().Add(d).Unix() }

func TestVerify(t *testing.T) {
	for _, alg := range []jose.SignatureAlgorithm{jose.RS256, jose.PS256, jose.ES256, jose.EdDSA} {
		good, stranger := newIssuer(t, alg, "a"), newIssuer(t, alg, "a")
		v := verifierOf(t, Options{Issuer: "https://issuer", Audience: "api"}, good.public())
		base := m{"iss": "https://issuer", "aud": []string{"other", "api"}, "exp": in(time.Hour), "sub": "anna", "level": 7, "big": 12345678901, "half": 0.5, "admin": true, "roles": []string{"x"}, "realm": m{"tenant": "acme", "deep": m{"x": 1}}}
		but := func(name string, value any) m {
			c := maps.Clone(base)
			if c[name] = value; value == nil {
				delete(c, name)
			}
			return c
		}
		for name, tt := range map[string]struct {
			token string
			want  Result
		}{
			"good":                     {good.sign(base), Verified},
			"good again":               {good.sign(base), Verified},
			"forged":                   {stranger.sign(base), BadSignature},
			"expired":                  {good.sign(but("exp", in(-time.Minute))), Expired},
			"just expired":             {good.sign(but("exp", in(-10*time.Second))), Verified}, // clocks differ
			"without an end":           {good.sign(but("exp", nil)), Expired},
			"not yet":                  {good.sign(but("nbf", in(time.Hour))), Expired},
			"other issuer":             {good.sign(but("iss", "https://other")), WrongIssuer},
			"other audience":           {good.sign(but("aud", "else")), WrongIssuer},
			"no audience":              {good.sign(but("aud", nil)), WrongIssuer},
			"exp as text":              {good.sign(but("exp", "soon")), BadSignature},
			"empty":                    {"", Malformed},
			"text":                     {"abc", Malformed},
			"two dots":                 {"a.b.c", Malformed},
			"huge":                     {strings.Repeat("a", maxToken+1), Malformed},
			"nested in another format": {`{"payload":"e30","signatures":[]}`, Malformed},
		} {
			claims, got := v.Verify(tt.token)
			if got != tt.want || (claims == nil) != (got != Verified) {
				t.Errorf("%s, %s: %v with %v, want %v", alg, name, got, claims, tt.want)
			}
		}
		claims, _ := v.Verify(good.sign(base))
		want := Claims{"iss": "https://issuer", "sub": "anna", "level": "7", "big": "12345678901", "half": "0.5", "admin": "true", "realm.tenant": "acme", "realm.deep.x": "1"}
		delete(claims, "exp")
		if !maps.Equal(claims, want) {
			t.Errorf("%s: claims %v, want %v", alg, claims, want)
		}
	}
}

// Nobody, and a public key taken for a secret, sign nothing.
func TestConfusedAlgorithms(t *testing.T) {
	good := newIssuer(t, jose.RS256, "a")
	v := verifierOf(t, Options{}, good.public())
	part := func(x any) string {
		raw, _ := json.Marshal(x)
		return base64.RawURLEncoding.EncodeToString(raw)
	}
	payload := part(m{"sub": "root", "exp": in(time.Hour)})
	for _, alg := range []string{"none", "None", "NONE", "", "HS256", "HS512"} {
		for _, kid := range []string{"a", "", "../../etc/passwd", "https://evil.example/keys", "a' OR 1=1"} {
			for _, signature := range []string{"", "e30"} {
				if c, r := v.Verify(part(m{"alg": alg, "kid": kid, "typ": "JWT", "jku": "https://evil.example"}) + "." + payload + "." + signature); r == Verified {
					t.Errorf("alg %q, kid %q: verified, %v", alg, kid, c)
				}
			}
		}
	}
	// The key as text is the secret.
	der, err := x509.MarshalPKIXPublicKey(good.key.Public())
	if err != nil {
		t.Fatal(err)
	}
	secret := pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.HS256, Key: secret}, (&jose.SignerOptions{}).WithHeader("kid", "a"))
	if err != nil {
		t.Fatal(err)
	}
	token, err := jwt.Signed(signer).Claims(m{"sub": "root", "exp": in(time.Hour)}).Serialize()
	if err != nil {
		t.Fatal(err)
	}
	if _, r := v.Verify(token); r != Malformed {
		t.Errorf("signed by the public key as a secret: %v", r)
	}
	// A key that came in the token is nobody's.
	own := newIssuer(t, jose.ES256, "a")
	embedded, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: own.key}, &jose.SignerOptions{EmbedJWK: true})
	if err != nil {
		t.Fatal(err)
	}
	if token, err = jwt.Signed(embedded).Claims(m{"sub": "root", "exp": in(time.Hour)}).Serialize(); err != nil {
		t.Fatal(err)
	}
	if _, r := v.Verify(token); r != BadSignature {
		t.Errorf("signed by a key in the token: %v", r)
	}
}

// A token of which one bit was changed is not verified, whichever; also after the good one is remembered.
func TestChangedBits(t *testing.T) {
	good := newIssuer(t, jose.EdDSA, "a")
	v := verifierOf(t, Options{}, good.public())
	token := good.sign(m{"sub": "anna", "exp": in(time.Hour)})
	if _, r := v.Verify(token); r != Verified {
		t.Fatal(r)
	}
	rng := seeding.Rand(t)
	for range 2000 {
		raw := []byte(token)
		raw[rng.IntN(len(raw))] ^= 1 << rng.IntN(7)
		if c, r := v.Verify(string(raw)); r == Verified && !sameBytes(string(raw), token) {
			t.Fatalf("%s\nis verified: %v", raw, c)
		}
	}
}

// sameBytes reports whether two tokens are encodings of the same bytes: the last character of a part has bits that
// mean nothing.
func sameBytes(a, b string) bool {
	x, y := strings.Split(a, "."), strings.Split(b, ".")
	for i := range y {
		if len(x) != len(y) {
			return false
		}
		p, err1 := base64.RawURLEncoding.DecodeString(x[i])
		q, err2 := base64.RawURLEncoding.DecodeString(y[i])
		if err1 != nil || err2 != nil || string(p) != string(q) {
			return false
		}
	}
	return true
}

// What is remembered ends with the token, and with the keys that verified it.
func TestRememberedTokensEnd(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	old, next := newIssuer(t, jose.EdDSA, "a"), newIssuer(t, jose.EdDSA, "b")
	v := verifierOf(t, Options{}, old.public())
	now := time.Now()
	v.now = func() time.Time { return now }
	token := old.sign(m{"exp": now.Add(time.Minute).Unix()})
	if _, r := v.Verify(token); r != Verified {
		t.Fatal(r)
	}
	now = now.Add(time.Minute + Leeway)
	if _, r := v.Verify(token); r != Expired {
		t.Errorf("after its end: %v", r)
	}
	now = now.Add(-time.Minute)
	if _, r := v.Verify(token); r != Verified {
		t.Fatal(r)
	}
	if err := os.WriteFile(v.opts.Keys.source, keySetOf(t, next.public()), 0o600); err != nil {
		t.Fatal(err)
	}
	if changed, err := v.opts.Keys.Refresh(t.Context()); !changed || err != nil {
		t.Fatal(changed, err)
	}
	if _, r := v.Verify(token); r != BadSignature {
		t.Errorf("by a key that was taken back: %v", r)
	}
	for i := range maxKnown + 10 {
		v.Verify(next.sign(m{"exp": now.Add(time.Hour).Unix(), "n": i}))
	}
	if len(v.known) != maxKnown || v.used.Len() != maxKnown {
		t.Errorf("%d and %d are remembered, want %d", len(v.known), v.used.Len(), maxKnown)
	}
}

// A URL that fails, hangs, or answers with something else leaves the former keys in use.
func TestKeysOfAURL(t *testing.T) {
	good, next := newIssuer(t, jose.ES256, "a"), newIssuer(t, jose.ES256, "b")
	var answer atomic.Pointer[func(http.ResponseWriter)]
	say := func(f func(http.ResponseWriter)) { answer.Store(&f) }
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { (*answer.Load())(w) }))
	defer server.Close()
	say(func(w http.ResponseWriter) { w.WriteHeader(500) })
	k, err := OpenKeys(t.Context(), server.URL)
	if err != nil || k.Good() {
		t.Fatalf("%v, good %v: the URL may be started later", err, k.Good())
	}
	v := New(Options{Keys: k})
	token := good.sign(m{"exp": in(time.Hour)})
	if _, r := v.Verify(token); r != BadSignature {
		t.Errorf("without keys: %v", r)
	}
	say(func(w http.ResponseWriter) { _, _ = w.Write(keySetOf(t, good.public())) })
	if changed, err := k.Refresh(t.Context()); !changed || err != nil || !k.Good() {
		t.Fatal(changed, err)
	}
	for name, f := range map[string]func(http.ResponseWriter){
		"an error":        func(w http.ResponseWriter) { w.WriteHeader(503) },
		"no JSON":         func(w http.ResponseWriter) { fmt.Fprint(w, "<html>") },
		"no keys":         func(w http.ResponseWriter) { fmt.Fprint(w, `{"keys":[]}`) },
		"a secret":        func(w http.ResponseWriter) { fmt.Fprint(w, `{"keys":[{"kty":"oct","k":"c2VjcmV0"}]}`) },
		"a bomb":          func(w http.ResponseWriter) { fmt.Fprint(w, `{"keys":[`+strings.Repeat(" ", maxKeySet)+`]}`) },
		"very many keys":  func(w http.ResponseWriter) { fmt.Fprint(w, `{"keys":[{}`+strings.Repeat(",{}", maxKeys)+`]}`) },
		"a redirect":      func(w http.ResponseWriter) { w.Header().Set("Location", "file:///etc/passwd"); w.WriteHeader(302) },
		"deep nesting":    func(w http.ResponseWriter) { fmt.Fprint(w, strings.Repeat("[", 100_000)) },
		"encryption only": func(w http.ResponseWriter) { key := good.public(); key.Use = "enc"; _, _ = w.Write(keySetOf(t, key)) },
	} {
		say(f)
		if _, err := k.Refresh(t.Context()); err == nil || k.Good() {
			t.Errorf("%s: no error", name)
		}
		if _, r := v.Verify(token); r != Verified {
			t.Errorf("%s: the former keys are gone: %v", name, r)
		}
	}
	say(func(w http.ResponseWriter) { _, _ = w.Write(keySetOf(t, next.public())) })
	if _, err := k.Refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, r := v.Verify(next.sign(m{"exp": in(time.Hour)})); r != Verified {
		t.Errorf("by the next key: %v", r)
	}
	for _, bad := range []string{"http://issuer.example/keys", "ftp://x/y", "://", "/nowhere/keys.json"} {
		if _, err := OpenKeys(t.Context(), bad); err == nil {
			t.Errorf("%s: no error", bad)
		}
	}
}

// Tokens of unknown keys, which anybody can send, make the URL be asked once in ten seconds.
func TestUnknownKeysDoNotFlood(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var asked atomic.Int64
		k := &Keys{source: "https://issuer.example", wanted: make(chan struct{}, 1)}
		k.set.Store(&keySet{keys: []jose.JSONWebKey{{KeyID: "a"}}})
		k.client = &http.Client{Transport: roundTrip(func(*http.Request) (*http.Response, error) {
			asked.Add(1)
			return nil, context.DeadlineExceeded
		})}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			k.Run(ctx, func(bool, error) {})
			close(ended)
		}()
		for range 60_000 {
			k.For("unknown", time.Now())
			time.Sleep(time.Millisecond)
		}
		if n := asked.Load(); n < 5 || n > 7 {
			t.Errorf("asked %d times in a minute, want one each 10 s", n)
		}
		cancel()
		<-ended
	})
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func FuzzVerify(f *testing.F) {
	t := &testing.T{}
	good := newIssuer(t, jose.EdDSA, "a")
	k := &Keys{source: "x", wanted: make(chan struct{}, 1)}
	k.set.Store(&keySet{keys: []jose.JSONWebKey{good.public()}})
	v := New(Options{Keys: k})
	f.Add("a.b.c")
	f.Add("eyJhbGciOiJub25lIn0.e30.")
	f.Fuzz(func(t *testing.T, token string) {
		if _, r := v.Verify(token); r == Verified {
			t.Errorf("%q is verified", token)
		}
	})
}
