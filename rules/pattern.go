package rules

import (
	"net/netip"
	"strings"

	"github.com/stint-io/stint/internal/address"
)

// ipAttribute is compared as an address wherever it occurs.
const ipAttribute = "ip"

// domainAttribute is the pseudo-attribute for the domain of a request.
const domainAttribute = "domain"

const headerPrefix = "header:"

// canonicalName is an attribute's name as limits keep it.
func canonicalName(name string) string {
	if len(name) > len(headerPrefix) && strings.EqualFold(name[:len(headerPrefix)], headerPrefix) {
		return strings.ToLower(name)
	}
	return name
}

// sameName compares a canonical name with one from a request.
func sameName(canonical, name string) bool {
	return canonical == name ||
		len(canonical) == len(name) && strings.HasPrefix(canonical, headerPrefix) && strings.EqualFold(canonical, name)
}

// pattern is an exact text, a text with stars, or a network of addresses.
type pattern struct {
	text  string
	parts []string     // the literals around the stars; nil for an exact text
	isNet bool         // the text is an address or a network
	net   netip.Prefix // of it; not valid if it contains no client
}

func newPattern(name, text string) pattern {
	p := pattern{text: text}
	if name == ipAttribute {
		if net, err := netip.ParsePrefix(text); err == nil {
			p.net, p.isNet = address.Prefix(net), true
			return p
		}
		if addr, ok := address.Parse(text); ok {
			p.net, p.isNet = netip.PrefixFrom(addr, addr.BitLen()), true
			return p
		}
	}
	if strings.Contains(text, "*") {
		p.parts = strings.Split(text, "*")
	}
	return p
}

// parseAddress reads the value of the attribute ip: an address, or an IPv6 network, to which
// some transports shorten addresses. bits is the length of the known prefix. It does not
// allocate.
func parseAddress(value string) (addr netip.Addr, bits int, ok bool) {
	// To ask for an address first would allocate an error for each network.
	if strings.IndexByte(value, '/') >= 0 {
		net, err := netip.ParsePrefix(value)
		if err != nil || !net.Addr().Is6() || net.Addr().Is4In6() {
			return netip.Addr{}, 0, false
		}
		return net.Masked().Addr(), net.Bits(), true
	}
	addr, ok = address.Parse(value)
	return addr, addr.BitLen(), ok
}

func (p *pattern) exact() bool { return p.parts == nil && !p.isNet }

// literal returns the text with which every matching value begins, and that with which it ends.
func (p *pattern) literal() (prefix, suffix string) {
	switch {
	case p.isNet:
		return "", ""
	case p.parts == nil:
		return p.text, p.text
	}
	return p.parts[0], p.parts[len(p.parts)-1]
}

func (p *pattern) matches(value string) bool {
	if p.isNet {
		addr, bits, ok := parseAddress(value)
		return ok && p.net.Contains(addr) && bits >= p.net.Bits()
	}
	if p.parts == nil {
		return p.text == value
	}
	first, last := p.parts[0], p.parts[len(p.parts)-1]
	if len(value) < len(first)+len(last) || !strings.HasPrefix(value, first) || !strings.HasSuffix(value, last) {
		return false
	}
	// The leftmost match of each literal leaves the most room for the next.
	rest := value[len(first) : len(value)-len(last)]
	for _, part := range p.parts[1 : len(p.parts)-1] {
		i := strings.Index(rest, part)
		if i < 0 {
			return false
		}
		rest = rest[i+len(part):]
	}
	return true
}

// condition holds when one of its patterns matches the attribute.
type condition struct {
	name     string
	patterns []pattern
}

// clause is a match and a when: it holds when all of it does. The zero value
// always holds.
type clause struct {
	conditions []condition
	expression *expression
	unless     []*clause // none of which holds; one whose evaluation fails does not hold
}

// names appends the attributes that the clause reads.
func (c *clause) names(dst []string) []string {
	for i := range c.conditions {
		dst = append(dst, c.conditions[i].name)
	}
	if c.expression != nil {
		dst = append(dst, c.expression.attributes...)
	}
	for _, other := range c.unless {
		dst = other.names(dst)
	}
	return dst
}

func (c *clause) holds(s *subject) bool {
	for i := range c.conditions {
		cond := &c.conditions[i]
		value, ok := s.get(cond.name)
		if !ok || !cond.matches(value) {
			return false
		}
	}
	for _, other := range c.unless {
		if other.holds(s) {
			return false
		}
	}
	// What failed before this does not hold, which is all that is to be known of it.
	s.fault = noFault
	return c.expression == nil || s.evaluate(c.expression)
}

func (c *condition) matches(value string) bool {
	for i := range c.patterns {
		if c.patterns[i].matches(value) {
			return true
		}
	}
	return false
}
