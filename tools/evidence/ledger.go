package main

import (
	"fmt"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/goccy/go-yaml"
)

// row is one claim of evidence.yaml, whose head describes the fields.
type row struct {
	Name     string   `yaml:"name"`
	Area     string   `yaml:"area"`
	Claim    string   `yaml:"claim"`
	Command  string   `yaml:"command"`
	Pattern  string   `yaml:"pattern"`
	Cells    []string `yaml:"cells"`
	Noise    float64  `yaml:"noise"`
	Measures []string `yaml:"measures"`
	Long     bool     `yaml:"long"`
	Figure   string   `yaml:"figure"`
	Goal     string   `yaml:"goal"`
	Met      *bool    `yaml:"met"`
	Cause    string   `yaml:"cause"`
	Commit   string   `yaml:"commit"`
	Date     string   `yaml:"date"`
	Machine  string   `yaml:"machine"`

	line int // of the file, from 0
}

// ledger is evidence.yaml. Edits change single lines, so that comments and other rows stay as they are.
type ledger struct {
	root   string
	lines  []string
	rows   []*row
	stated map[string]string // figures in the documents that are no measurements, by a part of their line: what they are
}

func readLedger(root string) (*ledger, error) {
	text, err := os.ReadFile(filepath.Join(root, "evidence.yaml"))
	if err != nil {
		return nil, err
	}
	return parseLedger(root, string(text))
}

func parseLedger(root, text string) (*ledger, error) {
	var file struct {
		Stated map[string]string `yaml:"stated"`
		Rows   []*row            `yaml:"rows"`
	}
	if err := yaml.UnmarshalWithOptions([]byte(text), &file, yaml.Strict()); err != nil {
		return nil, fmt.Errorf("evidence.yaml: %w", err)
	}
	l := &ledger{root: root, lines: strings.Split(text, "\n"), rows: file.Rows, stated: file.Stated}
	next := 0
	for i, line := range l.lines {
		if strings.HasPrefix(line, "  - ") {
			if next < len(l.rows) {
				l.rows[next].line = i
			}
			next++
		}
	}
	if next != len(l.rows) {
		return nil, fmt.Errorf("evidence.yaml: %d rows begin with \"  - \", and %d were read", next, len(l.rows))
	}
	return l, nil
}

// String returns how the row is called in messages.
func (r *row) String() string {
	if r.Name != "" {
		return r.Name
	}
	return fmt.Sprintf("line %d, %.60q", r.line+1, r.Claim)
}

// set writes a field that the row has.
func (l *ledger) set(r *row, field, value string) error {
	quoted := value
	if plain := regexp.MustCompile(`^[A-Za-z(][^:#'"\\]*$|^\d{4}-\d\d-\d\d$`); !plain.MatchString(value) {
		quoted = "'" + strings.ReplaceAll(value, "'", "''") + "'"
	}
	for i := r.line; i < len(l.lines) && (i == r.line || !strings.HasPrefix(l.lines[i], "  - ")); i++ {
		if key, _, ok := strings.Cut(l.lines[i], ":"); ok && strings.TrimLeft(key, " -") == field {
			l.lines[i] = key + ": " + quoted
			return nil
		}
	}
	return fmt.Errorf("%s has no line %s", r, field)
}

func (l *ledger) save() error {
	return os.WriteFile(filepath.Join(l.root, "evidence.yaml"), []byte(strings.Join(l.lines, "\n")), 0o644)
}

// check returns what is wrong with the rows.
func (l *ledger) check() (faults []string) {
	names := map[string]bool{}
	for _, r := range l.rows {
		for _, fault := range l.rowFaults(r) {
			faults = append(faults, fmt.Sprintf("evidence.yaml: %s: %s", r, fault))
		}
		if r.Name != "" && names[r.Name] {
			faults = append(faults, fmt.Sprintf("evidence.yaml: two rows are called %s", r.Name))
		}
		names[r.Name] = true
	}
	return faults
}

