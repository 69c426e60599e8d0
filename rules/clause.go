package rules

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
)

// clause compiles a match and a when, either of which may be nil. It returns
// them also as text for people and as text that no other clause has; the latter
// is empty after a fault.
func (b *builder) clause(d *document, match, when *node) (c clause, text, id string) {
	ok := true
	if match != nil {
		c.conditions, ok = b.conditions(d, match)
	}
	var texts, ids []string
	for i := range c.conditions {
		cond := &c.conditions[i]
		var shown, quoted []string
		for _, p := range cond.patterns {
			shown = append(shown, quoteIfOdd(p.text))
			quoted = append(quoted, strconv.Quote(p.text))
		}
		texts = append(texts, quoteIfOdd(cond.name)+"="+strings.Join(shown, "|"))
		slices.Sort(quoted)
		ids = append(ids, strconv.Quote(cond.name)+"="+strings.Join(slices.Compact(quoted), "|"))
	}
	if when != nil {
		expression, fine := b.expression(d, when)
		c.expression = expression
		ok = ok && fine
		src := strings.TrimSpace(when.text)
		texts = append(texts, "when "+strings.Join(strings.Fields(src), " "))
		ids = append(ids, "cel:"+src)
	}
	text = strings.Join(texts, " ")
	if len(c.conditions) == 0 {
		text = strings.TrimPrefix(text, "when ")
	}
	if !ok {
		return c, text, ""
	}
	return c, text, strings.Join(ids, ",")
}

// quoteIfOdd quotes what could not be told from the text around it.
func quoteIfOdd(s string) string {
	if s == "" || strings.ContainsAny(s, " =|\"") || strings.ContainsFunc(s, func(r rune) bool { return !strconv.IsPrint(r) }) {
		return strconv.Quote(s)
	}
	return s
}

// conditions reads a map from attribute to pattern or list of patterns, sorted
// by attribute.
func (b *builder) conditions(d *document, n *node) ([]condition, bool) {
	if n.kind == kindNull || n.kind == kindMap && len(n.fields) == 0 {
		d.fault(n, "leave it out for all requests", "the condition is empty")
		return nil, false
	}
	if n.kind != kindMap {
		d.wants(n, "a map such as {method: POST, path: /login}", "for an expression, write when: 'request.size > 1000'")
		return nil, false
	}
	if len(n.fields) > maxParts {
		d.fault(n, "", "match has %d attributes, want at most %d", len(n.fields), maxParts)
		return nil, false
	}
	var out []condition
	fine := true
	for _, f := range n.fields {
		name, ok := d.attribute(f.key)
		if ok && slices.ContainsFunc(out, func(c condition) bool { return c.name == name }) {
			d.fault(f.key, "put the alternatives in a list", "attribute %q is twice in the match", name)
			ok = false
		}
		if ok {
			b.doubtName(d, f.key, name)
		}
		c := condition{name: name}
		items := []*node{f.value}
		if f.value.kind == kindList {
			items = f.value.items
			if len(items) == 0 {
				d.fault(f.value, "", "an empty list matches nothing")
				ok = false
			}
		}
		for _, item := range items {
			text, readable := d.str(item, "a value or a pattern such as /api/*")
			if !readable {
				ok = false
				continue
			}
			p := newPattern(name, text)
			if name == ipAttribute && strings.Contains(text, "/") && !p.net.IsValid() {
				d.fault(item, "write it as 10.0.0.0/8 or 2001:db8::/32", "%q is not a network of addresses", text)
				ok = false
			}
			b.doubtPattern(d, item, name, &p)
			c.patterns = append(c.patterns, p)
		}
		if fine = fine && ok; ok {
			out = append(out, c)
		}
	}
	slices.SortFunc(out, func(a, b condition) int { return strings.Compare(a.name, b.name) })
	return out, fine
}

// expression compiles the CEL in n. Faults point into the YAML where the text
// stands there as it is.
func (b *builder) expression(d *document, n *node) (*expression, bool) {
	src, ok := d.str(n, "a CEL expression, such as 'request.size > 1000'")
	if !ok {
		return nil, false
	}
	if strings.TrimSpace(src) == "" {
		d.fault(n, "", "the expression is empty")
		return nil, false
	}
	expression, wrong := b.expressions.compile(src)
	for _, w := range wrong {
		place := node{line: n.line, column: n.column}
		switch {
		case w.line == 0 || n.style == '>':
		case n.style == '|':
			place.line, place.column = d.inBlock(n, w.line, w.column)
		case w.line == 1:
			place.column += w.column - 1
			if n.style != 0 {
				place.column++
			}
		}
		d.fault(&place, cmp.Or(w.hint, expressionHint(w.message)), "when: %s", w.message)
	}
	return expression, len(wrong) == 0
}

// inBlock finds a place of a literal block's text in the file.
func (d *document) inBlock(n *node, line, column int) (int, int) {
	indent := 0
	for i := n.line; i < len(d.lines); i++ {
		if text := strings.TrimLeft(d.lines[i], " "); strings.TrimSpace(text) != "" {
			indent = len(d.lines[i]) - len(text)
			break
		}
	}
	return n.line + line, indent + column
}
