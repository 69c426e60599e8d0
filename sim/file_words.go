package sim

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/stint-io/stint/limit"
)

// The readers below record a fault and return the zero value where a value is not
// what it has to be. A nil node is a key that was left out, which is no fault.

func (r *fileReader) wants(n *fileNode, what, hint string) {
	if n.kind == fileMap || n.kind == fileList || n.kind == fileNull {
		r.fault(n, hint, "want %s, this is %v", what, n.kind)
		return
	}
	r.fault(n, hint, "want %s, this is %q", what, n.text)
}

// known reports the keys of a map that are not among words, and whether n is a map.
func (r *fileReader) known(n *fileNode, where string, words ...string) bool {
	if n.kind != fileMap {
		r.wants(n, "a map of "+strings.Join(words, ", "), "")
		return false
	}
	for _, f := range n.fields {
		if !contains(words, f.key.text) {
			hint := "known keys: " + strings.Join(words, ", ")
			if w := nearest(f.key.text, words); w != "" {
				hint = fmt.Sprintf("did you mean %s?", w)
			}
			r.fault(f.key, hint, "unknown key %q in %s", f.key.text, where)
		}
	}
	return true
}

func contains(words []string, word string) bool {
	for _, w := range words {
		if w == word {
			return true
		}
	}
	return false
}

func (r *fileReader) text(n *fileNode, otherwise string) string {
	if n == nil {
		return otherwise
	}
	if n.kind == fileMap || n.kind == fileList || n.kind == fileNull {
		r.wants(n, "text", "")
		return otherwise
	}
	return strings.Join(strings.Fields(n.text), " ")
}

func (r *fileReader) truth(n *fileNode) bool {
	if n != nil && n.kind != fileBool {
		r.wants(n, "true or false", "")
	}
	return n != nil && n.text == "true"
}

// whole reads a whole number.
func (r *fileReader) whole(n *fileNode, low, high int64) int64 {
	if n == nil {
		return 0
	}
	v, err := strconv.ParseInt(n.text, 10, 64)
	if n.kind != fileInt || err != nil || v < low || v > high {
		r.wants(n, fmt.Sprintf("a whole number from %d to %d", low, high), "")
		return 0
	}
	return v
}

// number reads a number that is not negative.
func (r *fileReader) number(n *fileNode) float64 {
	if n == nil {
		return 0
	}
	v, err := strconv.ParseFloat(n.text, 64)
	if (n.kind != fileInt && n.kind != fileFloat) || err != nil || !(v >= 0) || math.IsInf(v, 0) {
		r.wants(n, "a number of at least 0", "")
		return 0
	}
	return v
}

// percent reads a share of a whole.
func (r *fileReader) percent(n *fileNode) float64 {
	if n == nil {
		return 0
	}
	digits, ok := strings.CutSuffix(n.text, "%")
	v, err := strconv.ParseFloat(strings.TrimSpace(digits), 64)
	if n.kind == fileText && ok && err == nil && v >= 0 && v <= 100 {
		return v / 100
	}
	hint := "write it as 1% or 0.5%"
	if n.kind == fileInt || n.kind == fileFloat {
		switch {
		case v > 0 && v < 1:
			hint = fmt.Sprintf("did you mean %s%%?", strconv.FormatFloat(v*100, 'g', 4, 64))
		case v >= 0 && v <= 100:
			hint = fmt.Sprintf("did you mean %s%%?", n.text)
		}
	}
	r.wants(n, "a percentage from 0% to 100%", hint)
	return 0
}

// word reads one of several words and returns its index.
func (r *fileReader) word(n *fileNode, words ...string) int {
	if n == nil {
		return 0
	}
	for i, w := range words {
		if n.kind == fileText && n.text == w {
			return i
		}
	}
	hint := ""
	if w := nearest(n.text, words); w != "" && n.kind == fileText {
		hint = fmt.Sprintf("did you mean %s?", w)
	}
	r.wants(n, "one of "+strings.Join(words, ", "), hint)
	return 0
}

// span reads a length of time, or a time of the run.
func (r *fileReader) span(n *fileNode) time.Duration { return r.spanFrom(n, 0) }

func (r *fileReader) spanFrom(n *fileNode, low time.Duration) time.Duration {
	if n == nil {
		return 0
	}
	hint := "write it as 50ms, 30s, 15m, 2h or 1d"
	if n.kind == fileInt && n.text != "0" {
		hint = fmt.Sprintf("did you mean %ss?", n.text)
	}
	d, err := parseSpan(n)
	switch {
	case err != nil:
		r.wants(n, "a duration", hint)
	case d < low:
		r.wants(n, "a duration that is not negative", "")
	case d > maxDuration || d < -maxDuration:
		r.wants(n, fmt.Sprintf("a duration of at most %d days", maxDuration/(24*time.Hour)), "")
	default:
		return d
	}
	return 0
}

