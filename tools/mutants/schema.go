package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
)

// What the test binary reads when it starts: the index of the mutant that is on, and the
// file to which it appends the index of each place that it comes by.
const (
	activeVariable = "MUTANT"
	placesVariable = "MUTANT_PLACES"
)

// switchesText is added to the package. It asks as little as it can where no mutant is on,
// and is small enough to be inlined.
const switchesText = `package %s

import (
	mutantOs "os"
	mutantStrconv "strconv"
	mutantSync "sync"
)

var (
	mutantActive, _ = mutantStrconv.Atoi(mutantOs.Getenv("` + activeVariable + `"))
	mutantPlaces    = mutantOs.Getenv("` + placesVariable + `")
	mutantSeen      mutantSync.Map
)

func mutantOn(index int) bool {
	if mutantPlaces != "" {
		mutantNote(index)
	}
	return mutantActive == index
}

//go:noinline
func mutantNote(index int) {
	if _, seen := mutantSeen.LoadOrStore(index, true); seen {
		return
	}
	f, err := mutantOs.OpenFile(mutantPlaces, mutantOs.O_APPEND|mutantOs.O_CREATE|mutantOs.O_WRONLY, 0o600)
	if err != nil {
		panic(err)
	}
	if _, err := f.WriteString(mutantStrconv.Itoa(index) + "\n"); err != nil {
		panic(err)
	}
	f.Close()
}
`

// switches is the name of the file that switchesText is put into.
func (s *source) switches() string { return filepath.Join(s.dir, "mutant_switches.go") }

// plain returns the one file that a mutant changes, as it would be written by hand.
func (s *source) plain(m mutant) map[string][]byte {
	text := s.texts[m.file]
	return map[string][]byte{m.file: slices.Concat(text[:m.begin], []byte(m.text), text[m.end:])}
}

// schema returns the files that hold all of the mutants, each behind its index.
func (s *source) schema(mutants []mutant) map[string][]byte {
	files := map[string][]byte{
		s.switches(): fmt.Appendf(nil, switchesText, s.files[s.names[0]].Name.Name),
	}
	byFile := map[string][]mutant{}
	for _, m := range mutants {
		byFile[m.file] = append(byFile[m.file], m)
	}
	for name, list := range byFile {
		slices.SortStableFunc(list, func(a, b mutant) int {
			return cmp.Or(a.from-b.from, b.to-a.to, int(b.form-a.form))
		})
		w := schemaWriter{source: s.texts[name]}
		w.write(0, len(w.source), list)
		files[name] = w.out.Bytes()
	}
	return files
}

// schemaWriter writes a file. Only one mutant is on at a time: a mutated copy therefore holds
// the original text, and no other mutants, so that nesting does not multiply the text.
type schemaWriter struct {
	source []byte
	out    bytes.Buffer
}

// write copies the bytes from begin to end, with the mutants that lie in them. They are in
// the order of their beginnings, the outer before the inner.
func (w *schemaWriter) write(begin, end int, list []mutant) {
	for len(list) > 0 {
		m := list[0]
		same := 1
		for same < len(list) && list[same].from == m.from && list[same].to == m.to && list[same].form == m.form {
			same++
		}
		inner := same
		for inner < len(list) && list[inner].from < m.to {
			inner++
		}
		w.out.Write(w.source[begin:m.from])
		w.choice(list[:same], list[same:inner])
		begin, list = m.to, list[inner:]
	}
	w.out.Write(w.source[begin:end])
}

// choice writes what several mutants have in its place.
func (w *schemaWriter) choice(same, inner []mutant) {
	m := same[0]
	switch m.form {
	case expression:
		fmt.Fprintf(&w.out, "func() %s { ", m.typ)
		for _, m := range same {
			fmt.Fprintf(&w.out, "if mutantOn(%d) { return %s }; ", m.index, w.mutated(m))
		}
		w.out.WriteString("return ")
		w.write(m.from, m.to, inner)
		w.out.WriteString(" }()")
	case statement, clause:
		if m.form == clause {
			w.out.WriteString("func() { ")
		}
		for _, m := range same {
			fmt.Fprintf(&w.out, "if mutantOn(%d) { %s } else ", m.index, w.mutated(m))
		}
		w.out.WriteString("{ ")
		w.write(m.from, m.to, inner)
		w.out.WriteString(" }")
		if m.form == clause {
			w.out.WriteString(" }()")
		}
	}
}

// mutated returns the text of what the schema switches, as the mutant has it.
func (w *schemaWriter) mutated(m mutant) []byte {
	return slices.Concat(w.source[m.from:m.begin], []byte(m.text), w.source[m.end:m.to])
}

// overlay puts files in place of those of the tree, for go's -overlay.
func overlay(work string, files map[string][]byte) (string, error) {
	dir, err := os.MkdirTemp(work, "overlay")
	if err != nil {
		return "", err
	}
	replace := map[string]string{}
	for name, text := range files {
		replace[name] = filepath.Join(dir, filepath.Base(name))
		if err := os.WriteFile(replace[name], text, 0o600); err != nil {
			return "", err
		}
	}
	text, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return "", err
	}
	name := filepath.Join(dir, "overlay.json")
	return name, os.WriteFile(name, text, 0o600)
}
