// Package accesslog reads the access logs of HTTP servers and proxies: when each request came, and
// the attributes by which limits match and count.
//
// It reads nginx's and Apache's common and combined formats, formats in the syntax of nginx's
// log_format, one JSON object in each line (Envoy, Caddy, nginx with escape=json), and CSV with a line
// of names. Lines are read within bounds, and a line that cannot be read is an error of that line
// alone. It decides nothing and keeps nothing.
package accesslog

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/stint-io/stint/internal/address"
	"github.com/stint-io/stint/internal/forwarded"
	"github.com/stint-io/stint/internal/forwarded/identify"
	"github.com/stint-io/stint/limit"
)

// Parser returns what reads lines of the format.
func (f *Format) Parser(want Want) (*Parser, error) {
	p := &Parser{want: want, format: f}
	n := firstValue + len(want.Attributes)
	p.raw, p.ranks, p.sinks, p.seen = make([]string, n), make([]int, n), make([]*sink, n), make([]bool, n)
	p.method, p.path, p.host = slices.Index(want.Attributes, "method"), slices.Index(want.Attributes, "path"), slices.Index(want.Attributes, "host")
	var queries []string
	for i, name := range want.Attributes {
		if strings.HasPrefix(name, "query:") && len(name) > len("query:") && want.Fields[name] == "" {
			queries, p.queryAt = append(queries, name), append(p.queryAt, i)
		}
	}
	if queries != nil {
		p.queries = identify.NewPlan(queries)
	}
	p.request = p.method >= 0 || p.path >= 0 || p.queries != nil
	var err error
	p.source, err = f.bind(p)
	return p, err
}

// bind returns what splits lines for p.
func (f *Format) bind(p *Parser) (fieldSource, error) {
	switch {
	case f.pattern != nil:
		return bindPattern(f, p)
	case f.columns != "":
		return bindColumns(f, p)
	default:
		return newObjects(), nil
	}
}

// Has reports whether a line so far had the attribute.
func (p *Parser) Has(attribute string) bool {
	i := slices.Index(p.want.Attributes, attribute)
	return i >= 0 && p.seen[firstValue+i]
}

// HasTook reports whether a line so far said how long the request took.
func (p *Parser) HasTook() bool { return p.seen[toTook] }

// Coarse reports whether a line so far had a time in whole seconds.
func (p *Parser) Coarse() bool { return p.coarse }

// Parse reads a line without its end. dst.Values must have the length of [Want.Attributes]; the
// values are parts of line wherever nothing has to be decoded, and nothing is allocated then.
func (p *Parser) Parse(line string, dst *Line) error {
	clear(p.raw)
	if err := p.source.split(p, strings.TrimSuffix(line, "\r")); err != nil {
		return err
	}
	at, coarse, ok := p.clock.parse(p.raw[toTime])
	if !ok {
		return ErrTime
	}
	dst.At, dst.Coarse = at, coarse
	p.coarse = p.coarse || coarse
	dst.Took = -1
	if text := p.raw[toTook]; text != "" {
		if took, ok := parseTook(text, p.sinks[toTook].unit); ok {
			dst.Took = took
			// A request that is logged at its end came before it. Where only the second of the end is
			// known, that is as good a guess of its arrival as any.
			if p.sinks[toTime].ends && !coarse {
				dst.At -= limit.Time(took)
			}
		}
	}
	dst.Status = int(shortNumber(p.raw[toStatus]))
	dst.Cost = 1
	if p.want.Cost != "" {
		cost, ok := wholeNumber(p.raw[toCost])
		if !ok || cost > limit.MaxCount {
			return ErrCost
		}
		dst.Cost = cost
	}
	copy(dst.Values, p.raw[firstValue:])
	p.describe(dst)
	for i, v := range dst.Values {
		if v != "" && !p.seen[firstValue+i] {
			p.seen[firstValue+i] = true
		}
	}
	return nil
}

// describe fills in the attributes that are read from others: those of the request line, and those that
// the service cleans as it does.
func (p *Parser) describe(dst *Line) {
	method, target := p.raw[toMethod], p.raw[toTarget]
	if p.request && (method == "" || target == "") {
		if m, t, ok := splitRequest(p.raw[toRequest]); ok {
			if method == "" {
				method = m
			}
			if target == "" {
				target = t
			}
		}
	}
	if p.method >= 0 && dst.Values[p.method] == "" {
		dst.Values[p.method] = method
	}
	if target != "" && (p.path >= 0 || p.queries != nil) {
		target = originForm(target)
	}
	if p.path >= 0 && dst.Values[p.path] == "" && target != "" {
		p.attrs = identify.AppendPath(p.attrs[:0], target)
		for _, a := range p.attrs {
			if i := slices.Index(p.want.Attributes, a.Name); i >= 0 {
				dst.Values[i] = a.Value
			}
		}
	}
	if p.queries != nil {
		query := p.raw[toQuery]
		if query == "" {
			query = forwarded.Query(target)
		}
		if query != "" {
			p.parameters(dst, query)
		}
	}
	for i := range dst.Values {
		s, v := p.sinks[firstValue+i], dst.Values[i]
		switch {
		case s == nil || v == "":
		case s.kind == asAddress:
			dst.Values[i] = addressOf(v)
		case s.kind == asHost:
			dst.Values[i] = forwarded.Host(v)
		case i != p.path && !strings.HasPrefix(p.want.Attributes[i], "path:") && len(v) > identify.MaxValue:
			dst.Values[i] = identify.Bound(v)
		}
	}
}

func (p *Parser) parameters(dst *Line, query string) {
	p.attrs = p.queries.Append(p.attrs[:0], nil, query)
	for _, a := range p.attrs {
		for _, i := range p.queryAt {
			if p.want.Attributes[i] == a.Name && dst.Values[i] == "" {
				dst.Values[i] = a.Value
			}
		}
	}
}

// splitRequest cuts a request line, such as "GET /a?b=c HTTP/1.1".
func splitRequest(s string) (method, target string, ok bool) {
	method, rest, ok := strings.Cut(s, " ")
	if !ok || method == "" {
		return "", "", false
	}
	if i := strings.LastIndexByte(rest, ' '); i > 0 && strings.HasPrefix(rest[i+1:], "HTTP/") {
		rest = rest[:i]
	}
	return method, rest, rest != ""
}

// originForm returns the target without scheme and host.
func originForm(target string) string {
	if target[0] == '/' {
		return target
	}
	_, rest, ok := strings.Cut(target, "://")
	if !ok {
		return target
	}
	if i := strings.IndexAny(rest, "/?#"); i >= 0 {
		if rest[i] == '/' {
			return rest[i:]
		}
		return "/" + rest[i:]
	}
	return "/"
}

// addressOf returns an address as the service names it: without port. Text that is no address stays as it is.
func addressOf(s string) string {
	if strings.IndexByte(s, ':') < 0 {
		return s
	}
	if addr, ok := address.Parse(s); ok {
		return addr.String()
	}
	if host, err := netip.ParseAddrPort(s); err == nil {
		return forwarded.IP(host.Addr())
	}
	return s
}
