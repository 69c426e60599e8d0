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

// subject has every kind of place once. Its test prints what it does, so that two mutants can
// be held against each other.
const subject = `package subject

import (
	"fmt"
	"time"
)

const most = 9

type state struct{ level int }

type named bool

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

func wait(n int) (d time.Duration, ok named) {
	for i := 0; i < n; i++ {
		d += 2 * time.Second
	}
	return d, d >= time.Minute
}

func first[T any](list []T) T { return list[len(list)-1] }

func none() (state, []int) { return state{}, nil }

func name(n int) string { return "n" + fmt.Sprint(n) }
`

const subjectTest = `package subject

import (
	"fmt"
	"testing"
)

func TestPrint(t *testing.T) {
	var s state
	for _, n := range []int{-1, 0, 1, 2, 7, 30, 31} {
		ok, err := s.take(n)
		fmt.Println(n, ok, err, s.level)
		if n < 10 {
			fmt.Println(try(func() any { d, ok := wait(n); return fmt.Sprint(d, ok) }))
		}
	}
	fmt.Println(try(func() any { return first([]int{3, 4, 5}) }), name(1), most)
}

func try(f func() any) (out any) {
	defer func() {
		if recover() != nil {
			out = "panic"
		}
	}()
	return f()
}
`

func module(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		name = filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func loadSubject(t *testing.T) *source {
	t.Helper()
	s, err := load(module(t, map[string]string{
		"go.mod": "module subject\n\ngo 1.26\n", "subject.go": subject, "subject_test.go": subjectTest,
	}), ".")
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestFindsEveryKindOfPlace holds the operators against a file that has each once, and
// that messages, texts and tests are left alone.
func TestFindsEveryKindOfPlace(t *testing.T) {
	s := loadSubject(t)
	var got []string
	for _, m := range s.places() {
		got = append(got, m.what)
		text := s.plain(m)[m.file]
		if _, err := parser.ParseFile(token.NewFileSet(), m.file, text, 0); err != nil {
			t.Errorf("%s: does not parse: %v", m.what, err)
		}
		if string(text) == subject {
			t.Errorf("%s: nothing changed", m.what)
		}
	}
	want := []string{
		"9 -> (2 * 9)",
		"n < 0 -> false && (n < 0)", "n < 0 -> true || (n < 0)", "< -> <=", "< -> >=", "0 -> 1",
		`fmt.Errorf("cost %d, want %d or more", n, 1) -> *new(error)`, "false -> true", "dropped: s.note(n)",
		"dropped: s.level = max(s.level, n*3)", "max -> min", "* -> /", "3 -> (2 * 3)",
		"!(s.level > n && n != 7) -> *new(bool)",
		"dropped: !", "&& -> ||", "> -> >=", "> -> <=", "!= -> ==", "7 -> (2 * 7)",
		"+= -> -=", "dropped: s.level += n",
		"0 -> 1", "< -> <=", "< -> >=", "++ -> --",
		"+= -> -=", "dropped: d += 2 * time.Second", "* -> /", "2 -> (2 * 2)",
		"d -> *new(time.Duration)", "d >= time.Minute -> *new(named)", ">= -> >", ">= -> <",
		"list[len(list)-1] -> *new(T)", "- -> +", "1 -> 0", "1 -> (2 * 1)",
		`"n" + fmt.Sprint(n) -> *new(string)`,
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// TestCode names the line of a mutant by its text.
func TestCode(t *testing.T) {
	s := loadSubject(t)
	for _, m := range s.places() {
		if m.what == "max -> min" && s.code(m) != "s.level = max(s.level, n*3)" {
			t.Errorf("got %q", s.code(m))
		}
	}
}
