package sim

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/stint-io/stint/internal/document"
	"github.com/stint-io/stint/internal/fairshare"
	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/internal/lease/agent"
	"github.com/stint-io/stint/sim/internal/words"
)

// ownName is how files call stint's own way to share.
const ownName = "stint"

// systemNamed returns the full name of a system.
func systemNamed(name string) string {
	if name == "equal" {
		return EqualSplit{}.Name()
	}
	return name
}

// SystemNames returns the systems that every scenario may compare: stint, and our
// models of published systems.
func SystemNames() []string {
	names := []string{ownName, OneBucket{}.Name()}
	for _, b := range Baselines() {
		names = append(names, b.Name())
	}
	return names
}

// Choose returns the systems of the file, or those of the names given: of
// [SystemNames], or of variants that the file describes. The error says which name
// there is not.
func (f *File) Choose(names ...string) ([]System, error) {
	if len(names) == 0 {
		names = f.Systems
	}
	var systems []System
	var faults []error
	known := append(SystemNames(), slices.Sorted(maps.Keys(f.variants))...)
	var seen []string
	for _, name := range names {
		name = systemNamed(name)
		if seen = append(seen, name); slices.Contains(seen[:len(seen)-1], name) {
			faults = append(faults, fmt.Errorf("sim: the system %q is named twice", name))
			continue
		}
		own, ok := f.variants[name]
		if name == ownName {
			own, ok = f.own, true
		}
		if ok {
			own.Label = name
			systems = append(systems, &own)
			continue
		}
		if name == (OneBucket{}).Name() {
			systems = append(systems, OneBucket{})
			continue
		}
		k := slices.IndexFunc(Baselines(), func(b System) bool { return b.Name() == name })
		if k < 0 {
			faults = append(faults, words.Unknown("system", name, "some", known))
			continue
		}
		systems = append(systems, Baselines()[k])
	}
	return systems, errors.Join(faults...)
}

// ownKeys are the options of stint's own way to share.
var ownKeys = []string{
	"sharing", "allocation", "lease", "refresh", "expiry", "start", "estimator", "forgetful",
	"report", "window", "interval", "average", "ramp", "full", "draws", "pace",
}

// comparison reads which systems to compare and what to show of them.
func (p *scenarioParser) comparison(root *document.Node) {
	if n := root.Get("stint"); n != nil && p.Known(n, "stint", ownKeys...) {
		p.options(n, &p.own)
	}
	if n := root.Get("systems"); n != nil {
		p.Systems = nil
		for _, item := range n.Each() {
			p.system(item)
		}
		if len(n.Each()) == 0 {
			p.Wants(n, "at least one system", "known systems: "+strings.Join(SystemNames(), ", "))
		}
	}
	for _, item := range root.Get("show").Each() {
		if name, err := FigureNamed(p.Text(item, "")); err == nil {
			p.Show = append(p.Show, name)
		} else {
			p.Fault(item, "", "%s", strings.TrimPrefix(err.Error(), "sim: "))
		}
	}
}

// system reads the name of a system, or a variant of stint: a name with options that
// differ from those under stint.
func (p *scenarioParser) system(n *document.Node) {
	known := SystemNames()
	if n.Kind != document.Map {
		name := systemNamed(n.Text)
		if !slices.Contains(known, name) || n.Kind != document.Text {
			hint := cmp.Or(document.Meant(n.Text, known), "or a variant of stint, such as {name: half, allocation: equal}")
			p.Wants(n, "one of "+strings.Join(known, ", "), hint)
			return
		}
		p.addSystem(n, name)
		return
	}
	if !p.Known(n, "a variant of stint", append([]string{"name"}, ownKeys...)...) {
		return
	}
	name := n.Get("name")
	switch {
	case name == nil:
		p.Fault(n, "add name: a-word", "the variant has no name")
		return
	case name.Kind != document.Text || name.Text == "" || len(name.Text) > 40 || strings.Trim(name.Text, "abcdefghijklmnopqrstuvwxyz0123456789-_.") != "":
		p.Wants(name, "a name of at most 40 small letters, digits, - _ and .", "")
		return
	case slices.Contains(known, systemNamed(name.Text)):
		p.Fault(name, "choose another", "%q is the name of a system", name.Text)
		return
	}
	own := p.own
	p.options(n, &own)
	p.variants[name.Text] = own
	p.addSystem(name, name.Text)
}

func (p *scenarioParser) addSystem(n *document.Node, name string) {
	if slices.Contains(p.Systems, name) {
		p.Fault(n, "", "the system %q is named twice", name)
		return
	}
	p.Systems = append(p.Systems, name)
}

// options reads the options of stint. Those left out stay.
func (p *scenarioParser) options(n *document.Node, own *Ours) {
	if v := n.Get("allocation"); v != nil {
		var words []string
		for k := fairshare.MaxMin; k <= fairshare.None; k++ {
			words = append(words, k.String())
		}
		if own.Allocation = fairshare.Allocation(p.OneOf(v, append(words, "busy")...)); own.Allocation > fairshare.None {
			own.Allocation = fairshare.MaxMin // "busy" is another word for it
		}
	}
	if v := n.Get("lease"); v != nil {
		own.Lease = p.above(v)
	}
	if v := n.Get("refresh"); v != nil {
		own.Refresh = p.above(v)
	}
	length, refresh := cmp.Or(own.Lease, lease.DefaultLease), cmp.Or(own.Refresh, lease.DefaultRefresh)
	if at := cmp.Or(n.Get("refresh"), n.Get("lease")); at != nil && refresh >= length {
		p.Fault(at, "", "refresh %v is not below lease %v: leases would end before they are renewed", refresh, length)
	}
	if v := n.Get("expiry"); v != nil {
		own.Options.Expiry = agent.ExpiryMode(p.OneOf(v, "pessimistic", "optimistic", "safe"))
	}
	if v := n.Get("start"); v != nil {
		own.Options.Start = 0
		if v.Kind != document.Text || v.Text != "strict" {
			own.Options.Start = termsOf(Limit{Rate: p.Rate(v)}, 0).Rate
		}
	}
	if v := n.Get("estimator"); v != nil {
		own.Options.Estimator = []agent.Estimator{agent.Attempted, agent.Utilisation}[p.OneOf(v, "attempted", "utilisation")]
	}
	if v := n.Get("forgetful"); v != nil {
		own.Forgetful = p.Truth(v)
	}
	p.sharing(n, own)
}
