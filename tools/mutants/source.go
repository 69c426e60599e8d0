package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// source is a package, parsed and type-checked.
type source struct {
	dir    string
	path   string
	fset   *token.FileSet
	names  []string // of the files, absolute
	texts  map[string][]byte
	files  map[string]*ast.File
	info   *types.Info
	config types.Config
}

// load reads the package in root/pkg. The types of what it imports come from the compiler's
// cache.
func load(root, pkg string) (*source, error) {
	cmd := exec.Command("go", "list", "-export", "-deps", "-json=Dir,ImportPath,Export,GoFiles,DepOnly", "./"+pkg)
	cmd.Dir = root
	var faults bytes.Buffer
	cmd.Stderr = &faults
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go list %s: %w\n%s", pkg, err, faults.Bytes())
	}
	s := &source{fset: token.NewFileSet(), texts: map[string][]byte{}, files: map[string]*ast.File{}}
	exports := map[string]string{}
	for decoder := json.NewDecoder(bytes.NewReader(out)); ; {
		var p struct {
			Dir, ImportPath, Export string
			GoFiles                 []string
			DepOnly                 bool
		}
		if err := decoder.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, err
		}
		exports[p.ImportPath] = p.Export
		if !p.DepOnly {
			s.dir, s.path = p.Dir, p.ImportPath
			for _, name := range p.GoFiles {
				s.names = append(s.names, filepath.Join(p.Dir, name))
			}
		}
	}
	for _, name := range s.names {
		if s.texts[name], err = os.ReadFile(name); err != nil {
			return nil, err
		}
		if s.files[name], err = parser.ParseFile(s.fset, name, s.texts[name], parser.ParseComments); err != nil {
			return nil, err
		}
	}
	s.config.Importer = importer.ForCompiler(s.fset, "gc", func(path string) (io.ReadCloser, error) {
		return os.Open(exports[path])
	})
	s.info = &types.Info{Types: map[ast.Expr]types.TypeAndValue{}, Uses: map[*ast.Ident]types.Object{}, Defs: map[*ast.Ident]types.Object{}}
	return s, s.check(nil, s.info)
}

// check type-checks the package with other texts in place of some files.
func (s *source) check(instead map[string][]byte, info *types.Info) error {
	var files []*ast.File
	for _, name := range s.names {
		file := s.files[name]
		if text, ok := instead[name]; ok {
			var err error
			if file, err = parser.ParseFile(s.fset, name, text, parser.SkipObjectResolution); err != nil {
				return err
			}
		}
		files = append(files, file)
	}
	if text, ok := instead[s.switches()]; ok {
		file, err := parser.ParseFile(s.fset, s.switches(), text, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		files = append(files, file)
	}
	_, err := s.config.Check(s.path, s.fset, files, info)
	return err
}

// places returns all places of the package, in the order of its files.
func (s *source) places() []mutant {
	var all []mutant
	for _, name := range s.names {
		file := s.files[name]
		if ast.IsGenerated(file) {
			continue
		}
		f := finder{fset: s.fset, name: name, source: s.texts[name], info: s.info, qualify: s.qualifier(file)}
		all = append(all, f.find(file)...)
	}
	return all
}

// qualifier names a type's package as the file does.
func (s *source) qualifier(file *ast.File) types.Qualifier {
	local := map[string]string{s.path: ""}
	for _, spec := range file.Imports {
		if spec.Name != nil {
			local[strings.Trim(spec.Path.Value, `"`)] = spec.Name.Name
		}
	}
	return func(p *types.Package) string {
		if name, ok := local[p.Path()]; ok {
			return name
		}
		return p.Name()
	}
}

// code is the line of a mutant, by which it is known when others move it.
func (s *source) code(m mutant) string {
	text := s.texts[m.file]
	begin := bytes.LastIndexByte(text[:m.begin], '\n') + 1
	line, _, _ := bytes.Cut(text[begin:], []byte("\n"))
	return strings.TrimSpace(string(line))
}
