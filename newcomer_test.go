package stint_test

import (
	"cmp"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// askedWhere is the part of CONTRIBUTING.md with the questions of newcomers. Each row of
// its table has the question, the word to search for, and the file that has the answer.
const askedWhere = "## Where is it"

// hits is how often a file has a word.
type hits struct {
	file  string
	lines int
}

// search ranks the files as a newcomer sees them: those that bear the word in their name
// first, then by the number of lines with the word, whatever its case. Tests, generated code,
// examples and the simulator's models of other systems are left out, and so are the modules
// bench, tools, examples/frameworks and examples/pubsub.
func search(t *testing.T, word string) []hits {
	t.Helper()
	const named = 1 << 20 // above any number of lines
	word = strings.ToLower(word)
	var found []hits
	for _, s := range readSources(t) {
		if s.test || strings.HasPrefix(s.pkg, "examples/") || strings.HasPrefix(s.pkg, "internal/gen/") || strings.HasPrefix(s.name, "sim/baseline_") {
			continue
		}
		text, err := os.ReadFile(s.name)
		if err != nil {
			t.Fatal(err)
		}
		h := hits{file: s.name}
		if strings.Contains(path.Base(s.name), word) {
			h.lines = named
		}
		for line := range strings.SplitSeq(strings.ToLower(string(text)), "\n") {
			if strings.Contains(line, word) {
				h.lines++
			}
		}
		if h.lines > 0 {
			found = append(found, h)
		}
	}
	slices.SortFunc(found, func(a, b hits) int {
		return cmp.Or(cmp.Compare(b.lines, a.lines), cmp.Compare(a.file, b.file))
	})
	return found
}

// TestNewcomersFindIt: who searches for the word of the field finds the right file among the
// first three. Files with as many lines as the third count as third.
func TestNewcomersFindIt(t *testing.T) {
	_, table, ok := strings.Cut(pages(t)["CONTRIBUTING.md"], askedWhere)
	if !ok {
		t.Fatalf("CONTRIBUTING.md has no %q", askedWhere)
	}
	table, _, _ = strings.Cut(table, "\n## ")
	rows := regexp.MustCompile("(?m)^\\| ([^|]+\\?) \\| `([^`]+)` \\| \\[([^]]+)\\]\\(([^)]+)\\) \\|$").FindAllStringSubmatch(table, -1)
	const fewest = 11
	if len(rows) < fewest {
		t.Errorf("found %d questions, want %d at least", len(rows), fewest)
	}
	for _, row := range rows {
		question, word, file := row[1], row[2], row[3]
		if file != row[4] {
			t.Errorf("%s: %s links to %s", question, file, row[4])
		}
		found := search(t, word)
		i := slices.IndexFunc(found, func(h hits) bool { return h.file == file })
		switch above := slices.IndexFunc(found, func(h hits) bool { return i >= 0 && h.lines == found[i].lines }); {
		case i < 0:
			t.Errorf("%s %s does not have the word %s", question, file, word)
		case above >= 3:
			t.Errorf("%s %s is number %d for %s, behind %v", question, file, above+1, word, found[:3])
		}
	}
}
