package document

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

var (
	tomlSection  = regexp.MustCompile(`^\[\[?[\w.-]+\]`)
	equalsSign   = regexp.MustCompile(`^([\w.-]+)\s*=\s*(\S.*)$`)
	noBlankColon = regexp.MustCompile(`^([A-Za-z_][\w-]*):([^\s:/].*)$`)
	noBlankDash  = regexp.MustCompile(`^-([A-Za-z_].*)$`)
	braceAfter   = regexp.MustCompile(`^([\w.-]+)\s*\{$`)
)

// syntaxHint is the way out of what the YAML parser refuses on a line, which counts from 1.
func syntaxHint(message string, lines []string, number int) string {
	has := func(parts ...string) bool {
		for _, p := range parts {
			if strings.Contains(message, p) {
				return true
			}
		}
		return false
	}
	line := lines[number-1]
	text := strings.TrimSpace(line)
	entry := strings.TrimSpace(strings.TrimPrefix(text, "- "))
	switch {
	case strings.HasPrefix(strings.TrimLeft(line, " "), "\t"):
		return "indent with spaces; YAML does not allow tabs there"
	case strings.HasPrefix(text, "<<<<<<<"), strings.HasPrefix(text, "======="), strings.HasPrefix(text, ">>>>>>>"):
		return "resolve the conflict that a merge has left, and take out its marks"
	case slices.ContainsFunc(lines[:number], func(l string) bool { return tomlSection.MatchString(strings.TrimSpace(l)) }) && equalsSign.MatchString(entry):
		return "this looks like TOML: write YAML, with name: value in place of name = value"
	case equalsSign.MatchString(entry):
		return "put a colon in place of the equals sign: " + masked(equalsSign.ReplaceAllString(entry, "$1: $2"))
	case braceAfter.MatchString(entry):
		return "put a colon after the name: " + braceAfter.ReplaceAllString(entry, "$1:")
	case noBlankDash.MatchString(text):
		return "put a blank after the dash: " + masked(noBlankDash.ReplaceAllString(text, "- $1"))
	case noBlankColon.MatchString(entry):
		return "put a blank after the colon: " + masked(noBlankColon.ReplaceAllString(entry, "$1: $2"))
	case has("must be specified"):
		if opened := unclosed(lines[:number-1]); opened > 0 {
			return fmt.Sprintf("close the bracket of line %d", opened)
		}
		return "put a comma between two entries, and close each bracket"
	case has("could not find end character"):
		return "close the quote"
	case has("reserved character"):
		return "put the whole value in quotes"
	case has("unexpected scalar value"):
		return `put quotes around a star that stands alone: "*"`
	case has("flow map content") && strings.Contains(line, "{{"):
		return "a template has to be filled in first; text with braces needs quotes"
	case has("map key-value is pre-defined"):
		for i, before := range lines[:number-1] {
			if strings.Count(before, `"`)%2 == 1 && !strings.Contains(before, "#") {
				return fmt.Sprintf("close the quote of line %d", i+1)
			}
		}
		return `use the other kind of quotes around the whole, as in 'method == "POST"'`
	case has("mapping value is not allowed", "value is not allowed in this context"):
		return "look at the indentation of this line and the next: the keys of one map begin in one column"
	}
	return ""
}

// unclosed is the last of the lines with a bracket that no later one closes, from 1; 0 = there is none.
func unclosed(lines []string) int {
	closed := 0
	for i, line := range slices.Backward(lines) {
		closed += strings.Count(line, "]") + strings.Count(line, "}") - strings.Count(line, "[") - strings.Count(line, "{")
		if closed < 0 {
			return i + 1
		}
	}
	return 0
}

// aliasHint is the way out of an alias without an anchor, which is nearly always
// a pattern without quotes.
func aliasHint(name string) string {
	return fmt.Sprintf(`a pattern that begins with a star needs quotes: "*%s"`, name)
}
