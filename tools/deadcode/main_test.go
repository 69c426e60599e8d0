package main

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// Commands and what others import keep functions alive, also by a method and as an instance of
// a generic one; a test does not.
func TestFindsWhatOnlyTestsReach(t *testing.T) {
	found, err := dead(filepath.Join("testdata", "module"))
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, line := range found {
		_, name, ok := strings.Cut(line, ": nothing reaches ")
		if !ok || !strings.Contains(line, filepath.Join("internal", "x", "x.go")) {
			t.Errorf("%q", line)
		}
		names = append(names, name)
	}
	slices.Sort(names)
	if want := []string{"(Told).Unused", "ByTest", "byNobody"}; !slices.Equal(names, want) {
		t.Errorf("found %q, want %q", names, want)
	}
	if _, err := dead(t.TempDir()); err == nil {
		t.Error("a folder without packages has no dead code")
	}
}
