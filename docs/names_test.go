package docs_test

import (
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// roots are the folders that have all packages but that of the module itself.
var roots = []string{"client", "cmd", "fanout", "internal", "limit", "middleware", "rules", "server", "sim", "split", "store", "throttle"}

// TestMapOfTheHouse: ARCHITECTURE.md and the page of rooms name every package of the module, and no other.
func TestMapOfTheHouse(t *testing.T) {
	var text []byte
	for _, page := range []string{"ARCHITECTURE.md", "reference/rooms.md"} {
		src, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		text = append(text, src...)
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
	for _, root := range roots {
		err := filepath.WalkDir(filepath.Join("..", root), func(path string, _ fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			found++
			room := filepath.ToSlash(strings.TrimPrefix(filepath.Dir(path), ".."+string(filepath.Separator)))
			if !named[room] {
				named[room] = true // say it once
				t.Errorf("reference/rooms.md does not name %s", room)
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
			if _, err := os.Stat(filepath.Join("..", room)); err != nil && strings.HasPrefix(room, folder) {
				t.Errorf("ARCHITECTURE.md or reference/rooms.md names %s, which does not exist", room)
			}
		}
	}
}

// TestArrows: each arrow of the picture in ARCHITECTURE.md is an import.
func TestArrows(t *testing.T) {
	pages := readPages(t)
	picture := ""
	for _, f := range pages["docs/ARCHITECTURE.md"] {
		picture += f.text
	}
	arrows := 0
	for line := range strings.SplitSeq(picture, "\n") {
		if len(line) > titleWidth {
			line = line[titleWidth:]
		}
		chain := strings.Split(line, " -> ")
		for i := 1; i < len(chain); i++ {
			for _, from := range rooms(chain[i-1]) {
				for _, to := range rooms(chain[i]) {
					arrows++
					if !imports(t, from, to) {
						t.Errorf("ARCHITECTURE.md: %s does not import %s", from, to)
					}
				}
			}
		}
	}
	if arrows < 30 {
		t.Errorf("found %d arrows only: the search is wrong", arrows)
	}
}

// titleWidth is how far the arrows are indented, behind the title of their group.
const titleWidth = 16

// rooms expands a list of packages, such as "store/{memory,redis}, rules".
func rooms(list string) []string {
	var all []string
	for _, room := range regexp.MustCompile(`[a-z/]+(?:\{[a-z,]+\})?`).FindAllString(list, -1) {
		stem, last, _ := strings.Cut(strings.TrimSuffix(room, "}"), "{")
		for name := range strings.SplitSeq(last, ",") {
			all = append(all, stem+name)
		}
	}
	return all
}

// imports reports whether a file of one package that is no test imports another.
func imports(t *testing.T, from, to string) bool {
	t.Helper()
	const module = "github.com/stint-io/stint/"
	if from == "stint" {
		from = "."
	}
	files, err := filepath.Glob(filepath.Join("..", from, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ImportsOnly)
		if err != nil {
			t.Fatal(err)
		}
		for _, spec := range file.Imports {
			if spec.Path.Value == `"`+module+to+`"` {
				return true
			}
		}
	}
	return false
}

// TestMetricsExist: every metric of which a page speaks is in the reference of the service or of the
// proxy, which tests hold to the code.
func TestMetricsExist(t *testing.T) {
	reference, err := os.ReadFile(filepath.Join("reference", "service.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, page := range []string{"proxy.md", "usage.md", "events.md", "plans.md"} {
		more, err := os.ReadFile(filepath.Join("reference", page))
		if err != nil {
			t.Fatal(err)
		}
		reference = append(reference, more...)
	}
	found := 0
	err = filepath.WalkDir(".", func(path string, _ fs.DirEntry, err error) error {
		if err != nil || filepath.Ext(path) != ".md" {
			return err
		}
		text, err := os.ReadFile(path)
		for _, name := range regexp.MustCompile(`\bstint_[a-z_]+[a-z]\b`).FindAllString(string(text), -1) {
			if name == "stint_client" { // the package of Python
				continue
			}
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

// TestGlossary: each word has one row, in alphabetical order, and the package that is named exists.
func TestGlossary(t *testing.T) {
	text, err := os.ReadFile("GLOSSARY.md")
	if err != nil {
		t.Fatal(err)
	}
	rows := regexp.MustCompile(`(?m)^\| \*\*([^*]+)\*\* \| (.+) \| `+"`([a-z/]+)`"+` \|$`).FindAllStringSubmatch(string(text), -1)
	if lines := strings.Count(string(text), "\n| **"); len(rows) != lines || lines == 0 {
		t.Errorf("%d of %d rows are read: a row has its word, its meaning and its package", len(rows), lines)
	}
	before := ""
	for _, row := range rows {
		word, room := row[1], row[3]
		if lower := strings.ToLower(word); lower <= before {
			t.Errorf("%s comes after %s", word, before)
		} else {
			before = lower
		}
		if _, err := os.Stat(filepath.Join("..", room)); err != nil {
			t.Errorf("%s: there is no package %s", word, room)
		}
	}
}
