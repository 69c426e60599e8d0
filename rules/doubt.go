package rules

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/stint-io/stint/internal/document"
)

// provided reports whether a gateway or a middleware sets the attribute on requests.
func provided(name string) bool {
	switch name {
	case ipAttribute, userIPAttribute, xffAttribute, "sni", "method", "path", "host", "proto", "size", domainAttribute, "*":
		return true
	}
	kind, _, ok := strings.Cut(name, ":")
	return ok && (kind == "header" || kind == "cookie" || kind == "query")
}

// usualNames are suggested for names that are almost equal.
var usualNames = []string{"ip", "user", "method", "path", "host", "domain"}

// doubtName warns of the name of an attribute that no request is likely to have.
func (b *builder) doubtName(d *file, n *document.Node, name string) {
	for _, usual := range usualNames {
		if name != usual && strings.EqualFold(name, usual) || name == "request."+usual {
			b.warn(d, n, "write "+usual, "attribute %q is not %q: names are compared exactly", name, usual)
			return
		}
	}
	if header, ok := strings.CutPrefix(name, "header:"); ok {
		if near, ok := nearWord(header, knownHeaders); ok {
			b.warn(d, n, "did you mean header:"+near+"?", "attribute %q has almost the name of another header field", name)
		}
		return
	}
	for _, prefix := range []string{"headers:", "header.", "headers.", "request.headers."} {
		if rest, ok := strings.CutPrefix(strings.ToLower(name), prefix); ok && rest != "" {
			b.warn(d, n, "write header:"+rest, "attribute %q is no header field", name)
			return
		}
	}
}

// doubtPattern warns of a valid pattern that is unlikely to match what its author means: the
// limit would silently never apply.
func (b *builder) doubtPattern(d *file, n *document.Node, name string, p *pattern) {
	text := p.text
	switch {
	case p.isNet && !p.net.IsValid():
		b.warn(d, n, "write the IPv4 networks that are meant", "%q matches no address: a client behind NAT64 is known by its IPv4 address", text)
	case p.isNet || text == "" || strings.Trim(text, "*") == "":
	case strings.HasPrefix(text, "^"), strings.HasPrefix(text, "~"), strings.HasSuffix(text, "$"), strings.Contains(text, `\`), strings.Contains(text, ".*") && name == "path":
		variable := name
		if !contains(shortVariables[:], name) {
			variable = `attributes["` + name + `"]`
		}
		b.warn(d, n, "use a star for any text, or when: "+variable+".matches('...')", "%q looks like a regular expression, and is compared as text with stars", text)
	case strings.HasPrefix(text, "!"):
		b.warn(d, n, "write an override for it, or a condition such as when: "+name+" != 'x'", "%q is compared as it is written: a pattern has no negation", text)
	case name == ipAttribute && !strings.Contains(text, "/"):
		b.warn(d, n, "write addresses and networks, as in 10.0.0.0/8", "%q is no address: it is compared as text", text)
	case name == "method" && strings.HasPrefix(text, "/"): // of gRPC: /package.Service/Method
	case name == "method" && strings.ContainsAny(text, "|, "):
		b.warn(d, n, "write [GET, POST]", "%q is compared as one method", text)
	case name == "method" && text != strings.ToUpper(text):
		b.warn(d, n, "write "+strings.ToUpper(text), "%q is compared exactly, and methods are in upper case", text)
	case name == "method":
		if near, ok := nearWord(text, knownMethods); ok {
			b.warn(d, n, "did you mean "+near+"?", "%q is no method of HTTP, and is compared exactly", text)
		}
	case name == "path" && strings.HasSuffix(text, "/") && len(text) > 1 && !strings.Contains(text, "*"):
		b.warn(d, n, "write "+text+"* for what is below it", "%q matches that path alone, and nothing below it", text)
	case name == "path" && strings.Contains(text, "://"):
		_, rest, _ := strings.Cut(text, "://")
		host, path, _ := strings.Cut(rest, "/")
		b.warn(d, n, fmt.Sprintf("write {host: %s, path: /%s}", host, path), "%q matches no path: paths come without scheme and host", text)
	case name == "path" && text[0] != '/' && text[0] != '*':
		b.warn(d, n, "write /"+text+" or *"+text, "%q matches no path: paths begin with a slash", text)
	case name == "path" && strings.Contains(text, "?"):
		b.warn(d, n, "a parameter of the query is the attribute query:NAME", "%q has a question mark, and paths come without their query", text)
	case name == "path" && strings.Contains(text, "%"):
		b.warn(d, n, "write what the escapes stand for", "%q matches no path: percent escapes are decoded before", text)
	case name == "path" && (strings.Contains(text, "//") || strings.Contains(text+"/", "/./") || strings.Contains(text+"/", "/../")):
		b.warn(d, n, "write it without //, /./ and /../", "%q matches no path of a usual client: paths are cleaned before", text)
	case name == "path" && hasPlaceholder(text):
		part, _ := placeholder(text)
		b.warn(d, n, "write "+strings.Replace(text, part, "*", 1)+": a star stands for any text", "%s in %q is compared as it is written, and not with what stands there in a request", part, text)
	case name == "host" && (strings.ContainsAny(text, ":/") && !isAddress(text) || text != strings.ToLower(text)):
		b.warn(d, n, "", "%q matches no host: hosts are in lower case, without scheme, port and path", text)
	}
}

// maxWide bounds the overrides with which the ones behind them are compared, so that checking is linear.
const maxWide = 16

// wide reports whether the clause may hold for all requests for which another holds: it has no expression, and a pattern
// with a star or a network for each attribute.
func (c *clause) wide() bool {
	for i := range c.conditions {
		if !slices.ContainsFunc(c.conditions[i].patterns, func(p pattern) bool { return !p.exact() }) {
			return false
		}
	}
	return c.expression == nil
}

// covers reports whether c, which is wide, holds whenever other does. It may miss that it does.
func (c *clause) covers(other *clause) bool {
	for i := range c.conditions {
		mine := &c.conditions[i]
		at := slices.IndexFunc(other.conditions, func(o condition) bool { return o.name == mine.name })
		if at < 0 {
			return false
		}
		for j := range other.conditions[at].patterns {
			q := &other.conditions[at].patterns[j]
			if !slices.ContainsFunc(mine.patterns, func(p pattern) bool { return p.covers(q) }) {
				return false
			}
		}
	}
	return true
}

// covers reports whether p matches each value that q matches. It may miss that it does.
func (p *pattern) covers(q *pattern) bool {
	switch {
	case p.text == "*" || p.text == q.text:
		return true
	case p.isNet && q.isNet:
		return p.net.Bits() <= q.net.Bits() && p.net.Contains(q.net.Addr())
	case q.exact():
		return p.matches(q.text)
	}
	first, _ := q.literal()
	return len(p.parts) == 2 && p.parts[1] == "" && strings.HasPrefix(first, p.parts[0])
}

func hasPlaceholder(path string) bool {
	_, ok := placeholder(path)
	return ok
}

func isAddress(text string) bool {
	_, err := netip.ParseAddr(text)
	return err == nil
}
