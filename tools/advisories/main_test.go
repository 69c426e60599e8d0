package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

var locks = map[string]string{
	"package-lock.json": `{"packages": {
		"": {"name": "own", "version": "1.0.0"},
		"node_modules/a": {"version": "1.0.0"},
		"node_modules/a/node_modules/@s/b": {"version": "2.0.0", "dev": true},
		"node_modules/alias": {"name": "c", "version": "3.0.0"},
		"node_modules/own": {"link": true}
	}}`,
	"requirements.txt": "# d==0\nd[extra]==1.0 \\\n    --hash=sha256:00\n    # via e\nf.g-h==2.0; python_version < \"3.12\"\n",
	"Cargo.lock":       "[[package]]\nname = \"own\"\nversion = \"0.1.0\"\n\n[[package]]\nname = \"i\"\nversion = \"1.2.3\"\nsource = \"registry+https\"\n",
}

// write puts the lock files into a folder.
func write(t *testing.T) (files []string) {
	dir := t.TempDir()
	for _, name := range []string{"package-lock.json", "requirements.txt", "Cargo.lock"} {
		files = append(files, filepath.Join(dir, name))
		if err := os.WriteFile(files[len(files)-1], []byte(locks[name]), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return files
}

// TestAsks: every pinned package is asked about, and each vulnerability is a fault.
func TestAsks(t *testing.T) {
	vulnerable := ""
	database := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var asked struct{ Queries []pinned }
		if err := json.NewDecoder(r.Body).Decode(&asked); err != nil || r.URL.Path != "/v1/querybatch" {
			t.Errorf("%s: %v", r.URL, err)
		}
		var names, results []string
		for _, q := range asked.Queries {
			names = append(names, q.String())
			result := "{}"
			if q.Package.Name == vulnerable {
				result = `{"vulns": [{"id": "GHSA-1"}, {"id": "GHSA-2"}]}`
			}
			results = append(results, result)
		}
		const want = "npm @s/b 2.0.0, npm a 1.0.0, npm c 3.0.0, PyPI d 1.0, PyPI f.g-h 2.0, crates.io i 1.2.3"
		if got := strings.Join(names, ", "); got != want {
			t.Errorf("asked about %s, want %s", got, want)
		}
		fmt.Fprintf(w, `{"results": [%s]}`, strings.Join(results, ", "))
	}))
	defer database.Close()
	files := write(t)
	if err := run(t.Context(), &strings.Builder{}, database.URL, files); err != nil {
		t.Errorf("nothing is vulnerable: %v", err)
	}
	for name, want := range map[string]string{"@s/b": "npm @s/b 2.0.0", "f.g-h": "PyPI f.g-h 2.0", "i": "crates.io i 1.2.3"} {
		vulnerable = name
		if err := run(t.Context(), &strings.Builder{}, database.URL, files); err == nil || err.Error() != want+": GHSA-1\n"+want+": GHSA-2" {
			t.Errorf("%s is vulnerable: %v", name, err)
		}
	}
}

// TestCannotTell: a database that cannot be reached is told from one that answers something else, and from files that
// cannot be read.
func TestCannotTell(t *testing.T) {
	files := write(t)
	answer := ""
	database := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if answer == "" {
			w.WriteHeader(http.StatusForbidden)
		}
		fmt.Fprint(w, answer)
	}))
	reached := func(err error) bool { return err != nil && !errors.As(err, new(unreachableError)) }
	if err := run(t.Context(), &strings.Builder{}, database.URL, files); err == nil || reached(err) {
		t.Errorf("refused: %v", err)
	}
	for _, answer = range []string{"<html>", `{"results": []}`} {
		if err := run(t.Context(), &strings.Builder{}, database.URL, files); !reached(err) {
			t.Errorf("%s: %v", answer, err)
		}
	}
	database.Close()
	if err := run(t.Context(), &strings.Builder{}, database.URL, files); err == nil || reached(err) {
		t.Errorf("down: %v", err)
	}
	other, empty := filepath.Join(t.TempDir(), "yarn.lock"), filepath.Join(t.TempDir(), "requirements.txt")
	for _, name := range []string{other, empty} {
		if err := os.WriteFile(name, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, bad := range [][]string{nil, {"nowhere"}, {other}, {empty}} {
		if err := run(t.Context(), &strings.Builder{}, "", bad); !reached(err) {
			t.Errorf("%q: %v", bad, err)
		}
	}
}
