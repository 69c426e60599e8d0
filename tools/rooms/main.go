// Command rooms measures the packages of this module by what a reader has to hold in mind:
// lines, the largest cycle of files that use each other's declarations, and the fields of
// the largest struct. Tests and generated code do not count. It is a report: no test holds packages to it.
//
//	cd tools && go run ./rooms
package main

import (
	"cmp"
	"flag"
	"fmt"
	"go/ast"
	"go/token"
	"go/types"
	"log"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/tools/go/packages"
)

const module = "github.com/stint-io/stint"

// room is what was measured of one package.
type room struct {
	path   string
	files  int
	lines  int
	cycle  []string // the files of the largest cycle; nil if none
	widest string   // the struct with the most fields
	fields int
}

func main() {
	log.SetFlags(0)
	root := flag.String("root", "..", "folder of the module")
	flag.Parse()
	rooms, err := measure(*root)
	if err != nil {
		log.Fatal("rooms: ", err)
	}
	fmt.Println("| package | files | lines | files in the largest cycle | largest struct | fields |\n|---|---:|---:|---:|---|---:|")
	total := 0
	for _, r := range rooms {
		total += r.lines
		fmt.Printf("| %s | %d | %d | %d | %s | %d |\n", r.path, r.files, r.lines, len(r.cycle), r.widest, r.fields)
	}
	fmt.Printf("\n%d lines in %d packages\n\nFiles that use each other's declarations, by package (the largest cycle):\n\n", total, len(rooms))
	for _, r := range rooms {
		if len(r.cycle) > 0 {
			fmt.Printf("%s: %s\n", r.path, strings.Join(r.cycle, " "))
		}
	}
}

// measure loads the packages of the module in root.
func measure(root string) ([]room, error) {
	fset := token.NewFileSet()
	loaded, err := packages.Load(&packages.Config{
		Mode: packages.NeedName | packages.NeedFiles | packages.NeedSyntax | packages.NeedTypes | packages.NeedTypesInfo | packages.NeedImports | packages.NeedDeps,
		Dir:  root, Fset: fset,
	}, "./...")
	if err != nil {
		return nil, err
	}
	var rooms []room
	for _, p := range loaded {
		if len(p.Errors) > 0 {
			return nil, p.Errors[0]
		}
		path := strings.TrimPrefix(strings.TrimPrefix(p.PkgPath, module), "/")
		if strings.HasPrefix(path, "internal/gen") || len(p.Syntax) == 0 {
			continue
		}
		rooms = append(rooms, measureRoom(fset, cmp.Or(path, "."), p))
	}
	slices.SortFunc(rooms, func(a, b room) int { return cmp.Compare(b.lines, a.lines) })
	return rooms, nil
}

func measureRoom(fset *token.FileSet, path string, p *packages.Package) room {
	r := room{path: path, files: len(p.Syntax)}
	uses := map[string]map[string]bool{} // file -> files whose declarations it uses
	for _, f := range p.Syntax {
		name := fset.Position(f.Package).Filename
		r.lines += fset.File(f.Package).LineCount()
		uses[name] = map[string]bool{}
		ast.Inspect(f, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.Ident:
				if o := p.TypesInfo.Uses[n]; o != nil && o.Pkg() == p.Types && declared(o) {
					if in := fset.Position(o.Pos()).Filename; in != name {
						uses[name][in] = true
					}
				}
			case *ast.TypeSpec:
				if s, ok := n.Type.(*ast.StructType); ok {
					if count := fields(s); count > r.fields {
						r.widest, r.fields = n.Name.Name, count
					}
				}
			}
			return true
		})
	}
	r.cycle = largestCycle(uses)
	return r
}

// declared says whether o is of the package as a whole: a name at its top, a field or a method.
func declared(o types.Object) bool {
	if o.Parent() == o.Pkg().Scope() {
		return true
	}
	switch o := o.(type) {
	case *types.Var:
		return o.IsField()
	case *types.Func:
		return o.Signature().Recv() != nil
	}
	return false
}

// fields counts an embedded field and each name as one.
func fields(s *ast.StructType) (n int) {
	for _, f := range s.Fields.List {
		n += max(1, len(f.Names))
	}
	return n
}

// largestCycle returns the largest set of files each of which uses every other, directly or
// not (the strongly connected components, by reachability: packages are small).
func largestCycle(uses map[string]map[string]bool) (largest []string) {
	reaches := map[string]map[string]bool{}
	for from := range uses {
		seen, queue := map[string]bool{}, []string{from}
		for len(queue) > 0 {
			next := queue[0]
			queue = queue[1:]
			for to := range uses[next] {
				if !seen[to] {
					seen[to] = true
					queue = append(queue, to)
				}
			}
		}
		reaches[from] = seen
	}
	for from := range uses {
		var cycle []string
		for to := range uses {
			if reaches[from][to] && reaches[to][from] {
				cycle = append(cycle, filepath.Base(to))
			}
		}
		if slices.Sort(cycle); len(cycle) > len(largest) || len(cycle) == len(largest) && len(cycle) > 0 && cycle[0] < largest[0] {
			largest = cycle
		}
	}
	return largest
}
