package rules

import (
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/lexer"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"
)

const (
	// maxFileBytes bounds one file. Not larger: parsing takes about half a
	// second at this size, during which a reload holds a core. Not smaller: a
	// hundred thousand short limits fit.
	maxFileBytes = 4 << 20

	// maxDepth bounds nesting. The parser recurses, and a stack that overflows
	// ends the process. Envoy's descriptors nest a handful deep.
	maxDepth = 64

	// maxAliased bounds the values that aliases stand for, all together, so
	// that a few lines cannot expand to gigabytes.
	maxAliased = 1 << 18
)

type kind uint8

const (
	kindNull kind = iota
	kindString
	kindInt
	kindFloat
	kindBool
	kindMap
	kindList
)

func (k kind) String() string {
	return [...]string{"nothing", "text", "a whole number", "a decimal number", "true or false", "a map", "a list"}[k]
}

// node is a YAML value with its place. Nodes are shared where aliases are used.
type node struct {
	kind         kind
	text         string // of a scalar: the text, without quotes
	style        byte   // of text: 0 plain, or the character that opens it: ' " | >
	line, column int
	fields       []field
	items        []*node

	size, depth int // with aliases expanded; size saturates
}

type field struct {
	key, value *node
}

// get returns the value of a key, or nil. A nil node has no keys.
func (n *node) get(key string) *node {
	if n == nil {
		return nil
	}
	for i := range n.fields {
		if n.fields[i].key.text == key {
			return n.fields[i].value
		}
	}
	return nil
}

// document is one file, read.
type document struct {
	name   string
	lines  []string
	root   *node // nil when the file could not be read, or is empty
	faults *faults
}

func (d *document) at(line, column int, hint, format string, args ...any) Error {
	e := Error{File: d.name, Line: line, Column: column, Hint: hint, Message: fmt.Sprintf(format, args...)}
	if line > 0 && line <= len(d.lines) {
		e.Excerpt = excerpt(masked(d.lines[line-1]), line, column)
	}
	return e
}

// fault records what is wrong with n. An empty hint leaves it out.
func (d *document) fault(n *node, hint, format string, args ...any) {
	line, column := 0, 0
	if n != nil {
		line, column = n.line, n.column
	}
	d.faults.add(d.at(line, column, hint, format, args...))
}

// read parses a file. Faults go to fs; the root is nil when there are any, or
// when the file is empty.
func read(name string, src []byte, fs *faults) *document {
	text := strings.TrimPrefix(string(src), "\ufeff")
	d := &document{name: name, faults: fs}
	if len(src) > maxFileBytes {
		d.fault(nil, "split it into several files", "file has more than %d bytes", maxFileBytes)
		return d
	}
	d.lines = strings.Split(text, "\n")
	if !d.checkText() {
		return d
	}
	tokens := lexer.Tokenize(text)
	if !d.checkTokens(tokens) {
		return d
	}
	file, err := parse(tokens)
	if err != nil {
		d.syntax(err)
		return d
	}
	before := len(fs.list) + fs.more
	r := &reader{document: d, anchors: make(map[string]*node)}
	for _, doc := range file.Docs {
		if doc == nil || doc.Body == nil || doc.Body.Type() == ast.CommentType {
			continue
		}
		if d.root != nil {
			d.root = nil
			d.fault(place(doc.Body), "move it into a file of its own", "a second YAML document in one file")
			return d
		}
		d.root = r.value(doc.Body)
	}
	if len(fs.list)+fs.more > before {
		d.root = nil
	}
	return d
}

// parse runs the parser. A panic in it is a fault of the file, not the end of a
// service that was asked to reload.
func parse(tokens token.Tokens) (file *ast.File, err error) {
	defer func() {
		if p := recover(); p != nil {
			file, err = nil, errors.New("cannot be parsed")
		}
	}()
	return parser.Parse(tokens, 0, parser.AllowDuplicateMapKey())
}

// checkText finds bytes that are not UTF-8 text.
func (d *document) checkText() bool {
	for i, line := range d.lines {
		column := 0
		for j, r := range line {
			column++
			if r == utf8.RuneError {
				if _, n := utf8.DecodeRuneInString(line[j:]); n == 1 {
					d.faults.add(d.at(i+1, column, "save the file as UTF-8", "byte 0x%02x is not valid UTF-8", line[j]))
					return false
				}
			}
			if r < ' ' && r != '\t' && r != '\r' || r == 0x7f {
				d.faults.add(d.at(i+1, column, "", "control character %#U", r))
				return false
			}
		}
	}
	return true
}

