package stint_test

import (
	"fmt"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
)

// evidencePages returns docs/evidence.md and docs/evidence/*.md with their texts.
func evidencePages(t *testing.T) map[string]string {
	t.Helper()
	found := map[string]string{}
	for name, text := range pages(t) {
		if name = filepath.ToSlash(name); name == "docs/evidence.md" || path.Dir(name) == "docs/evidence" {
			found[name] = text
		}
	}
	if len(found) < 10 {
		t.Fatalf("found %d pages of evidence only: the search is wrong", len(found))
	}
	return found
}

// TestEvidenceCommands: the packages, tests, scripts, tables and scenarios in the commands of
// the evidence and of the stored outputs exist.
func TestEvidenceCommands(t *testing.T) {
	known := readCommandTargets(t)
	texts := evidencePages(t)
	outputs, err := filepath.Glob(filepath.Join("docs", "benchmarks", "output", "*.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range outputs {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		head, _, _ := strings.Cut(string(text), "\n---\n")
		texts[filepath.ToSlash(file)] = head
	}
	checked := 0
	for name, text := range texts {
		for _, m := range regexp.MustCompile("`([^`\n]+)`").FindAllStringSubmatch(text, -1) {
			faults, isCommand := known.faults(strings.ReplaceAll(m[1], `\|`, "|"))
			if isCommand {
				checked++
			}
			for _, fault := range faults {
				t.Errorf("%s: `%s`: %s", name, m[1], fault)
			}
		}
	}
	if checked < 80 {
		t.Errorf("checked %d commands only: the search is wrong", checked)
	}
}

// commandTargets is what a command can name.
type commandTargets struct {
	tests     map[string][]string // tests and benchmarks of a package's folder
	tables    map[string]string   // sources that name the tables of a folder's command
	scenarios []string
}

func readCommandTargets(t *testing.T) commandTargets {
	t.Helper()
	known := commandTargets{tests: map[string][]string{}, tables: map[string]string{}}
	for _, s := range readSources(t) {
		if names := known.tests[s.pkg]; s.test {
			known.tests[s.pkg] = append(names, s.functions()...)
		}
	}
	for folder, file := range map[string]string{"bench": "bench/main.go", "examples/newyear": "examples/newyear/tables.go"} {
		src, err := os.ReadFile(filepath.FromSlash(file))
		if err != nil {
			t.Fatal(err)
		}
		known.tables[folder] = string(src)
	}
	files, err := filepath.Glob(filepath.Join("examples", "scenarios", "*.yaml"))
	if err != nil || len(files) < 20 {
		t.Fatalf("found %d scenarios, %v: the search is wrong", len(files), err)
	}
	for _, file := range files {
		known.scenarios = append(known.scenarios, filepath.Base(file))
	}
	return known
}

// faults returns what a command names that does not exist, and whether it is a command at all.
func (c commandTargets) faults(command string) (faults []string, isCommand bool) {
	folder := "."
	for part := range strings.SplitSeq(strings.ReplaceAll(command, "'", ""), "&&") {
		words := strings.Fields(part)
		if len(words) == 2 && words[0] == "cd" {
			folder = words[1]
			if _, err := os.Stat(filepath.FromSlash(folder)); err != nil {
				faults = append(faults, "there is no folder "+folder)
			}
			continue
		}
		if i := slices.IndexFunc(words, func(w string) bool { return strings.HasPrefix(w, "./scripts/") }); i >= 0 {
			isCommand = true
			if _, err := os.Stat(filepath.FromSlash(words[i])); err != nil {
				faults = append(faults, "there is no "+words[i])
			}
			if words[i] == "./scripts/simulations" {
				faults = append(faults, c.unknownScenarios(words[i+1:])...)
			}
		}
		if i := slices.Index(words, "go"); i >= 0 {
			isCommand = true
			faults = append(faults, c.goFaults(folder, words[i+1:])...)
		}
	}
	return faults, isCommand
}

// goFaults returns what is unknown in the words after "go".
func (c commandTargets) goFaults(folder string, words []string) (faults []string) {
	run := ""
	var packages []string
	if folder != "." {
		packages = append(packages, folder)
	}
	for i, word := range words[:max(0, len(words)-1)] {
		next := words[i+1]
		switch {
		case (word == "-run" || word == "-bench") && !slices.Contains([]string{"^$", "xxx", "XX", "."}, next):
			run = next
		case word == "-table" && !strings.Contains(c.tables[programFolder(folder, words)], `"`+next+`"`):
			faults = append(faults, "there is no table "+next)
		}
	}
	for _, word := range words {
		if strings.HasPrefix(word, "./") {
			packages = append(packages, path.Clean(word))
		}
	}
	return append(faults, c.unknownTests(packages, run)...)
}

// programFolder returns the folder of the program that a command runs.
func programFolder(folder string, words []string) string {
	for _, word := range words {
		if strings.HasPrefix(word, "./examples/") {
			return path.Clean(word)
		}
	}
	return folder
}

func (c commandTargets) unknownScenarios(words []string) (faults []string) {
	for _, word := range words {
		if strings.HasPrefix(word, "-") {
			continue
		}
		if strings.HasSuffix(word, ">") || word == "..." {
			break
		}
		if !slices.ContainsFunc(c.scenarios, func(name string) bool { return strings.HasPrefix(name, word) }) {
			faults = append(faults, "no scenario begins with "+word)
		}
	}
	return faults
}

// unknownTests returns the parts of a -run pattern that no test of the packages has.
func (c commandTargets) unknownTests(packages []string, run string) (faults []string) {
	var names []string
	for _, pkg := range packages {
		if _, err := os.Stat(filepath.FromSlash(pkg)); err != nil {
			faults = append(faults, "there is no package "+pkg)
		}
		names = append(names, c.tests[pkg]...)
	}
	if run == "" || len(packages) == 0 {
		return faults
	}
	for pattern := range strings.SplitSeq(run, "|") {
		pattern, _, _ = strings.Cut(pattern, "/") // of a subtest, its test
		match, err := regexp.Compile(pattern)
		if err != nil {
			faults = append(faults, err.Error())
		} else if !slices.ContainsFunc(names, match.MatchString) {
			faults = append(faults, fmt.Sprintf("no test of %v is called %s", packages, pattern))
		}
	}
	return faults
}

// TestLedger: each row of evidence.yaml has every field, its command names things that exist, and a
// goal that is missed has a cause.
func TestLedger(t *testing.T) {
	text, err := os.ReadFile("evidence.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var ledger struct {
		Rows []struct {
			Claim   string `yaml:"claim"`
			Command string `yaml:"command"`
			Figure  string `yaml:"figure"`
			Goal    string `yaml:"goal"`
			Met     *bool  `yaml:"met"`
			Cause   string `yaml:"cause"`
			Commit  string `yaml:"commit"`
			Date    string `yaml:"date"`
			Machine string `yaml:"machine"`
		} `yaml:"rows"`
	}
	if err := yaml.UnmarshalWithOptions(text, &ledger, yaml.Strict()); err != nil {
		t.Fatal(err)
	}
	known := readCommandTargets(t)
	for _, row := range ledger.Rows {
		for field, value := range map[string]string{
			"claim": row.Claim, "command": row.Command, "figure": row.Figure, "goal": row.Goal,
			"commit": row.Commit, "date": row.Date, "machine": row.Machine,
		} {
			if value == "" {
				t.Errorf("evidence.yaml: %q has no %s", row.Claim, field)
			}
		}
		switch {
		case row.Met == nil:
			t.Errorf("evidence.yaml: %q does not say whether the goal is met", row.Claim)
		case *row.Met == (row.Cause != ""):
			t.Errorf("evidence.yaml: %q: met is %v and cause is %q: a missed goal, and no other, has a cause", row.Claim, *row.Met, row.Cause)
		}
		faults, _ := known.faults(row.Command)
		for _, fault := range faults {
			t.Errorf("evidence.yaml: %q: %s: %s", row.Claim, row.Command, fault)
		}
	}
}
