package stint_test

import (
	"os"
	"path"
	"slices"
	"strings"
	"testing"
)

// TestPeersList: what scripts/peers.txt names exists, with a reason, and no other package has a test of that name, since
// scripts/test leaves it out by its name.
func TestPeersList(t *testing.T) {
	text, err := os.ReadFile("scripts/peers.txt")
	if err != nil {
		t.Fatal(err)
	}
	tests := map[string][]string{} // the packages that have a test, by its name
	for _, s := range readSources(t) {
		if s.test {
			for _, name := range s.functions() {
				tests[name] = append(tests[name], s.pkg)
			}
		}
	}
	seen := 0
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line)
		if len(fields) == 0 || strings.HasPrefix(line, "#") {
			continue
		}
		seen++
		if len(fields) < 3 {
			t.Errorf("%s: no reason", strings.TrimSpace(line))
			continue
		}
		folder, name := path.Clean(fields[0]), fields[1]
		if _, err := os.Stat(folder); err != nil {
			t.Errorf("%s: %v", folder, err)
		}
		if name != "*" && !slices.Equal(tests[name], []string{folder}) {
			t.Errorf("%s: %s is in %v", folder, name, tests[name])
		}
	}
	if seen < 20 {
		t.Errorf("%d lines only: the search is wrong", seen)
	}
}
