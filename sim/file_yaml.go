package sim

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/lexer"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"

	"github.com/stint-io/stint/rules"
)

const (
	// maxFileBytes bounds a scenario's file. Not larger: the parser's work grows with
	// the square of the keys of one map, so that a file of this size costs well below
	// a second. Not smaller: a weight for each of ten thousand instances fits.
	maxFileBytes = 64 << 10

	// maxFileDepth bounds brackets within brackets, and lists that begin on one line:
	// the parser recurses, and copies what is inside at each level. Scenarios nest
	// five deep.
	maxFileDepth = 32

	// maxFileFaults bounds what is reported: nobody reads more.
	maxFileFaults = 100
)

type fileKind uint8

const (
	fileNull fileKind = iota
	fileText
	fileInt
	fileFloat
	fileBool
	fileMap
	fileList
)

func (k fileKind) String() string {
	return [...]string{"nothing", "text", "a whole number", "a decimal number", "true or false", "a map", "a list"}[k]
}

// fileNode is a YAML value with its place.
type fileNode struct {
	kind         fileKind
	text         string // of a scalar, without quotes
	line, column int
	fields       []fileField
	items        []*fileNode
}

type fileField struct{ key, value *fileNode }

// get returns the value of a key, or nil.
func (n *fileNode) get(key string) *fileNode {
	for _, f := range n.fields {
		if f.key.text == key {
			return f.value
		}
	}
	return nil
}

// fileReader reads one file and collects what is wrong with it.
type fileReader struct {
	name   string
	lines  []string
	faults rules.Errors
	more   int
}

// fault records what is wrong at n, which may be nil when it has no place.
func (r *fileReader) fault(n *fileNode, hint, format string, args ...any) {
	if len(r.faults) >= maxFileFaults {
		r.more++
		return
	}
	e := rules.Error{File: r.name, Hint: hint, Message: fmt.Sprintf(format, args...)}
	if n != nil && n.line > 0 {
		e.Line, e.Column = n.line, n.column
		if n.line <= len(r.lines) {
			e.Excerpt = fileExcerpt(r.lines[n.line-1], n.line, n.column)
		}
	}
	r.faults = append(r.faults, e)
}

// err returns the faults in the order of lines, or nil.
func (r *fileReader) err() error {
	if len(r.faults) == 0 {
		return nil
	}
	slices.SortStableFunc(r.faults, func(a, b rules.Error) int {
		if a.Line != b.Line {
			return a.Line - b.Line
		}
		return a.Column - b.Column
	})
	if r.more > 0 {
		r.faults = append(r.faults, rules.Error{File: r.name, Message: fmt.Sprintf("and %d more faults", r.more)})
	}
	return r.faults
}

// read parses the text. It returns nil when there was a fault, or nothing in it.
func (r *fileReader) read(src []byte) *fileNode {
	if len(src) > maxFileBytes {
		r.fault(nil, "write lists of instances as ranges, such as 0-99", "file has more than %d bytes", maxFileBytes)
		return nil
	}
	text := strings.TrimPrefix(string(src), "\ufeff")
	r.lines = strings.Split(text, "\n")
	for i, line := range r.lines {
		column := 0
		for k, c := range line {
			column++
			at := &fileNode{line: i + 1, column: column}
			if _, size := utf8.DecodeRuneInString(line[k:]); c == utf8.RuneError && size == 1 {
				r.fault(at, "save the file as UTF-8", "byte 0x%02x is not valid UTF-8", line[k])
				return nil
			}
			if c < ' ' && c != '\t' && c != '\r' || c == 0x7f {
				r.fault(at, "", "control character %#U", c)
				return nil
			}
		}
	}
	tokens := lexer.Tokenize(text)
	if !r.shallow(tokens) {
		return nil
	}
	file, err := parseYAML(tokens)
	if err != nil {
		r.syntax(err)
		return nil
	}
	var root *fileNode
	for _, doc := range file.Docs {
		if doc == nil || doc.Body == nil || doc.Body.Type() == ast.CommentType {
			continue
		}
		if root != nil {
			r.fault(filePlace(doc.Body), "move it into a file of its own", "a second YAML document in one file")
			return nil
		}
		root = r.value(doc.Body)
	}
	if len(r.faults) > 0 {
		return nil
	}
	return root
}

// shallow refuses what is nested too deep, before the parser runs.
func (r *fileReader) shallow(tokens token.Tokens) bool {
	open, dashes, line := 0, 0, 0
	for _, t := range tokens {
		if t.Position.Line != line {
			line, dashes = t.Position.Line, 0
		}
		switch t.Type {
		case token.MappingStartType, token.SequenceStartType:
			open++
		case token.MappingEndType, token.SequenceEndType:
			open = max(open-1, 0)
		case token.SequenceEntryType:
			dashes++
		}
		// Blocks nest by indentation: the size of the file bounds them to some hundreds.
		if open > maxFileDepth || dashes > maxFileDepth {
			r.fault(&fileNode{line: line, column: t.Position.Column}, "", "nested more than %d deep", maxFileDepth)
			return false
		}
	}
	return true
}

