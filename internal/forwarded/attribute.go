package forwarded

import (
	"encoding/hex"
	"net/netip"
	"net/url"
	"path"
	"strings"

	"github.com/stint-io/stint/internal/address"
)

// IP returns addr as the value of the attribute ip, in the form of [address.Of]. Limits cut it to a network where they
// count by it. It is empty for an address that is not valid.
func IP(addr netip.Addr) string {
	if !addr.IsValid() {
		return ""
	}
	return address.Of(addr).String()
}

// Network returns addr as [IP] does, and an IPv6 address as the prefix of that many bits that holds it, such as
// "2001:db8:0:1::/64": one subscriber has a /64. Loopback addresses are not cut.
func Network(addr netip.Addr, bits int) string {
	if addr = address.Of(addr); !addr.Is6() || addr.IsLoopback() || bits < 1 || bits >= 128 {
		return IP(addr)
	}
	return netip.PrefixFrom(addr, bits).Masked().String()
}

// SubscriberBits is the length of the prefix that one subscriber of IPv6 has.
const SubscriberBits = 64

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

// Readings returns the paths that servers make of a URI as sent. Path is that of [Path]: decoded, then cleaned. Cleaned is
// cleaned, then decoded, as by servers that route by the path with its escapes, in which %2f is no slash and %2e no dot;
// sent is decoded and not cleaned. Each is empty if it is equal to one before it.
func Readings(uri string) (path, cleaned, sent string) {
	path = Path(uri)
	if i := strings.IndexAny(uri, "?#"); i >= 0 {
		uri = uri[:i]
	}
	if uri == path {
		return path, "", ""
	}
	if cleaned = unescape(CleanPath(uri)); cleaned == path {
		cleaned = ""
	}
	if sent = unescape(uri); sent == path || sent == cleaned {
		sent = ""
	}
	return path, cleaned, sent
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