// The parser's work grows with the square of the keys of one map, and of the
// anchors. No map of a limit file needs more than the known words and some
// attributes; anchors stand for what is shared, which is little.
const (
	maxKeys    = 1000
	maxAnchors = 1000
)

// level is an open block or bracket.
type level struct {
	column int // of a block; 0 for brackets
	count  int // of its lines or parts
}

// checkTokens refuses, before the recursive parser runs, what would cost it too
// much stack or time.
func (d *document) checkTokens(tokens token.Tokens) bool {
	var open []level
	flow, line, headers, anchors := 0, 0, 0, 0
	var previous token.Type
	for i, t := range tokens {
		if t.Type == token.CommentType {
			continue
		}
		refuse := func(hint, format string, args ...any) bool {
			d.faults.add(d.at(t.Position.Line, t.Position.Column, hint, format, args...))
			return false
		}
		opensBlock := t.Position.Line != line || previous == token.SequenceEntryType
		line = t.Position.Line
		switch {
		case t.Type == token.TagType:
			return refuse("leave it out", "YAML tag %q is not supported", t.Value)
		case t.Type == token.AnchorType:
			if anchors++; anchors > maxAnchors {
				return refuse("", "more than %d anchors", maxAnchors)
			}
		case glued(tokens[max(i-1, 0)], t, tokens[min(i+1, len(tokens)-1)]):
			return refuse(`put a space after the colon, or quotes around the whole, as in "header:X-Tenant"`, "a colon within { } without a space after it")
		case t.Type == token.MappingKeyType:
			return refuse("write key: value", "a key after a question mark is not supported")
		case t.Type == token.DocumentHeaderType, t.Type == token.DocumentEndType:
			// One may begin the file and one may end it.
			if headers++; headers > 2 {
				return refuse("move each into a file of its own", "several YAML documents in one file")
			}
		case t.Type == token.MappingStartType, t.Type == token.SequenceStartType:
			flow++
			open = append(open, level{})
		case t.Type == token.MappingEndType, t.Type == token.SequenceEndType:
			if flow > 0 {
				flow--
				open = open[:len(open)-1]
			}
		case flow > 0 && t.Type == token.SequenceEntryType:
			return refuse("put commas between the parts", "a dash within brackets")
		case flow > 0:
			if t.Type == token.MappingValueType {
				open[len(open)-1].count++
			}
		case opensBlock:
			open = enterBlock(open, t)
		}
		if len(open) > maxDepth {
			return refuse("", "nested more than %d deep", maxDepth)
		}
		if len(open) > 0 && open[len(open)-1].count > maxKeys {
			return refuse("", "a map with more than %d keys", maxKeys)
		}
		previous = t.Type
	}
	return true
}

// enterBlock notes a token that begins a line of a block, or a new block.
func enterBlock(open []level, t *token.Token) []level {
	for len(open) > 0 && open[len(open)-1].column > t.Position.Column {
		open = open[:len(open)-1]
	}
	if len(open) == 0 || open[len(open)-1].column < t.Position.Column {
		open = append(open, level{column: t.Position.Column})
	}
	// A list may be long. Its dashes may stand in the column of the key above.
	if t.Type != token.SequenceEntryType {
		open[len(open)-1].count++
	}
	return open
}

// glued tells whether colon divides a key from its value without a space, as in
// {header:X-Tenant: t}. By the letter of YAML such a text is one word, but the
// parser takes it for a key and a value, and the file would say another thing
// than it seems to.
func glued(before, colon, after *token.Token) bool {
	return colon.Type == token.MappingValueType && before.Type == token.StringType &&
		after.Type != token.MappingEndType && after.Type != token.CollectEntryType &&
		after.Position.Line == colon.Position.Line && after.Position.Column == colon.Position.Column+1
}

func (d *document) syntax(err error) {
	var e yaml.Error
	if !errors.As(err, &e) || e.GetToken() == nil || e.GetToken().Position == nil {
		d.fault(nil, "", "yaml: %v", err)
		return
	}
	p, hint := e.GetToken().Position, ""
	if p.Line > 0 && p.Line <= len(d.lines) {
		hint = syntaxHint(e.GetMessage(), d.lines[p.Line-1])
	}
	message := strings.ReplaceAll(e.GetMessage(), "\t", `\t`)
	d.faults.add(d.at(p.Line, p.Column, hint, "yaml: %s", message))
}

// reader turns the parser's tree into nodes.
type reader struct {
	*document
	anchors map[string]*node
	aliased int
	tooDeep bool
}