// parseYAML runs the parser. A panic in it is a fault of the file.
func parseYAML(tokens token.Tokens) (file *ast.File, err error) {
	defer func() {
		if p := recover(); p != nil {
			file, err = nil, errors.New("cannot be parsed")
		}
	}()
	return parser.Parse(tokens, 0, parser.AllowDuplicateMapKey())
}

func (r *fileReader) syntax(err error) {
	var e yaml.Error
	if !errors.As(err, &e) || e.GetToken() == nil || e.GetToken().Position == nil {
		r.fault(nil, "", "yaml: %v", err)
		return
	}
	p, hint := e.GetToken().Position, ""
	if p.Line > 0 && p.Line <= len(r.lines) && strings.HasPrefix(strings.TrimLeft(r.lines[p.Line-1], " "), "\t") {
		hint = "indent with spaces; YAML does not allow tabs there"
	}
	r.fault(&fileNode{line: p.Line, column: p.Column}, hint, "yaml: %s", strings.ReplaceAll(e.GetMessage(), "\t", `\t`))
}

// filePlace returns an empty node where n is.
func filePlace(n ast.Node) *fileNode {
	out := &fileNode{}
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

// value turns the parser's tree into nodes.
func (r *fileReader) value(n ast.Node) *fileNode {
	out := filePlace(n)
	scalar := func(k fileKind, text string) *fileNode {
		out.kind, out.text = k, text
		return out
	}
	switch v := n.(type) {
	case nil, *ast.NullNode:
	case *ast.StringNode:
		return scalar(fileText, v.Value)
	case *ast.LiteralNode:
		return scalar(fileText, v.Value.Value)
	case *ast.IntegerNode:
		return scalar(fileInt, v.Token.Value)
	case *ast.FloatNode:
		return scalar(fileFloat, v.Token.Value)
	case *ast.InfinityNode, *ast.NanNode:
		return scalar(fileFloat, n.GetToken().Value)
	case *ast.BoolNode:
		return scalar(fileBool, strings.ToLower(v.Token.Value))
	case *ast.MappingValueNode:
		r.mapping(out, []*ast.MappingValueNode{v})
	case *ast.MappingNode:
		r.mapping(out, v.Values)
	case *ast.SequenceNode:
		out.kind = fileList
		for _, item := range v.Values {
			out.items = append(out.items, r.value(item))
		}
	default:
		r.fault(out, "write the value out", "yaml: %v is not supported in a scenario", n.Type())
	}
	return out
}

func (r *fileReader) mapping(out *fileNode, values []*ast.MappingValueNode) {
	out.kind = fileMap
	seen := make(map[string]*fileNode, len(values))
	for _, v := range values {
		key := filePlace(v.Key)
		if t := v.Key.GetToken(); t != nil && t.Type != token.MergeKeyType {
			key = r.value(v.Key)
		} else {
			r.fault(key, "write the keys out", "yaml: << is not supported in a scenario")
			continue
		}
		value := r.value(v.Value)
		if first := seen[key.text]; first != nil {
			r.fault(key, "", "key %q is given twice, first on line %d", key.text, first.line)
			continue
		}
		seen[key.text] = key
		out.fields = append(out.fields, fileField{key, value})
	}
}

// fileExcerpt returns the line with a caret below the column. A long line is cut
// around it.
func fileExcerpt(line string, number, column int) string {
	const width = 100
	runes := []rune(strings.ReplaceAll(strings.TrimRight(line, "\r"), "\t", " "))
	at := min(max(column-1, 0), len(runes))
	if at > width-20 {
		start := at - width/2
		runes, at = append([]rune("..."), runes[start:]...), at-start+3
	}
	if len(runes) > width {
		runes = append(runes[:width:width], []rune("...")...)
	}
	gutter := strconv.Itoa(number)
	return fmt.Sprintf("  %s | %s\n  %s | %s^", gutter, strings.TrimRight(string(runes), " "),
		strings.Repeat(" ", len(gutter)), strings.Repeat(" ", at))
}

// nearest returns the word that was meant by the one written, or "".
func nearest(written string, words []string) string {
	if len(written) > 64 {
		return ""
	}
	plain := strings.NewReplacer("_", "", "-", "", " ", "")
	best, least := "", 1+max(1, len(written)/3)
	for _, w := range words {
		if d := letters(plain.Replace(strings.ToLower(written)), plain.Replace(strings.ToLower(w))); d < least {
			best, least = w, d
		}
	}
	return best
}

// letters is how many letters have to be put in, taken out, replaced, or swapped with
// their neighbour to make b of a.
func letters(a, b string) int {
	rows := make([][]int, len(a)+1)
	for i := range rows {
		rows[i] = make([]int, len(b)+1)
		rows[i][0] = i
	}
	for j := range rows[0] {
		rows[0][j] = j
	}
	for i := 1; i <= len(a); i++ {
		for j := 1; j <= len(b); j++ {
			d := min(rows[i-1][j], rows[i][j-1], rows[i-1][j-1]) + 1
			if a[i-1] == b[j-1] {
				d = min(d, rows[i-1][j-1])
			}
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				d = min(d, rows[i-2][j-2]+1)
			}
			rows[i][j] = d
		}
	}
	return rows[len(a)][len(b)]
}
