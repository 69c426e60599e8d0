// Package address brings IP addresses into the one form in which limits see them.
package address

import "net/netip"

// nat64 is the prefix of IPv4 clients behind a NAT64 (RFC 6052).
var nat64 = netip.MustParsePrefix("64:ff9b::/96")

// Of returns the address by which a client is known: the IPv4 address inside an IPv4-mapped or NAT64 one, and any other as
// it is, without a zone, whose name is anyone's choice. It is not valid if addr is not.
func Of(addr netip.Addr) netip.Addr {
	addr = addr.Unmap().WithZone("")
	if nat64.Contains(addr) {
		a := addr.As16()
		return netip.AddrFrom4([4]byte(a[12:]))
	}
	return addr
}

// Parse reads an address as [Of] returns it.
func Parse(s string) (netip.Addr, bool) {
	addr, err := netip.ParseAddr(s)
	if err != nil {
		return netip.Addr{}, false
	}
	return Of(addr), true
}

// Prefix returns the network of the addresses that [Of] returns for those in net: a network of IPv4-mapped or NAT64
// addresses is one of IPv4. It is not valid if there are none.
func Prefix(net netip.Prefix) netip.Prefix {
	switch {
	case net == nat64:
		return netip.Prefix{} // would be every IPv4 client
	case net.Bits() > 96 && nat64.Contains(net.Addr()), net.Bits() >= 96 && net.Addr().Is4In6():
		return netip.PrefixFrom(Of(net.Addr()), net.Bits()-96).Masked()
	}
	return net.Masked()
}
