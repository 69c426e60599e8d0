package rest

import (
	"encoding/json"
	"unicode/utf8"

	"github.com/stint-io/stint/internal/engine"
	"github.com/stint-io/stint/limit"
)

// query returns what the engine is asked where a request has a domain. The
// attributes, in the order in which they came, are a descriptor like the others.
func (b *body) query() *engine.Query {
	q := &engine.Query{
		Domain: b.domain, Peek: b.request.Peek, CountRefused: b.request.CountRefused, IdempotencyKey: b.request.IdempotencyKey,
	}
	if len(b.request.Attributes) > 0 {
		q.Descriptors = append(q.Descriptors, engine.Descriptor{Attributes: b.request.Attributes, Described: true, Cost: b.request.Cost})
	}
	for _, d := range b.descriptors {
		cost := b.request.Cost
		if d.hasCost {
			cost = d.cost
		}
		q.Descriptors = append(q.Descriptors, engine.Descriptor{Attributes: d.entries, Described: true, Cost: cost})
	}
	return q
}

func (p *parser) domain(to *string) error {
	text, err := p.text("the domain")
	switch {
	case err != nil:
		return err
	case text == "":
		return p.fail(p.at, "the domain is empty, leave it out to ask limits in stint's own format alone")
	case utf8.RuneCountInString(text) > MaxNameLength:
		return p.fail(p.at, "the domain has %d characters, at most %d are taken", utf8.RuneCountInString(text), MaxNameLength)
	}
	*to = text
	return nil
}

// descriptors reads [{"entries":[{"key":"k","value":"v"}],"cost":n}], as Envoy writes
// them but for the cost.
func (p *parser) descriptors(to *[]descriptor) error {
	*to = []descriptor{}
	return p.list(func() error {
		if len(*to) == MaxDescriptors {
			return p.fail(p.at, "more than %d descriptors", MaxDescriptors)
		}
		var d descriptor
		err := p.object(func(name string) error {
			switch name {
			case "entries":
				return p.entries(&d.entries)
			case "cost":
				n, err := p.integer("cost", limit.MaxCount)
				d.cost, d.hasCost = int64(n), true
				return err
			}
			return p.fail(p.at, "unknown field %q, want one of %q", name, []string{"entries", "cost"})
		})
		if err == nil && len(d.entries) == 0 {
			err = p.fail(p.at, `a descriptor has no entries, want {"entries":[{"key":"user","value":"u1"}]}`)
		}
		*to = append(*to, d)
		return err
	})
}

func (p *parser) entries(to *[]limit.Attribute) error {
	return p.list(func() error {
		if len(*to) == MaxEntries {
			return p.fail(p.at, "more than %d entries in a descriptor", MaxEntries)
		}
		var a limit.Attribute
		err := p.object(func(name string) (err error) {
			switch name {
			case "key":
				a.Name, err = p.text("the key")
			case "value":
				a.Value, err = p.text("the value")
			default:
				err = p.fail(p.at, "unknown field %q, want one of %q", name, []string{"key", "value"})
			}
			return err
		})
		switch {
		case err != nil:
			return err
		case a.Name == "":
			return p.fail(p.at, "an entry has no key")
		case utf8.RuneCountInString(a.Name) > MaxNameLength:
			return p.fail(p.at, "the key of an entry has %d characters, at most %d are taken", utf8.RuneCountInString(a.Name), MaxNameLength)
		}
		*to = append(*to, a)
		return nil
	})
}

func (p *parser) text(what string) (string, error) {
	t, err := p.token()
	if err != nil {
		return "", err
	}
	text, ok := t.(string)
	if !ok {
		return "", p.fail(p.at, "%s is %s, want a string", what, kind(t))
	}
	return text, nil
}

// list reads a list and calls item before each of its items.
func (p *parser) list(item func() error) error {
	t, err := p.token()
	if err != nil {
		return err
	}
	if t != json.Delim('[') {
		return p.fail(p.at, "found %s, want a list", kind(t))
	}
	for p.dec.More() {
		if err := item(); err != nil {
			return err
		}
	}
	_, err = p.token() // the end of the list, or why there is none
	return err
}
