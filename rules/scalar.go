package rules

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/stint-io/stint/internal/document"
	"github.com/stint-io/stint/limit"
)

// file is a limits file, read. Its readers return false after recording a fault.
type file struct{ *document.Document }

// str reads text; a number or a truth value stands for its text as written.
func (d *file) str(n *document.Node, what string) (string, bool) {
	if n.Kind == document.Map || n.Kind == document.List || n.Kind == document.Null {
		d.Wants(n, what, "")
		return "", false
	}
	return n.Text, true
}

// choice reads one of several words into to, whose values are their indices. It leaves to as
// it is where the value is not written, or is none of them.
func choice[T ~uint8](d *file, n *document.Node, to *T, words ...string) {
	if n == nil {
		return
	}
	if hint := foreignWord(n.Text, words); n.Kind == document.Text && !contains(words, n.Text) && hint != "" {
		d.Wants(n, "one of "+strings.Join(words, ", "), hint)
		return
	}
	if i, ok := d.Word(n, words...); ok {
		*to = T(i)
	}
}

// either reads one of two words into to: the second means true. It leaves to as it is where
// the value is not written, or is neither.
func (d *file) either(n *document.Node, to *bool, no, yes string) {
	i := uint8(0)
	if *to {
		i = 1
	}
	choice(d, n, &i, no, yes)
	*to = i == 1
}

// wordOf returns the word of a value of an enumeration.
func wordOf[T ~uint8](words []string, value T) string {
	if int(value) < len(words) {
		return words[value]
	}
	return "unknown"
}

func (d *file) boolean(n *document.Node) (value, ok bool) {
	if n.Kind != document.Bool {
		d.Wants(n, "true or false", truthHint(n))
		return false, false
	}
	return n.Text == "true", true
}

// integer reads a whole number. It refuses a leading zero, on which the versions of YAML
// disagree: 010 is ten or eight.
func (d *file) integer(n *document.Node, low, high int64) (int64, bool) {
	if digits := strings.TrimLeft(n.Text, "+-"); n.Kind == document.Int && len(digits) > 1 && digits[0] == '0' && digits[1] >= '0' && digits[1] <= '9' {
		d.Fault(n, "leave out the zero in front", "%s is eight-based to some and ten-based to others", n.Text)
		return 0, false
	}
	return d.wholeNumber(n, low, high)
}

// wholeNumber is integer, with a zero in front for base eight as Envoy's service
// has it.
func (d *file) wholeNumber(n *document.Node, low, high int64) (int64, bool) {
	what := fmt.Sprintf("a whole number from %d to %d", low, high)
	if n.Kind != document.Int {
		d.Wants(n, what, numberHint(n))
		return 0, false
	}
	v, err := strconv.ParseInt(n.Text, 0, 64)
	if err != nil {
		v, err = strconv.ParseInt(strings.ReplaceAll(n.Text, "_", ""), 10, 64)
	}
	if err != nil || v < low || v > high {
		d.Wants(n, what, "")
		return 0, false
	}
	return v, true
}

// percent reads "80%" or "0.5%" as hundredths of a percent, 0 to 10000.
func (d *file) percent(n *document.Node) (int, bool) {
	digits, ok := strings.CutSuffix(n.Text, "%")
	whole, frac, dotted := strings.Cut(strings.TrimSpace(digits), ".")
	if ok && n.Kind == document.Text && len(frac) <= 2 && len(whole) <= 3 && whole != "" && (frac != "") == dotted {
		v, err := strconv.ParseUint(whole+frac+"00"[len(frac):], 10, 32)
		if err == nil && v <= 10000 {
			return int(v), true
		}
	}
	d.Wants(n, "a percentage from 0% to 100%", percentHint(n, 0))
	return 0, false
}

const durationHint = "write it as 30s, 15m, 2h or 1d"

// duration reads a positive duration in the units of a rate's period.
func (d *file) duration(n *document.Node) (time.Duration, bool) {
	if n.Kind != document.Text || strings.Contains(n.Text, "/") {
		d.Wants(n, "a duration", durationHint)
		return 0, false
	}
	r, err := limit.ParseRate("1/" + n.Text)
	if err != nil {
		d.Wants(n, "a positive duration", durationHint)
		return 0, false
	}
	return r.Period, true
}

func (d *file) rate(n *document.Node) (limit.Rate, bool) {
	if n.Kind != document.Text {
		if n.Kind == document.Int {
			d.Wants(n, "a rate with its period", fmt.Sprintf("did you mean %s/s?", n.Text))
		} else {
			hint := rateForms
			if n.Kind == document.List {
				hint = "several rates at once are horizons: [{rate: 10/s}, {rate: 100/minute}]"
			} else if stated := foreignRate(n, 0); stated != "" {
				hint = "write " + stated
			}
			d.Wants(n, "a rate", hint)
		}
		return limit.Rate{}, false
	}
	r, err := limit.ParseRate(n.Text)
	if err != nil {
		d.Fault(n, rateHint(n.Text), "%s", strings.TrimSuffix(strings.ReplaceAll(err.Error(), "limit: ", ""), ", write it as 100/s or 5/minute"))
		return limit.Rate{}, false
	}
	return r, true
}

// plainValue converts a value that stint only passes on to plain Go values.
func plainValue(n *document.Node) any {
	switch n.Kind {
	case document.Text:
		return n.Text
	case document.Int:
		if v, err := strconv.ParseInt(n.Text, 0, 64); err == nil {
			return v
		}
		return n.Text
	case document.Float:
		if v, err := strconv.ParseFloat(n.Text, 64); err == nil && !math.IsNaN(v) && !math.IsInf(v, 0) {
			return v
		}
		return n.Text
	case document.Bool:
		return n.Text == "true"
	case document.Map:
		m := make(map[string]any, len(n.Fields))
		for _, f := range n.Fields {
			m[f.Key.Text] = plainValue(f.Value)
		}
		return m
	case document.List:
		list := make([]any, len(n.Items))
		for i, item := range n.Items {
			list[i] = plainValue(item)
		}
		return list
	}
	return nil
}

// section checks the keys of a map. It reports false after recording that n is no map.
func (d *file) section(n *document.Node, where, what string, keys []string) bool {
	if n.Kind != document.Map {
		d.Wants(n, what, "")
		return false
	}
	d.known(n, where, keys)
	return true
}

// known reports keys of n that are not among words.
func (d *file) known(n *document.Node, where string, words []string) {
	for _, f := range n.Fields {
		if contains(words, f.Key.Text) && f.Key.Kind == document.Text {
			continue
		}
		hint := foreignHint(n, f.Key, f.Value, words)
		if hint == "" {
			hint = document.Meant(f.Key.Text, words)
		}
		if hint == "" {
			hint = "known keys: " + strings.Join(words, ", ")
		}
		if strings.Contains(hint, "mean store?") || strings.Contains(hint, "store: ") {
			d.Conceal(f.Value) // it may be a URL with a password
		}
		d.Fault(f.Key, hint, "unknown key %q in %s", f.Key.Text, where)
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