func (l *ledger) rowFaults(r *row) (faults []string) {
	bad := func(format string, args ...any) { faults = append(faults, fmt.Sprintf(format, args...)) }
	for _, field := range []struct{ name, value string }{
		{"claim", r.Claim},
		{"command", r.Command},
		{"figure", r.Figure},
		{"goal", r.Goal},
		{"commit", r.Commit},
		{"date", r.Date},
		{"machine", r.Machine},
	} {
		if field.value == "" {
			bad("%s is missing", field.name)
		}
	}
	switch {
	case r.Met == nil:
		bad("met is missing")
	case !*r.Met && r.Cause == "":
		bad("the goal is missed: say the cause")
	case *r.Met && r.Cause != "":
		bad("the goal is met, and has a cause why not")
	}
	if met, ok := r.meets(); ok && r.Met != nil && met != *r.Met {
		bad("met is %v, and the figure %s against the goal %q says %v", *r.Met, r.Figure, r.Goal, met)
	}
	if r.Pattern != "" && len(r.Cells) > 0 {
		bad("it has a pattern and cells: one of them takes the figure from the output")
	}
	if _, err := regexp.Compile(r.Pattern); err != nil {
		bad("%v", err)
	}
	if r.Name != "" && !regexp.MustCompile(`^[a-z0-9-]+$`).MatchString(r.Name) {
		bad("its name has other characters than a-z, 0-9 and -")
	}
	folders, unknown := commandTargets(l.root, r.Command)
	for _, fault := range unknown {
		bad("%s", fault)
	}
	if len(r.Measures) > 0 {
		folders = r.Measures
	}
	if !slices.ContainsFunc(folders, func(folder string) bool { return len(codeFiles(l.root, folder)) > 0 }) {
		bad("no package of its command has code besides tests: name what it measures in the field measures")
	}
	for _, folder := range r.Measures {
		if len(codeFiles(l.root, folder)) == 0 {
			bad("it measures %s, which has no code", folder)
		}
	}
	return faults
}

var bounded = regexp.MustCompile(`^at (most|least) ([\d.]+(?:, [\d.]+)*)\b`)

// meets reports whether the figure of a row with cells is within a goal that begins with "at most" or "at
// least" and one bound for all figures, or one for each. ok is false if that cannot be told.
func (r *row) meets() (met, ok bool) {
	m := bounded.FindStringSubmatch(r.Goal)
	if m == nil || len(r.Cells) == 0 {
		return false, false
	}
	figures, bounds := numbers(r.Figure), numbers(m[2])
	if len(bounds) > 1 && len(figures) != len(bounds) {
		return false, false
	}
	for i, figure := range figures {
		bound := bounds[min(i, len(bounds)-1)]
		if m[1] == "most" && figure > bound || m[1] == "least" && figure < bound {
			return false, true
		}
	}
	return true, true
}

var number = regexp.MustCompile(`\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?`)

// numbers returns the numbers of a text. Commas divide thousands.
func numbers(text string) (values []float64) {
	for _, digits := range number.FindAllString(text, -1) {
		value, err := strconv.ParseFloat(strings.ReplaceAll(digits, ",", ""), 64)
		if err == nil {
			values = append(values, value)
		}
	}
	return values
}

// commandTargets returns the folders of the packages that a command names, and what it names that does not
// exist: folders, scripts, tests and benchmarks.
func commandTargets(root, command string) (folders, faults []string) {
	in := "."
	for part := range strings.SplitSeq(command, "&&") {
		words := strings.Fields(strings.ReplaceAll(part, "'", ""))
		if len(words) == 2 && words[0] == "cd" {
			in = path.Join(in, words[1])
			continue
		}
		var named []string
		for _, word := range words {
			switch {
			case strings.HasPrefix(word, "./scripts/"):
				if _, err := os.Stat(filepath.Join(root, in, word)); err != nil {
					faults = append(faults, "there is no "+word)
				}
			case strings.HasPrefix(word, "./") || word == ".":
				named = append(named, path.Join(in, word))
			}
		}
		goes := slices.Index(words, "go")
		if goes < 0 || goes+1 >= len(words) {
			continue
		}
		if len(named) == 0 {
			named = []string{in}
		}
		for _, folder := range named {
			if entries, err := os.ReadDir(filepath.Join(root, folder)); err != nil || len(entries) == 0 {
				faults = append(faults, "there is no package "+folder)
			}
		}
		if words[goes+1] == "test" {
			faults = append(faults, unknownTests(root, named, words)...)
		}
		folders = append(folders, named...)
	}
	return folders, faults
}

var testDeclared = regexp.MustCompile(`(?m)^func ((?:Test|Benchmark|Fuzz|Example)\w*)\(`)

// unknownTests returns the parts of -run, -bench and -fuzz patterns that match no test of the folders.
func unknownTests(root string, folders, words []string) (faults []string) {
	var declared []string
	for _, folder := range folders {
		files, _ := filepath.Glob(filepath.Join(root, folder, "*_test.go"))
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				return []string{err.Error()}
			}
			for _, m := range testDeclared.FindAllStringSubmatch(string(text), -1) {
				declared = append(declared, m[1])
			}
		}
	}
	for i := range len(words) - 1 {
		if !slices.Contains([]string{"-run", "-bench", "-fuzz"}, words[i]) || slices.Contains([]string{"^$", "xxx", "NONE"}, words[i+1]) {
			continue
		}
		for pattern := range strings.SplitSeq(words[i+1], "|") {
			pattern, _, _ = strings.Cut(pattern, "/") // of a subtest, its test
			match, err := regexp.Compile(pattern)
			if err != nil {
				faults = append(faults, err.Error())
			} else if !slices.ContainsFunc(declared, match.MatchString) {
				faults = append(faults, fmt.Sprintf("no test of %v is called %s", folders, pattern))
			}
		}
	}
	return faults
}
