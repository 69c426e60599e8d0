package coordinator

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// walk are the places that a report of a known instance passes, without claims, from Step to the
// grants, in order. Not counted are functions of one expression and the rooms below, such as the
// ledger.
var walk = []string{
	"Coordinator.Step",
	"Coordinator.report", "timing.transit", "Coordinator.receive", "Coordinator.scheduleRound", "Coordinator.keeps", // receive
	"Coordinator.runRounds",                                                                                               // divide, lend and revoke
	"Coordinator.collect", "Coordinator.awaitsParent", "Coordinator.addShare", "Coordinator.enqueue", "Coordinator.flush", // send
}

// aside are the functions that a walk calls for other events and other states.
var aside = []string{
	"Coordinator.reconfigure", "Coordinator.takeOver", "Coordinator.sweep", "Coordinator.rise", "Coordinator.join",
	"Coordinator.drop", "Coordinator.open", "Coordinator.claim", "Coordinator.reported", "Coordinator.remove", "Seal.sign",
	"Coordinator.supplied", "Coordinator.length", "Coordinator.path", // of a site, and of its parent
	"Coordinator.tell",               // of replicas
	"Coordinator.answer",             // of buckets without a lease
	"account.cutTo", "account.obeys", // of caps
}

// most bound the walk: its places, and the returns in them that are not the last statement.
// (The other form of an early end, a continue, stays within its function.)
const (
	mostPlaces  = 12
	mostReturns = 5
)

// functions parses the package without its tests. It returns its functions by name, as
// Type.method.
func functions(t *testing.T) (byName map[string]*ast.FuncDecl, structs map[string]*ast.StructType) {
	t.Helper()
	sources, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	byName, structs = map[string]*ast.FuncDecl{}, map[string]*ast.StructType{}
	for _, source := range sources {
		if strings.HasSuffix(source, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), source, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.FuncDecl:
				name := n.Name.Name
				if n.Recv != nil {
					of := n.Recv.List[0].Type
					if star, ok := of.(*ast.StarExpr); ok {
						of = star.X
					}
					name = of.(*ast.Ident).Name + "." + name
				}
				byName[name] = n
			case *ast.TypeSpec:
				if s, ok := n.Type.(*ast.StructType); ok {
					structs[n.Name.Name] = s
				}
			}
			return true
		})
	}
	return byName, structs
}

// oneExpression says whether a function is no more than a return of an expression.
func oneExpression(f *ast.FuncDecl) bool {
	if len(f.Body.List) != 1 {
		return false
	}
	_, ok := f.Body.List[0].(*ast.ReturnStmt)
	return ok
}

// calls lists the methods and functions of the package that a function may call, by their names
// without type.
func calls(f *ast.FuncDecl) (names []string) {
	ast.Inspect(f.Body, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok {
			return true
		}
		switch fun := call.Fun.(type) {
		case *ast.Ident:
			names = append(names, fun.Name)
		case *ast.SelectorExpr:
			names = append(names, fun.Sel.Name)
		}
		return true
	})
	return names
}

// TestWalkOfAReport holds the number of places that a report passes. Every function of the
// package that one of them calls is a place itself, or in one of the other lists, or of one
// expression.
func TestWalkOfAReport(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	byName, _ := functions(t)
	known := map[string]bool{}
	for _, name := range slices.Concat(walk, aside) {
		if byName[name] == nil {
			t.Fatalf("there is no %s", name)
		}
		_, method, _ := strings.Cut(name, ".")
		known[method] = true
	}
	methods := map[string]bool{} // that count, by their names without type
	for name, f := range byName {
		if oneExpression(f) {
			continue
		}
		_, method, ok := strings.Cut(name, ".")
		if !ok {
			method = name
		}
		methods[method] = true
	}
	called := map[string]bool{"Step": true}
	returns := 0
	for _, name := range walk {
		f := byName[name]
		if _, method, _ := strings.Cut(name, "."); !called[method] {
			t.Errorf("nothing before %s calls it", name)
		}
		for _, callee := range calls(f) {
			called[callee] = true
			if methods[callee] && !known[callee] {
				t.Errorf("%s calls %s, which is in no list", name, callee)
			}
		}
		returns += earlyReturns(f)
	}
	if len(walk) > mostPlaces || returns > mostReturns {
		t.Errorf("%d places with %d early returns, want %d with %d at most", len(walk), returns, mostPlaces, mostReturns)
	}
	t.Logf("%d places with %d early returns", len(walk), returns)
}

// earlyReturns counts the returns of a function that are not its last statement, without those of
// functions in it.
func earlyReturns(f *ast.FuncDecl) (n int) {
	ast.Inspect(f.Body, func(node ast.Node) bool {
		switch node := node.(type) {
		case *ast.FuncLit:
			return false
		case *ast.ReturnStmt:
			if node != f.Body.List[len(f.Body.List)-1] {
				n++
			}
		}
		return true
	})
	return n
}

// TestStructsFitInAHead: no struct of the package has more than 20 fields of its own. An embedded
// struct is one.
func TestStructsFitInAHead(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	const most = 20
	_, structs := functions(t)
	if len(structs) < 10 {
		t.Fatalf("found %d structs only", len(structs))
	}
	for name, s := range structs {
		fields := 0
		for _, f := range s.Fields.List {
			fields += max(1, len(f.Names))
		}
		if fields > most {
			t.Errorf("%s has %d fields, want %d at most", name, fields, most)
		}
	}
}
