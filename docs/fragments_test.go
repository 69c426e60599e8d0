package docs_test

import (
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stint-io/stint/internal/builttest"
)

// given is what a fragment may use without saying where it comes from, and nothing else:
// besides ctx, which ends with the page.
const given = `
var (
	handler http.Handler = http.NotFoundHandler()
	user    = "u1"
	req     = limit.Request{Attributes: []limit.Attribute{{Name: "user", Value: user}}, Cost: 1}
	errBusy = errors.New("busy")
)
`

// packages are those that fragments use by their names.
var packages = map[string]string{
	"context":      "context",
	"errors":       "errors",
	"fmt":          "fmt",
	"http":         "net/http",
	"httptest":     "net/http/httptest",
	"netip":        "net/netip",
	"log":          "log",
	"os":           "os",
	"time":         "time",
	"testing":      "testing",
	"synctest":     "testing/synctest",
	"grpc":         "google.golang.org/grpc",
	"credentials":  "google.golang.org/grpc/credentials",
	"stint":        "github.com/stint-io/stint",
	"client":       "github.com/stint-io/stint/client",
	"fanout":       "github.com/stint-io/stint/fanout",
	"grpcclient":   "github.com/stint-io/stint/middleware/grpcclient",
	"httpclient":   "github.com/stint-io/stint/middleware/httpclient",
	"outgoing":     "github.com/stint-io/stint/middleware/outgoing",
	"grpclimit":    "github.com/stint-io/stint/middleware/grpclimit",
	"httplimit":    "github.com/stint-io/stint/middleware/httplimit",
	"limit":        "github.com/stint-io/stint/limit",
	"memory":       "github.com/stint-io/stint/store/memory",
	"split":        "github.com/stint-io/stint/split",
	"throttle":     "github.com/stint-io/stint/throttle",
	"httpthrottle": "github.com/stint-io/stint/middleware/httpthrottle",
	"grpcthrottle": "github.com/stint-io/stint/middleware/grpcthrottle",
}

// build makes stint, and one program of the fragments of all pages, side by side.
func build(t *testing.T, pages map[string][]fence, ports map[string]ports) (bin string) {
	t.Helper()
	// go test repeats an old result until a file or folder changes that the test has opened.
	// What it builds in other processes is not among them, so open it here.
	for _, root := range append(roots, "examples", "clients") {
		err := filepath.WalkDir(filepath.Join("..", root), func(string, fs.DirEntry, error) error { return nil })
		if err != nil {
			t.Fatal(err)
		}
	}
	bin = t.TempDir()
	source := filepath.Join(bin, "fragments.go")
	if err := os.WriteFile(source, []byte(fragmentProgram(t, pages, ports)), 0o600); err != nil {
		t.Fatal(err)
	}
	fragments := make(chan error, 1)
	go func() {
		out, err := exec.Command("go", "build", "-buildvcs=false", "-o", filepath.Join(bin, "fragments"), source).CombinedOutput()
		if err != nil {
			err = fmt.Errorf("%w\n%s", err, out)
		}
		fragments <- err
	}()
	stint, err := builttest.Stint(bin)
	if own := filepath.Join(bin, "stint"); err == nil && stint != own {
		err = os.Symlink(stint, own)
	}
	if err := errors.Join(err, <-fragments); err != nil {
		t.Fatal(err)
	}
	return bin
}

// fragmentProgram is a program with a function for each page, in which each fragment sees
// the variables of those before.
func fragmentProgram(t *testing.T, pages map[string][]fence, ports map[string]ports) string {
	t.Helper()
	var body, cases strings.Builder
	for i, name := range slices.Sorted(maps.Keys(pages)) {
		if !slices.ContainsFunc(pages[name], fence.fragment) {
			continue
		}
		fmt.Fprintf(&cases, "case %q:\nerr = page%d(ctx)\n", name, i)
		fmt.Fprintf(&body, "func page%d(ctx context.Context) (err error) {\n", i)
		open := 0
		for _, f := range pages[name] {
			switch text := ports[name].replace(f.text) + afterwards(t, f); {
			case !f.fragment():
			case f.compiled != "":
				fmt.Fprintf(&body, "if never {\n//line %s:%d\n%s}\n", f.page, f.line, text)
			default:
				fmt.Fprintf(&body, "{\n//line %s:%d\n%s", f.page, f.line, text)
				open++
			}
		}
		fmt.Fprintf(&body, "%sreturn err\n}\n", strings.Repeat("}\n", open))
	}
	program := given + `
// never is true of nothing, and the compiler does not know it.
var never = len(os.Args) == 0

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	var err error
	switch os.Args[1] {
	` + cases.String() + `
	}
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
}
` + body.String()
	imports := ""
	for name, path := range packages {
		if regexp.MustCompile(`\b` + name + `\.[A-Z]`).MatchString(program) {
			imports += fmt.Sprintf("import %q\n", path)
		}
	}
	return "package main\n" + imports + program
}

// afterwards uses the variables of a fragment, so that it need not, and returns its error.
func afterwards(t *testing.T, f fence) string {
	t.Helper()
	if !f.fragment() {
		return ""
	}
	file, err := parser.ParseFile(token.NewFileSet(), f.page, "package p\nfunc _() {\n"+f.text+"\n}", parser.SkipObjectResolution)
	if err != nil {
		t.Fatalf("%s:%d: %v", f.page, f.line-2, err)
	}
	names := map[string]bool{}
	for _, s := range file.Decls[0].(*ast.FuncDecl).Body.List {
		switch s := s.(type) {
		case *ast.AssignStmt:
			for _, x := range s.Lhs {
				if id, ok := x.(*ast.Ident); ok && id.Name != "_" {
					names[id.Name] = true
				}
			}
		case *ast.DeclStmt:
			if d, ok := s.Decl.(*ast.GenDecl); ok && d.Tok == token.VAR {
				for _, spec := range d.Specs {
					for _, id := range spec.(*ast.ValueSpec).Names {
						names[id.Name] = true
					}
				}
			}
		}
	}
	uses := ""
	for _, name := range slices.Sorted(maps.Keys(names)) {
		uses += "_ = " + name + "\n"
	}
	if names["err"] {
		uses += "if err != nil { return err }\n"
	}
	return uses
}

// runFragments runs the Go of a page, beside the services that its commands have left.
func (p *page) runFragments() {
	p.t.Helper()
	runs, asks := false, false
	for _, f := range p.fences {
		if f.fragment() {
			runs = runs || f.compiled == ""
			asks = asks || strings.Contains(f.text, "127.0.0.1:808")
		}
	}
	if !runs {
		return
	}
	if asks {
		p.needService()
	}
	if out, err := p.command(filepath.Join(p.bin, "fragments"), p.name).CombinedOutput(); err != nil {
		p.t.Errorf("the Go of %s: %v\n%s", p.name, err, out)
	}
}
