package rules

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/stint-io/stint/limit"
)

// The readers below return false after recording a fault.

func (d *document) wants(n *node, what, hint string) {
	switch {
	case n.kind == kindMap, n.kind == kindList, n.kind == kindNull:
		d.fault(n, hint, "want %s, this is %v", what, n.kind)
	default:
		d.fault(n, hint, "want %s, this is %q", what, n.text)
	}
}

// str reads text; a number or a truth value stands for its text as written.
func (d *document) str(n *node, what string) (string, bool) {
	if n.kind == kindMap || n.kind == kindList || n.kind == kindNull {
		d.wants(n, what, "")
		return "", false
	}
	return n.text, true
}

func (d *document) boolean(n *node) (value, ok bool) {
	if n.kind != kindBool {
		d.wants(n, "true or false", truthHint(n))
		return false, false
	}
	return n.text == "true", true
}

// integer reads a whole number. It refuses what the versions of YAML do not
// agree about: 010 is ten or eight.
func (d *document) integer(n *node, low, high int64) (int64, bool) {
	if digits := strings.TrimLeft(n.text, "+-"); n.kind == kindInt && len(digits) > 1 && digits[0] == '0' && digits[1] >= '0' && digits[1] <= '9' {
		d.fault(n, "leave out the zero in front", "%s is eight-based to some and ten-based to others", n.text)
		return 0, false
	}
	return d.wholeNumber(n, low, high)
}

// wholeNumber is integer, with a zero in front for base eight as Envoy's service
// has it.
func (d *document) wholeNumber(n *node, low, high int64) (int64, bool) {
	what := fmt.Sprintf("a whole number from %d to %d", low, high)
	if n.kind != kindInt {
		d.wants(n, what, numberHint(n))
		return 0, false
	}
	v, err := strconv.ParseInt(n.text, 0, 64)
	if err != nil {
		v, err = strconv.ParseInt(strings.ReplaceAll(n.text, "_", ""), 10, 64)
	}
	if err != nil || v < low || v > high {
		d.wants(n, what, "")
		return 0, false
	}
	return v, true
}

// word reads one of several words and returns its index.
func (d *document) word(n *node, words ...string) (int, bool) {
	if n.kind == kindString {
		for i, w := range words {
			if w == n.text {
				return i, true
			}
		}
	}
	hint := ""
	if w, ok := suggest(n.text, words); ok {
		hint = fmt.Sprintf("did you mean %s?", w)
	}
	d.wants(n, "one of "+strings.Join(words, ", "), hint)
	return 0, false
}

// percent reads "80%" or "0.5%" as hundredths of a percent, 0 to 10000.
func (d *document) percent(n *node) (int, bool) {
	digits, ok := strings.CutSuffix(n.text, "%")
	whole, frac, dotted := strings.Cut(strings.TrimSpace(digits), ".")
	if ok && n.kind == kindString && len(frac) <= 2 && len(whole) <= 3 && whole != "" && (frac != "") == dotted {
		v, err := strconv.ParseUint(whole+frac+"00"[len(frac):], 10, 32)
		if err == nil && v <= 10000 {
			return int(v), true
		}
	}
	d.wants(n, "a percentage from 0% to 100%", percentHint(n))
	return 0, false
}

const durationHint = "write it as 30s, 15m, 2h or 1d"

// duration reads a positive length of time in the words that a rate's period knows.
func (d *document) duration(n *node) (time.Duration, bool) {
	if n.kind != kindString || strings.Contains(n.text, "/") {
		d.wants(n, "a duration", durationHint)
		return 0, false
	}
	r, err := limit.ParseRate("1/" + n.text)
	if err != nil {
		d.wants(n, "a positive duration", durationHint)
		return 0, false
	}
	return r.Period, true
}

func (d *document) rate(n *node) (limit.Rate, bool) {
	if n.kind != kindString {
		if n.kind == kindInt {
			d.wants(n, "a rate with its period", fmt.Sprintf("did you mean %s/s?", n.text))
		} else {
			d.wants(n, "a rate", rateForms)
		}
		return limit.Rate{}, false
	}
	r, err := limit.ParseRate(n.text)
	if err != nil {
		d.fault(n, rateHint(n.text), "%s", strings.TrimSuffix(strings.ReplaceAll(err.Error(), "limit: ", ""), ", write it as 100/s or 5/minute"))
		return limit.Rate{}, false
	}
	return r, true
}

// plainValue turns a value that stint only passes on into plain Go values.
func plainValue(n *node) any {
	switch n.kind {
	case kindString:
		return n.text
	case kindInt:
		if v, err := strconv.ParseInt(n.text, 0, 64); err == nil {
			return v
		}
		return n.text
	case kindFloat:
		if v, err := strconv.ParseFloat(n.text, 64); err == nil && !math.IsNaN(v) && !math.IsInf(v, 0) {
			return v
		}
		return n.text
	case kindBool:
		return n.text == "true"
	case kindMap:
		m := make(map[string]any, len(n.fields))
		for _, f := range n.fields {
			m[f.key.text] = plainValue(f.value)
		}
		return m
	case kindList:
		list := make([]any, len(n.items))
		for i, item := range n.items {
			list[i] = plainValue(item)
		}
		return list
	}
	return nil
}

// known reports keys of n that are not among words.
func (d *document) known(n *node, where string, words []string) {
	for _, f := range n.fields {
		if contains(words, f.key.text) && f.key.kind == kindString {
			continue
		}
		hint := ""
		if w, ok := suggest(f.key.text, words); ok {
			hint = fmt.Sprintf("did you mean %s?", w)
		} else if len(words) <= 32 {
			hint = "known keys: " + strings.Join(words, ", ")
		}
		d.fault(f.key, hint, "unknown key %q in %s", f.key.text, where)
	}
}

func contains(words []string, w string) bool {
	for i := range words {
		if words[i] == w {
			return true
		}
	}
	return false
}
