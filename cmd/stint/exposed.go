package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/pflag"
)

// secretFlags are the ends of the names of flags that name a file with a secret, or a folder with the state of limits.
var secretFlags = []string{"token-file", "key", "auth", "state-dir"}

var (
	// namedSecrets are the files with secrets that a limits file, a file of identities or the URL of a store names.
	namedSecrets = regexp.MustCompile(`\b(?:token_file|secret_file|password_file|key)\s*[:=]\s*["']?([^\s"'&,}\]]+)`)
	// heldPassword is a URL with a password in a file.
	heldPassword = regexp.MustCompile(`://[^\s/@]*:[^\s@]+@`)
)

// exposed returns a line for each file with a secret, and for the state folder, that every user of the machine can
// read, of those that the flags name, and the files and URLs that they name.
func exposed(flags *pflag.FlagSet, configs []string, urls ...string) (lines []string) {
	look := func(path, what string) {
		info, err := os.Stat(path)
		if err != nil || info.Mode().Perm()&0o004 == 0 {
			return
		}
		mode := "0600"
		if info.IsDir() {
			mode = "0700"
		}
		line := fmt.Sprintf("every user of this machine can read %s, %s (mode %04o): chmod %s, or 0640 with a group of its own", path, what, info.Mode().Perm(), mode)
		if !slices.Contains(lines, line) {
			lines = append(lines, line)
		}
	}
	named := func(text, folder string) {
		for _, m := range namedSecrets.FindAllStringSubmatch(text, -1) {
			path := m[1]
			if !filepath.IsAbs(path) && folder != "" {
				if _, err := os.Stat(filepath.Join(folder, path)); err == nil {
					path = filepath.Join(folder, path)
				}
			}
			if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() {
				look(path, "which has a secret")
			}
		}
	}
	flags.VisitAll(func(f *pflag.Flag) {
		path := f.Value.String()
		if path == "" || !slices.ContainsFunc(secretFlags, func(end string) bool { return f.Name == end || strings.HasSuffix(f.Name, "-"+end) }) {
			return
		}
		look(path, "the file of --"+f.Name)
		if text, err := os.ReadFile(path); err == nil && f.Name == "auth" {
			named(string(text), filepath.Dir(path))
		}
	})
	for _, path := range configs {
		files := []string{path}
		if more, err := filepath.Glob(filepath.Join(path, "*.y*ml")); err == nil {
			files = append(files, more...)
		}
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				continue
			}
			if heldPassword.Match(text) {
				look(file, "which has a password")
			}
			named(string(text), filepath.Dir(file))
		}
	}
	for _, url := range urls {
		named(url, "")
	}
	return lines
}
