package access

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"slices"
	"time"
)

// maxToken bounds a token, in bytes. Not longer: it is hashed before anything is known of who sends
// it. Not shorter: signed tokens of others have two thousand.
const maxToken = 4096

// Credential is what somebody shows: a token, or a certificate whose chain was verified. A token goes
// before a certificate. The zero value is nothing.
type Credential struct {
	sum      [sha256.Size]byte // of the token
	hasToken bool
	leaf     *x509.Certificate
}

// TokenOf returns the credential of a token. The token itself is not kept.
func TokenOf(token string) (Credential, error) {
	if token == "" || len(token) > maxToken {
		return Credential{}, ErrMalformed
	}
	for i := range len(token) {
		if c := token[i]; c <= ' ' || c >= 0x7f || c == ',' {
			return Credential{}, ErrMalformed
		}
	}
	return Credential{sum: sha256.Sum256([]byte(token)), hasToken: true}, nil
}

// CertificateOf returns the credential of a certificate whose chain was verified.
func CertificateOf(leaf *x509.Certificate) Credential { return Credential{leaf: leaf} }

// Table is what one reading of the file says. It does not change.
type Table struct {
	identities []*Identity
	// tokens are found by a keyed hash of their sums. The time that a search in a map takes may
	// depend on what is searched for; the key is drawn at random, so nobody outside knows
	// which token leads to which place.
	key    [32]byte
	tokens map[[sha256.Size]byte]holder
	names  map[name]*Identity
	files  []string // of tokens
}

type holder struct {
	sum      [sha256.Size]byte
	identity *Identity
}

// name is one of a certificate.
type name struct {
	kind nameKind
	text string
}

type nameKind uint8

const (
	uriName nameKind = iota
	dnsName
	commonName
)

func newTable() *Table {
	t := &Table{tokens: map[[sha256.Size]byte]holder{}, names: map[name]*Identity{}}
	rand.Read(t.key[:]) // never fails
	return t
}

// place returns where a token lies. Key and sum have fixed lengths, so that hashing one after the other
// is as good as an HMAC, and takes no memory.
func (t *Table) place(sum [sha256.Size]byte) [sha256.Size]byte {
	var both [len(t.key) + sha256.Size]byte
	copy(both[:], t.key[:])
	copy(both[len(t.key):], sum[:])
	return sha256.Sum256(both[:])
}

// addToken reports false when the token is that of another identity.
func (t *Table) addToken(sum [sha256.Size]byte, id *Identity) bool {
	at := t.place(sum)
	if h, there := t.tokens[at]; there {
		return h.identity == id
	}
	t.tokens[at] = holder{sum, id}
	return true
}

// Identify says who shows the credential at a time.
func (t *Table) Identify(c *Credential, now time.Time) (*Identity, error) {
	switch {
	case c.hasToken:
		h := t.tokens[t.place(c.sum)]
		if subtle.ConstantTimeCompare(h.sum[:], c.sum[:]) != 1 || h.identity == nil {
			return nil, ErrToken
		}
		return h.identity, nil
	case c.leaf != nil:
		// The handshake has checked this; the connection may have lasted since.
		if now.After(c.leaf.NotAfter) {
			return nil, ErrExpired
		}
		return t.named(c.leaf)
	}
	return nil, ErrNone
}

// named returns the identity of a certificate: by its URIs, else by its DNS names. The common name counts
// only in a certificate without subject alternative names, as in RFC 6125: an authority that checks those
// may let its users choose the common name.
func (t *Table) named(leaf *x509.Certificate) (*Identity, error) {
	var found *Identity
	clash := false
	see := func(kind nameKind, text string) {
		if id := t.names[name{kind, text}]; id != nil {
			clash = clash || found != nil && found != id
			found = id
		}
	}
	for _, u := range leaf.URIs {
		see(uriName, u.String())
	}
	if found == nil {
		for _, d := range leaf.DNSNames {
			see(dnsName, d)
		}
	}
	if !hasAlternativeNames(leaf) && leaf.Subject.CommonName != "" {
		see(commonName, leaf.Subject.CommonName)
	}
	switch {
	case clash:
		return nil, ErrAmbiguous
	case found == nil:
		return nil, ErrCertificate
	}
	return found, nil
}

var subjectAltName = asn1.ObjectIdentifier{2, 5, 29, 17}

// hasAlternativeNames reports whether a certificate has subject alternative names of any kind, also of kinds
// that package x509 does not read.
func hasAlternativeNames(leaf *x509.Certificate) bool {
	return slices.ContainsFunc(leaf.Extensions, func(e pkix.Extension) bool { return e.Id.Equal(subjectAltName) })
}