func parseSpan(n *fileNode) (time.Duration, error) {
	if n.kind == fileInt && n.text == "0" {
		return 0, nil
	}
	if n.kind != fileText || strings.Contains(n.text, "/") {
		return 0, fmt.Errorf("%v is no duration", n.kind)
	}
	if d, err := time.ParseDuration(n.text); err == nil {
		return d, nil
	}
	// The words that the period of a rate knows: 1d, 2 hours.
	rate, err := limit.ParseRate("1/" + n.text)
	return rate.Period, err
}

// rate reads a rate with its period.
func (r *fileReader) rate(n *fileNode) limit.Rate {
	if n == nil {
		return limit.Rate{}
	}
	if n.kind != fileText {
		hint := "write it as 1000/s, 5/minute or 20/10s"
		if n.kind == fileInt {
			hint = fmt.Sprintf("did you mean %s/s?", n.text)
		}
		r.wants(n, "a rate with its period", hint)
		return limit.Rate{}
	}
	rate, err := limit.ParseRate(n.text)
	if err != nil {
		r.fault(n, "write it as 1000/s, 5/minute or 20/10s", "%s", strings.ReplaceAll(err.Error(), "limit: ", ""))
	}
	return rate
}

// tokens reads a rate as tokens per second.
func (r *fileReader) tokens(n *fileNode) float64 { return Limit{Rate: r.rate(n)}.PerSecond() }

// list returns the items of a list, or n alone.
func (n *fileNode) list() []*fileNode {
	switch {
	case n == nil:
		return nil
	case n.kind == fileList:
		return n.items
	}
	return []*fileNode{n}
}

// nodes reads a set of processes: all, an instance, a range such as 0-4, the
// coordinator where it may be one, or a list of these.
func (p *scenarioParser) nodes(n *fileNode, coordinator bool) []Address {
	var set []Address
	seen := make(map[Address]*fileNode)
	for _, item := range n.list() {
		low, high, ok := p.nodeRange(item, coordinator)
		for a := low; ok && a <= high; a++ {
			if seen[a] != nil {
				p.fault(item, "", "%s is named twice", nodeName(a))
				break
			}
			seen[a] = item
			set = append(set, a)
		}
	}
	if n != nil && n.kind == fileList && len(n.items) == 0 {
		p.fault(n, "", "the list is empty, want some instances")
	}
	return set
}

func nodeName(a Address) string {
	if a == Coordinator {
		return "the coordinator"
	}
	return fmt.Sprintf("instance %d", a)
}

func (p *scenarioParser) nodeRange(n *fileNode, coordinator bool) (low, high Address, ok bool) {
	last := p.scenario.Instances - 1
	what := "all, an instance such as 0, or a range such as 0-4"
	words := []string{"all"}
	if coordinator {
		what, words = "coordinator, "+what, []string{"all", "coordinator"}
	}
	switch {
	case n.kind == fileText && n.text == "all":
		return 0, Address(last), true
	case n.kind == fileText && n.text == "coordinator" && coordinator:
		return Coordinator, Coordinator, true
	case n.kind == fileText || n.kind == fileInt:
		first, second, ranged := strings.Cut(n.text, "-")
		a, err := strconv.Atoi(strings.TrimSpace(first))
		b := a
		if ranged && err == nil {
			b, err = strconv.Atoi(strings.TrimSpace(second))
		}
		if err != nil {
			break
		}
		if a < 0 || b > last || a > b {
			// Without a number of instances that is known, that is the fault.
			if p.scenario.Instances > 0 {
				p.wants(n, fmt.Sprintf("instances from 0 to %d", last), "")
			}
			return 0, 0, false
		}
		return Address(a), Address(b), true
	}
	hint := ""
	if w := nearest(n.text, words); w != "" && n.kind == fileText {
		hint = fmt.Sprintf("did you mean %s?", w)
	}
	p.wants(n, what, hint)
	return 0, 0, false
}

// instances reads a set of instances.
func (p *scenarioParser) instances(n *fileNode) []int {
	var out []int
	for _, a := range p.nodes(n, false) {
		out = append(out, int(a))
	}
	return out
}

// perInstance calls set with what each instance has: the values of a list, one for
// each, or of a map from sets of instances to values.
func (p *scenarioParser) perInstance(n *fileNode, coordinator bool, set func(a Address, value *fileNode)) {
	switch n.kind {
	case fileList:
		if len(n.items) != p.scenario.Instances && p.scenario.Instances > 0 {
			p.fault(n, "or write a map, such as {0-4: VALUE}", "want one entry for each of %d instances, this has %d", p.scenario.Instances, len(n.items))
			return
		}
		for i, item := range n.items {
			set(Address(i), item)
		}
	case fileMap:
		seen := make(map[Address]bool)
		for _, f := range n.fields {
			low, high, ok := p.nodeRange(f.key, coordinator)
			for a := low; ok && a <= high; a++ {
				if seen[a] {
					p.fault(f.key, "", "%s is named twice", nodeName(a))
					break
				}
				seen[a] = true
				set(a, f.value)
			}
		}
	default:
		p.wants(n, "a list with one entry for each instance, or a map such as {0-4: VALUE}", "")
	}
}
