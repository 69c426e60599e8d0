// Package forwarded says who sent a request and what it was before proxies
// passed it on: the client's address and the original method, scheme, host and
// path, from the header fields that proxies add.
//
// It believes only the proxies in its configuration, and of a list only the part
// that those wrote. It opens no connection and decides nothing.
package forwarded

import (
	"fmt"
	"net/http"
	"net/netip"
	"strings"

	"github.com/gaissmai/bart"

	"github.com/stint-io/stint/internal/address"
)

const (
	// maxHops bounds how far back a chain of proxies is followed. Real chains
	// have fewer than ten.
	maxHops = 32
	// maxElement bounds one element of a forwarded list, in bytes. An element
	// with an address, a host name and a scheme fits.
	maxElement = 512
)

// Source is a header field, or family of fields, that names the client.
type Source uint8

// The sources.
const (
	XForwardedFor Source = iota // a list, to which each proxy appends its peer
	Forwarded                   // RFC 7239, the same with parameters
	XRealIP                     // one address, set by the last proxy
)

// Trusted is a set of proxies whose header fields are believed. A nil *Trusted
// and the zero value trust no proxy. It is immutable and safe for concurrent use.
type Trusted struct {
	table   *bart.Lite
	unix    bool
	sources []Source
}

// ParseTrusted returns the set of the proxies in list: prefixes such as
// "10.0.0.0/8", single addresses, and "unix" for peers on a unix socket. All
// faults are reported at once.
//
// The client's address is taken from the first of the given sources that a
// request has; without any, XForwardedFor, Forwarded and XRealIP are tried in
// this order. A proxy passes on what it does not know: where it sets a later
// source only, a client that sends an earlier one is believed. Name the source
// that the proxy writes, or have the proxy remove the others.
func ParseTrusted(list []string, from ...Source) (*Trusted, error) {
	var prefixes []netip.Prefix
	var bad []string
	unix := false
	for _, entry := range list {
		entry = strings.TrimSpace(entry)
		if entry == "unix" {
			unix = true
			continue
		}
		p, err := netip.ParsePrefix(entry)
		if err != nil {
			a, addrErr := netip.ParseAddr(entry)
			if addrErr != nil || a.Zone() != "" {
				bad = append(bad, fmt.Sprintf("%q", entry))
				continue
			}
			p = netip.PrefixFrom(a, a.BitLen())
		}
		prefixes = append(prefixes, p)
	}
	if bad != nil {
		return nil, fmt.Errorf("forwarded: trusted proxies: %s: want a prefix such as 10.0.0.0/8, an address or unix", strings.Join(bad, ", "))
	}
	t := TrustPrefixes(prefixes, from...)
	t.unix = unix
	return t, nil
}

// TrustPrefixes is [ParseTrusted] for prefixes that are parsed already. Invalid
// prefixes match no address.
func TrustPrefixes(prefixes []netip.Prefix, from ...Source) *Trusted {
	t := &Trusted{table: new(bart.Lite), sources: from}
	if len(from) == 0 {
		t.sources = []Source{XForwardedFor, Forwarded, XRealIP}
	}
	for _, p := range prefixes {
		if p = address.Prefix(p); p.IsValid() {
			t.table.Insert(p)
		}
	}
	return t
}

// Contains reports whether addr is a trusted proxy, in the form of
// [address.Of].
func (t *Trusted) Contains(addr netip.Addr) bool {
	return t != nil && t.table != nil && addr.IsValid() && t.table.Contains(address.Of(addr))
}

// Peer returns the address of the connection's other end, from an
// [http.Request]'s RemoteAddr, and whether it is trusted. The address is not
// valid for unix sockets and the like.
func (t *Trusted) Peer(remoteAddr string) (netip.Addr, bool) {
	if ap, err := netip.ParseAddrPort(remoteAddr); err == nil {
		addr := address.Of(ap.Addr())
		return addr, t.Contains(addr)
	}
	if addr, ok := address.Parse(remoteAddr); ok {
		return addr, t.Contains(addr)
	}
	// net/http has "@" or nothing for a unix socket that is not bound.
	unix := remoteAddr == "" || remoteAddr[0] == '@' || remoteAddr[0] == '/'
	return netip.Addr{}, unix && t != nil && t.unix
}

// ClientIP returns the address of the client, and whether the peer is a trusted
// proxy.
//
// The header fields of a peer that is not trusted are ignored: it is the client.
// A list is read from the right, all its field lines taken together: each trusted
// hop vouches for the one to its left, and the first that is not trusted is the
// client. What stands left of it, the client may have written itself, and it is
// never looked at. Where the list ends with trusted hops only, the leftmost is
// the client; where an element is no address, the hop to its right is.
//
// The address is not valid when neither the peer nor a header field has one.
func (t *Trusted) ClientIP(remoteAddr string, h http.Header) (client netip.Addr, trusted bool) {
	peer, trusted := t.Peer(remoteAddr)
	if !trusted {
		return peer, false
	}
	for _, s := range t.sources {
		switch s {
		case XForwardedFor:
			if lines := h["X-Forwarded-For"]; len(lines) > 0 {
				return t.walk(peer, lines, node), true
			}
		case Forwarded:
			if lines := h["Forwarded"]; len(lines) > 0 {
				return t.walk(peer, lines, forElement), true
			}
		case XRealIP:
			// Two lines mean that one of them is not the proxy's.
			if lines := h["X-Real-Ip"]; len(lines) == 1 {
				if addr, ok := node(lines[0]); ok {
					return addr, true
				}
			}
		}
	}
	return peer, true
}

// walk follows a list from its right end, beginning behind peer.
//
// Elements are cut at commas even inside quotes. The proxies that write here
// quote no commas, and looking for the opening quote would let what a client
// wrote on the left change how the right is read.
func (t *Trusted) walk(peer netip.Addr, lines []string, parse func(string) (netip.Addr, bool)) netip.Addr {
	nearest, hops := peer, 0
	for i := len(lines) - 1; i >= 0; i-- {
		for line, more := lines[i], true; more; {
			if hops++; hops > maxHops {
				return nearest
			}
			element := line
			if comma := strings.LastIndexByte(line, ','); comma < 0 {
				more = false
			} else {
				element, line = line[comma+1:], line[:comma]
			}
			if element = strings.Trim(element, " \t"); element == "" {
				continue // RFC 9110: recipients ignore empty elements
			}
			addr, ok := parse(element)
			if !ok {
				return nearest
			}
			nearest = addr
			if !t.Contains(addr) {
				return nearest
			}
		}
	}
	return nearest
}
