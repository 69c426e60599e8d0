package document

import (
	"fmt"
	"strings"
)

// syntaxHint is the way out of what the YAML parser refuses on a line.
func syntaxHint(message, line string) string {
	has := func(parts ...string) bool {
		for _, p := range parts {
			if strings.Contains(message, p) {
				return true
			}
		}
		return false
	}
	switch {
	case strings.HasPrefix(strings.TrimLeft(line, " "), "\t"):
		return "indent with spaces; YAML does not allow tabs there"
	case has("reserved character"):
		return "put the whole value in quotes"
	case has("unexpected scalar value"):
		return `put quotes around a star that stands alone: "*"`
	case has("flow map content") && strings.Contains(line, "{{"):
		return "a template has to be filled in first; text with braces needs quotes"
	case has("map key-value is pre-defined"):
		return `use the other kind of quotes around the whole, as in 'method == "POST"'`
	case has("mapping value is not allowed", "value is not allowed in this context"):
		return "look at the indentation of this line and the next: the keys of one map begin in one column"
	}
	return ""
}

// aliasHint is the way out of an alias without an anchor, which is nearly always
// a pattern without quotes.
func aliasHint(name string) string {
	return fmt.Sprintf(`a pattern that begins with a star needs quotes: "*%s"`, name)
}
