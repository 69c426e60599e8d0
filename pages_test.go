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
	"unicode"
)

// maxPageWords is what a reader takes in at once. References, the glossary, decisions and the
// tables of benchmarks are looked up and not read, and may be longer.
const maxPageWords = 1500

// tooLongYet are pages that are still longer. It only shrinks.
var tooLongYet = []string{}

func TestPagesAreShort(t *testing.T) {
	read := 0
	for name, text := range pages(t) {
		name = filepath.ToSlash(name)
		if !strings.HasPrefix(name, "docs/") || lookedUp(name) {
			continue
		}
		read++
		words, excused := countWords(text), slices.Contains(tooLongYet, name)
		switch {
		case words > maxPageWords && !excused:
			t.Errorf("%s has %d words, want at most %d: split it, or move what is looked up to docs/reference", name, words, maxPageWords)
		case words <= maxPageWords && excused:
			t.Errorf("%s has %d words: take it off tooLongYet", name, words)
		}
	}
	for _, name := range tooLongYet {
		if _, err := os.Stat(filepath.FromSlash(name)); err != nil {
			t.Errorf("%s is gone: take it off tooLongYet", name)
		}
	}
	if read < 10 {
		t.Errorf("found %d pages only: the search is wrong", read)
	}
}

func lookedUp(name string) bool {
	return slices.ContainsFunc([]string{"docs/reference/", "docs/benchmarks/", "docs/decisions/", "docs/GLOSSARY.md"}, func(place string) bool {
		return strings.HasPrefix(name, place)
	})
}

// countWords counts what has a letter or a digit: the frame of a table is no word.
func countWords(text string) int {
	words := 0
	for _, field := range strings.Fields(text) {
		if strings.ContainsFunc(field, func(r rune) bool { return unicode.IsLetter(r) || unicode.IsDigit(r) }) {
			words++
		}
	}
	return words
}

// TestLinks follows every link from one page to a file of this repository, and to a heading
// in it.
func TestLinks(t *testing.T) {
	all := pages(t)
	headings := map[string][]string{}
	for name, text := range all {
		headings[filepath.ToSlash(name)] = anchors(text)
	}
	link := regexp.MustCompile(`\]\(([^)\s]+)[^)]*\)`)
	followed, anchored := 0, 0
	for name, text := range all {
		name = filepath.ToSlash(name)
		for _, m := range link.FindAllStringSubmatch(text, -1) {
			if strings.Contains(m[1], "://") {
				continue
			}
			followed++
			file, heading, deep := strings.Cut(m[1], "#")
			target := name
			if file != "" {
				target = path.Join(path.Dir(name), file)
			}
			if _, err := os.Stat(filepath.FromSlash(target)); err != nil {
				t.Errorf("%s links to %s, which is not there", name, m[1])
			} else if deep {
				anchored++
				if !slices.Contains(headings[target], heading) {
					t.Errorf("%s links to %s, where no heading is called so", name, m[1])
				}
			}
		}
	}
	if followed < 100 || anchored < 20 {
		t.Errorf("followed %d links, %d of them to headings: the search is wrong", followed, anchored)
	}
}

// anchors returns the names by which links find the headings of a page. A second heading of
// the same text is followed by -1.
func anchors(text string) []string {
	var names []string
	seen := map[string]int{}
	code := false
	for line := range strings.SplitSeq(text, "\n") {
		if strings.HasPrefix(line, "```") {
			code = !code
		}
		heading := strings.TrimLeft(line, "#")
		if code || heading == line || !strings.HasPrefix(heading, " ") {
			continue
		}
		name := anchor(strings.TrimSpace(heading))
		if n := seen[name]; n > 0 {
			names = append(names, fmt.Sprintf("%s-%d", name, n))
		} else {
			names = append(names, name)
		}
		seen[name]++
	}
	return names
}

// anchor returns the name by which a link finds a heading: lower case, hyphens for spaces,
// and besides letters, digits, hyphens and underscores nothing.
func anchor(heading string) string {
	var name strings.Builder
	for _, r := range strings.ToLower(heading) {
		switch {
		case unicode.IsLetter(r) || unicode.IsDigit(r) || r == '-' || r == '_':
			name.WriteRune(r)
		case r == ' ':
			name.WriteByte('-')
		}
	}
	return name.String()
}

func TestAnchors(t *testing.T) {
	got := anchors("# A page\n\n## Leases: a decision, and a round\n\n```sh\n# no heading\n```\n\n## `Take` in 250 ms\n### A page\n#tag\n")
	want := []string{"a-page", "leases-a-decision-and-a-round", "take-in-250-ms", "a-page-1"}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}
