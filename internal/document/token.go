package document

import "github.com/goccy/go-yaml/token"

// level is an open block or bracket.
type level struct {
	column int // of a block; 0 for brackets
	count  int // of its lines or parts
}

// checkTokens refuses, before the recursive parser runs, what would cost it too
// much stack or time.
func (d *Document) checkTokens(tokens token.Tokens) bool {
	var open []level
	flow, line, headers, anchors := 0, 0, 0, 0
	var previous token.Type
	for i, t := range tokens {
		if t.Type == token.CommentType {
			continue
		}
		refuse := func(hint, format string, args ...any) bool {
			d.add(d.At(t.Position.Line, t.Position.Column, hint, format, args...))
			return false
		}
		opensBlock := t.Position.Line != line || previous == token.SequenceEntryType
		line = t.Position.Line
		switch {
		case t.Type == token.TagType:
			return refuse("leave it out", "YAML tag %q is not supported", t.Value)
		case t.Type == token.AnchorType:
			if anchors++; anchors > d.bounds.Anchors {
				return refuse("", "more than %d anchors", d.bounds.Anchors)
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
		if len(open) > d.bounds.Depth {
			return refuse("", "nested more than %d deep", d.bounds.Depth)
		}
		if len(open) > 0 && open[len(open)-1].count > d.bounds.Keys {
			return refuse("", "a map with more than %d keys", d.bounds.Keys)
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

// glued reports whether colon divides a key from its value without a space, as in
// {header:X-Tenant: t}. By the letter of YAML such a text is one word, but the
// parser takes it for a key and a value, and the file would say another thing
// than it seems to.
func glued(before, colon, after *token.Token) bool {
	return colon.Type == token.MappingValueType && before.Type == token.StringType &&
		after.Type != token.MappingEndType && after.Type != token.CollectEntryType &&
		after.Position.Line == colon.Position.Line && after.Position.Column == colon.Position.Column+1
}
