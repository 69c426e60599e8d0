package sim

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/stint-io/stint/internal/document"
)

// tokens reads a rate as tokens per second.
func (p *scenarioParser) tokens(n *document.Node) float64 { return Limit{Rate: p.Rate(n)}.PerSecond() }

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
