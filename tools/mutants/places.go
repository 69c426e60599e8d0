package main

import (
	"go/ast"
	"go/token"
	"go/types"
	"slices"
	"strconv"
	"strings"
)

// mutant is one change of one file.
type mutant struct {
	index      int    // in the schema, from 1
	file       string // as go list names it, absolute
	line       int
	what       string // what changes, for people; with the text of the line it names the mutant
	begin, end int    // of the bytes that text replaces
	text       string

	// The schema writes the expression or statement around the place twice, original and
	// mutated, and lets the index choose.
	form     form
	from, to int
	typ      string // of the expression
}

// form says how the schema can switch a place.
type form int

const (
	expression form = iota
	statement
	clause // a statement where only a simple one may stand: for i := 0; i < n; i++
)

// finder collects the places of one file.
type finder struct {
	fset    *token.FileSet
	name    string
	source  []byte
	info    *types.Info
	qualify types.Qualifier
	stack   []ast.Node // from the file down to the node that is visited
	found   []mutant
}

func (f *finder) find(file *ast.File) []mutant {
	ast.Inspect(file, func(n ast.Node) bool {
		if n == nil {
			f.stack = f.stack[:len(f.stack)-1]
			return true
		}
		f.stack = append(f.stack, n)
		if !f.visit(n) {
			f.stack = f.stack[:len(f.stack)-1]
			return false
		}
		return true
	})
	return f.found
}

func (f *finder) offset(p token.Pos) int { return f.fset.Position(p).Offset }

func (f *finder) text(from, to token.Pos) string {
	return string(f.source[f.offset(from):f.offset(to)])
}

// add notes that what stands between two positions may become text, and that the schema
// switches node.
func (f *finder) add(node ast.Node, from, to token.Pos, text string) {
	m := mutant{
		file: f.name, line: f.fset.Position(from).Line,
		begin: f.offset(from), end: f.offset(to), text: text,
	}
	m.what = short(f.text(from, to)) + " -> " + short(text)
	if text == "" {
		m.what = "dropped: " + short(f.text(from, to))
	}
	if e, ok := node.(ast.Expr); ok {
		m.form, node = expression, f.whole(e)
		m.typ = types.TypeString(types.Default(f.info.TypeOf(node.(ast.Expr))), f.qualify)
	} else {
		m.form = statement
		switch f.parent(node).(type) {
		case *ast.BlockStmt, *ast.CaseClause, *ast.CommClause, *ast.LabeledStmt:
		default:
			m.form = clause
		}
	}
	m.from, m.to = f.offset(node.Pos()), f.offset(node.End())
	f.found = append(f.found, m)
}

// whole returns the largest constant expression around a constant one. A part of it cannot
// become a call: 2*time.Second has another type than a call of int.
func (f *finder) whole(e ast.Expr) ast.Expr {
	for i := len(f.stack) - 1; i >= 0 && f.info.Types[e].Value != nil; i-- {
		parent, ok := f.stack[i].(ast.Expr)
		if !ok || parent != e && f.info.Types[parent].Value == nil {
			break
		}
		e = parent
	}
	return e
}

func (f *finder) parent(n ast.Node) ast.Node {
	i := slices.Index(f.stack, n)
	return f.stack[i-1]
}

func short(s string) string {
	s = strings.Join(strings.Fields(s), " ")
	if len(s) > 60 {
		s = s[:57] + "..."
	}
	return s
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
			if n.Op != token.ADD || !f.isText(n) {
				f.add(n, n.OpPos, n.OpPos+token.Pos(len(n.Op.String())), op.String())
			}
		}
	case *ast.UnaryExpr:
		if n.Op == token.NOT {
			f.add(n, n.OpPos, n.OpPos+1, "")
		}
	case *ast.IncDecStmt:
		f.add(n, n.TokPos, n.End(), swaps[n.Tok][0].String())
	case *ast.AssignStmt:
		f.assign(n)
	case *ast.ExprStmt:
		if call, ok := n.X.(*ast.CallExpr); !ok || !forPeople(call) {
			f.add(n, n.Pos(), n.End(), "")
		}
	case *ast.IfStmt:
		cond := f.text(n.Cond.Pos(), n.Cond.End())
		f.add(n.Cond, n.Cond.Pos(), n.Cond.End(), "false && ("+cond+")")
		f.add(n.Cond, n.Cond.Pos(), n.Cond.End(), "true || ("+cond+")")
	case *ast.ReturnStmt:
		f.returned(n)
	case *ast.Ident:
		if f.info.Uses[n] == types.Universe.Lookup(n.Name) {
			switch n.Name {
			case "true":
				f.add(n, n.Pos(), n.End(), "false")
			case "false":
				f.add(n, n.Pos(), n.End(), "true")
			}
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
			f.add(n, name.Pos(), name.End(), "max")
		case "max":
			f.add(n, name.Pos(), name.End(), "min")
		}
	}
}

// assign drops an assignment to what exists, and swaps += and -=.
func (f *finder) assign(n *ast.AssignStmt) {
	for _, op := range swaps[n.Tok] {
		if n.Tok != token.ADD_ASSIGN || !isString(f.info.TypeOf(n.Lhs[0])) {
			f.add(n, n.TokPos, n.TokPos+token.Pos(len(n.Tok.String())), op.String())
		}
	}
	if n.Tok != token.DEFINE && len(n.Lhs) == 1 {
		if name, ok := n.Lhs[0].(*ast.Ident); !ok || name.Name != "_" {
			f.add(n, n.Pos(), n.End(), "")
		}
	}
}

// returned puts the zero value in place of a result that is not a constant; those have operators of
// their own.
func (f *finder) returned(n *ast.ReturnStmt) {
	var results *ast.FieldList
	for _, around := range f.stack {
		switch around := around.(type) {
		case *ast.FuncDecl:
			results = around.Type.Results
		case *ast.FuncLit:
			results = around.Type.Results
		}
	}
	if results == nil || results.NumFields() != len(n.Results) {
		return
	}
	i := 0
	for _, field := range results.List {
		for range max(1, len(field.Names)) {
			if e := n.Results[i]; !f.isZero(e) {
				f.add(n, e.Pos(), e.End(), "*new("+f.text(field.Type.Pos(), field.Type.End())+")")
			}
			i++
		}
	}
}

// isZero says whether an expression is a constant, nil or T{}.
func (f *finder) isZero(e ast.Expr) bool {
	if composite, ok := e.(*ast.CompositeLit); ok {
		_, isStruct := f.info.TypeOf(e).Underlying().(*types.Struct)
		return isStruct && len(composite.Elts) == 0
	}
	return f.info.Types[e].Value != nil || f.info.Types[e].IsNil()
}

// literal doubles a number; 0 becomes 1, and 1 also 0.
func (f *finder) literal(n *ast.BasicLit) {
	switch n.Kind {
	case token.INT:
		if n.Value == "0" {
			f.add(n, n.Pos(), n.End(), "1")
			return
		}
		if n.Value == "1" {
			f.add(n, n.Pos(), n.End(), "0")
		}
		if _, err := strconv.ParseInt(n.Value, 0, 62); err == nil {
			f.add(n, n.Pos(), n.End(), "(2 * "+n.Value+")")
		}
	case token.FLOAT:
		f.add(n, n.Pos(), n.End(), "(2 * "+n.Value+")")
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

// isText says whether a sum is of strings.
func (f *finder) isText(n *ast.BinaryExpr) bool {
	return isString(f.info.TypeOf(n))
}

func isString(t types.Type) bool {
	basic, ok := t.Underlying().(*types.Basic)
	return ok && basic.Info()&types.IsString != 0
}
