package main

import (
	"fmt"
	"go/scanner"
	"go/token"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// history answers what has changed since a commit, by folder.
type history struct {
	root    string
	changed map[string]change
}

type change struct {
	files []string
	err   error
}

// stale returns the files that a row measures and that have changed since its commit. A row measures the
// packages that it names or that its command tests, and not what these import: nearly everything imports package
// limit, so a mark that followed imports would stand at every row and say nothing.
func (h *history) stale(r *row) (files []string, _ error) {
	for _, folder := range r.folders(h.root) {
		id := r.Commit + " " + folder
		c, ok := h.changed[id]
		if !ok {
			c.files, c.err = h.since(r.Commit, folder)
			h.changed[id] = c
		}
		if c.err != nil {
			return nil, c.err
		}
		files = append(files, c.files...)
	}
	return files, nil
}

func (r *row) folders(root string) []string {
	if len(r.Measures) > 0 {
		return r.Measures
	}
	folders, _ := commandTargets(root, r.Command)
	return folders
}

// measured returns the newest commit that changed a folder that the row measures. HEAD would be lost
// when a commit of other work is rebased.
func (h *history) measured(r *row) (string, error) {
	commit, err := h.git(append([]string{"log", "-1", "--format=%h", "--abbrev=7", "--"}, r.folders(h.root)...)...)
	return strings.TrimSpace(commit), err
}

func (h *history) since(commit, folder string) (files []string, _ error) {
	list, err := h.git("diff", "--name-only", "--no-renames", commit, "--", folder)
	if err != nil {
		return nil, fmt.Errorf("commit %s: %w", commit, err)
	}
	whole := !hasGo(h.root, folder)
	for name := range strings.FieldsSeq(list) {
		if !isCode(name) || !whole && path.Dir(name) != path.Clean(folder) {
			continue
		}
		before, _ := h.git("show", commit+":"+name) // empty: it was not there
		now, _ := os.ReadFile(filepath.Join(h.root, name))
		if path.Ext(name) != ".go" || !slices.Equal(goTokens([]byte(before)), goTokens(now)) {
			files = append(files, name)
		}
	}
	return files, nil
}

func (h *history) git(args ...string) (string, error) {
	cmd := exec.Command("git", args...)
	cmd.Dir = h.root
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		err = fmt.Errorf("git %s: %s", args[0], strings.TrimSpace(stderr.String()))
	}
	return string(out), err
}

// isCode reports whether a file is part of what is measured: no test and no text.
func isCode(name string) bool {
	return !strings.HasSuffix(name, "_test.go") && path.Ext(name) != ".md" &&
		!slices.ContainsFunc(strings.Split(name, "/"), func(part string) bool { return part == "testdata" || part == "test" || part == "tests" })
}

func hasGo(root, folder string) bool {
	files, _ := filepath.Glob(filepath.Join(root, folder, "*.go"))
	return slices.ContainsFunc(files, isCode)
}

// codeFiles returns the files of a folder that are code: those in it, or all below it where it has no Go.
func codeFiles(root, folder string) (files []string) {
	whole := !hasGo(root, folder)
	_ = filepath.WalkDir(filepath.Join(root, folder), func(name string, entry os.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && !whole && path.Clean(filepath.ToSlash(name)) != path.Join(filepath.ToSlash(root), folder):
			return filepath.SkipDir
		case entry.IsDir() && entry.Name() == "node_modules":
			return filepath.SkipDir
		case !entry.IsDir() && isCode(filepath.ToSlash(name[len(root):])):
			files = append(files, name)
		}
		return nil
	})
	return files
}

// goTokens returns the tokens of a Go file, so that comments and layout make no difference.
func goTokens(src []byte) (tokens []string) {
	var s scanner.Scanner
	fset := token.NewFileSet()
	s.Init(fset.AddFile("", fset.Base(), len(src)), src, func(token.Position, string) {}, 0)
	for {
		_, tok, text := s.Scan()
		if tok == token.EOF {
			return tokens
		}
		if tok == token.SEMICOLON {
			text = ";"
		}
		tokens = append(tokens, tok.String()+text)
	}
}
