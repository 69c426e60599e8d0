package rules

import (
	"strings"
	"testing"
)

func TestExcerptsAreCutAroundThePlace(t *testing.T) {
	line := strings.Repeat("a", 300) + "X" + strings.Repeat("b", 300)
	for _, column := range []int{1, 50, 79, 80, 81, 82, 100, 301, 600, 601, 602, 10_000} {
		text := excerpt(line, 7, column)
		code, caret, ok := strings.Cut(text, "\n")
		at := strings.IndexByte(caret, '^')
		if !ok || at < 0 || len(code) > 120 {
			t.Fatalf("column %d: %q", column, text)
		}
		if column == 301 && code[at] != 'X' {
			t.Errorf("column %d points at %q", column, code[at])
		}
	}
	if got, want := excerpt("\té: \x7fx\r", 3, 2), "  3 |  é:  x\n    |  ^"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestSuggestions(t *testing.T) {
	words := []string{"rate", "burst", "max_in_flight", "missing", "key"}
	for written, want := range map[string]string{
		"raet": "rate", "Rate": "rate", "maxInFlight": "max_in_flight", "max-in-flight": "max_in_flight",
		"mising": "missing", "keys": "key", "quota": "", "": "", "x": "", "burts": "burst",
		strings.Repeat("rate", 1000): "",
	} {
		if got, _ := suggest(written, words); got != want {
			t.Errorf("%.20q: got %q, want %q", written, got, want)
		}
	}
}
