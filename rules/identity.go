package rules

import (
	"strings"

	"github.com/stint-io/stint/internal/document"
)

// Identity is the section identity of limits files: from what the attributes user_ip, region, asn and
// claim:NAME are found. The zero value finds user_ip in ip.
type Identity struct {
	// JWKS is the file or the URL of the keys by which tokens are verified; "" = no token is believed.
	JWKS string
	// Issuer and Audience are what tokens must say; "" = anything.
	Issuer, Audience string
	// Token is the attribute that has the token: header:authorization, as a Bearer token, unless
	// another header field or cookie is named.
	Token string

	// Country and ASN are the paths of databases of MaxMind's format; "" = none.
	Country, ASN string

	// UserIP are the attributes of the header fields that name a client behind a proxy; the first
	// that has an address counts.
	UserIP []string
}

// The keys of the section.
var (
	identityKeys = []string{"jwt", "geoip", "user_ip_headers"}
	jwtKeys      = []string{"jwks", "issuer", "audience", "header", "cookie"}
	geoipKeys    = []string{"country", "asn"}
)

const maxUserHeaders = 8

// Identity returns the section identity of the files. Read-only.
func (s *Set) Identity() Identity { return s.identity }

// identity reads the section.
func (b *builder) identity(d *file, n *document.Node) {
	if !d.section(n, "identity", "a map with jwt, geoip or user_ip_headers", identityKeys) {
		return
	}
	if b.identityAt != nil {
		d.Fault(n, "write it in one file only", "another identity is in line %d of another place", b.identityAt.Line)
		return
	}
	b.identityAt = n
	id := &b.set.identity
	if jwt := n.Get("jwt"); jwt != nil && d.section(jwt, "jwt", "a map such as {jwks: keys.json}", jwtKeys) {
		b.jwt(d, jwt, id)
	}
	if geoip := n.Get("geoip"); geoip != nil && d.section(geoip, "geoip", "a map such as {country: country.mmdb}", geoipKeys) {
		d.texts(geoip, map[string]*string{"country": &id.Country, "asn": &id.ASN})
	}
	list := n.Get("user_ip_headers").Each()
	if len(list) > maxUserHeaders {
		d.Fault(n.Get("user_ip_headers"), "", "%d header fields, want at most %d", len(list), maxUserHeaders)
		return
	}
	for _, item := range list {
		if name, ok := d.str(item, "the name of a header field"); ok && d.headerName(item, name) {
			id.UserIP = append(id.UserIP, headerPrefix+strings.ToLower(name))
		}
	}
}

func (b *builder) jwt(d *file, n *document.Node, id *Identity) {
	d.texts(n, map[string]*string{"jwks": &id.JWKS, "issuer": &id.Issuer, "audience": &id.Audience})
	if n.Get("jwks") == nil {
		d.Fault(n, "add jwks: a file, or an https URL", "jwt does not say by which keys")
	}
	if strings.HasPrefix(id.JWKS, "http://") && !strings.HasPrefix(id.JWKS, "http://localhost") && !strings.HasPrefix(id.JWKS, "http://127.0.0.1") {
		d.Fault(n.Get("jwks"), "write https://", "the keys come over an open connection: who changes them on their way can sign any token")
	}
	id.Token = headerPrefix + "authorization"
	header, cookie := n.Get("header"), n.Get("cookie")
	switch {
	case header != nil && cookie != nil:
		d.Fault(cookie, "leave one out", "the token is in a header field or in a cookie, not in both")
	case header != nil:
		if name, ok := d.str(header, "the name of a header field"); ok && d.headerName(header, name) {
			id.Token = headerPrefix + strings.ToLower(name)
		}
	case cookie != nil:
		if name, ok := d.str(cookie, "the name of a cookie"); ok && d.headerName(cookie, name) {
			id.Token = "cookie:" + name
		}
	}
}

// texts reads texts that are not empty.
func (d *file) texts(n *document.Node, into map[string]*string) {
	for key, to := range into {
		v := n.Get(key)
		if v == nil {
			continue
		}
		if text, ok := d.str(v, "a text"); ok {
			if *to = text; text == "" {
				d.Fault(v, "leave it out", "%s is empty", key)
			}
		}
	}
}

const claimPrefix = "claim:"

// finds reports whether the attribute is found as the section says.
func (id *Identity) finds(name string) bool {
	switch {
	case name == userIPAttribute:
		return true
	case name == "region":
		return id.Country != ""
	case name == "asn":
		return id.ASN != ""
	case strings.HasPrefix(name, claimPrefix):
		return id.JWKS != ""
	}
	return false
}

// identityHint says how an attribute could be found; "" = not so.
func identityHint(name string) string {
	switch {
	case name == "region":
		return "add identity: {geoip: {country: country.mmdb}}"
	case name == "asn":
		return "add identity: {geoip: {asn: asn.mmdb}}"
	case strings.HasPrefix(name, claimPrefix):
		return "add identity: {jwt: {jwks: https://issuer.example/keys}}"
	}
	return ""
}
