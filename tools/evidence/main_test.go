package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

const testLedger = `rows:
  - name: fast
    area: one
    claim: a decision in ns, and in two
    command: cat out.txt
    pattern: 'ns: (\d+)'
    noise: 0.1
    measures: [code]
    figure: '10100000, 43'
    goal: at most 50
    met: true
    commit: COMMIT
    date: 2026-11-27
    machine: any
  - claim: tables are read
    command: cat out.txt
    cells: ["Costs | one | ns", "Costs | two, b | ns"]
    measures: [code]
    figure: '1.5, 2'
    goal: at most 2
    met: true
    commit: COMMIT
    date: 2026-11-27
    machine: any
  - name: passing
    claim: it holds
    command: test -e out.txt
    measures: [code]
    figure: passes
    goal: holds
    met: false
    cause: for the test
    commit: COMMIT
    date: 2026-11-27
    machine: any
`

const testOutput = `ns: 10100001
ns: 44

### Costs

| x | y | ns |
|---|---|---|
| one | a | 1.5 ± 0.1 |
| two | b | 2 |
`

// repository makes a repository with a ledger, a page, a README with ten references, and a package.
func repository(t *testing.T) string {
	root := t.TempDir()
	write(t, root, "code/code.go", "package code\n\nfunc F() int { return 1 }\n")
	write(t, root, "code/code_test.go", "package code\n")
	write(t, root, "out.txt", testOutput)
	write(t, root, "README.md", strings.Repeat("It takes [43 ns](docs/evidence.md#fast) of [10.1 million states](docs/evidence.md#fast).\n\n", 5))
	git(t, root, "init", "-q")
	git(t, root, "add", ".")
	commit := strings.TrimSpace(git(t, root, "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "a")) +
		strings.TrimSpace(git(t, root, "rev-parse", "--short=7", "HEAD"))
	write(t, root, "evidence.yaml", strings.ReplaceAll(testLedger, "COMMIT", "'"+commit+"'"))
	write(t, root, "docs/evidence.md", "")
	if out, err := evidence(t, root, options{page: true}); err != nil {
		t.Fatal(out, err)
	}
	return root
}

func write(t *testing.T, root, name, text string) {
	t.Helper()
	file := filepath.Join(root, name)
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func read(t *testing.T, root, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func git(t *testing.T, root string, args ...string) string {
	t.Helper()
	cmd := exec.Command("git", args...)
	cmd.Dir = root
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("git %v: %v\n%s", args, err, out)
	}
	return string(out)
}

// evidence runs the command and returns what it printed, with the number of faults at the end.
func evidence(t *testing.T, root string, o options, words ...string) (string, error) {
	t.Helper()
	o.root, o.timeout = root, time.Minute
	var out bytes.Buffer
	_, err := run(t.Context(), &out, o, words)
	return out.String(), err
}

func TestCheck(t *testing.T) {
	for _, c := range []struct{ name, file, old, new, want string }{
		{"a figure in the README", "README.md", "43 ns", "34 ns", "README.md:1: 34 is not in the figure of fast"},
		{"a rounded figure", "README.md", "10.1 million", "10.2 million", "README.md:1: 10.2 million is not in the figure of fast"},
		{"a figure without its row", "README.md", "[43 ns](docs/evidence.md#fast)", "43 ns", `"43 ns" is measured, and is not looked up`},
		{"a figure within the noise", "README.md", "[43 ns]", "[some 38 ns]", "README.md:1: 38 is not in the figure of fast"},
		{"a row that is not there", "README.md", "evidence.md#fast", "evidence.md#slow", "no row that is called slow"},
		{"the page", "docs/evidence.md", "10100000", "10100009", "docs/evidence.md is not what evidence.yaml makes of it"},
		{"a figure of the ledger", "evidence.yaml", "'10100000, 43'", "'10100000, 34'", "43 is not in the figure of fast"},
		{"a goal that is missed", "evidence.yaml", "'1.5, 2'", "'1.5, 3'", "met is true"},
		{"a cause that is missing", "evidence.yaml", "    cause: for the test\n", "", "say the cause"},
		{"a test that does not exist", "evidence.yaml", "test -e out.txt", "go test ./code -run TestGone", "is called TestGone"},
		{"a package without code", "evidence.yaml", "measures: [code]", "measures: [docs]", "it measures docs, which has no code"},
		{"an unknown field", "evidence.yaml", "noise: 0.1", "nose: 0.1", "nose"},
	} {
		t.Run(c.name, func(t *testing.T) {
			root := repository(t)
			if out, err := evidence(t, root, options{check: true}); err != nil || out != "" {
				t.Fatalf("before: %s, %v", out, err)
			}
			text := read(t, root, c.file)
			if !strings.Contains(text, c.old) {
				t.Fatalf("%s has no %q", c.file, c.old)
			}
			write(t, root, c.file, strings.ReplaceAll(text, c.old, c.new))
			out, err := evidence(t, root, options{check: true})
			if err != nil {
				out += err.Error()
			}
			if !strings.Contains(out, c.want) {
				t.Errorf("got %q, want %q in it", out, c.want)
			}
		})
	}
}

// Some 45 ns are 43 ns, with a noise of a tenth.
func TestSomeFigure(t *testing.T) {
	root := repository(t)
	write(t, root, "README.md", strings.ReplaceAll(read(t, root, "README.md"), "[43 ns]", "[some 45 ns]"))
	if out, err := evidence(t, root, options{check: true}); err != nil || out != "" {
		t.Error(out, err)
	}
}

// The command of a goal that is missed may fail, if the figure is there.
func TestMissedGoal(t *testing.T) {
	root := repository(t)
	text := read(t, root, "evidence.yaml")
	text = strings.Replace(text, "command: cat out.txt", "command: cat out.txt && false", 1)
	write(t, root, "evidence.yaml", text)
	if out, err := evidence(t, root, options{}, "fast"); err != nil || !strings.Contains(out, "FAILED: exit status 1") {
		t.Error(out, err)
	}
	write(t, root, "evidence.yaml", strings.Replace(text, "met: true", "met: false\n    cause: it is slow", 1))
	if out, err := evidence(t, root, options{}, "fast"); err != nil || !strings.Contains(out, "1 rows, 0 faults") {
		t.Error(out, err)
	}
}

func TestStale(t *testing.T) {
	for _, c := range []struct{ name, file, text, want string }{
		{"nothing", "out.txt", "x", "0 of 3 rows are stale"},
		{"a test", "code/code_test.go", "package code\n\nvar x int\n", "0 of 3 rows are stale"},
		{"a comment", "code/code.go", "package code\n\n// F is one.\nfunc F() int { return 1 }\n", "0 of 3 rows are stale"},
		{"a package below", "code/below/a.go", "package below\n", "0 of 3 rows are stale"},
		{"code", "code/code.go", "package code\n\nfunc F() int { return 2 }\n", "code/code.go changed\n3 of 3 rows are stale"},
		{"a new file", "code/more.go", "package code\n", "code/more.go changed\n3 of 3 rows are stale"},
		{"an embedded file", "code/a.lua", "return 1\n", "code/a.lua changed\n3 of 3 rows are stale"},
	} {
		t.Run(c.name, func(t *testing.T) {
			root := repository(t)
			write(t, root, c.file, c.text)
			git(t, root, "add", ".")
			out, err := evidence(t, root, options{stale: true})
			if err != nil || !strings.Contains(out, c.want) {
				t.Errorf("got %q, %v, want %q in it", out, err, c.want)
			}
		})
	}
	root := repository(t)
	write(t, root, "evidence.yaml", strings.Replace(testLedger, "COMMIT", "1234567", 1))
	if out, _ := evidence(t, root, options{stale: true}, "fast"); !strings.Contains(out, "commit 1234567") {
		t.Errorf("an unknown commit: got %q", out)
	}
}

func TestAgain(t *testing.T) {
	root := repository(t)
	commit := []string{"-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qam"}
	write(t, root, "code/code.go", "package code\n\nfunc F() int { return 2 }\n")
	git(t, root, append(commit, "b")...)
	now := strings.TrimSpace(git(t, root, "rev-parse", "--short=7", "HEAD"))
	write(t, root, "other.go", "package other\n")
	git(t, root, "add", "other.go")
	git(t, root, append(commit, "c")...)
	out, err := evidence(t, root, options{})
	if err != nil || !strings.Contains(out, "3 rows, 0 faults") {
		t.Fatal(out, err)
	}
	text := read(t, root, "evidence.yaml")
	for _, want := range []string{"figure: '10100001, 44'\n", "figure: '1.5, 2'\n", "figure: passes\n", "cause: for the test\n"} {
		if !strings.Contains(text, want) {
			t.Errorf("the ledger has no %q:\n%s", want, text)
		}
	}
	if n := strings.Count(text, now); n != 3 {
		t.Errorf("%d rows are of commit %s, want 3", n, now)
	}
	if !strings.Contains(read(t, root, "docs/evidence.md"), "10100001, 44") {
		t.Error("the page was not written")
	}

	// A figure outside the noise, a table without the cell and a command that fails are faults, and not written.
	write(t, root, "out.txt", "ns: 10100001\nns: 60\n")
	out, err = evidence(t, root, options{})
	if err != nil || !strings.Contains(out, "44 and 60 differ by more than 10 %") ||
		!strings.Contains(out, `no table "Costs"`) || !strings.Contains(out, "3 rows, 2 faults") {
		t.Error(out, err)
	}
	if err := os.Remove(filepath.Join(root, "out.txt")); err != nil {
		t.Fatal(err)
	}
	if out, err = evidence(t, root, options{}, "passing"); err != nil || !strings.Contains(out, "exit status 1") {
		t.Error(out, err)
	}
	if figuresOf(read(t, root, "evidence.yaml")) != figuresOf(text) {
		t.Error("a figure that is outside its noise was written")
	}
	write(t, root, "out.txt", "ns: 1\nns: 2\n")
	if out, err = evidence(t, root, options{believe: true}, "fast"); err != nil || !strings.Contains(read(t, root, "evidence.yaml"), "'1, 2'") {
		t.Error(out, err)
	}

	// What is not committed is not measured.
	write(t, root, "code/code.go", "package code\n")
	if out, err = evidence(t, root, options{}); err == nil {
		t.Errorf("a change was measured as a commit: %s", out)
	}
}

// figuresOf returns a ledger without what each run writes anew for the same figure: the date, and the machine with its load.
func figuresOf(ledger string) string {
	return regexp.MustCompile(`(?m)^ *(machine|date): .*\n`).ReplaceAllString(ledger, "")
}

func TestChoose(t *testing.T) {
	l, err := readLedger(repository(t))
	if err != nil {
		t.Fatal(err)
	}
	l.rows[1].Long = true
	for _, c := range []struct {
		o     options
		words []string
		want  string
	}{
		{options{}, nil, "fast passing"},
		{options{long: true}, nil, "fast tables passing"},
		{options{}, []string{"out.txt", "HOLDS"}, "passing"},
		{options{}, []string{"fast"}, "fast"},
	} {
		rows, err := l.choose(c.o, c.words)
		var names []string
		for _, r := range rows {
			names = append(names, map[bool]string{true: "tables", false: r.Name}[r.Name == ""])
		}
		if got := strings.Join(names, " "); err != nil || got != c.want {
			t.Errorf("%+v %q: got %q, %v, want %q", c.o, c.words, got, err, c.want)
		}
	}
	drawn := map[*row]bool{}
	for seed := range uint64(40) {
		rows, _ := l.choose(options{n: 1, seed: seed}, nil)
		again, _ := l.choose(options{n: 1, seed: seed}, nil)
		if len(rows) != 1 || len(again) != 1 || rows[0] != again[0] {
			t.Fatalf("seed %d draws %v, then %v", seed, rows, again)
		}
		drawn[rows[0]] = true
	}
	if len(drawn) != 2 {
		t.Errorf("forty draws of two rows had %d of them", len(drawn))
	}
}
