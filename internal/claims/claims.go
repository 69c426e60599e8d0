// Package claims verifies JSON web tokens (RFC 7519) by the keys of a file or of a URL (RFC 7517), and
// returns their claims as texts. A token that is not verified has no claims.
//
// Only asymmetric algorithms are believed. So a token cannot say that it is signed by nobody, nor by a
// public key taken for a secret.
package claims

import (
	"container/list"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
)

// algorithms are those that are believed: asymmetric ones, with keys that are in use.
var algorithms = []jose.SignatureAlgorithm{
	jose.RS256, jose.RS384, jose.RS512, jose.PS256, jose.PS384, jose.PS512, jose.ES256, jose.ES384, jose.ES512, jose.EdDSA,
}

const (
	// maxToken bounds a token. Header fields have 8 KiB with most servers.
	maxToken = 8 << 10

	// Leeway is by how much clocks may differ.
	Leeway = 30 * time.Second

	// maxKnown bounds the verified tokens that are remembered. Each spares the work of a signature, some 30 µs.
	maxKnown = 4096

	// maxClaims and maxDepth bound what of a token is read.
	maxClaims = 256
	maxDepth  = 8
)

// Options say which tokens are believed. Keys is required.
type Options struct {
	Keys     *Keys
	Issuer   string // what iss must be; "" = anything
	Audience string // what aud must contain; "" = anything
}

// Result says what became of a token.
type Result uint8

// The results.
const (
	Verified Result = iota
	Malformed
	BadSignature // also of an unknown key
	Expired      // or not valid yet
	WrongIssuer  // or audience

	// ResultCount is one more than the last result.
	ResultCount int = iota
)

var resultNames = [...]string{"verified", "malformed", "bad_signature", "expired", "wrong_issuer"}

// String returns the result as it stands in metrics.
func (r Result) String() string { return resultNames[r] }

// Verifier verifies tokens. It is safe for concurrent use; New makes one.
type Verifier struct {
	opts   Options
	counts [ResultCount]atomic.Uint64
	now    func() time.Time

	mu    sync.Mutex
	known map[[sha256.Size]byte]*list.Element
	used  list.List // of *entry; the one used last is first
}

type entry struct {
	sum        [sha256.Size]byte
	claims     Claims
	until      time.Time
	generation uint64 // of the keys
}

// Claims are those of a verified token: texts, numbers and truth values by their names, of nested ones with dots
// between. Read-only.
type Claims map[string]string

// New returns a verifier.
func New(o Options) *Verifier {
	return &Verifier{opts: o, now: time.Now, known: map[[sha256.Size]byte]*list.Element{}}
}

// Count is how many tokens had that result; those that are remembered count each time.
func (v *Verifier) Count(r Result) uint64 { return v.counts[r].Load() }

// Verify returns the claims of a token, nil unless it is verified.
func (v *Verifier) Verify(token string) (Claims, Result) {
	c, r := v.verify(token)
	v.counts[r].Add(1)
	return c, r
}

func (v *Verifier) verify(token string) (Claims, Result) {
	if len(token) > maxToken || token == "" {
		return nil, Malformed
	}
	sum, now, generation := sha256.Sum256([]byte(token)), v.now(), v.opts.Keys.Generation()
	if c := v.remembered(sum, now, generation); c != nil {
		return c, Verified
	}
	parsed, err := jwt.ParseSigned(token, algorithms)
	if err != nil || len(parsed.Headers) != 1 {
		return nil, Malformed
	}
	header := &parsed.Headers[0]
	var std jwt.Claims
	var all map[string]any
	verified := false
	for _, key := range v.opts.Keys.For(header.KeyID, now) {
		if key.Algorithm != "" && key.Algorithm != header.Algorithm {
			continue
		}
		if verified = parsed.Claims(key.Key, &std, &all) == nil; verified {
			break
		}
	}
	if !verified {
		return nil, BadSignature
	}
	if std.Expiry == nil {
		return nil, Expired // a token without an end could be used for ever once it is stolen
	}
	until := std.Expiry.Time().Add(Leeway)
	if !now.Before(until) || std.NotBefore != nil && now.Add(Leeway).Before(std.NotBefore.Time()) {
		return nil, Expired
	}
	if v.opts.Issuer != "" && std.Issuer != v.opts.Issuer || v.opts.Audience != "" && !std.Audience.Contains(v.opts.Audience) {
		return nil, WrongIssuer
	}
	out := Claims{}
	flatten(out, "", all, 0)
	v.remember(&entry{sum, out, until, generation})
	return out, Verified
}

// remembered returns the claims of a token that was verified before by the same keys.
func (v *Verifier) remembered(sum [sha256.Size]byte, now time.Time, generation uint64) Claims {
	v.mu.Lock()
	defer v.mu.Unlock()
	at := v.known[sum]
	if at == nil {
		return nil
	}
	e := at.Value.(*entry)
	if !now.Before(e.until) || e.generation != generation {
		v.used.Remove(at)
		delete(v.known, sum)
		return nil
	}
	v.used.MoveToFront(at)
	return e.claims
}

func (v *Verifier) remember(e *entry) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.known[e.sum] != nil {
		return
	}
	if v.used.Len() >= maxKnown {
		last := v.used.Back()
		delete(v.known, last.Value.(*entry).sum)
		v.used.Remove(last)
	}
	v.known[e.sum] = v.used.PushFront(e)
}

// flatten adds the values of a map as texts. Lists have no text.
func flatten(out Claims, prefix string, in map[string]any, depth int) {
	if depth >= maxDepth {
		return
	}
	for name, value := range in {
		if len(out) >= maxClaims {
			return
		}
		name = prefix + name
		switch x := value.(type) {
		case string:
			out[name] = x
		case bool:
			out[name] = strconv.FormatBool(x)
		case float64:
			if x == math.Trunc(x) && math.Abs(x) < 1<<53 {
				out[name] = strconv.FormatInt(int64(x), 10)
			} else {
				out[name] = strconv.FormatFloat(x, 'g', -1, 64)
			}
		case json.Number:
			out[name] = x.String()
		case map[string]any:
			flatten(out, name+".", x, depth+1)
		}
	}
}

// Bearer returns the token of an Authorization field.
func Bearer(field string) (token string, ok bool) {
	scheme, token, ok := strings.Cut(strings.TrimSpace(field), " ")
	if !ok || !strings.EqualFold(scheme, "Bearer") {
		return "", false
	}
	return strings.TrimSpace(token), true
}

// parse reads a key set: public keys of asymmetric algorithms for signatures.
func parse(raw []byte) ([]jose.JSONWebKey, error) {
	var set struct {
		Keys []json.RawMessage `json:"keys"`
	}
	if err := json.Unmarshal(raw, &set); err != nil {
		return nil, fmt.Errorf("claims: this is no JSON web key set: %w", err)
	}
	if len(set.Keys) > maxKeys {
		return nil, fmt.Errorf("claims: %d keys, want at most %d", len(set.Keys), maxKeys)
	}
	var out []jose.JSONWebKey
	for _, one := range set.Keys {
		var key jose.JSONWebKey
		// A set may have keys of kinds that are not known here.
		if json.Unmarshal(one, &key) != nil || !key.Valid() || key.Use != "" && key.Use != "sig" {
			continue
		}
		if !key.IsPublic() { // a secret, or a private key that should not be here
			continue
		}
		out = append(out, key)
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("claims: of %d keys none is a public key for signatures: kty RSA, EC or OKP", len(set.Keys))
	}
	return out, nil
}
