package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/pflag"
)

// TestManPages: every command has a page that mandoc and groff take without a warning, that
// says what --help says, and that is the same when it is written again.
func TestManPages(t *testing.T) {
	epoch := []string{"SOURCE_DATE_EPOCH=1795366276"}
	folder, again := filepath.Join(t.TempDir(), "man1"), t.TempDir()
	for _, f := range []string{folder, again} {
		if code, out, errOut := call(t, epoch, "man", f); code != exitOK || out+errOut != "" {
			t.Fatalf("exit code %d\n%s%s", code, out, errOut)
		}
	}
	pages, err := filepath.Glob(filepath.Join(folder, "*.1"))
	if err != nil || len(pages) < 30 {
		t.Fatalf("%d pages, %v: the search is wrong", len(pages), err)
	}
	if out, err := exec.Command("mandoc", append([]string{"-T", "lint", "-W", "warning"}, pages...)...).CombinedOutput(); err != nil || len(out) > 0 {
		t.Errorf("mandoc: %v\n%s", err, out)
	}
	if out, err := exec.Command("groff", append([]string{"-man", "-ww", "-z", "-K", "utf8"}, pages...)...).CombinedOutput(); err != nil || len(out) > 0 {
		t.Errorf("groff: %v\n%s", err, out)
	}
	for _, page := range pages {
		text := read(t, page)
		if text != read(t, filepath.Join(again, filepath.Base(page))) {
			t.Errorf("%s differs when it is written again", page)
		}
		if !strings.HasPrefix(text, ".TH ") || !strings.Contains(strings.SplitN(text, "\n", 2)[0], "2026-11-22") {
			t.Errorf("%s begins with %.80q", page, text)
		}
	}
	text := read(t, filepath.Join(folder, "stint-serve.1"))
	newServe().Flags().VisitAll(func(f *pflag.Flag) {
		if !strings.Contains(text, escaped("--"+f.Name)) {
			t.Errorf("stint-serve.1 has no --%s", f.Name)
		}
	})
}

func read(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// TestModuleVersion: a tag is a version, what Go makes up for an untagged commit is not.
func TestModuleVersion(t *testing.T) {
	for given, want := range map[string]string{
		"v0.1.0": "0.1.0", "v1.2.3-rc.1": "1.2.3-rc.1", "(devel)": "", "": "",
		"v0.0.0-20261124191510-6a690e812345": "", "v0.1.1-0.20261124191510-6a690e812345+dirty": "", "v0.1.0+dirty": "",
	} {
		if got := moduleVersion(given); got != want {
			t.Errorf("%q: %q, want %q", given, got, want)
		}
	}
}
