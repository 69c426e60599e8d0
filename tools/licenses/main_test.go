package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const (
	mit      = "The MIT License\n\nPermission is hereby granted, free of charge, to any person\n obtaining a copy of this ...\nTHE SOFTWARE IS PROVIDED \"AS IS\", WITHOUT WARRANTY"
	twoBSD   = "Redistribution and use in source and binary forms, with or without ...\n * Redistributions in binary form must"
	threeBSD = twoBSD + "\n * Neither the name of the author may be used to endorse or promote products"
)

// TestModules: each module needs a licence file, and only permissive licences pass.
func TestModules(t *testing.T) {
	for _, test := range []struct {
		name  string
		files map[string]string
		want  string // of the error, or "" and the licences in has
		has   string
	}{
		{"MIT", map[string]string{"LICENSE": mit}, "", "MIT"},
		{"BSD of two clauses", map[string]string{"LICENSE.txt": twoBSD}, "", "BSD-2-Clause"},
		{"BSD of three clauses", map[string]string{"License.md": threeBSD}, "", "BSD-3-Clause"},
		{"two files", map[string]string{"LICENSE": mit, "LICENSE-3rdparty": threeBSD}, "", "MIT, BSD-3-Clause"},
		{"one of two files is not allowed", map[string]string{"LICENSE": mit, "COPYING": "GNU General Public\nLicense, version 2"}, "COPYING is under GPL", ""},
		{"both in one file", map[string]string{"LICENSE": mit + "\nGNU Affero General Public License"}, "under MIT and AGPL, which is not allowed", ""},
		{"MPL", map[string]string{"LICENSE": "Mozilla Public License Version 2.0 ... GNU Lesser General Public License"}, "under MPL-2.0", ""},
		{"BSD of four clauses", map[string]string{"LICENSE": threeBSD + "\n * All advertising materials mentioning"}, "no known licence", ""},
		{"unknown", map[string]string{"LICENSE": "Ask the author."}, "no known licence", ""},
		{"none", map[string]string{"README": mit, "license.go": mit}, "no licence file", ""},
	} {
		dir := t.TempDir()
		for name, text := range test.files {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		var out strings.Builder
		err := run(strings.NewReader("example.com/m v1.2.3 "+dir+"\n"), &out)
		if test.want != "" {
			if err == nil || !strings.Contains(err.Error(), test.want) || !strings.Contains(err.Error(), "example.com/m v1.2.3: ") {
				t.Errorf("%s: got %v, want %q", test.name, err, test.want)
			}
			continue
		}
		if line, _, _ := strings.Cut(out.String(), "\n"); err != nil || !strings.HasSuffix(line, " "+test.has) {
			t.Errorf("%s: got %v, %q, want %s", test.name, err, line, test.has)
		}
	}
	for _, bad := range []string{"", "example.com/m v1.2.3\n", "example.com/m v1.2.3 /nowhere\n"} {
		if err := run(strings.NewReader(bad), &strings.Builder{}); err == nil {
			t.Errorf("%q passes", bad)
		}
	}
}
