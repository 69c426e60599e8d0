package sim

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/stint-io/stint/internal/share"
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
	names := []string{ownName}
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
		if seen = append(seen, name); contains(seen[:len(seen)-1], name) {
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
		k := slices.IndexFunc(Baselines(), func(b System) bool { return b.Name() == name })
		if k < 0 {
			text := fmt.Sprintf("sim: there is no system %q, want some of %s", name, strings.Join(known, ", "))
			if w := nearest(name, known); w != "" {
				text += fmt.Sprintf(": did you mean %s?", w)
			}
			faults = append(faults, errors.New(text))
			continue
		}
		systems = append(systems, Baselines()[k])
	}
	return systems, errors.Join(faults...)
}

// ownKeys are the options of stint's own way to share.
var ownKeys = []string{"allocation", "lease", "refresh", "expiry", "start", "estimator", "forgetful"}

// comparison reads which systems to compare and what to show of them.
func (p *scenarioParser) comparison(root *fileNode) {
	if n := root.get("stint"); n != nil && p.known(n, "stint", ownKeys...) {
		p.options(n, &p.own)
	}
	if n := root.get("systems"); n != nil {
		p.Systems = nil
		for _, item := range n.list() {
			p.system(item)
		}
		if len(n.list()) == 0 {
			p.wants(n, "at least one system", "known systems: "+strings.Join(SystemNames(), ", "))
		}
	}
	for _, item := range root.get("show").list() {
		if name, err := FigureNamed(p.text(item, "")); err == nil {
			p.Show = append(p.Show, name)
		} else {
			p.fault(item, "", "%s", strings.TrimPrefix(err.Error(), "sim: "))
		}
	}
}

// system reads the name of a system, or a variant of stint: a name with options that
// differ from those under stint.
func (p *scenarioParser) system(n *fileNode) {
	known := SystemNames()
	if n.kind != fileMap {
		name := systemNamed(n.text)
		if !contains(known, name) || n.kind != fileText {
			hint := "or a variant of stint, such as {name: half, allocation: equal}"
			if w := nearest(n.text, known); w != "" {
				hint = fmt.Sprintf("did you mean %s?", w)
			}
			p.wants(n, "one of "+strings.Join(known, ", "), hint)
			return
		}
		p.addSystem(n, name)
		return
	}
	if !p.known(n, "a variant of stint", append([]string{"name"}, ownKeys...)...) {
		return
	}
	name := n.get("name")
	switch {
	case name == nil:
		p.fault(n, "add name: a-word", "the variant has no name")
		return
	case name.kind != fileText || name.text == "" || len(name.text) > 40 || strings.Trim(name.text, "abcdefghijklmnopqrstuvwxyz0123456789-_.") != "":
		p.wants(name, "a name of at most 40 small letters, digits, - _ and .", "")
		return
	case contains(known, systemNamed(name.text)):
		p.fault(name, "choose another", "%q is the name of a system", name.text)
		return
	}
	own := p.own
	p.options(n, &own)
	p.variants[name.text] = own
	p.addSystem(name, name.text)
}

func (p *scenarioParser) addSystem(n *fileNode, name string) {
	if contains(p.Systems, name) {
		p.fault(n, "", "the system %q is named twice", name)
		return
	}
	p.Systems = append(p.Systems, name)
}

// options reads the options of stint. Those left out stay.
func (p *scenarioParser) options(n *fileNode, own *Ours) {
	if v := n.get("allocation"); v != nil {
		var words []string
		for k := share.MaxMin; k <= share.Busy; k++ {
			words = append(words, k.String())
		}
		own.Allocation = share.Allocation(p.word(v, words...))
	}
	if v := n.get("lease"); v != nil {
		own.Lease = p.span(v)
	}
	if v := n.get("refresh"); v != nil {
		own.Refresh = p.span(v)
	}
	for _, key := range []string{"lease", "refresh"} {
		if v := n.get(key); v != nil && parsedZero(v) {
			p.wants(v, "a duration above 0", "leave it out for the default")
		}
	}
	lease, refresh := own.Lease, own.Refresh
	if lease == 0 {
		lease = share.DefaultLease
	}
	if refresh == 0 {
		refresh = share.DefaultRefresh
	}
	if refresh >= lease {
		at := n.get("refresh")
		if at == nil {
			at = n.get("lease")
		}
		if at != nil {
			p.fault(at, "", "refresh %v is not below lease %v: leases would end before they are renewed", refresh, lease)
		}
	}
	if v := n.get("expiry"); v != nil {
		own.Options.Expiry = share.ExpiryMode(p.word(v, "pessimistic", "optimistic", "safe"))
	}
	if v := n.get("start"); v != nil {
		own.Options.Start = 0
		if v.kind != fileText || v.text != "strict" {
			own.Options.Start = termsOf(Limit{Rate: p.rate(v)}, 0).Rate
		}
	}
	if v := n.get("estimator"); v != nil {
		own.Options.Estimator = []share.Estimator{share.Attempted, share.Utilisation}[p.word(v, "attempted", "utilisation")]
	}
	if v := n.get("forgetful"); v != nil {
		own.Forgetful = p.truth(v)
	}
}
