package rules

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stint-io/stint/internal/document"
)

var update = flag.Bool("update", false, "rewrite the golden messages of testdata/bad")

func corpus(t testing.TB, glob string) []string {
	t.Helper()
	names, err := filepath.Glob(glob)
	if err != nil || len(names) == 0 {
		t.Fatalf("no files in %s: %v", glob, err)
	}
	return names
}

func mustParse(t testing.TB, src string) *Set {
	t.Helper()
	s, err := Parse("test.yaml", []byte(src))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestGoodFilesLoad(t *testing.T) {
	for _, name := range corpus(t, "testdata/good/*.yaml") {
		s, err := Load(name)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if len(s.Limits()) == 0 {
			t.Errorf("%s: no limits", name)
		}
		ids := make(map[string]bool)
		for i, v := range s.Variants() {
			if v.Index != i {
				t.Errorf("%s: variant %d has index %d", name, i, v.Index)
			}
			if err := v.Policy.Validate(); err != nil {
				t.Errorf("%s: %s: %v", name, v.ID, err)
			}
			for _, id := range []string{v.ID, v.BanID} {
				if id != "" && ids[id] && v.Pool == "" { // budgets of plans share one
					t.Errorf("%s: two counters are called %q", name, id)
				}
				ids[id] = true
			}
		}
	}
	s, err := Load("testdata/good")
	if err != nil {
		t.Fatal(err)
	}
	if !s.HasDomain("edge") || s.HasDomain("") || s.Store() != "memory" {
		t.Error("the folder's files did not load together")
	}
}

func TestBadFilesSayWhatIsWrong(t *testing.T) {
	for _, name := range corpus(t, "testdata/bad/*.yaml") {
		golden := strings.TrimSuffix(name, ".yaml") + ".txt"
		set, err := Load(name)
		if err == nil || set != nil {
			t.Errorf("%s: loads", name)
			continue
		}
		var list Errors
		if !errors.As(err, &list) {
			t.Errorf("%s: error is a %T", name, err)
		}
		got := err.Error() + "\n"
		if *update {
			if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(golden)
		if err != nil {
			t.Fatal(err)
		}
		if got != string(want) {
			t.Errorf("%s: got\n%swant\n%s", name, got, want)
		}
	}
}

func TestAllFilesAreFaultedAtOnce(t *testing.T) {
	dir := t.TempDir()
	write := func(name, src string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(src), 0o644); err != nil {
			t.Fatal(err)
		}
		return path
	}
	a := write("a.yaml", "limits: [{name: x, rate: 5/s}, {name: y, rate: -1/s}]\n")
	b := write("b.yaml", "limits: [{name: x, rate: 5/s}]\n")
	c := write("c.yml", "domain: d\ndescriptors: [{key: k}]\n")
	d := write("d.yaml", "domain: d\n")
	write(".hidden.yaml", "nonsense")
	write("notes.txt", "nonsense")
	_, err := Load(dir, a, filepath.Join(dir, "none.yaml"))
	var list Errors
	if !errors.As(err, &list) {
		t.Fatalf("got %v", err)
	}
	var got []string
	for _, e := range list {
		got = append(got, fmt.Sprintf("%s: %s", filepath.Base(e.File), e.Message))
	}
	want := []string{
		"none.yaml: cannot stat: no such file or directory",
		`a.yaml: rate "-1/s": count "-1" is negative`,
		`b.yaml: duplicate limit name "x", first at ` + a + ":1",
		"d.yaml: duplicate domain 'd' in config file",
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	for _, paths := range [][]string{{b, c}, {c, b}} {
		s, err := Load(paths...)
		if err != nil || len(s.Limits()) != 2 {
			t.Errorf("%v: %v", paths, err)
		}
	}
	if _, err := Load(); err == nil {
		t.Error("no paths load")
	}
	if _, err := Load(t.TempDir()); err == nil {
		t.Error("an empty folder loads")
	}
	_ = d
}

func TestBoundsOnFiles(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	big := strings.Repeat("#", bounds.Bytes+1)
	if _, err := Parse("big.yaml", []byte(big)); err == nil || !strings.Contains(err.Error(), "more than 4194304 bytes") {
		t.Errorf("too many bytes: %v", err)
	}
	b := newBuilder(new(document.Faults))
	b.variants = maxLimits - 1
	b.native(&file{document.Read("many.yaml", []byte("limits: [{name: a, rate: 5/s}, {name: b, rate: 5/s}, {name: c, rate: 5/s}]\n"), bounds, b.faults)})
	if err := errorsOf(b.faults); err == nil || b.faults.Count() != 1 || !strings.Contains(err.Error(), "more than 100000 limits") {
		t.Errorf("too many limits: %v", err)
	}
	// Long, and none the worse for it.
	var long strings.Builder
	long.WriteString(strings.Repeat("# comment\n", 3000) + "limits:\n")
	for i := range 3000 {
		fmt.Fprintf(&long, "# comment\n- name: l%d\n  # comment\n  rate: 5/s\n", i)
	}
	long.WriteString("  when: |\n" + strings.Repeat("    // comment\n", 1001) + "    true\n")
	if s := mustParse(t, long.String()); len(s.Limits()) != 3000 {
		t.Errorf("%d limits", len(s.Limits()))
	}
	// Each of these would cost the parser seconds, or its stack.
	for src, want := range map[string]string{
		"limits: " + strings.Repeat("[", 1<<14):    "nested more than",
		"limits: " + strings.Repeat("{a: ", 1<<14): "nested more than",
		strings.Repeat("- ", 1<<14):                "nested more than",
		strings.Repeat("? ", 1<<14):                "question mark",
		strings.Repeat("a:\n", 1<<14):              "more than 1000 keys",
		"a: {" + strings.Repeat("a: b, ", 1<<14):   "more than 1000 keys",
		strings.Repeat("- &a b\n", 1<<12):          "more than 1000 anchors",
		strings.Repeat("--- a\n", 1<<14):           "several YAML documents",
		strings.Repeat("[\n...\n,", 1<<14):         "several YAML documents",
		"[" + strings.Repeat(" - ", 1<<14):         "a dash within",
		"a: " + strings.Repeat("&a ", 1<<12):       "more than 1000 anchors",
	} {
		if _, err := Parse("costly.yaml", []byte(src)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.20q: got %.300v, want %s", src, err, want)
		}
	}
	var faulty strings.Builder
	faulty.WriteString("limits:\n")
	for i := range 1000 {
		fmt.Fprintf(&faulty, "- {name: l%d, rate: 5}\n", i)
	}
	_, err := Parse("faulty.yaml", []byte(faulty.String()))
	var list Errors
	if !errors.As(err, &list) || len(list) != document.MaxFaults+1 || list[document.MaxFaults].Message != "and 900 more faults" {
		t.Errorf("got %d faults", len(list))
	}
}

func TestAFaultInDefaultsIsReportedOnce(t *testing.T) {
	_, err := Parse("x.yaml", []byte("defaults: {soft: 80}\nlimits: [{name: a, rate: 5/s}, {name: b, rate: 5/s}]\n"))
	var list Errors
	if !errors.As(err, &list) || len(list) != 1 {
		t.Errorf("got %v", err)
	}
}