func place(n ast.Node) *node {
	out := &node{size: 1, depth: 1}
	if n == nil {
		return out
	}
	t := n.GetToken()
	switch v := n.(type) {
	case *ast.MappingNode:
		if !v.IsFlowStyle && len(v.Values) > 0 {
			t = v.Values[0].Key.GetToken()
		}
	case *ast.MappingValueNode:
		t = v.Key.GetToken()
	}
	if t != nil && t.Position != nil {
		out.line, out.column = t.Position.Line, t.Position.Column
	}
	return out
}

func (r *reader) value(n ast.Node) *node {
	out := place(n)
	scalar := func(k kind, text string) *node {
		out.kind, out.text = k, text
		return out
	}
	switch v := n.(type) {
	case nil, *ast.NullNode:
	case *ast.StringNode:
		switch v.Token.Type {
		case token.SingleQuoteType:
			out.style = '\''
		case token.DoubleQuoteType:
			out.style = '"'
		}
		return scalar(kindString, v.Value)
	case *ast.LiteralNode:
		out.style = '|'
		if strings.HasPrefix(v.Start.Value, ">") {
			out.style = '>'
		}
		return scalar(kindString, v.Value.Value)
	case *ast.IntegerNode:
		return scalar(kindInt, v.Token.Value)
	case *ast.FloatNode:
		return scalar(kindFloat, v.Token.Value)
	case *ast.InfinityNode, *ast.NanNode:
		return scalar(kindFloat, n.GetToken().Value)
	case *ast.BoolNode:
		return scalar(kindBool, strings.ToLower(v.Token.Value))
	case *ast.AnchorNode:
		inner := r.value(v.Value)
		r.anchors[v.Name.GetToken().Value] = inner
		return inner
	case *ast.AliasNode:
		return r.alias(v, out)
	case *ast.MappingValueNode:
		r.mapping(out, []*ast.MappingValueNode{v})
	case *ast.MappingNode:
		r.mapping(out, v.Values)
	case *ast.SequenceNode:
		out.kind = kindList
		for _, item := range v.Values {
			child := r.value(item)
			out.items = append(out.items, child)
			r.grow(out, child)
		}
	default:
		r.fault(out, "", "yaml: %v is not supported here", n.Type())
	}
	return out
}

func (r *reader) grow(parent, child *node) {
	parent.size = min(parent.size+child.size, maxAliased+1)
	parent.depth = max(parent.depth, child.depth+1)
	if parent.depth > maxDepth && !r.tooDeep {
		r.tooDeep = true
		r.fault(parent, "", "nested more than %d deep", maxDepth)
	}
}

func (r *reader) alias(v *ast.AliasNode, at *node) *node {
	name := v.Value.GetToken().Value
	target := r.anchors[name]
	if target == nil {
		r.fault(at, aliasHint(name), "alias *%s has no anchor &%s before it", name, name)
		return at
	}
	before := r.aliased
	r.aliased = min(before+target.size, maxAliased+1)
	if r.aliased <= maxAliased {
		return target
	}
	if before <= maxAliased {
		r.fault(at, "", "aliases stand for more than %d values", maxAliased)
	}
	return at
}

func (r *reader) mapping(out *node, values []*ast.MappingValueNode) {
	out.kind = kindMap
	seen := make(map[string]*node, len(values))
	var merged []*node
	for _, v := range values {
		if _, ok := v.Key.(*ast.MergeKeyNode); ok {
			merged = append(merged, r.value(v.Value))
			continue
		}
		key := r.key(v.Key)
		value := r.value(v.Value)
		if first := seen[key.text]; first != nil {
			r.fault(key, "", "key %q is given twice, first on line %d", key.text, first.line)
			continue
		}
		seen[key.text] = key
		out.fields = append(out.fields, field{key, value})
		r.grow(out, value)
	}
	// A key written in the map itself wins over a merged one, wherever the
	// merge stands.
	for _, m := range merged {
		sources := []*node{m}
		if m.kind == kindList {
			sources = m.items
		}
		for _, source := range sources {
			if source.kind != kindMap {
				r.fault(source, "", "<< wants a map, this is %v", source.kind)
				continue
			}
			for _, f := range source.fields {
				if seen[f.key.text] == nil {
					seen[f.key.text] = f.key
					out.fields = append(out.fields, f)
					r.grow(out, f.value)
				}
			}
		}
	}
}

func (r *reader) key(k ast.Node) *node {
	key := r.value(k)
	if key.kind == kindMap || key.kind == kindList {
		r.fault(key, "", "a map or a list cannot be a key")
	}
	return key
}
