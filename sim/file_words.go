package sim

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/stint-io/stint/internal/document"
	"github.com/stint-io/stint/limit"
)

// fileReader is a scenario's file, read. Its readers record a fault and return the
// zero value where a value is not what it has to be. A nil node is a key that was left
// out, which is no fault.
type fileReader struct{ *document.Document }

// known reports the keys of a map that are not among words, and whether n is a map.
func (r *fileReader) known(n *document.Node, where string, words ...string) bool {
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

func (r *fileReader) text(n *document.Node, otherwise string) string {
	if n == nil {
		return otherwise
	}
	if n.Kind == document.Map || n.Kind == document.List || n.Kind == document.Null {
		r.Wants(n, "text", "")
		return otherwise
	}
	return strings.Join(strings.Fields(n.Text), " ")
}

func (r *fileReader) truth(n *document.Node) bool {
	if n != nil && n.Kind != document.Bool {
		r.Wants(n, "true or false", "")
	}
	return n != nil && n.Text == "true"
}

// whole reads a whole number.
func (r *fileReader) whole(n *document.Node, low, high int64) int64 {
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

// number reads a number that is not negative.
func (r *fileReader) number(n *document.Node) float64 {
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

// percent reads a share of a whole.
func (r *fileReader) percent(n *document.Node) float64 {
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

// word reads one of several words and returns its index.
func (r *fileReader) word(n *document.Node, words ...string) int {
	if n == nil {
		return 0
	}
	i, _ := r.Word(n, words...)
	return i
}

// span reads a length of time, or a time of the run.
func (r *fileReader) span(n *document.Node) time.Duration { return r.spanFrom(n, 0) }

func (r *fileReader) spanFrom(n *document.Node, low time.Duration) time.Duration {
	if n == nil {
		return 0
	}
	hint := "write it as 50ms, 30s, 15m, 2h or 1d"
	if n.Kind == document.Int && n.Text != "0" {
		hint = fmt.Sprintf("did you mean %ss?", n.Text)
	}
	d, err := parseSpan(n)
	switch {
	case err != nil:
		r.Wants(n, "a duration", hint)
	case d < 0 && low == 0:
		r.Wants(n, "a duration that is not negative", "")
	case d > maxDuration || d < low:
		r.Wants(n, fmt.Sprintf("a duration of at most %d days", maxDuration/(24*time.Hour)), "")
	default:
		return d
	}
	return 0
}

func parseSpan(n *document.Node) (time.Duration, error) {
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

// rate reads a rate with its period.
func (r *fileReader) rate(n *document.Node) limit.Rate {
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

// tokens reads a rate as tokens per second.
func (r *fileReader) tokens(n *document.Node) float64 { return Limit{Rate: r.rate(n)}.PerSecond() }

// nodes reads a set of processes: all, an instance, a range such as 0-4, the
// coordinator where it may be one, or a list of these.
func (p *scenarioParser) nodes(n *document.Node, coordinator bool) []Address {
	var set []Address
	seen := make(map[Address]*document.Node)
	for _, item := range n.Each() {
		low, high, ok := p.nodeRange(item, coordinator)
		if !ok || !p.name(item, int(high-low)+1) {
			continue
		}
		for a := low; a <= high; a++ {
			if seen[a] != nil {
				p.Fault(item, "", "%s is named twice", nodeName(a))
				break
			}
			seen[a] = item
			set = append(set, a)
		}
	}
	if n != nil && n.Kind == document.List && len(n.Items) == 0 {
		p.Fault(n, "", "the list is empty, want some instances")
	}
	return set
}

// maxNamed is how many processes a file may name, one that is named several times
// counted each time, and each load that names none for all. Not fewer: see [MaxParts]. Not
// more: a few characters name a hundred thousand.
const maxNamed = MaxParts

// name reports whether the file may name count processes more.
func (p *scenarioParser) name(n *document.Node, count int) bool {
	if p.named > maxNamed {
		return false // it was said
	}
	if p.named += count; p.named > maxNamed {
		p.Fault(n, "use fewer loads or events, or fewer instances", "with this, loads and events name more than %d instances, all together", maxNamed)
		return false
	}
	return true
}

func nodeName(a Address) string {
	if a == Coordinator {
		return "the coordinator"
	}
	return fmt.Sprintf("instance %d", a)
}

func (p *scenarioParser) nodeRange(n *document.Node, coordinator bool) (low, high Address, ok bool) {
	last := p.scenario.Instances - 1
	what := "all, an instance such as 0, or a range such as 0-4"
	words := []string{"all"}
	if coordinator {
		what, words = "coordinator, "+what, []string{"all", "coordinator"}
	}
	switch {
	case n.Kind == document.Text && n.Text == "all":
		return 0, Address(last), true
	case n.Kind == document.Text && n.Text == "coordinator" && coordinator:
		return Coordinator, Coordinator, true
	case n.Kind == document.Text || n.Kind == document.Int:
		first, second, ranged := strings.Cut(n.Text, "-")
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
				p.Wants(n, fmt.Sprintf("instances from 0 to %d", last), "")
			}
			return 0, 0, false
		}
		return Address(a), Address(b), true
	}
	hint := ""
	if n.Kind == document.Text {
		hint = document.Meant(n.Text, words)
	}
	p.Wants(n, what, hint)
	return 0, 0, false
}

// instances reads a set of instances.
func (p *scenarioParser) instances(n *document.Node) []int {
	var out []int
	for _, a := range p.nodes(n, false) {
		out = append(out, int(a))
	}
	return out
}

// perInstance calls set with what each instance has: the values of a list, one for
// each, or of a map from sets of instances to values.
func (p *scenarioParser) perInstance(n *document.Node, coordinator bool, set func(a Address, value *document.Node)) {
	switch n.Kind {
	case document.List:
		if len(n.Items) != p.scenario.Instances && p.scenario.Instances > 0 {
			p.Fault(n, "or write a map, such as {0-4: VALUE}", "want one entry for each of %d instances, this has %d", p.scenario.Instances, len(n.Items))
			return
		}
		for i, item := range n.Items {
			set(Address(i), item)
		}
	case document.Map:
		seen := make(map[Address]bool)
		for _, f := range n.Fields {
			low, high, ok := p.nodeRange(f.Key, coordinator)
			for a := low; ok && a <= high; a++ {
				if seen[a] {
					p.Fault(f.Key, "", "%s is named twice", nodeName(a))
					break
				}
				seen[a] = true
				set(a, f.Value)
			}
		}
	default:
		p.Wants(n, "a list with one entry for each instance, or a map such as {0-4: VALUE}", "")
	}
}
