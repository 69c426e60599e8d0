package forwarded

import (
	"encoding/hex"
	"net/netip"
	"net/url"
	"path"
	"strings"
)

// DefaultIPv6Bits is the length to which [IP] cuts IPv6 addresses. Not longer:
// one subscriber has a /64, and each of its 2^64 addresses would be a new key.
// Not shorter: neighbours would share one.
const DefaultIPv6Bits = 64

// IP returns addr as the value of the attribute ip: an IPv4 address as it is,
// an IPv6 address as the prefix of ipv6Bits that holds it, such as
// "2001:db8:0:1::/64". Loopback addresses and a length of 128 keep the address
// itself; a length outside 1 to 128 means [DefaultIPv6Bits]. It is empty for an
// address that is not valid.
func IP(addr netip.Addr, ipv6Bits int) string {
	if !addr.IsValid() {
		return ""
	}
	addr = addr.Unmap().WithZone("")
	if ipv6Bits < 1 || ipv6Bits > 128 {
		ipv6Bits = DefaultIPv6Bits
	}
	if addr.Is4() || addr.IsLoopback() || ipv6Bits == 128 {
		return addr.String()
	}
	return netip.PrefixFrom(addr, ipv6Bits).Masked().String()
}

// Host returns the value of the attribute host for a Host field: in lower case,
// without port and final dot, for these name no other host. It is empty when s
// is longer than any host name.
func Host(s string) string {
	if rest, ok := strings.CutPrefix(s, "["); ok {
		s, _, _ = strings.Cut(rest, "]")
	} else if colon := strings.LastIndexByte(s, ':'); colon >= 0 && strings.IndexByte(s, ':') == colon {
		s = s[:colon]
	}
	s = strings.TrimSuffix(s, ".")
	// Bytes that are no UTF-8 grow in lower case, so the bound comes after it.
	if s = strings.ToLower(s); len(s) > maxHost {
		return ""
	}
	return s
}

// Path returns the value of the attribute path for a URI as sent: without query
// and fragment, percent escapes decoded, and cleaned as [CleanPath] does. It is
// empty for an empty URI.
func Path(uri string) string {
	// Two searches for a byte cost a third of strings.IndexAny.
	if i := strings.IndexByte(uri, '?'); i >= 0 {
		uri = uri[:i]
	}
	if i := strings.IndexByte(uri, '#'); i >= 0 {
		uri = uri[:i]
	}
	if strings.IndexByte(uri, '%') >= 0 {
		uri = unescape(uri)
	}
	return CleanPath(uri)
}

// unescape decodes percent escapes and leaves malformed ones as they are. Servers
// that take such a path decode the rest of it, so one bad escape must not hide it.
func unescape(s string) string {
	if decoded, err := url.PathUnescape(s); err == nil {
		return decoded
	}
	var b strings.Builder
	b.Grow(len(s))
	for i := 0; i < len(s); i++ {
		if s[i] == '%' && i+2 < len(s) {
			if c, err := hex.DecodeString(s[i+1 : i+3]); err == nil {
				b.WriteByte(c[0])
				i += 2
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

// CleanPath cleans a decoded path as servers do before they look for a handler:
// //, /./ and /../ are resolved, so that /api//login does not get around a limit
// on /api/login. A final slash stays. It does not allocate for a clean path.
func CleanPath(p string) string {
	if p == "" || p == "*" {
		return p
	}
	if p[0] == '/' && !strings.Contains(p, "//") && !strings.Contains(p, "/.") {
		return p
	}
	clean := path.Clean("/" + p)
	if clean != "/" && (p[len(p)-1] == '/' || strings.HasSuffix(p, "/.") || strings.HasSuffix(p, "/..")) {
		clean += "/"
	}
	return clean
}

// Query returns the query of a URI as sent, without the question mark.
func Query(uri string) string {
	if i := strings.IndexByte(uri, '#'); i >= 0 {
		uri = uri[:i]
	}
	_, query, _ := strings.Cut(uri, "?")
	return query
}
