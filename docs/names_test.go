package docs_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// moving reports whether the machines of leases are still on their way from internal/share to
// the rooms of which the pages speak.
func moving() bool {
	_, err := os.Stat(filepath.Join("..", "internal", "share"))
	return err == nil
}

// TestMapOfTheHouse: ARCHITECTURE.md names every package of the module, and no other.
func TestMapOfTheHouse(t *testing.T) {
	text, err := os.ReadFile("ARCHITECTURE.md")
	if err != nil {
		t.Fatal(err)
	}
	named := map[string]bool{}
	for _, name := range regexp.MustCompile(`[a-z]+(?:/[a-z]+)*(?:/\{[a-z,\s]+\}|\b)`).FindAllString(string(text), -1) {
		stem, list, several := strings.Cut(strings.TrimSuffix(name, "}"), "{")
		if !several {
			named[name] = true
			continue
		}
		for last := range strings.SplitSeq(list, ",") {
			named[stem+strings.TrimSpace(last)] = true
		}
	}
	found := 0
	for _, root := range []string{"cmd", "client", "fanout", "internal", "limit", "middleware", "rules", "server", "sim", "split", "store"} {
		err := filepath.WalkDir(filepath.Join("..", root), func(path string, _ fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			found++
			room := filepath.ToSlash(strings.TrimPrefix(filepath.Dir(path), ".."+string(filepath.Separator)))
			if !named[room] && !moving() {
				named[room] = true // say it once
				t.Errorf("ARCHITECTURE.md does not name %s", room)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if found < 100 {
		t.Errorf("found %d files only: the search is wrong", found)
	}
	for room := range named {
		for _, folder := range []string{"internal/", "server/internal/", "store/", "middleware/", "cmd/"} {
			if _, err := os.Stat(filepath.Join("..", room)); err != nil && strings.HasPrefix(room, folder) && !moving() {
				t.Errorf("ARCHITECTURE.md names %s, which does not exist", room)
			}
		}
	}
}

// TestMetricsExist: every metric of which a page speaks is in the reference of the service,
// which a test holds to the code.
func TestMetricsExist(t *testing.T) {
	reference, err := os.ReadFile(filepath.Join("reference", "service.md"))
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	err = filepath.WalkDir(".", func(path string, _ fs.DirEntry, err error) error {
		if err != nil || filepath.Ext(path) != ".md" {
			return err
		}
		text, err := os.ReadFile(path)
		for _, name := range regexp.MustCompile(`\bstint_[a-z_]+[a-z]\b`).FindAllString(string(text), -1) {
			found++
			if !regexp.MustCompile("`" + name + "[`{]").Match(reference) {
				t.Errorf("%s names the metric %s, which does not exist", path, name)
			}
		}
		return err
	})
	if err != nil || found < 50 {
		t.Errorf("found %d names of metrics, %v: the search is wrong", found, err)
	}
}

// TestGlossary: each word has one row, in alphabetical order, with two sentences at most, and
// the package that is named exists.
func TestGlossary(t *testing.T) {
	text, err := os.ReadFile("GLOSSARY.md")
	if err != nil {
		t.Fatal(err)
	}
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
		if _, err := os.Stat(filepath.Join("..", room)); err != nil && !(moving() && strings.HasPrefix(room, "internal/")) {
			t.Errorf("%s: there is no package %s", word, room)
		}
	}
}

// TestPlainWords: no page uses the riddles that the house once had for words of the field.
// The glossary has some of them as synonyms.
func TestPlainWords(t *testing.T) {
	riddles := regexp.MustCompile(`(?i)\b(accrues?|aloft|by chance|dear|depths?|in vain|lent out|lingers?|of late|purses?|tellers?|untold|whoever|whom)\b`)
	read := 0
	check := func(path string) {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		read++
		for i, line := range strings.Split(string(text), "\n") {
			if found := riddles.FindString(line); found != "" {
				t.Errorf("%s:%d: %q: say it in the field's words, see docs/GLOSSARY.md", path, i+1, found)
			}
		}
	}
	check(filepath.Join("..", "README.md"))
	check(filepath.Join("..", "CONTRIBUTING.md"))
	err := filepath.WalkDir(".", func(path string, _ fs.DirEntry, err error) error {
		page := "docs/" + filepath.ToSlash(path)
		if err == nil && filepath.Ext(path) == ".md" && path != "GLOSSARY.md" && !measured.MatchString(page) && !strings.HasPrefix(page, "docs/decisions/") {
			check(path)
		}
		return err
	})
	if err != nil || read < 30 {
		t.Errorf("read %d pages, %v: the search is wrong", read, err)
	}
}
