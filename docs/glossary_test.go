package docs_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestGlossary: each word has one row, in alphabetical order, with two sentences at most, and
// the package that is named exists.
func TestGlossary(t *testing.T) {
	text, err := os.ReadFile("GLOSSARY.md")
	if err != nil {
		t.Fatal(err)
	}
	// While the machines of leases move into rooms of their own, some packages are to come.
	_, err = os.Stat(filepath.Join("..", "internal", "share"))
	moving := err == nil
	rows := regexp.MustCompile(`(?m)^\| \*\*([^*]+)\*\* \| (.+) \| `+"`([a-z/]+)`"+` \|$`).FindAllStringSubmatch(string(text), -1)
	if lines := strings.Count(string(text), "\n| **"); len(rows) != lines || lines < 80 {
		t.Errorf("%d of %d rows are read, want 80 at least: a row has its word, its meaning and its package", len(rows), lines)
	}
	before := ""
	for _, row := range rows {
		word, meaning, room := row[1], row[2], row[3]
		if lower := strings.ToLower(word); lower <= before {
			t.Errorf("%s comes after %s", word, before)
		} else {
			before = lower
		}
		meaning, _, _ = strings.Cut(meaning, " *Also*")
		if n := len(regexp.MustCompile(`\.( |$)`).FindAllString(meaning, -1)); n < 1 || n > 2 {
			t.Errorf("%s: %d sentences, want one or two", word, n)
		}
		if _, err := os.Stat(filepath.Join("..", room)); err != nil && !(moving && strings.HasPrefix(room, "internal/")) {
			t.Errorf("%s: there is no package %s", word, room)
		}
	}
}
