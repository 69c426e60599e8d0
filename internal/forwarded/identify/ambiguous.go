package identify

import (
	"net/http"
	"strings"
)

// Ambiguous returns the name of an attribute that servers may read otherwise than [Plan.Append] does; "" = there is none.
// The request has the header field, cookie or query parameter more than once, and many servers take the last; or it has
// one that servers take for it: X_Api_Key for X-Api-Key where they make variables of names, tenant[] or tenant.id for
// tenant and tenant_id. Of "header:*" nothing is ambiguous, as many fields may be there several times.
func (p *Plan) Ambiguous(h http.Header, query string) string {
	for i := range p.fields {
		f := &p.fields[i]
		n := 0
		switch f.where {
		case inHeader:
			n = len(h[f.key])
		case inCookie:
			n = cookies(h["Cookie"], f.key)
		case inQuery:
			n = parameters(query, f.key)
		}
		if n > 1 {
			return f.attribute
		}
	}
	for name := range h {
		if !p.underscores && strings.IndexByte(name, '_') < 0 {
			continue
		}
		for i := range p.fields {
			if f := &p.fields[i]; f.where == inHeader && name != f.key && sameVariable(name, f.key) {
				return f.attribute
			}
		}
	}
	return ""
}

// AmbiguousText is what a client is told of an ambiguous attribute.
func AmbiguousText(attribute string) string {
	return "the request has " + attribute + " more than once, or something that servers take for it"
}

// sameVariable reports whether names of header fields differ in case, dashes and underscores alone.
func sameVariable(a, b string) bool {
	dashes := func(s string) string { return strings.ReplaceAll(s, "_", "-") }
	return len(a) == len(b) && strings.EqualFold(dashes(a), dashes(b))
}

// several is what stands for more than one.
const several = 2

// cookies counts the cookies called name, up to several. One that servers take for it counts as several.
func cookies(lines []string, name string) (n int) {
	for _, line := range lines {
		for line != "" && n < several {
			var pair string
			pair, line, _ = strings.Cut(line, ";")
			key, _, ok := strings.Cut(strings.Trim(pair, " \t"), "=")
			if ok {
				n += counts(key, name)
			}
		}
	}
	return n
}

// parameters counts the parameters of a query called name, as cookies does. Some servers part them by semicolons.
func parameters(query, name string) (n int) {
	for query != "" && n < several {
		var pair string
		pair, query, _ = strings.Cut(query, "&")
		for i, part := range strings.Split(pair, ";") {
			key, _, _ := strings.Cut(part, "=")
			if c := counts(unescape(key), name); c > 0 && i > 0 {
				return several // others take it for a part of the value before
			} else {
				n += c
			}
		}
	}
	return n
}

// counts is 1 for the name itself, several for a name that servers take for it, and else 0.
func counts(key, name string) int {
	if key == name {
		return 1
	}
	if strings.HasPrefix(key, name) && key[len(name)] == '[' || strings.IndexByte(name, '_') >= 0 && variable.Replace(key) == name {
		return several
	}
	return 0
}

// variable is how PHP makes the name of a variable.
var variable = strings.NewReplacer(".", "_", " ", "_", "[", "_")
