package forwarded

import (
	"net/netip"
	"strings"

	"github.com/stint-io/stint/internal/address"
)

// node parses an address as proxies write it: 192.0.2.7, 192.0.2.7:1234,
// 2001:db8::1, [2001:db8::1] or [2001:db8::1]:1234. IPv6 zones are dropped, as
// their names are anyone's choice.
func node(s string) (netip.Addr, bool) {
	s = strings.Trim(s, " \t")
	if len(s) > maxElement {
		return netip.Addr{}, false
	}
	if rest, ok := strings.CutPrefix(s, "["); ok {
		host, port, ok := strings.Cut(rest, "]")
		if !ok || !strings.Contains(host, ":") || port != "" && !isPort(port) {
			return netip.Addr{}, false
		}
		return address.Parse(host)
	}
	if host, port, ok := strings.Cut(s, ":"); ok && !strings.Contains(port, ":") {
		if !isPort(s[len(host):]) {
			return netip.Addr{}, false
		}
		s = host
	}
	return address.Parse(s)
}

// isPort reports whether s is a colon and a port: up to five digits, or a
// hidden one that starts with an underscore (RFC 7239).
func isPort(s string) bool {
	if len(s) < 2 || s[0] != ':' {
		return false
	}
	s = s[1:]
	if s[0] == '_' {
		return len(s) > 1
	}
	for i := range len(s) {
		if s[i] < '0' || s[i] > '9' {
			return false
		}
	}
	return len(s) <= 5
}

// forElement parses one element of an RFC 7239 list, such as
// for="[2001:db8::1]:4711";proto=https, and returns the address in its for
// parameter. An element that is malformed, has no for or two of them, or hides
// the address ("unknown", "_x") has none.
func forElement(s string) (netip.Addr, bool) {
	if len(s) > maxElement {
		return netip.Addr{}, false
	}
	found, client := false, ""
	for s != "" {
		name, rest, ok := strings.Cut(s, "=")
		if !ok || !isToken(name) {
			return netip.Addr{}, false
		}
		var value string
		if value, s, ok = parameterValue(rest); !ok {
			return netip.Addr{}, false
		}
		if strings.EqualFold(name, "for") {
			if found {
				return netip.Addr{}, false
			}
			found, client = true, value
		}
	}
	if !found {
		return netip.Addr{}, false
	}
	return node(client)
}

// parameterValue cuts a token or quoted string, and the semicolon behind it, off
// s. Escapes in quoted strings are left as they are: no address has one.
func parameterValue(s string) (value, rest string, ok bool) {
	if quoted, isQuoted := strings.CutPrefix(s, `"`); isQuoted {
		end := 0
		for end < len(quoted) && quoted[end] != '"' {
			if quoted[end] == '\\' {
				end++
			}
			end++
		}
		if end >= len(quoted) {
			return "", "", false
		}
		value, rest = quoted[:end], quoted[end+1:]
	} else {
		end := strings.IndexAny(s, "; \t\"")
		if end < 0 {
			end = len(s)
		}
		value, rest = s[:end], s[end:]
		if value == "" {
			return "", "", false
		}
	}
	rest = strings.TrimLeft(rest, " \t")
	if rest == "" {
		return value, "", true
	}
	if rest[0] != ';' {
		return "", "", false
	}
	return value, strings.TrimLeft(rest[1:], " \t"), true
}

// isToken reports whether s is a token of RFC 9110.
func isToken(s string) bool {
	for i := range len(s) {
		c := s[i]
		letter := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
		if !letter && !strings.ContainsRune("!#$%&'*+-.^_`|~", rune(c)) {
			return false
		}
	}
	return s != ""
}
