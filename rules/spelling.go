package rules

import (
	"strings"

	"github.com/stint-io/stint/internal/document"
)

// What is known by name. A word that is one edit away from one of them, and is none itself, is
// doubted: as written it would be compared exactly, and never apply.
var (
	knownMethods = strings.Fields(`ACL BASELINE-CONTROL BIND CHECKIN CHECKOUT CONNECT COPY DELETE GET HEAD LABEL
		LINK LOCK MERGE MKACTIVITY MKCALENDAR MKCOL MKREDIRECTREF MKWORKSPACE MOVE OPTIONS ORDERPATCH PATCH POST
		PRI PROPFIND PROPPATCH PURGE PUT QUERY REBIND REPORT SEARCH TRACE UNBIND UNCHECKOUT UNLINK UNLOCK UPDATE
		UPDATEREDIRECTREF VERSION-CONTROL`)

	knownHeaders = strings.Fields(`accept accept-encoding accept-language authorization cache-control content-length
		content-type cookie forwarded host if-none-match origin referer user-agent x-api-key x-client-id
		x-forwarded-for x-forwarded-host x-forwarded-proto x-real-ip x-request-id x-tenant x-tenant-id x-user
		x-user-id`)

	// knownAttributes are what gateways and middleware provide, and what callers usually do.
	knownAttributes = strings.Fields("asn domain host ip method path proto region size sni user user_ip")
	knownKinds      = strings.Fields("claim cookie header query")
)

// nearAttribute returns what the name of an attribute that no door provides is likely to mean.
func nearAttribute(name string) (string, bool) {
	kind, rest, colon := strings.Cut(name, ":")
	if !colon {
		for _, prefix := range []string{"jwt.", "claims.", "token."} {
			if rest, ok := strings.CutPrefix(name, prefix); ok && rest != "" {
				return "claim:" + rest, true
			}
		}
		for _, kind := range []string{"cookie", "query", "header"} {
			if rest, ok := strings.CutPrefix(name, kind+"."); ok && rest != "" {
				return kind + ":" + rest, true
			}
		}
		if here, ok := sameAttribute(strings.TrimPrefix(name, "$")); ok {
			return here, true
		}
		// A caller's own name for its users is not their address.
		if strings.HasPrefix(name, "user") && name != "userip" {
			return "", false
		}
		if contains(knownKinds, name) {
			return name + ":NAME", true
		}
		if near, ok := document.Suggest(name, knownAttributes); ok && near != name {
			return near, true
		}
		if near, ok := document.Suggest(name, knownKinds); ok {
			return near + ":NAME", true
		}
		return "", false
	}
	if near, ok := document.Suggest(kind, knownKinds); ok && near != kind {
		return near + ":" + rest, true
	}
	return "", false
}

// nearWord returns the word of which text is a typo.
func nearWord(text string, words []string) (string, bool) {
	if contains(words, text) {
		return "", false
	}
	for _, w := range words {
		if oneEdit(text, w) {
			return w, true
		}
	}
	return "", false
}

// oneEdit reports whether a becomes b by one byte that is added, left out or another, or by the swap
// of two neighbours.
func oneEdit(a, b string) bool {
	if len(a) > len(b) {
		a, b = b, a
	}
	if a == b || len(b)-len(a) > 1 {
		return false
	}
	i := 0
	for i < len(a) && a[i] == b[i] {
		i++
	}
	if len(a) < len(b) {
		return a[i:] == b[i+1:]
	}
	return a[i+1:] == b[i+1:] || i+1 < len(a) && a[i] == b[i+1] && a[i+1] == b[i] && a[i+2:] == b[i+2:]
}

// placeholder returns the part of a path that looks like a parameter of a router, such as {id} or
// :id.
func placeholder(path string) (string, bool) {
	for _, part := range strings.Split(path, "/") {
		open := strings.IndexByte(part, '{')
		if open >= 0 && strings.IndexByte(part[open:], '}') > 0 || len(part) > 1 && (part[0] == ':' || part[0] == '<' && part[len(part)-1] == '>') {
			return part, true
		}
	}
	return "", false
}
