package rules

import (
	"net/netip"
	"regexp"
	"strings"

	"github.com/stint-io/stint/internal/document"
)

// Attributes that Cloud Armor's rules read besides those of stint's format.
const (
	userIPAttribute = "user_ip" // the client behind a proxy, as header fields of the operator's name it; else ip
	xffAttribute    = "xff_ip"  // the first address of X-Forwarded-For, as the client wrote it
	xffHeader       = headerPrefix + "x-forwarded-for"
)

// armorMatch reads the match of a rule: networks of addresses, or an expression.
func (b *builder) armorMatch(d *file, r *armorRule, n *document.Node) {
	m := armorField(n, "match")
	if m == nil || m.Kind != document.Map {
		d.Fault(n, "add match: {versionedExpr: SRC_IPS_V1, config: {srcIpRanges: ['*']}}", "a rule has no match")
		return
	}
	if expr := armorField(m, "expr"); expr != nil {
		text := armorField(expr, "expression")
		if text == nil {
			d.Fault(expr, "add expression", "expr has no expression")
			return
		}
		b.armorExpression(d, r, text)
		return
	}
	if v := armorField(m, "versionedExpr"); v != nil && v.Text != "SRC_IPS_V1" {
		d.Fault(v, "write SRC_IPS_V1", "versionedExpr is %q", v.Text)
		return
	}
	list := armorField(armorField(m, "config"), "srcIpRanges")
	if list == nil || len(list.Each()) == 0 {
		d.Fault(m, "add config: {srcIpRanges: ['*']}", "a match names no addresses")
		return
	}
	c := condition{name: ipAttribute}
	var texts []string
	for _, item := range list.Each() {
		if item.Text == "*" {
			r.text = ""
			return // all
		}
		p := newPattern(ipAttribute, item.Text)
		if _, err := netip.ParsePrefix(item.Text); err != nil && !p.net.IsValid() {
			d.Fault(item, "write it as 10.0.0.0/8 or 2001:db8::/32", "%q is not a network of addresses", item.Text)
			return
		}
		c.patterns = append(c.patterns, p)
		texts = append(texts, item.Text)
	}
	r.clause.conditions = []condition{c}
	r.text = "ip=" + strings.Join(texts, "|")
}

// has is Cloud Armor's way to ask for a header field, which CEL has for fields of messages only.
var has = regexp.MustCompile(`\bhas\(\s*request\.headers\s*\[\s*('[^']*'|"[^"]*")\s*\]\s*\)`)

// preconfigured are the functions that need Google's own rules or data.
var preconfigured = regexp.MustCompile(`\b(evaluatePreconfiguredExpr|evaluatePreconfiguredWaf|evaluateThreatIntelligence|evaluateAddressGroup|evaluateAdaptiveProtection\w*|token\.\w+|origin\.tls_\w+)\b`)

// armorExpression compiles an expression in Cloud Armor's dialect of CEL.
func (b *builder) armorExpression(d *file, r *armorRule, n *document.Node) {
	text, ok := d.str(n, "an expression such as request.path.startsWith('/api/')")
	if !ok {
		return
	}
	if found := preconfigured.FindString(text); found != "" {
		d.Fault(n, "leave the rule to Cloud Armor, or write it with request and origin", "%s is not known here: it needs data of Google's", found)
		return
	}
	plain := *n
	plain.Text = has.ReplaceAllString(text, "($1 in request.headers)")
	if plain.Text != text {
		plain.Style = '>' // places within it are not those of the file any more
	}
	r.clause.expression, _ = b.expression(d, &plain)
	r.text = strings.Join(strings.Fields(text), " ")
}

// client returns the value of an attribute of Cloud Armor's that no caller gave. user_ip is the first valid
// address in the header fields that the policy names, else ip; xff_ip the first in X-Forwarded-For.
func (l *Limit) client(s *subject, name string) (string, bool) {
	switch name {
	case userIPAttribute:
		for _, header := range l.users {
			if text, ok := s.get(header); ok {
				if addr, _, ok := parseAddress(strings.TrimSpace(text)); ok {
					return addr.String(), true
				}
			}
		}
		if given, ok := s.get(userIPAttribute); ok {
			return given, true
		}
		return s.get(ipAttribute)
	case xffAttribute:
		text, _ := s.get(xffHeader)
		first, _, _ := strings.Cut(text, ",")
		addr, _, ok := parseAddress(strings.TrimSpace(first))
		return addr.String(), ok
	}
	return "", false
}

// readsBesides returns the attributes that key attributes of the limit are found by.
func (l *Limit) readsBesides() (names []string) {
	for _, name := range l.Key {
		switch name {
		case userIPAttribute:
			names = append(append(names, l.users...), ipAttribute)
		case xffAttribute:
			names = append(names, xffHeader)
		}
	}
	return names
}
