package document

import (
	"fmt"
	"strings"
	"testing"
)

func TestExcerptsAreCutAroundThePlace(t *testing.T) {
	line := strings.Repeat("a", 300) + "X" + strings.Repeat("b", 300)
	for _, column := range []int{1, 50, 79, 80, 81, 82, 100, 301, 600, 601, 602, 10_000} {
		text := excerpt(shown(line), 7, column)
		code, caret, ok := strings.Cut(text, "\n")
		at := strings.IndexByte(caret, '^')
		if !ok || at < 0 || len(code) > 120 {
			t.Fatalf("column %d: %q", column, text)
		}
		if column == 301 && code[at] != 'X' {
			t.Errorf("column %d points at %q", column, code[at])
		}
	}
	if got, want := excerpt(shown("\té: \x7fx\r"), 3, 2), "  3 |  é:  x\n    |  ^"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestConcealedValuesStayConcealed(t *testing.T) {
	d := &Document{Lines: []string{"{a: hidden, b: 1, c: 2}"}}
	for _, column := range []int{5, 16} {
		d.Conceal(&Node{Line: 1, Column: column})
	}
	if got, want := d.Excerpt(Fault{Line: 1, Column: 2}), "  1 | {a: *******************\n    |  ^"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestMaskedLinesKeepTheirColumns(t *testing.T) {
	for line, want := range map[string]string{
		"store: redis://ü:pé@h:1, x: y@z":  "store: ************************",
		"{\"store\":\"u:pw@h\", a: b}":     "{\"store\":***************",
		"- redis+sentinel://h?password=ab": "- redis+sentinel://*************",
		"at u:pw@127.0.0.1:1, b":           "at ****@127.0.0.1:1, b",
		"  path: /search":                  "  path: /search",
		"stor: postgres://:pw#[::1]:1":     "stor: postgres://***********",
		"jwks: https://é.example:1/keys":   "jwks: https://é.example:1/keys",
		"  - name: store":                  "  - name: store",
	} {
		if got := masked(line); got != want {
			t.Errorf("%s is masked as %s, want %s", line, got, want)
		}
	}
}

// Faults come in the order of lines, each once, and no more than can be read.
func TestFaultsAreSortedAndBounded(t *testing.T) {
	var f Faults
	if f.Sorted() != nil || f.Count() != 0 {
		t.Error("there are faults in nothing")
	}
	f.Add(Fault{File: "b", Line: 2, Message: "first"})
	f.Add(Fault{File: "a", Line: 9})
	f.Add(Fault{File: "b", Line: 1, Column: 5})
	f.Add(Fault{File: "b", Line: 1, Column: 4})
	f.Add(Fault{File: "b", Line: 2, Message: "first"})
	var got []string
	for _, e := range f.Sorted() {
		got = append(got, fmt.Sprintf("%s:%d:%d", e.File, e.Line, e.Column))
	}
	if want := "b:1:4 b:1:5 b:2:0 a:9:0"; strings.Join(got, " ") != want || f.Count() != 4 {
		t.Errorf("got %v, want %s", got, want)
	}
	for i := range MaxFaults {
		f.Add(Fault{File: "c", Line: i + 1})
	}
	list := f.Sorted()
	if last := list[len(list)-1]; len(list) != MaxFaults+1 || last != (Fault{Message: "and 4 more faults"}) || f.Count() != MaxFaults+4 {
		t.Errorf("%d faults, the last is %+v", len(list), last)
	}
}
