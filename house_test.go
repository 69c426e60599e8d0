package stint_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
)

const modulePath = "github.com/stint-io/stint"

// forbiddenNames say that something is a drawer, not what is in it.
var forbiddenNames = []string{
	"util", "utils", "common", "helper", "helpers", "base", "impl", "types", "manager", "misc",
}

// source is one parsed Go file.
type source struct {
	name string // slash-separated, from the module's root
	pkg  string // the folder, or "stint" for the root
	test bool
	fset *token.FileSet
	file *ast.File
}

func (s source) imports() []string {
	var paths []string
	for _, spec := range s.file.Imports {
		p, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			panic(err) // the parser has accepted it
		}
		paths = append(paths, p)
	}
	return paths
}

// functions returns the names of the functions that are no methods.
func (s source) functions() []string {
	var names []string
	for _, decl := range s.file.Decls {
		if f, ok := decl.(*ast.FuncDecl); ok && f.Recv == nil {
			names = append(names, f.Name.Name)
		}
	}
	return names
}

func (s source) at(p token.Pos) string {
	return fmt.Sprintf("%s:%d", s.name, s.fset.Position(p).Line)
}

// readSources parses every Go file of this module, whatever its build constraints.
// Other modules, hidden folders and testdata are none of it.
func readSources(t *testing.T) []source {
	t.Helper()
	sources, err := parseSources()
	if err != nil {
		t.Fatal(err)
	}
	if len(sources) == 0 {
		t.Fatal("found no source: the search is wrong")
	}
	return sources
}

// Once, for all tests: with the race detector it takes two seconds.
var parseSources = sync.OnceValues(func() (sources []source, _ error) {
	err := filepath.WalkDir(".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() {
			dir := entry.Name()
			_, err := os.Stat(filepath.Join(name, "go.mod"))
			otherModule := err == nil
			if name != "." && (strings.HasPrefix(dir, ".") || strings.HasPrefix(dir, "_") || dir == "testdata" || otherModule) {
				return fs.SkipDir
			}
			return nil
		}
		if filepath.Ext(name) != ".go" {
			return nil
		}
		fset := token.NewFileSet()
		file, err := parser.ParseFile(fset, name, nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		slashed := filepath.ToSlash(name)
		pkg := path.Dir(slashed)
		if pkg == "." {
			pkg = "stint"
		}
		sources = append(sources, source{slashed, pkg, strings.HasSuffix(name, "_test.go"), fset, file})
		return nil
	})
	return sources, err
})

func TestHouseRules(t *testing.T) {
	for _, s := range readSources(t) {
		for _, fault := range faults(s) {
			t.Error(fault)
		}
	}
}

// faults returns what is against the house rules in one file.
func faults(s source) []string {
	var found []string
	bad := func(at, format string, args ...any) {
		found = append(found, at+": "+fmt.Sprintf(format, args...))
	}
	for element := range strings.SplitSeq(strings.TrimSuffix(s.name, ".go"), "/") {
		for word := range strings.SplitSeq(element, "_") {
			if slices.Contains(forbiddenNames, word) {
				bad(s.name, "%q says nothing: name it after what it does", word)
			}
		}
	}
	if ast.IsGenerated(s.file) {
		return found
	}
	for _, decl := range s.file.Decls {
		f, ok := decl.(*ast.FuncDecl)
		if !ok {
			continue
		}
		if f.Recv == nil && f.Name.Name == "init" {
			bad(s.at(f.Pos()), "init: whoever needs it, calls it")
		}
	}
	if s.test {
		ast.Inspect(s.file, func(n ast.Node) bool {
			if call, ok := n.(*ast.CallExpr); ok {
				checkTestCall(s, call, bad)
			}
			return true
		})
	}
	return found
}

