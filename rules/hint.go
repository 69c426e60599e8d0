package rules

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/stint-io/stint/limit"
)

// Hints for what people write who know another format, or forget a quote.

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

// numberHint is the way out of what is no whole number.
func numberHint(n *node) string {
	if n.kind != kindString {
		return ""
	}
	if _, err := strconv.ParseInt(n.text, 10, 64); err == nil {
		return "leave out the quotes"
	}
	if r, err := limit.ParseRate(n.text + "/s"); err == nil {
		return fmt.Sprintf("write it as %d", r.Count)
	}
	return ""
}

// truthHint is the way out of what is neither true nor false.
func truthHint(n *node) string {
	switch strings.ToLower(n.text) {
	case "yes", "on", "y", "1", "true":
		return "write true, without quotes"
	case "no", "off", "n", "0", "false":
		return "write false, without quotes"
	}
	return ""
}

// percentHint is the way out of a share without its sign.
func percentHint(n *node) string {
	v, err := strconv.ParseFloat(n.text, 64)
	switch {
	case err != nil || v < 0 || v > 100:
		return "write it as 80%"
	case v > 0 && v < 1:
		v *= 100
	}
	return fmt.Sprintf("did you mean %s%%?", strconv.FormatFloat(v, 'g', 4, 64))
}

const rateForms = "write it as 100/s, 5/minute or 20/10s"

// rateHint is the way out of a rate in the words of others: nginx's 10r/s, "5 per
// minute", 5/60.
func rateHint(text string) string {
	plain := strings.ToLower(strings.TrimSpace(text))
	if plain == "unlimited" {
		return "write unlimited: true in place of rate"
	}
	count, period, ok := strings.Cut(strings.ReplaceAll(plain, " per ", "/"), "/")
	if !ok {
		return rateForms
	}
	count, period = strings.TrimSpace(count), strings.TrimSpace(period)
	if short, ok := strings.CutSuffix(count, "r"); ok {
		count = strings.TrimSpace(short)
	}
	count = strings.NewReplacer(",", "", "_", "").Replace(count)
	if strings.HasPrefix(count, ".") {
		count = "0" + count
	}
	if _, err := strconv.ParseUint(period, 10, 63); err == nil {
		period += "s"
	}
	if period == "hr" || period == "hrs" {
		period = "h"
	}
	meant := count + "/" + period
	if _, err := limit.ParseRate(meant); err != nil || meant == text {
		return rateForms
	}
	return fmt.Sprintf("did you mean %s?", meant)
}

// expressionHint is the way out of what the CEL compiler refuses.
func expressionHint(message string) string {
	switch {
	case strings.HasPrefix(message, "undeclared reference"):
		return `variables: attributes["NAME"], domain, ip, user, method, path, host, request.size, request.headers["name"]`
	case strings.HasPrefix(message, "Syntax error"):
		return `CEL compares with ==, joins with && and ||, and has text in quotes: method == "POST" && path == "/login"`
	}
	return ""
}
