package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"hash/fnv"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// mutant is one change of one file.
type mutant struct {
	file       string
	line       int
	source     []byte
	begin, end int // of what is replaced, in bytes
	text       string
	what       string // for people
}

func (m mutant) mutated() []byte {
	return slices.Concat(m.source[:m.begin], []byte(m.text), m.source[m.end:])
}

func hash(s string) uint64 {
	h := fnv.New64a()
	h.Write([]byte(s))
	return h.Sum64()
}

// find returns all places of a package's own files, in the order of the files.
func find(dir, only string) ([]mutant, error) {
	names, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		return nil, err
	}
	var all []mutant
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") || !strings.Contains(name, only) {
			continue
		}
		source, err := os.ReadFile(name)
		if err != nil {
			return nil, err
		}
		fset := token.NewFileSet()
		file, err := parser.ParseFile(fset, name, source, parser.ParseComments)
		if err != nil {
			return nil, err
		}
		if ast.IsGenerated(file) {
			continue
		}
		f := finder{fset: fset, name: name, source: source}
		ast.Inspect(file, f.visit)
		all = append(all, f.found...)
	}
	return all, nil
}

type finder struct {
	fset   *token.FileSet
	name   string
	source []byte
	found  []mutant
}

func (f *finder) offset(p token.Pos) int { return f.fset.Position(p).Offset }

func (f *finder) text(n ast.Node) string {
	return string(f.source[f.offset(n.Pos()):f.offset(n.End())])
}

// add notes that what stands between two positions may become text.
func (f *finder) add(from, to token.Pos, text string) {
	begin, end := f.offset(from), f.offset(to)
	short := func(s string) string {
		s = strings.Join(strings.Fields(s), " ")
		if len(s) > 60 {
			s = s[:57] + "..."
		}
		return s
	}
	what := short(string(f.source[begin:end])) + " -> " + short(text)
	if text == "" {
		what = "dropped: " + short(string(f.source[begin:end]))
	}
	f.found = append(f.found, mutant{
		file: f.name, line: f.fset.Position(from).Line, source: f.source,
		begin: begin, end: end, text: text, what: what,
	})
}

// swaps are the operators that take another's place.
var swaps = map[token.Token][]token.Token{
	token.LSS: {token.LEQ, token.GEQ}, token.LEQ: {token.LSS, token.GTR},
	token.GTR: {token.GEQ, token.LEQ}, token.GEQ: {token.GTR, token.LSS},
	token.EQL: {token.NEQ}, token.NEQ: {token.EQL},
	token.LAND: {token.LOR}, token.LOR: {token.LAND},
	token.ADD: {token.SUB}, token.SUB: {token.ADD}, token.MUL: {token.QUO}, token.QUO: {token.MUL},
	token.ADD_ASSIGN: {token.SUB_ASSIGN}, token.SUB_ASSIGN: {token.ADD_ASSIGN},
	token.INC: {token.DEC}, token.DEC: {token.INC},
}

func (f *finder) visit(n ast.Node) bool {
	switch n := n.(type) {
	case *ast.ImportSpec, *ast.Field:
		return false
	case *ast.FuncDecl:
		// What a String method returns is for people, and held by golden texts.
		return n.Name.Name != "String" && n.Name.Name != "Error"
	case *ast.CallExpr:
		if forPeople(n) {
			return false
		}
		f.call(n)
	case *ast.BinaryExpr:
		for _, op := range swaps[n.Op] {
			if n.Op == token.ADD && isText(n) {
				continue
			}
			f.add(n.OpPos, n.OpPos+token.Pos(len(n.Op.String())), op.String())
		}
	case *ast.UnaryExpr:
		if n.Op == token.NOT {
			f.add(n.OpPos, n.OpPos+1, "")
		}
	case *ast.IncDecStmt:
		f.add(n.TokPos, n.End(), swaps[n.Tok][0].String())
	case *ast.AssignStmt:
		f.assign(n)
	case *ast.ExprStmt:
		f.add(n.Pos(), n.End(), "")
	case *ast.IfStmt:
		f.add(n.Cond.Pos(), n.Cond.End(), "false && ("+f.text(n.Cond)+")")
		f.add(n.Cond.Pos(), n.Cond.End(), "true || ("+f.text(n.Cond)+")")
	case *ast.Ident:
		switch n.Name {
		case "true":
			f.add(n.Pos(), n.End(), "false")
		case "false":
			f.add(n.Pos(), n.End(), "true")
		}
	case *ast.BasicLit:
		f.literal(n)
	}
	return true
}

// call swaps min and max.
func (f *finder) call(n *ast.CallExpr) {
	if name, ok := n.Fun.(*ast.Ident); ok && len(n.Args) > 1 {
		switch name.Name {
		case "min":
			f.add(name.Pos(), name.End(), "max")
		case "max":
			f.add(name.Pos(), name.End(), "min")
		}
	}
}

// assign drops an assignment to what exists, and swaps += and -=.
func (f *finder) assign(n *ast.AssignStmt) {
	for _, op := range swaps[n.Tok] {
		f.add(n.TokPos, n.TokPos+token.Pos(len(n.Tok.String())), op.String())
	}
	if n.Tok != token.DEFINE && len(n.Lhs) == 1 {
		f.add(n.Pos(), n.End(), "")
	}
}

// literal doubles a number; 0 becomes 1.
func (f *finder) literal(n *ast.BasicLit) {
	switch n.Kind {
	case token.INT:
		if n.Value == "0" {
			f.add(n.Pos(), n.End(), "1")
			return
		}
		if _, err := strconv.ParseInt(n.Value, 0, 62); err == nil {
			f.add(n.Pos(), n.End(), "(2 * "+n.Value+")")
		}
	case token.FLOAT:
		f.add(n.Pos(), n.End(), "(2 * "+n.Value+")")
	}
}

// forPeople says whether a call makes a message, whose numbers and conditions do not
// decide anything.
func forPeople(n *ast.CallExpr) bool {
	selector, ok := n.Fun.(*ast.SelectorExpr)
	if !ok {
		name, ok := n.Fun.(*ast.Ident)
		return ok && name.Name == "panic"
	}
	if pkg, ok := selector.X.(*ast.Ident); ok {
		switch pkg.Name {
		case "fmt", "errors", "slog", "log":
			return true
		}
	}
	switch selector.Sel.Name {
	case "Debug", "Info", "Warn", "Error", "Errorf":
		return true
	}
	return false
}

// isText says whether a sum is of strings, as far as that can be seen without types.
func isText(n *ast.BinaryExpr) bool {
	for _, side := range []ast.Expr{n.X, n.Y} {
		switch s := side.(type) {
		case *ast.BasicLit:
			if s.Kind == token.STRING || s.Kind == token.CHAR {
				return true
			}
		case *ast.BinaryExpr:
			if isText(s) {
				return true
			}
		}
	}
	return false
}
