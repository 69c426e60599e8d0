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

// anchors returns the names by which links find the headings of a page, and places that have a name. A second heading of
// the same text is followed by -1.
func anchors(text string) []string {
	var names []string
	seen := map[string]int{}
	code := false
	for line := range strings.SplitSeq(text, "\n") {
		if strings.HasPrefix(line, "```") {
			code = !code
		}
		for _, m := range regexp.MustCompile(`<a id="([^"]+)">`).FindAllStringSubmatch(line, -1) {
			names = append(names, m[1])
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
	got := anchors("# A page\n\n## Leases: a decision, and a round\n\n```sh\n# no heading\n```\n| <a id=\"hot-key\"></a>one | 2 |\n\n## `Take` in 250 ms\n### A page\n#tag\n")
	want := []string{"a-page", "leases-a-decision-and-a-round", "hot-key", "take-in-250-ms", "a-page-1"}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}
