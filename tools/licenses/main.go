// Command licenses checks the licences of modules. It reads lines PATH VERSION FOLDER, as go list prints them, and
// classifies the licence files in each folder by their text.
//
// It fails if a module has no licence file, or one that is none of the allowed ones: permissive licences, which ask for
// no more than their text beside the program.
package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// licenses are recognized by phrases that all stand in their text and, for those that share a text with another,
// phrases that do not. White space, case and quotation marks are ignored.
var licenses = []struct {
	name     string
	has, not []string
	allowed  bool
}{
	{"Apache-2.0", []string{"apache license", "version 2.0, january 2004"}, nil, true},
	{"MIT", []string{"permission is hereby granted, free of charge, to any person obtaining a copy", "the software is provided as is"}, nil, true},
	{"ISC", []string{"permission to use, copy, modify, and/or distribute this software for any purpose with or without fee"}, nil, true},
	{"BSD-3-Clause", []string{"redistribution and use in source and binary forms", "redistributions in binary form", "endorse or promote"}, []string{"all advertising materials"}, true},
	{"BSD-2-Clause", []string{"redistribution and use in source and binary forms", "redistributions in binary form"}, []string{"endorse or promote", "all advertising materials"}, true},
	{"MPL-2.0", []string{"mozilla public license", "version 2.0"}, nil, false},
	{"AGPL", []string{"gnu affero general public license"}, nil, false},
	{"LGPL", []string{"gnu lesser general public license"}, []string{"mozilla public license"}, false},
	{"GPL", []string{"gnu general public license"}, []string{"mozilla public license", "gnu lesser", "gnu affero"}, false},
}

func main() {
	if err := run(os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "FAILED:", err)
		os.Exit(1)
	}
}

// run prints each module with its licences, and returns all faults.
func run(in io.Reader, out io.Writer) error {
	var faults []error
	count := 0
	lines := bufio.NewScanner(in)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) == 0 {
			continue
		}
		if len(fields) != 3 {
			return fmt.Errorf("want PATH VERSION FOLDER, got %q", lines.Text())
		}
		found, err := classify(fields[2])
		if err != nil {
			faults = append(faults, fmt.Errorf("%s %s: %w", fields[0], fields[1], err))
		}
		count++
		fmt.Fprintf(out, "%-60s %-40s %s\n", fields[0], fields[1], strings.Join(found, ", "))
	}
	if err := lines.Err(); err != nil {
		return err
	}
	if count == 0 {
		return errors.New("no modules")
	}
	if len(faults) == 0 {
		fmt.Fprintf(out, "the licences of %d modules are allowed\n", count)
	}
	return errors.Join(faults...)
}

// classify returns the licences of the licence files in a folder, and an error if there is none or one that is not
// allowed. All of several files hold: each is of a part of the module.
func classify(dir string) (found []string, _ error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var faults []error
	for _, e := range entries {
		name := strings.ToLower(e.Name())
		if !e.Type().IsRegular() || !strings.HasPrefix(name, "licen") && !strings.HasPrefix(name, "copying") || strings.HasSuffix(name, ".go") {
			continue
		}
		text, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			return nil, err
		}
		names, allowed := recognize(string(text))
		if len(names) == 0 {
			faults = append(faults, fmt.Errorf("%s is of no known licence", e.Name()))
		} else if !allowed {
			faults = append(faults, fmt.Errorf("%s is under %s, which is not allowed", e.Name(), strings.Join(names, " and ")))
		}
		for _, n := range names {
			if !slices.Contains(found, n) {
				found = append(found, n)
			}
		}
	}
	if len(found) == 0 && len(faults) == 0 {
		return nil, errors.New("no licence file")
	}
	return found, errors.Join(faults...)
}

// recognize returns the licences whose text is in a file, and whether all are allowed.
func recognize(text string) (names []string, allowed bool) {
	text = strings.ToLower(strings.NewReplacer(`"`, "", "“", "", "”", "", "``", "", "''", "", "'", "", "*", " ").Replace(text))
	text = strings.Join(strings.Fields(text), " ")
	contains := func(phrase string) bool { return strings.Contains(text, phrase) }
	allowed = true
	for _, l := range licenses {
		if slices.ContainsFunc(l.not, contains) || slices.ContainsFunc(l.has, func(p string) bool { return !contains(p) }) {
			continue
		}
		names = append(names, l.name)
		allowed = allowed && l.allowed
	}
	return names, allowed
}
