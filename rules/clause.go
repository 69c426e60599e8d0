package rules

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/stint-io/stint/internal/document"
)

// clause compiles a match and a when, either of which may be nil. It also returns a text for
// people, and an id that no other clause has; the id is empty after a fault.
func (b *builder) clause(d *file, match, when *document.Node) (c clause, text, id string) {
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
		src := strings.TrimSpace(when.Text)
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

// quoteIfOdd quotes a text that could be confused with the text around it.
func quoteIfOdd(s string) string {
	if s == "" || strings.ContainsAny(s, " =|\"") || strings.ContainsFunc(s, func(r rune) bool { return !strconv.IsPrint(r) }) {
		return strconv.Quote(s)
	}
	return s
}

// conditions reads a map from attribute to pattern or list of patterns, sorted
// by attribute.
func (b *builder) conditions(d *file, n *document.Node) ([]condition, bool) {
	if n.Kind == document.Null || n.Kind == document.Map && len(n.Fields) == 0 {
		d.Fault(n, "leave it out for all requests, or indent what belongs to it", "the condition is empty")
		return nil, false
	}
	if n.Kind != document.Map {
		hint := "for an expression, write when: 'request.size > 1000'"
		if n.Kind == document.List {
			hint = "alternatives are a list of values: match: {path: [/a, /b]}"
		} else if strings.HasPrefix(n.Text, "/") {
			hint = fmt.Sprintf("write match: {path: %s}", n.Text)
		}
		d.Wants(n, "a map such as {method: POST, path: /login}", hint)
		return nil, false
	}
	if len(n.Fields) > maxParts {
		d.Fault(n, "", "match has %d attributes, want at most %d", len(n.Fields), maxParts)
		return nil, false
	}
	var out []condition
	fine := true
	for _, f := range n.Fields {
		name, ok := d.attribute(f.Key)
		if ok && slices.ContainsFunc(out, func(c condition) bool { return c.name == name }) {
			d.Fault(f.Key, "put the alternatives in a list", "attribute %q is twice in the match", name)
			ok = false
		}
		if ok {
			b.doubtName(d, f.Key, name)
		}
		c := condition{name: name}
		items := f.Value.Each()
		if len(items) == 0 {
			d.Fault(f.Value, "", "an empty list matches nothing")
			ok = false
		}
		for _, item := range items {
			if item.Kind == document.Map && len(item.Fields) > 0 {
				one := item.Fields[0]
				kind := strings.TrimSuffix(strings.ToLower(f.Key.Text), "s")
				if contains(knownKinds, kind) || kind == "querie" || kind == "param" {
					d.Wants(item, "a value or a pattern such as /api/*", fmt.Sprintf("write %q: %s", kind+":"+one.Key.Text, one.Value.Text))
					ok = false
					continue
				}
				if hint := foreignPattern(f.Key.Text, snake(one.Key.Text), one.Value.Text); hint != "" {
					d.Wants(item, "a value or a pattern such as /api/*", hint)
					ok = false
					continue
				}
			}
			if before, after, glued := strings.Cut(f.Key.Text, ":/"); glued && item.Kind == document.Null {
				d.Wants(item, "a value or a pattern such as /api/*", fmt.Sprintf("put a blank after the colon: %s: /%s", before, after))
				ok = false
				continue
			}
			text, readable := d.str(item, "a value or a pattern such as /api/*")
			if !readable {
				ok = false
				continue
			}
			p := newPattern(name, text)
			if name == ipAttribute && strings.Contains(text, "/") && !p.isNet {
				d.Fault(item, "write it as 10.0.0.0/8 or 2001:db8::/32", "%q is not a network of addresses", text)
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

// expression compiles the CEL in n. Faults have a place within the expression where the YAML has
// its text unchanged.
func (b *builder) expression(d *file, n *document.Node) (*expression, bool) {
	src, ok := d.str(n, "a CEL expression, such as 'request.size > 1000'")
	if !ok {
		return nil, false
	}
	if strings.TrimSpace(src) == "" {
		d.Fault(n, "", "the expression is empty")
		return nil, false
	}
	expression, wrong := b.expressions.compile(src)
	for _, w := range wrong {
		place := document.Node{Line: n.Line, Column: n.Column}
		switch {
		case w.line == 0 || n.Style == '>':
		case n.Style == '|':
			place.Line, place.Column = d.inBlock(n, w.line, w.column)
		case w.line == 1:
			place.Column += w.column - 1
			if n.Style != 0 {
				place.Column++
			}
		}
		d.Fault(&place, cmp.Or(w.hint, expressionHint(w.message)), "when: %s", w.message)
	}
	return expression, len(wrong) == 0
}

// inBlock finds a place of a literal block's text in the file.
func (d *file) inBlock(n *document.Node, line, column int) (int, int) {
	indent := 0
	for i := n.Line; i < len(d.Lines); i++ {
		if text := strings.TrimLeft(d.Lines[i], " "); strings.TrimSpace(text) != "" {
			indent = len(d.Lines[i]) - len(text)
			break
		}
	}
	return n.Line + line, indent + column
}
