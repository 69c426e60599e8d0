package rules

import (
	"strings"

	"github.com/stint-io/stint/limit"
)

// samples are values for attributes whose value a limit does not restrict.
var samples = map[string]string{
	ipAttribute: "192.0.2.7", "method": "GET", "path": "/", "host": "localhost", "proto": "https", "size": "1000000",
}

// Sample returns the attributes of a request that l applies to, to try the limit out; l is of
// this Set. For a rule in Envoy's format they are the entries of a descriptor, in order. It
// reports false when it finds none, as for an expression that needs particular values.
func (s *Set) Sample(l *Limit) (attrs []limit.Attribute, ok bool) {
	if l.Envoy {
		attrs = l.entries()
	} else {
		attrs = l.sample()
	}
	found, _ := s.Match(l.Domain, attrs, nil, nil)
	for i := range found {
		ok = ok || found[i].Limit == l && !found[i].Missing
	}
	return attrs, ok
}

func (l *Limit) sample() (attrs []limit.Attribute) {
	add := func(name, value string) {
		if _, twice := (limit.Request{Attributes: attrs}).Get(name); !twice && name != "*" && name != domainAttribute {
			attrs = append(attrs, limit.Attribute{Name: strings.ReplaceAll(name, "*", "demo"), Value: value})
		}
	}
	usual := func(name string) string {
		if value, ok := samples[name]; ok {
			return value
		}
		return "demo"
	}
	for i := range l.clause.conditions {
		c := &l.clause.conditions[i]
		add(c.name, c.patterns[0].sample())
	}
	for _, name := range l.Key {
		add(name, usual(name))
	}
	if l.clause.expression != nil {
		for _, name := range l.clause.expression.attributes {
			add(name, usual(name))
		}
	}
	return attrs
}

// entries are those of a rule in Envoy's format.
func (l *Limit) entries() (attrs []limit.Attribute) {
	for i, key := range l.Key {
		value := strings.ReplaceAll(l.Values[i], "*", "")
		if value == "" {
			value = "demo"
		}
		attrs = append(attrs, limit.Attribute{Name: strings.ReplaceAll(key, "*", ""), Value: value})
	}
	return attrs
}

// sample is a value that the pattern matches.
func (p *pattern) sample() string {
	switch {
	case p.net.IsValid() && !p.net.IsSingleIP() && p.net.Contains(p.net.Addr().Next()):
		return p.net.Addr().Next().String()
	case p.net.IsValid():
		return p.net.Addr().String()
	}
	return strings.ReplaceAll(p.text, "*", "demo")
}