func checkTestCall(s source, call *ast.CallExpr, bad func(at, format string, args ...any)) {
	sel, ok := call.Fun.(*ast.SelectorExpr)
	if !ok {
		return
	}
	x, ok := sel.X.(*ast.Ident)
	if !ok {
		return
	}
	switch {
	case x.Name == "time" && sel.Sel.Name == "Sleep" && !slices.Contains(s.imports(), "testing/synctest"):
		bad(s.at(sel.Pos()), "time.Sleep in a test: use testing/synctest, or wait for an event")
	case slices.Contains([]string{"t", "tb", "b", "f"}, x.Name) && slices.Contains([]string{"Skip", "Skipf", "SkipNow"}, sel.Sel.Name) && !leftOut(call):
		bad(s.at(sel.Pos()), "%s.%s: what cannot run here fails", x.Name, sel.Sel.Name)
	}
}

// leftOut reports whether a test is skipped with the words of those that scripts/test leaves
// out of its stage with the race detector, and runs without: it watches goroutines of one
// process, and makes all that it watches ten times slower.
func leftOut(call *ast.CallExpr) bool {
	if len(call.Args) != 1 {
		return false
	}
	why, ok := call.Args[0].(*ast.BasicLit)
	return ok && strings.HasSuffix(why.Value, `: nothing for the race detector"`)
}

// TestLimitStandsAlone: the ground, which is limit, the numbers that it counts in and the line in which its callers
// wait, imports the standard library and nothing else, whatever the policy says.
func TestLimitStandsAlone(t *testing.T) {
	ground := map[string]bool{"limit": false, "internal/fixed": false, "internal/gcra": false, "internal/waitline": false} // seen
	for _, s := range readSources(t) {
		if _, ok := ground[s.pkg]; !ok || s.test {
			continue
		}
		ground[s.pkg] = true
		for _, p := range s.imports() {
			if _, ok := ground[strings.TrimPrefix(p, modulePath+"/")]; external(p) && !ok {
				t.Errorf("%s imports %s", s.name, p)
			}
		}
	}
	for pkg, seen := range ground {
		if !seen {
			t.Errorf("found no package %s: the search is wrong", pkg)
		}
	}
}

func TestFaults(t *testing.T) {
	for _, tt := range []struct{ name, src, want string }{
		{"a/ok.go", "package p\nfunc f() {}\n", ""},
		{"a/util/x.go", "package p\n", `"util"`},
		{"a/store_impl.go", "package p\n", `"impl"`},
		{"a/x.go", "package p\nfunc init() {}\n", "init"},
		{"a/x.go", "package p\ntype t int\nfunc (t) init() {}\n", ""},
		{"a/x.go", "// Code generated by hand. DO NOT EDIT.\n\npackage p\nfunc init() {}\n", ""},
		{"a/x_test.go", "package p\nimport \"time\"\nfunc f() { time.Sleep(1) }\n", "time.Sleep"},
		{"a/x_test.go", "package p\nimport (\"time\"; \"testing/synctest\")\nvar _ = synctest.Test\nfunc f() { time.Sleep(1) }\n", ""},
		{"a/x_test.go", "package p\nfunc f(t T) { t.Skip() }\n", "t.Skip"},
		{"a/x_test.go", "package p\nfunc f(t T) { t.Skip(\"no redis\") }\n", "t.Skip"},
		{"a/x_test.go", "package p\nfunc f(t T) { t.Skip(\"one goroutine: nothing for the race detector\") }\n", ""},
		{"a/x_test.go", "package p\nfunc f(t T) { t.Skip(\"processes of their own: nothing for the race detector\") }\n", ""},
	} {
		fset := token.NewFileSet()
		file, err := parser.ParseFile(fset, tt.name, tt.src, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		got := faults(source{tt.name, "a", strings.HasSuffix(tt.name, "_test.go"), fset, file})
		switch {
		case tt.want == "" && len(got) > 0:
			t.Errorf("%s %.40q: %v, want none", tt.name, tt.src, got)
		case tt.want != "" && (len(got) != 1 || !strings.Contains(got[0], tt.want)):
			t.Errorf("%s %.40q: %v, want one fault with %q", tt.name, tt.src, got, tt.want)
		}
	}
}
