package document

import (
	"strings"

	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/token"
)

// Kind says what a value is. The zero value is Null.
type Kind uint8

// The kinds of values.
const (
	Null Kind = iota
	Text
	Int
	Float
	Bool
	Map
	List
)

// String returns the kind in words, as they stand after "this is".
func (k Kind) String() string {
	return [...]string{"nothing", "text", "a whole number", "a decimal number", "true or false", "a map", "a list"}[k]
}

// Node is a value with its place. Nodes are shared where aliases are used: do not
// change one. The zero value is a value of nothing without a place.
type Node struct {
	Kind         Kind
	Text         string // of a scalar: the text, without quotes
	Style        byte   // of text: 0 plain, or the character that opens it: ' " | >
	Line, Column int    // from 1; 0 when unknown
	Fields       []Field
	Items        []*Node

	size, depth int // with aliases expanded; size saturates
}

// Field is an entry of a map.
type Field struct {
	Key, Value *Node
}

// Get returns the value of a key, or nil. A nil node has no keys.
func (n *Node) Get(key string) *Node {
	if n == nil {
		return nil
	}
	for i := range n.Fields {
		if n.Fields[i].Key.Text == key {
			return n.Fields[i].Value
		}
	}
	return nil
}

// Each returns the items of a list, or the node alone where one value may stand for a
// list of one. A nil node has none.
func (n *Node) Each() []*Node {
	switch {
	case n == nil:
		return nil
	case n.Kind == List:
		return n.Items
	}
	return []*Node{n}
}

// builder turns the parser's tree into nodes.
type builder struct {
	*Document
	anchors map[string]*Node
	aliased int
	tooDeep bool
}

// place returns an empty node where n is.
func place(n ast.Node) *Node {
	out := &Node{size: 1, depth: 1}
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
		out.Line, out.Column = t.Position.Line, t.Position.Column
	}
	return out
}

// value returns the node of a value and of all below it.
func (b *builder) value(n ast.Node) *Node {
	out := place(n)
	scalar := func(k Kind, text string) *Node {
		out.Kind, out.Text = k, text
		return out
	}
	switch v := n.(type) {
	case nil, *ast.NullNode:
	case *ast.StringNode:
		switch v.Token.Type {
		case token.SingleQuoteType:
			out.Style = '\''
		case token.DoubleQuoteType:
			out.Style = '"'
		}
		return scalar(Text, v.Value)
	case *ast.LiteralNode:
		out.Style = '|'
		if strings.HasPrefix(v.Start.Value, ">") {
			out.Style = '>'
		}
		return scalar(Text, v.Value.Value)
	case *ast.IntegerNode:
		return scalar(Int, v.Token.Value)
	case *ast.FloatNode:
		return scalar(Float, v.Token.Value)
	case *ast.InfinityNode, *ast.NanNode:
		return scalar(Float, n.GetToken().Value)
	case *ast.BoolNode:
		return scalar(Bool, strings.ToLower(v.Token.Value))
	case *ast.AnchorNode:
		inner := b.value(v.Value)
		b.anchors[v.Name.GetToken().Value] = inner
		return inner
	case *ast.AliasNode:
		return b.alias(v, out)
	case *ast.MappingValueNode:
		b.mapping(out, []*ast.MappingValueNode{v})
	case *ast.MappingNode:
		b.mapping(out, v.Values)
	case *ast.SequenceNode:
		out.Kind = List
		for _, item := range v.Values {
			child := b.value(item)
			out.Items = append(out.Items, child)
			b.grow(out, child)
		}
	default:
		b.Fault(out, "", "yaml: %v is not supported here", n.Type())
	}
	return out
}

// grow counts a child that its parent got.
func (b *builder) grow(parent, child *Node) {
	parent.size = min(parent.size+child.size, b.bounds.Aliased+1)
	parent.depth = max(parent.depth, child.depth+1)
	if parent.depth > b.bounds.Depth && !b.tooDeep {
		b.tooDeep = true
		b.Fault(parent, "", "nested more than %d deep", b.bounds.Depth)
	}
}

// alias returns what an alias stands for, or an empty node after a fault.
func (b *builder) alias(v *ast.AliasNode, at *Node) *Node {
	name := v.Value.GetToken().Value
	target := b.anchors[name]
	if target == nil {
		b.Fault(at, aliasHint(name), "alias *%s has no anchor &%s before it", name, name)
		return at
	}
	before := b.aliased
	b.aliased = min(before+target.size, b.bounds.Aliased+1)
	if b.aliased <= b.bounds.Aliased {
		return target
	}
	if before <= b.bounds.Aliased {
		b.Fault(at, "", "aliases stand for more than %d values", b.bounds.Aliased)
	}
	return at
}

// mapping gives out the fields of a map.
func (b *builder) mapping(out *Node, values []*ast.MappingValueNode) {
	out.Kind = Map
	seen := make(map[string]*Node, len(values))
	var merged []*Node
	for _, v := range values {
		if _, ok := v.Key.(*ast.MergeKeyNode); ok {
			merged = append(merged, b.value(v.Value))
			continue
		}
		key := b.key(v.Key)
		value := b.value(v.Value)
		if first := seen[key.Text]; first != nil {
			b.Fault(key, "", "key %q is given twice, first on line %d", key.Text, first.Line)
			continue
		}
		seen[key.Text] = key
		out.Fields = append(out.Fields, Field{key, value})
		b.grow(out, value)
	}
	// A key written in the map itself wins over a merged one, wherever the
	// merge stands.
	for _, m := range merged {
		for _, source := range m.Each() {
			if source.Kind != Map {
				b.Fault(source, "", "<< wants a map, this is %v", source.Kind)
				continue
			}
			for _, f := range source.Fields {
				if seen[f.Key.Text] == nil {
					seen[f.Key.Text] = f.Key
					out.Fields = append(out.Fields, f)
					b.grow(out, f.Value)
				}
			}
		}
	}
}

func (b *builder) key(k ast.Node) *Node {
	key := b.value(k)
	if key.Kind == Map || key.Kind == List {
		b.Fault(key, "", "a map or a list cannot be a key")
	}
	return key
}
