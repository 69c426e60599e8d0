package stint_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stint-io/stint/rules"
)

// pages returns the module's Markdown files with their text.
func pages(t *testing.T) map[string]string {
	t.Helper()
	found := map[string]string{}
	err := filepath.WalkDir(".", func(name string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && name != "." && strings.HasPrefix(entry.Name(), "."):
			return fs.SkipDir
		case entry.IsDir() || filepath.Ext(name) != ".md":
			return nil
		}
		text, err := os.ReadFile(name)
		found[name] = string(text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if found["README.md"] == "" {
		t.Fatal("found no README.md: the search is wrong")
	}
	return found
}

// TestLinks follows every link from one page to a file of this repository.
func TestLinks(t *testing.T) {
	link := regexp.MustCompile(`\]\(([^)#\s]+)[^)]*\)`)
	followed := 0
	for name, text := range pages(t) {
		for _, m := range link.FindAllStringSubmatch(text, -1) {
			if strings.Contains(m[1], "://") {
				continue
			}
			followed++
			if _, err := os.Stat(filepath.Join(filepath.Dir(name), m[1])); err != nil {
				t.Errorf("%s links to %s, which is not there", name, m[1])
			}
		}
	}
	if followed < 10 {
		t.Errorf("followed %d links only: the search is wrong", followed)
	}
}

// TestReadmeLimits loads the limits file that the README shows.
func TestReadmeLimits(t *testing.T) {
	_, rest, ok := strings.Cut(pages(t)["README.md"], "```yaml\n")
	if !ok {
		t.Fatal("README.md shows no limits file")
	}
	src, _, _ := strings.Cut(rest, "```")
	set, err := rules.Parse("README.md", []byte(src))
	if err != nil {
		t.Fatal(err)
	}
	if n := len(set.Limits()); n != 2 {
		t.Errorf("got %d limits, want 2", n)
	}
}

// TestProvenByTests: each test that a page names as proof exists.
func TestProvenByTests(t *testing.T) {
	declared := map[string]bool{}
	for _, s := range readSources(t) {
		for _, decl := range s.functions() {
			if s.test {
				declared[decl] = true
			}
		}
	}
	named := regexp.MustCompile("`[^`\n]*\\b((?:Test|Fuzz|Example)[A-Z][A-Za-z0-9]*)")
	found := 0
	for name, text := range pages(t) {
		for _, m := range named.FindAllStringSubmatch(text, -1) {
			found++
			if !declared[m[1]] {
				t.Errorf("%s names the test %s, which does not exist", name, m[1])
			}
		}
	}
	if found == 0 {
		t.Error("no page names a test: the search is wrong")
	}
}
