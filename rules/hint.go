package rules

import (
	"cmp"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/stint-io/stint/internal/document"
	"github.com/stint-io/stint/limit"
)

// Hints for mistakes of people who know another format, or forget a quote.

// numberHint is the hint for a value that is no whole number.
func numberHint(n *document.Node) string {
	if n.Kind != document.Text {
		return ""
	}
	if _, err := strconv.ParseInt(n.Text, 10, 64); err == nil {
		return "leave out the quotes"
	}
	if r, err := limit.ParseRate(strings.NewReplacer(",", "", "_", "", " ", "").Replace(n.Text) + "/s"); err == nil {
		return fmt.Sprintf("write it as %d", r.Count)
	}
	return "write a number, such as 20"
}

// truthHint is the hint for a value that is neither true nor false.
func truthHint(n *document.Node) string {
	switch strings.ToLower(n.Text) {
	case "yes", "on", "y", "1", "true":
		return "write true, without quotes"
	case "no", "off", "n", "0", "false":
		return "write false, without quotes"
	}
	return ""
}

// percentHint is the hint for a percentage without its sign, which is at least low: 0.8 and 2.5 are shares.
func percentHint(n *document.Node, low int) string {
	v, err := strconv.ParseFloat(n.Text, 64)
	if err == nil && (0 < v && v < 1 || v < float64(low)) {
		v *= 100
	}
	if err != nil || v < float64(low) || v > float64(max(100, 10*low)) {
		return fmt.Sprintf("write it as %d%%", max(low, 80))
	}
	return fmt.Sprintf("did you mean %s%%?", strconv.FormatFloat(v, 'g', 4, 64))
}

const rateForms = "write it as 100/s, 5/minute or 20/10s"

// rateHint is the hint for a rate in another notation: nginx's 10r/s, "5 per minute", 5/60, "100 M/month".
func rateHint(text string) string {
	plain := strings.ToLower(strings.TrimSpace(text))
	if strings.ContainsAny(plain, "“”‘’") {
		return "write straight quotes, or none"
	}
	if plain == "unlimited" {
		return "write unlimited: true in place of rate"
	}
	if strings.Count(plain, "/") > 1 && strings.ContainsAny(plain, ",;|&") {
		return "several rates at once are horizons: [{rate: 10/s}, {rate: 1000/day}]"
	}
	count, period := "", ""
	if m := countThenPeriod.FindStringSubmatch(plain); m != nil {
		count, period = m[1], m[2]
	} else if m := everyPeriod.FindStringSubmatch(plain); m != nil {
		count, period = cmp.Or(m[1], "1"), m[2]
	} else if m := periodThenCount.FindStringSubmatch(plain); m != nil {
		count, period = m[2], m[1]
	}
	count = strings.NewReplacer(",", "", "_", "", " ", "", "m", "M", "g", "G").Replace(count)
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

// Rates in other notations: 10r/s, 5 per minute, 5rps, 1,000/s, 5 requests in 10s; every 100ms, 5 every 1m; minute/5.
var (
	countThenPeriod = regexp.MustCompile(`^(-?[\d.,_]+ ?[kmg]?) ?(?:(?:r|reqs?|requests?|hits?|calls?|tokens?|queries|messages|times) ?)?` +
		`(?:/|per|p|an?|each|in|:|@|-per-|-)? ?((?:\d+ ?)?[a-z]+|\d+)$`)
	everyPeriod     = regexp.MustCompile(`^@?(?:(\d+) )?(?:every|each|once per|once an?|one per|an?|per) ?((?:\d+ ?)?[a-z]+)$`)
	periodThenCount = regexp.MustCompile(`^((?:\d+ ?)?[a-z]+) ?/ ?(\d+)$`)
)

// expressionHint is the hint for an error of the CEL compiler.
func expressionHint(message string) string {
	switch {
	case strings.HasPrefix(message, "undeclared reference"):
		return `variables: attributes["NAME"], domain, ip, user, method, path, host, request.size, request.headers["name"]`
	case strings.HasPrefix(message, "Syntax error"):
		return `CEL compares with ==, joins with && and ||, and has text in quotes: method == "POST" && path == "/login"`
	}
	return ""
}
