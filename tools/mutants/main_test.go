package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

var small = map[string]string{
	"go.mod": "module subject\n\ngo 1.26\n",
	"p/p.go": `package p

import "fmt"

const limit = 7

func Sum(a int) int { return a + limit }

func Loop(n int) (sum int) {
	for n > 0 {
		n--
	}
	return
}

func Unseen(a int) int { return a }

func Same(a int) int {
	if a < 0 {
		a = 0
	}
	return a
}

func Weak() error { return fmt.Errorf("weak") }
`,
	"p/p_test.go": `package p_test

import (
	"os"
	"testing"

	"subject/p"
)

func TestSum(t *testing.T) {
	if p.Sum(2) != 9 {
		t.Fatal()
	}
}

func TestLoop(t *testing.T) { p.Loop(3) }

func TestSame(t *testing.T) {
	if p.Same(-1) != 0 || p.Same(1) != 1 {
		t.Fatal()
	}
}

func TestWeak(t *testing.T) { p.Weak() }

// Fails when it is run for the first time under a mutant.
func TestUnsteady(t *testing.T) {
	p.Weak()
	if os.Getenv("MUTANT") == "" {
		return
	}
	if _, err := os.Stat("been"); err != nil {
		os.WriteFile("been", nil, 0o600)
		t.Fatal()
	}
}

func TestBroken(t *testing.T) { t.Fatal("broken before") }
`,
}

// TestVerdicts measures a small package with one place of each verdict.
func TestVerdicts(t *testing.T) {
	dir := module(t, small)
	o := options{each: 100, root: dir, budget: time.Minute, known: known{
		"p/p.go | < -> <= | if a < 0 {": "zero becomes zero",
	}}
	r, err := o.measure(t.TempDir(), "p")
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]verdict{}
	for _, e := range r.entries {
		got[e.Code+": "+e.What] = e.Verdict
	}
	for where, want := range map[string]verdict{
		"const limit = 7: 7 -> (2 * 7)":                    killed,
		"func Sum(a int) int { return a + limit }: + -> -": killed,
		"n--: -- -> ++":     timedOut,
		"n--: dropped: n--": "",
		"func Unseen(a int) int { return a }: a -> *new(int)": uncovered,
		"if a < 0 {: < -> <=": equivalent,
		"if a < 0 {: < -> >=": killed,
		`func Weak() error { return fmt.Errorf("weak") }: fmt.Errorf("weak") -> *new(error)`: survived,
	} {
		if got[where] != want {
			t.Errorf("%s: %q, want %q", where, got[where], want)
		}
	}
	if len(r.unused) != 1 || !strings.HasPrefix(r.unused[0], "TestBroken: ") {
		t.Errorf("unused tests %q, want TestBroken alone", r.unused)
	}
	if r.own != 1 {
		t.Errorf("%d builds of their own, want 1", r.own)
	}
	if r.count(killed, timedOut, survived, uncovered) != r.drawn() || r.drawn() != len(r.entries)-1 {
		t.Errorf("%d mutants in the rate of %d drawn", r.drawn(), len(r.entries))
	}
}

// TestSameSeedSameMutants draws twice, beside other packages and by itself.
func TestSameSeedSameMutants(t *testing.T) {
	dir := module(t, small)
	draw := func(seed uint64) []string {
		list := filepath.Join(t.TempDir(), "list")
		if err := run(options{seed: seed, each: 5, root: dir, budget: time.Minute, list: list}, []string{"p"}); err != nil {
			t.Fatal(err)
		}
		text, err := os.ReadFile(list)
		if err != nil {
			t.Fatal(err)
		}
		lines := strings.Split(strings.TrimSpace(string(text)), "\n")
		if len(lines) != 5 {
			t.Fatalf("%d mutants, want 5:\n%s", len(lines), text)
		}
		return lines
	}
	a, b, c := draw(1), draw(1), draw(2)
	if !slices.Equal(a, b) {
		t.Errorf("the same seed gave\n%s\nand\n%s", strings.Join(a, "\n"), strings.Join(b, "\n"))
	}
	if slices.Equal(a, c) {
		t.Error("another seed gave the same mutants")
	}
}

// TestAgain tries the survivors of a list, and no others.
func TestAgain(t *testing.T) {
	dir := module(t, small)
	list := filepath.Join(t.TempDir(), "list")
	text := `{"file":"p/p.go","what":"a -> *new(int)","code":"func Unseen(a int) int { return a }","verdict":"UNCOVERED"}
{"file":"p/p.go","what":"< -> >=","code":"if a < 0 {","verdict":"killed"}
`
	if err := os.WriteFile(list, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	var err error
	o := options{each: 100, root: dir, budget: time.Minute}
	if o.survivors, err = readSurvivors(list); err != nil {
		t.Fatal(err)
	}
	r, err := o.measure(t.TempDir(), "p")
	if err != nil || len(r.entries) != 1 || r.entries[0].Verdict != uncovered {
		t.Errorf("got %v, %v, want the one that survived", r.entries, err)
	}
}

// TestKnown reads the list of equivalents, and finds what is wrong with one.
func TestKnown(t *testing.T) {
	dir := module(t, map[string]string{
		"good": "# a comment\n\np/p.go | a -> b | if a | b { | they are the same\n",
		"bad":  "\np/p.go | a -> b | if a {\n",
	})
	k, err := readKnown(filepath.Join(dir, "good"))
	if err != nil || len(k) != 1 || k["p/p.go | a -> b | if a | b {"] != "they are the same" {
		t.Errorf("got %q, %v", k, err)
	}
	if _, err := readKnown(filepath.Join(dir, "bad")); err == nil || !strings.Contains(err.Error(), "bad:2: ") {
		t.Errorf("no reason: got %v, want the line", err)
	}
	if stale := k.stale("p", map[string]bool{}); len(stale) != 1 {
		t.Errorf("a place that is gone: got %q", stale)
	}
	if stale := k.stale("q", map[string]bool{}); len(stale) != 0 {
		t.Errorf("of another package: got %q", stale)
	}
	ours, err := readKnown("equivalent.txt")
	if err != nil {
		t.Error(err)
	}
	for entry := range ours {
		part := strings.SplitN(entry, " | ", 3)
		code, err := os.ReadFile(filepath.Join("../..", part[0]))
		if err != nil {
			t.Errorf("equivalent.txt: %v", err)
		} else if !strings.Contains(string(code), part[2]) {
			t.Errorf("equivalent.txt: %s has no %q", part[0], part[2])
		}
	}
}

// TestBadInput is answered and not begun.
func TestBadInput(t *testing.T) {
	dir := module(t, map[string]string{
		"go.mod":           "module subject\n\ngo 1.26\n",
		"broken/p.go":      "package p\n\nfunc F() int { return \"\" }\n",
		"empty/p.go":       "package p\n",
		"empty/p_test.go":  "package p\n",
		"broken/p_test.go": "package p\n",
	})
	for _, test := range []struct {
		packages []string
		each     int
		want     string
	}{
		{nil, 1, "want packages"},
		{[]string{"empty"}, 0, "want packages"},
		{[]string{"empty"}, 1, "nothing to mutate in empty"},
		{[]string{"broken"}, 1, "broken"},
		{[]string{"nowhere"}, 1, "nowhere"},
	} {
		err := run(options{each: test.each, root: dir, budget: time.Minute}, test.packages)
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%q: got %v, want %q", test.packages, err, test.want)
		}
	}
}
