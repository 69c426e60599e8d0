// Command deadcode lists the functions of this repository that nothing reaches.
//
// It is golang.org/x/tools/cmd/deadcode with other roots: besides the commands, every exported
// function and method of a package that others can import, and of the packages that exist for
// tests. So what it lists below internal/ is reached by no command, no public call and no test
// support, and can go. Tests alone keep nothing alive.
package main

import (
	"cmp"
	"errors"
	"fmt"
	"go/ast"
	"go/types"
	"os"
	"slices"
	"strings"

	"golang.org/x/tools/go/callgraph/rta"
	"golang.org/x/tools/go/packages"
	"golang.org/x/tools/go/ssa"
	"golang.org/x/tools/go/ssa/ssautil"
)

const module = "github.com/stint-io/stint"

// forTests are internal packages whose exported functions tests and benchmarks of other packages use.
var forTests = []string{
	module + "/internal/redistest", module + "/internal/gatewaytest", module + "/internal/traffic", module + "/internal/lease/leasetest",
	module + "/internal/builttest", module + "/internal/etcdtest", module + "/internal/testca", module + "/internal/seeding", module + "/internal/envoyfilter", module + "/internal/cluster/clustertest",
}

func main() {
	found, err := dead(".")
	if err != nil {
		fmt.Fprintln(os.Stderr, "deadcode:", err)
		os.Exit(2)
	}
	for _, line := range found {
		fmt.Println(line)
	}
	if len(found) > 0 {
		os.Exit(1)
	}
}

// dead returns the functions of the module in dir that nothing reaches, with their places.
func dead(dir string) ([]string, error) {
	loaded, err := packages.Load(&packages.Config{Mode: packages.LoadAllSyntax | packages.NeedModule, Dir: dir}, module+"/...")
	if err != nil {
		return nil, err
	}
	if packages.PrintErrors(loaded) > 0 {
		return nil, errors.New("the packages do not compile")
	}
	if !slices.ContainsFunc(loaded, func(p *packages.Package) bool { return len(p.Syntax) > 0 }) {
		return nil, fmt.Errorf("no code of %s below %s", module, dir)
	}
	program, built := ssautil.AllPackages(loaded, ssa.InstantiateGenerics)
	program.Build()
	var roots []*ssa.Function
	for _, p := range built {
		roots = append(roots, p.Func("init"))
		switch path := p.Pkg.Path(); {
		case p.Pkg.Name() == "main":
			roots = append(roots, p.Func("main"))
		case !slices.Contains(strings.Split(path, "/"), "internal"), slices.Contains(forTests, path):
			roots = append(roots, exported(program, p)...)
		}
	}
	reached := map[string]bool{}
	for f := range rta.Analyze(roots, false).Reachable {
		// All instances of a generic function are at one place, as are the wrappers of a method.
		reached[program.Fset.Position(f.Pos()).String()] = true
	}
	generated := map[string]bool{}
	for _, p := range loaded {
		for _, file := range p.Syntax {
			generated[program.Fset.File(file.Pos()).Name()] = ast.IsGenerated(file)
		}
	}
	var found []string
	for f := range ssautil.AllFunctions(program) {
		if p := origin(f); p == nil || !slices.Contains(built, p) || f.Synthetic != "" || f.Parent() != nil || f.Name() == "_" {
			continue
		}
		if generated[program.Fset.Position(f.Pos()).Filename] || marks(f) {
			continue
		}
		if at := program.Fset.Position(f.Pos()); !reached[at.String()] {
			found = append(found, fmt.Sprintf("%s: nothing reaches %s", at, f.RelString(f.Pkg.Pkg)))
		}
	}
	slices.SortFunc(found, cmp.Compare[string])
	return slices.Compact(found), nil
}

// marks says whether f is a method that does nothing and says only that its type is one of those
// of an interface. Nobody calls it.
func marks(f *ssa.Function) bool {
	declared, ok := f.Syntax().(*ast.FuncDecl)
	return ok && declared.Recv != nil && declared.Type.Params.NumFields() == 0 && declared.Type.Results.NumFields() == 0 &&
		declared.Body != nil && len(declared.Body.List) == 0
}

// origin is the package in which f is written.
func origin(f *ssa.Function) *ssa.Package {
	if o := f.Origin(); o != nil {
		f = o
	}
	return f.Pkg
}

// exported returns the exported functions of p, and the exported methods of its exported types.
func exported(program *ssa.Program, p *ssa.Package) []*ssa.Function {
	var all []*ssa.Function
	for _, member := range p.Members {
		if object := member.Object(); object == nil || !object.Exported() {
			continue
		}
		switch m := member.(type) {
		case *ssa.Function:
			all = append(all, m)
		case *ssa.Type:
			named, ok := m.Type().(*types.Named)
			if !ok || named.TypeParams().Len() > 0 || types.IsInterface(named) {
				continue
			}
			methods := program.MethodSets.MethodSet(types.NewPointer(named))
			for method := range methods.Methods() {
				if method.Obj().Exported() {
					all = append(all, program.MethodValue(method))
				}
			}
		}
	}
	return all
}
