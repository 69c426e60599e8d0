// Package document reads YAML text into values that know their place, and collects
// faults that show it: with the line, a caret, and a way out.
//
// It bounds what a file may cost before a parser sees it, since a file may come from
// a stranger. It knows no format: what the values have to be is for those to say who
// read a format, and so is the type of the errors that their callers see. It opens no
// file.
package document

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

// Bounds say how large a document may be. All must be set: the zero value refuses
// every text that is not empty.
type Bounds struct {
	Bytes int // of the text

	// Depth is of values within values. The parser recurses, and a stack that
	// overflows ends the process.
	Depth int

	// Keys of one map, and Anchors of the document: the parser's work grows with the
	// square of each.
	Keys, Anchors int

	// Aliased is of the values that aliases stand for, all together, so that a few
	// lines cannot expand to gigabytes.
	Aliased int

	// Smaller is the way out of a text with too many bytes.
	Smaller string
}

// Document is one file, read. It is made by [Read]; its methods may not be called at
// the same time.
type Document struct {
	Name   string   // stands for the file in faults
	Lines  []string // of the text, without their ends
	Root   *Node    // nil when the text could not be read, or is empty
	Faults *Faults  // those of this document and of others read with it

	bounds Bounds
	shown  map[int][]rune // lines as excerpts show them, by number
}

// Read reads the text of a file that is called name. What is wrong with it goes to
// faults; the root is nil when there is anything, or when the text is empty.
func Read(name string, src []byte, bounds Bounds, faults *Faults) *Document {
	d := &Document{Name: name, Faults: faults, bounds: bounds}
	if len(src) > bounds.Bytes {
		d.Fault(nil, bounds.Smaller, "file has more than %d bytes", bounds.Bytes)
		return d
	}
	text := strings.TrimPrefix(string(src), "\ufeff")
	d.Lines = strings.Split(text, "\n")
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
	before := faults.Count()
	b := &builder{Document: d, anchors: make(map[string]*Node)}
	for _, doc := range file.Docs {
		if doc == nil || doc.Body == nil || doc.Body.Type() == ast.CommentType {
			continue
		}
		if d.Root != nil {
			d.Root = nil
			d.Fault(place(doc.Body), "move it into a file of its own", "a second YAML document in one file")
			return d
		}
		d.Root = b.value(doc.Body)
	}
	if faults.Count() > before {
		d.Root = nil
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
func (d *Document) checkText() bool {
	for i, line := range d.Lines {
		column := 0
		for j, r := range line {
			column++
			if r == utf8.RuneError {
				if _, n := utf8.DecodeRuneInString(line[j:]); n == 1 {
					d.add(d.At(i+1, column, "save the file as UTF-8", "byte 0x%02x is not valid UTF-8", line[j]))
					return false
				}
			}
			if r < ' ' && r != '\t' && r != '\r' || r == 0x7f {
				d.add(d.At(i+1, column, "", "control character %#U", r))
				return false
			}
		}
	}
	return true
}

func (d *Document) syntax(err error) {
	var e yaml.Error
	if !errors.As(err, &e) || e.GetToken() == nil || e.GetToken().Position == nil {
		d.Fault(nil, "", "yaml: %v", err)
		return
	}
	p, hint := e.GetToken().Position, ""
	if p.Line > 0 && p.Line <= len(d.Lines) {
		hint = syntaxHint(e.GetMessage(), d.Lines, p.Line)
	}
	message := strings.ReplaceAll(e.GetMessage(), "\t", `\t`)
	d.add(d.At(p.Line, p.Column, hint, "yaml: %s", message))
}

// At returns a fault at a place, both from 1, or 0 for none, without its excerpt. An empty hint leaves it out.
func (d *Document) At(line, column int, hint, format string, args ...any) Fault {
	return Fault{File: d.Name, Line: line, Column: column, Hint: hint, Message: fmt.Sprintf(format, args...)}
}

// Excerpt returns the line of a fault of this document with a caret below the column, without passwords. It reads the
// whole line.
func (d *Document) Excerpt(f Fault) string {
	if f.Line < 1 || f.Line > len(d.Lines) {
		return ""
	}
	return excerpt(d.line(f.Line), f.Line, f.Column)
}

// line returns a line as excerpts show it.
func (d *Document) line(number int) []rune {
	line, ok := d.shown[number]
	if !ok {
		if line = shown(d.Lines[number-1]); d.shown == nil {
			d.shown = map[int][]rune{}
		}
		d.shown[number] = line
	}
	return line
}

// Conceal has no excerpt show the rest of the line in which n begins, since it may have a password.
func (d *Document) Conceal(n *Node) {
	if n.Line < 1 || n.Line > len(d.Lines) {
		return
	}
	line := d.line(n.Line)
	for i := max(0, n.Column-1); i < len(line); i++ {
		line[i] = '*'
	}
}

// add records a fault of this document.
func (d *Document) add(f Fault) { d.Faults.add(f, func() string { return d.Excerpt(f) }) }

// Fault records what is wrong with n, or with the whole file when n is nil. An empty
// hint leaves it out.
func (d *Document) Fault(n *Node, hint, format string, args ...any) {
	line, column := 0, 0
	if n != nil {
		line, column = n.Line, n.Column
	}
	d.add(d.At(line, column, hint, format, args...))
}

// Wants records that n is not what it has to be.
func (d *Document) Wants(n *Node, what, hint string) {
	switch n.Kind {
	case Map, List, Null:
		d.Fault(n, hint, "want %s, this is %v", what, n.Kind)
	default:
		d.Fault(n, hint, "want %s, this is %q", what, n.Text)
	}
}

// Word reads one of several words and returns its index. It reports false after
// recording a fault.
func (d *Document) Word(n *Node, words ...string) (int, bool) {
	if n.Kind == Text {
		for i, w := range words {
			if w == n.Text {
				return i, true
			}
		}
	}
	d.Wants(n, "one of "+strings.Join(words, ", "), Meant(n.Text, words))
	return 0, false
}
