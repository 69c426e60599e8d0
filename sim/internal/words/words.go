// Package words reads what the files of scenarios are made of: texts, numbers, durations and rates.
package words

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/stint-io/stint/internal/document"
	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/rules"
)

// MaxDuration keeps every time of a run, and of clocks set wrong, far from the ends of limit.Time.
const MaxDuration = 30 * 24 * time.Hour

// Bounds are those of a scenario's file.
var Bounds = document.Bounds{
	// Not larger: with many keys in one map, a file of this size costs well below a
	// second. Not smaller: a weight for each of ten thousand instances fits.
	Bytes:   64 << 10,
	Smaller: "write lists of instances as ranges, such as 0-99",

	Depth: 32, // Scenarios nest to 5 levels.

	// Something may be written for each of many instances.
	Keys: 10_000,

	// Not larger: a load or an event may cost much for each of its few values, and a
	// file without aliases holds thousands. Not smaller: a fleet's loads are alike.
	Anchors: 1000,
	Aliased: 4096,
}

// Read reads a scenario's text, from a file of that name.
func Read(name string, data []byte) Reader {
	return Reader{document.Read(name, data, Bounds, new(document.Faults))}
}

// Err returns all faults as a rules.Errors, or nil.
func (r *Reader) Err() error {
	var list rules.Errors
	for _, f := range r.Faults.Sorted() {
		list = append(list, rules.Error(f))
	}
	if list == nil {
		return nil
	}
	return list
}

// Reader is a scenario's file, read. Its readers record a fault and return the
// zero value where a value is not what it has to be. A nil node is a key that was left
// out, which is no fault.
type Reader struct{ *document.Document }

// Known reports the keys of a map that are not among words, and whether n is a map.
func (r *Reader) Known(n *document.Node, where string, words ...string) bool {
	if n.Kind != document.Map {
		r.Wants(n, "a map of "+strings.Join(words, ", "), "")
		return false
	}
	for _, f := range n.Fields {
		if !slices.Contains(words, f.Key.Text) {
			hint := cmp.Or(document.Meant(f.Key.Text, words), "known keys: "+strings.Join(words, ", "))
			r.Fault(f.Key, hint, "unknown key %q in %s", f.Key.Text, where)
		}
	}
	return true
}

// Text reads text in one line; otherwise is what it is without.
func (r *Reader) Text(n *document.Node, otherwise string) string {
	if n == nil {
		return otherwise
	}
	if n.Kind == document.Map || n.Kind == document.List || n.Kind == document.Null {
		r.Wants(n, "text", "")
		return otherwise
	}
	return strings.Join(strings.Fields(n.Text), " ")
}

// Truth reads true or false.
func (r *Reader) Truth(n *document.Node) bool {
	if n != nil && n.Kind != document.Bool {
		r.Wants(n, "true or false", "")
	}
	return n != nil && n.Text == "true"
}

// Whole reads a whole number.
func (r *Reader) Whole(n *document.Node, low, high int64) int64 {
	if n == nil {
		return 0
	}
	v, err := strconv.ParseInt(n.Text, 10, 64)
	if n.Kind != document.Int || err != nil || v < low || v > high {
		r.Wants(n, fmt.Sprintf("a whole number from %d to %d", low, high), "")
		return 0
	}
	return v
}

// Number reads a number that is not negative.
func (r *Reader) Number(n *document.Node) float64 {
	if n == nil {
		return 0
	}
	v, err := strconv.ParseFloat(n.Text, 64)
	if (n.Kind != document.Int && n.Kind != document.Float) || err != nil || !(v >= 0) || math.IsInf(v, 0) {
		r.Wants(n, "a number of at least 0", "")
		return 0
	}
	return v
}

// Percent reads a share of a whole.
func (r *Reader) Percent(n *document.Node) float64 {
	if n == nil {
		return 0
	}
	digits, ok := strings.CutSuffix(n.Text, "%")
	v, err := strconv.ParseFloat(strings.TrimSpace(digits), 64)
	if n.Kind == document.Text && ok && err == nil && v >= 0 && v <= 100 {
		return v / 100
	}
	hint := "write it as 1% or 0.5%"
	if n.Kind == document.Int || n.Kind == document.Float {
		switch {
		case v > 0 && v < 1:
			hint = fmt.Sprintf("did you mean %s%%?", strconv.FormatFloat(v*100, 'g', 4, 64))
		case v >= 0 && v <= 100:
			hint = fmt.Sprintf("did you mean %s%%?", n.Text)
		}
	}
	r.Wants(n, "a percentage from 0% to 100%", hint)
	return 0
}

// OneOf reads one of several words and returns its index.
func (r *Reader) OneOf(n *document.Node, words ...string) int {
	if n == nil {
		return 0
	}
	i, _ := r.Document.Word(n, words...)
	return i
}

// Span reads a length of time, or a time of the run.
func (r *Reader) Span(n *document.Node) time.Duration { return r.SpanFrom(n, 0) }

// SpanFrom reads a length of time that may be below 0, down to low.
func (r *Reader) SpanFrom(n *document.Node, low time.Duration) time.Duration {
	if n == nil {
		return 0
	}
	hint := "write it as 50ms, 30s, 15m, 2h or 1d"
	if n.Kind == document.Int && n.Text != "0" {
		hint = fmt.Sprintf("did you mean %ss?", n.Text)
	}
	d, err := ParseSpan(n)
	switch {
	case err != nil:
		r.Wants(n, "a duration", hint)
	case d < 0 && low == 0:
		r.Wants(n, "a duration that is not negative", "")
	case d > MaxDuration || d < low:
		r.Wants(n, fmt.Sprintf("a duration of at most %d days", MaxDuration/(24*time.Hour)), "")
	default:
		return d
	}
	return 0
}

// ParseSpan reads a duration: 50ms, 30s, 15m, 2h or 1d.
func ParseSpan(n *document.Node) (time.Duration, error) {
	if n.Kind == document.Int && n.Text == "0" {
		return 0, nil
	}
	if n.Kind != document.Text || strings.Contains(n.Text, "/") {
		return 0, fmt.Errorf("%v is no duration", n.Kind)
	}
	if d, err := time.ParseDuration(n.Text); err == nil {
		return d, nil
	}
	// The words that the period of a rate knows: 1d, 2 hours.
	rate, err := limit.ParseRate("1/" + n.Text)
	return rate.Period, err
}

// Rate reads a rate with its period.
func (r *Reader) Rate(n *document.Node) limit.Rate {
	if n == nil {
		return limit.Rate{}
	}
	if n.Kind != document.Text {
		hint := "write it as 1000/s, 5/minute or 20/10s"
		if n.Kind == document.Int {
			hint = fmt.Sprintf("did you mean %s/s?", n.Text)
		}
		r.Wants(n, "a rate with its period", hint)
		return limit.Rate{}
	}
	rate, err := limit.ParseRate(n.Text)
	if err != nil {
		r.Fault(n, "write it as 1000/s, 5/minute or 20/10s", "%s", strings.ReplaceAll(err.Error(), "limit: ", ""))
	}
	return rate
}

// Zero reports whether n was read as a duration, and is zero.
func Zero(n *document.Node) bool {
	d, err := ParseSpan(n)
	return err == nil && d == 0
}

// Unknown is the error for a name that is not among known: want says how many of
// these there may be.
func Unknown(what, name, want string, known []string) error {
	text := fmt.Sprintf("sim: there is no %s %q, want %s of %s", what, name, want, strings.Join(known, ", "))
	if hint := document.Meant(name, known); hint != "" {
		text += ": " + hint
	}
	return errors.New(text)
}
