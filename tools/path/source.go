package main

import (
	"errors"
	"fmt"
	"go/ast"
	"go/token"
	"go/types"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/tools/go/packages"
)

// source is the code of the module under test.
type source struct {
	fset      *token.FileSet
	root      string
	functions map[*types.Func]*function
}

// function is a function of the module. Those that are written in it belong to it.
type function struct {
	object *types.Func
	body   *ast.BlockStmt
	info   *types.Info
	name   string
	file   string // from the root of the module
	pkg    string
}

// passage is what one kind of request passes.
type passage struct {
	packages, files map[string]bool
	functions       []string
	back            []string
	forwarding      map[string]bool
}

func load(root string) (*source, error) {
	s := &source{fset: token.NewFileSet(), root: root, functions: map[*types.Func]*function{}}
	mode := packages.NeedName | packages.NeedFiles | packages.NeedSyntax | packages.NeedTypes | packages.NeedTypesInfo | packages.NeedImports | packages.NeedDeps
	loaded, err := packages.Load(&packages.Config{Mode: mode, Dir: root, Fset: s.fset}, "./cmd/stint")
	if err != nil {
		return nil, err
	}
	if packages.PrintErrors(loaded) > 0 {
		return nil, errors.New("the packages do not compile")
	}
	packages.Visit(loaded, nil, func(p *packages.Package) {
		if p.PkgPath != module && !strings.HasPrefix(p.PkgPath, module+"/") {
			return
		}
		for _, file := range p.Syntax {
			if ast.IsGenerated(file) {
				continue
			}
			for _, d := range file.Decls {
				declared, ok := d.(*ast.FuncDecl)
				if !ok || declared.Body == nil {
					continue
				}
				object := p.TypesInfo.Defs[declared.Name].(*types.Func)
				name, err := filepath.Rel(root, s.fset.Position(declared.Pos()).Filename)
				if err != nil {
					continue
				}
				s.functions[object] = &function{object, declared.Body, p.TypesInfo, strings.ReplaceAll(object.FullName(), module+"/", ""), name, p.PkgPath}
			}
		}
	})
	return s, nil
}

// path finds the functions of which blocks were passed, and the calls between them.
func (s *source) path(blocks map[string]bool) passage {
	// Begin and end of a block, as the coverage has them.
	passed := map[string][][4]int{}
	for block := range blocks {
		var b [4]int
		file, at, _ := strings.Cut(block, ".go:")
		if _, err := fmt.Sscanf(at, "%d.%d,%d.%d", &b[0], &b[1], &b[2], &b[3]); err == nil {
			file = strings.TrimPrefix(file, module+"/") + ".go"
			passed[file] = append(passed[file], b)
		}
	}
	within := func(file string, at token.Pos) bool {
		p := s.fset.Position(at)
		return slices.ContainsFunc(passed[file], func(b [4]int) bool {
			return !before(p.Line, p.Column, b[0], b[1]) && before(p.Line, p.Column, b[2], b[3])
		})
	}
	run := map[*types.Func]*function{}
	for object, f := range s.functions {
		end := f.body.End()
		for _, b := range passed[f.file] {
			from, to := s.fset.Position(f.body.Pos()), s.fset.Position(end)
			if !before(b[0], b[1], from.Line, from.Column) && before(b[0], b[1], to.Line, to.Column) {
				run[object] = f
			}
		}
	}
	calls, called := map[*function][]*function{}, map[*function]bool{}
	for _, f := range run {
		ast.Inspect(f.body, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok || !within(f.file, call.Lparen) {
				return true
			}
			for _, g := range callees(f.info, call, run) {
				if g != f && !slices.Contains(calls[f], g) {
					calls[f] = append(calls[f], g)
					called[g] = true
				}
			}
			return true
		})
	}
	order := func(a, b *function) int {
		return strings.Compare(a.file+"\x00"+a.name, b.file+"\x00"+b.name)
	}
	var roots, rest []*function
	for _, f := range run {
		if called[f] {
			rest = append(rest, f)
		} else {
			roots = append(roots, f)
		}
	}
	slices.SortFunc(roots, order)
	slices.SortFunc(rest, order)

	p := passage{packages: map[string]bool{}, files: map[string]bool{}, forwarding: map[string]bool{}}
	seen := map[*function]bool{}
	var files []string // on the way from the root, in their order
	var visit func(f *function)
	visit = func(f *function) {
		if seen[f] {
			return
		}
		seen[f] = true
		p.packages[f.pkg], p.files[f.file] = true, true
		p.functions = append(p.functions, f.file+" "+f.name)
		if forwards(f) {
			p.forwarding[f.file+" "+f.name] = true
		}
		files = append(files, f.file)
		for _, g := range calls[f] {
			if g.file != f.file && slices.Contains(files, g.file) {
				p.back = append(p.back, f.file+" "+f.name+" calls "+g.file+" "+g.name)
			}
			visit(g)
		}
		files = files[:len(files)-1]
	}
	for _, f := range roots {
		visit(f)
	}
	for _, f := range rest { // only functions that call each other are left
		visit(f)
	}
	return p
}

func before(line, column, otherLine, otherColumn int) bool {
	return line < otherLine || line == otherLine && column < otherColumn
}

// callees returns the functions that a call may lead to.
func callees(info *types.Info, call *ast.CallExpr, run map[*types.Func]*function) (found []*function) {
	var name *ast.Ident
	switch f := ast.Unparen(call.Fun).(type) {
	case *ast.Ident:
		name = f
	case *ast.SelectorExpr:
		name = f.Sel
	case *ast.IndexExpr:
		if id, ok := f.X.(*ast.Ident); ok {
			name = id
		}
	}
	if name == nil {
		return nil
	}
	object, ok := info.Uses[name].(*types.Func)
	if !ok {
		return nil
	}
	object = object.Origin()
	if f := run[object]; f != nil {
		return []*function{f}
	}
	receiver := object.Signature().Recv()
	if receiver == nil {
		return nil
	}
	asked, ok := receiver.Type().Underlying().(*types.Interface)
	if !ok {
		return nil
	}
	for o, f := range run {
		if r := o.Signature().Recv(); r != nil && o.Name() == object.Name() && types.Implements(r.Type(), asked) {
			found = append(found, f)
		}
	}
	slices.SortFunc(found, func(a, b *function) int { return strings.Compare(a.file+a.name, b.file+b.name) })
	return found
}

// forwards reports whether f does nothing but call another function with its own parameters.
func forwards(f *function) bool {
	if len(f.body.List) != 1 {
		return false
	}
	var x ast.Expr
	switch s := f.body.List[0].(type) {
	case *ast.ReturnStmt:
		if len(s.Results) != 1 {
			return false
		}
		x = s.Results[0]
	case *ast.ExprStmt:
		x = s.X
	}
	call, ok := x.(*ast.CallExpr)
	if !ok {
		return false
	}
	parameters := f.object.Signature().Params()
	if len(call.Args) != parameters.Len() || len(call.Args) == 0 {
		return false
	}
	for i, a := range call.Args {
		id, ok := a.(*ast.Ident)
		if !ok || f.info.Uses[id] != parameters.At(i) {
			return false
		}
	}
	_, converts := f.info.Types[call.Fun]
	return !converts || !f.info.Types[call.Fun].IsType()
}
