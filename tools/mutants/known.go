package main

import (
	"bufio"
	"fmt"
	"os"
	"strings"
)

// known says which mutants do the same as the original, and why. A mutant is named by its
// file, what it changes and the text of its line, so that a line may move:
//
//	limit/bucket.go | < -> <= | if cost < left { | at equality both branches give left
type known map[string]string

func key(file, what, code string) string { return file + " | " + what + " | " + code }

func readKnown(name string) (known, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	k := known{}
	lines := bufio.NewScanner(f)
	for n := 1; lines.Scan(); n++ {
		line := strings.TrimSpace(lines.Text())
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		at := strings.LastIndex(line, " | ")
		if strings.Count(line, " | ") < 3 || strings.TrimSpace(line[at+3:]) == "" {
			return nil, fmt.Errorf("%s:%d: want FILE | WHAT | LINE OF CODE | REASON, got %q", name, n, line)
		}
		k[line[:at]] = line[at+3:]
	}
	return k, lines.Err()
}

// stale returns the entries about files below pkg that name no place.
func (k known) stale(pkg string, places map[string]bool) []string {
	var out []string
	for entry := range k {
		file, _, _ := strings.Cut(entry, " | ")
		if at := strings.LastIndex(file, "/"); at >= 0 && file[:at] == pkg && !places[entry] {
			out = append(out, entry)
		}
	}
	return out
}
