package main

import (
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const subject = `package subject

import "fmt"

type state struct{ level int }

func (s *state) String() string { return fmt.Sprint(s.level + 1) }

func (s *state) take(n int) (bool, error) {
	if n < 0 {
		return false, fmt.Errorf("cost %d, want %d or more", n, 1)
	}
	s.note(n)
	s.level = max(s.level, n*3)
	return !(s.level > n && n != 7), nil
}

func (s *state) note(n int) { s.level += n }
`

// TestFindsEveryKindOfPlace holds the operators against a file that has each once, and
// that messages are left alone.
func TestFindsEveryKindOfPlace(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "subject.go"), []byte(subject), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "subject_test.go"), []byte("package subject\nvar x = 1 + 1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	places, err := find(dir, "")
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, m := range places {
		got = append(got, m.what)
		if _, err := parser.ParseFile(token.NewFileSet(), m.file, m.mutated(), 0); err != nil {
			t.Errorf("%s: does not parse: %v", m.what, err)
		}
		if string(m.mutated()) == subject {
			t.Errorf("%s: nothing changed", m.what)
		}
	}
	want := []string{
		"n < 0 -> false && (n < 0)", "n < 0 -> true || (n < 0)", "< -> <=", "< -> >=", "0 -> 1",
		"false -> true", "dropped: s.note(n)",
		"dropped: s.level = max(s.level, n*3)", "max -> min", "* -> /", "3 -> (2 * 3)",
		"dropped: !", "&& -> ||", "> -> >=", "> -> <=", "!= -> ==", "7 -> (2 * 7)",
		"+= -> -=", "dropped: s.level += n",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// TestVerdicts runs the tests of a small module: one mutant is noticed, one is not, and
// one does not build.
func TestVerdicts(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"go.mod":           "module subject\n\ngo 1.26\n",
		"p/p.go":           "package p\n\nfunc F(a int) int { return a + 1 }\n\nfunc G(a int) int { return a + 1 }\n",
		"p/p_test.go":      "package p\n\nimport \"testing\"\n\nfunc TestF(t *testing.T) {\n\tif F(1) != 2 {\n\t\tt.Fatal()\n\t}\n}\n",
		"broken/p.go":      "package p\n\nfunc F() int { return \"\" }\n",
		"broken/p_test.go": "package p\n",
	} {
		file := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	o := options{root: dir, timeout: 60e9}
	places, err := find(filepath.Join(dir, "p"), "")
	if err != nil {
		t.Fatal(err)
	}
	if len(places) != 4 {
		t.Fatalf("%d places, want 4", len(places))
	}
	for i, want := range []verdict{killed, killed, survived, survived} {
		overlay, err := places[i].write(t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		if got, out := o.test("p", overlay); got != want {
			t.Errorf("%s: %s, want %s\n%s", places[i].what, got, want, out)
		}
	}
	if got, _ := o.test("broken", ""); got != invalid {
		t.Errorf("a package that does not build: %s, want %s", got, invalid)
	}
}
