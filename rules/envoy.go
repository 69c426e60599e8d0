package rules

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/stint-io/stint/limit"
)

// Envoy's rate limit service knows one set of keys, wherever they stand.
var envoyKeys = []string{
	"domain", "key", "value", "descriptors", "rate_limit", "unit", "requests_per_unit", "unlimited",
	"shadow_mode", "quota_mode", "name", "replaces", "detailed_metric", "value_to_metric",
	"share_threshold", "metadata",
}

// envoyPlaces are the keys that mean something in each place.
var envoyPlaces = map[string][]string{
	"the file":       {"domain", "descriptors"},
	"a descriptor":   {"key", "value", "descriptors", "rate_limit", "shadow_mode", "quota_mode", "detailed_metric", "value_to_metric", "share_threshold", "metadata"},
	"rate_limit":     {"unit", "requests_per_unit", "unlimited", "name", "replaces"},
	"replaces entry": {"name"},
}

var envoyUnits = []struct {
	name   string
	period time.Duration
}{
	{"second", time.Second},
	{"minute", time.Minute},
	{"hour", time.Hour},
	{"day", 24 * time.Hour},
	{"week", 7 * 24 * time.Hour},
	{"month", 30 * 24 * time.Hour},
	{"year", 365 * 24 * time.Hour},
}

func isEnvoy(root *node) bool {
	return root.kind == kindMap && (root.get("domain") != nil || root.get("descriptors") != nil && root.get("limits") == nil)
}

// envoy compiles a document in the format of Envoy's rate limit service. The
// messages of its faults are those of that service, where it has one.
func (b *builder) envoy(d *document) {
	before := len(d.faults.list) + d.faults.more
	b.envoyKeys(d, d.root, "the file")
	if len(d.faults.list)+d.faults.more > before {
		return
	}
	domain := ""
	if n := d.root.get("domain"); n != nil {
		domain = n.text
	}
	if domain == "" {
		d.fault(d.root, "name the domain that Envoy sends", "config file cannot have empty domain")
		return
	}
	if b.set.domains[domain] != nil {
		d.fault(d.root.get("domain"), "put all descriptors of a domain into one file", "duplicate domain '%s' in config file", domain)
		return
	}
	root := newDescriptors()
	b.set.domains[domain] = root
	b.descriptors(d, envoyPath{domain: domain, shown: domain}, root, d.root.get("descriptors"))
}

// envoyKeys checks the keys of a map and all below it.
func (b *builder) envoyKeys(d *document, n *node, where string) {
	for _, f := range n.fields {
		name := f.key.text
		if f.key.kind != kindString {
			d.fault(f.key, "", "config error, key is not of type string: %s", name)
			continue
		}
		if !contains(envoyKeys, name) {
			hint := ""
			if w, ok := suggest(name, envoyKeys); ok {
				hint = fmt.Sprintf("did you mean %s?", w)
			} else if contains(rootKeys, name) {
				hint = "a file with domain: is in Envoy's format; put " + name + " into another file"
			}
			d.fault(f.key, hint, "config error, unknown key '%s'", name)
			continue
		}
		if !contains(envoyPlaces[where], name) {
			b.warn(d, f.key, "", "%s means nothing in %s", name, where)
			continue
		}
		b.envoyValue(d, f)
	}
}

func (b *builder) envoyValue(d *document, f field) {
	name, n := f.key.text, f.value
	if name == "metadata" || n.kind == kindNull {
		return
	}
	below := map[string]string{"descriptors": "a descriptor", "rate_limit": "rate_limit", "replaces": "replaces entry"}[name]
	switch {
	case n.kind == kindList && (name == "descriptors" || name == "replaces"):
		for _, item := range n.items {
			if item.kind != kindMap {
				d.fault(item, "", "config error, yaml file contains list of type other than map: %s", item.text)
				continue
			}
			b.envoyKeys(d, item, below)
		}
	case n.kind == kindMap && name == "rate_limit":
		b.envoyKeys(d, n, below)
	case n.kind == kindFloat:
		d.fault(n, "quote it if it is text", "error checking config: %s is %q, want text, a whole number, true or false", name, n.text)
	case n.kind == kindList, n.kind == kindMap, below != "":
		d.fault(n, "", "error loading config file: %s is %v", name, n.kind)
	}
}

// envoyPath says where in the tree a rule is.
type envoyPath struct {
	domain string
	shown  string   // domain.key_value.key_value
	id     string   // the same, without two paths being alike
	keys   []string // of the entries
	shares []string // per entry, the pattern that stands for its values, or ""
}

func (b *builder) descriptors(d *document, path envoyPath, into *descriptors, list *node) {
	if list == nil {
		return
	}
	for _, n := range list.items {
		if b.full {
			return
		}
		b.descriptor(d, path, into, n)
	}
}

func text(n *node) string {
	if n == nil || n.kind == kindNull {
		return ""
	}
	return n.text
}

func (b *builder) descriptor(d *document, path envoyPath, into *descriptors, n *node) {
	key, value := text(n.get("key")), text(n.get("value"))
	if key == "" {
		d.fault(n, "", "descriptor has empty key")
		return
	}
	composite := key
	if value != "" {
		composite += "_" + value
	}
	rule := &descriptor{pattern: newPattern("", composite), key: key, value: newPattern("", value)}
	next := path
	next.shown += "." + composite
	next.id += fmt.Sprintf(" %q=%q", key, value)
	next.keys = append(path.keys[:len(path.keys):len(path.keys)], key)
	share := ""
	if d.flag(n, "share_threshold") {
		if !strings.Contains(value, "*") {
			d.fault(n.get("share_threshold"), "", "share_threshold can only be used with wildcard values (containing '*'), but found key '%s'", composite)
		}
		share = value
	}
	next.shares = append(path.shares[:len(path.shares):len(path.shares)], share)
	if !into.add(rule, value != "") {
		d.fault(n.get("key"), "", "duplicate descriptor composite key '%s'", next.shown)
		return
	}
	d.flag(n, "detailed_metric")
	d.flag(n, "value_to_metric")
	below := n.get("descriptors")
	hasBelow := below != nil && len(below.items) > 0
	if limits := n.get("rate_limit"); limits != nil && limits.kind == kindMap || !hasBelow {
		rule.limit = b.envoyLimit(d, next, n, limits)
	}
	if hasBelow {
		rule.below = newDescriptors()
		b.descriptors(d, next, rule.below, below)
	}
}

func (b *builder) envoyLimit(d *document, path envoyPath, n, limits *node) *Limit {
	l := &Limit{
		Name: printable(path.shown), Domain: path.domain, Envoy: true, Key: path.keys, share: path.shares,
		Status: 429, EnforcePermyriad: 10000, Shadow: d.flag(n, "shadow_mode"), QuotaMode: d.flag(n, "quota_mode"),
		Condition: "domain=" + quoteIfOdd(path.domain) + " descriptor" + path.id, ipv6: 128,
	}
	if m := n.get("metadata"); m != nil && m.kind == kindMap {
		l.Metadata, _ = plainValue(m).(map[string]any)
	}
	policy := limit.Policy{Algorithm: limit.FixedWindow, Align: limit.AlignEpoch, CountRefused: true}
	if limits == nil || limits.kind != kindMap {
		l.Whitelist = true
		if limits != nil {
			b.warn(d, limits, "leave it out if that is meant", "an empty rate_limit limits nothing")
		}
		policy = limit.Policy{Algorithm: limit.FixedWindow, Unlimited: true}
	} else {
		d.envoyAmount(limits, &policy)
		if n := limits.get("requests_per_unit"); !policy.Unlimited && (n == nil || n.kind == kindNull) {
			b.warn(d, limits, "write requests_per_unit: 0 if that is meant", "a rate_limit without requests_per_unit refuses everything")
		}
		l.Alias = text(limits.get("name"))
		if replaces := limits.get("replaces"); replaces != nil {
			for _, r := range replaces.items {
				name := text(r.get("name"))
				switch name {
				case "":
					d.fault(r, "", "should not have an empty replaces entry")
				case l.Alias:
					d.fault(r, "", "replaces should not contain name of same descriptor")
				}
				l.Replaces = append(l.Replaces, name)
			}
		}
	}
	l.Base = Variant{ID: "!envoy " + strconv.Quote(path.domain) + path.id, Policy: policy}
	b.add(d, n, l)
	return l
}

func (d *document) envoyAmount(n *node, p *limit.Policy) {
	unit := text(n.get("unit"))
	if n := n.get("requests_per_unit"); n != nil && n.kind != kindNull {
		p.Rate.Count, _ = d.wholeNumber(n, 0, math.MaxUint32)
	}
	if d.flag(n, "unlimited") {
		*p = limit.Policy{Algorithm: limit.FixedWindow, Unlimited: true}
		if unit != "" {
			d.fault(n.get("unit"), "", "should not specify rate limit unit when unlimited")
		}
		return
	}
	var names []string
	for _, u := range envoyUnits {
		if strings.EqualFold(u.name, unit) {
			p.Rate.Period = u.period
			return
		}
		names = append(names, u.name)
	}
	at, hint := n.get("unit"), "want one of "+strings.Join(names, ", ")
	if at == nil {
		at = n
	}
	if w, ok := suggest(strings.ToLower(unit), names); ok {
		hint = fmt.Sprintf("did you mean %s?", w)
	}
	d.fault(at, hint, "invalid rate limit unit '%s'", unit)
}

// flag reads a truth value as Envoy's service does: YAML 1.1's yes and on are
// true as well.
func (d *document) flag(n *node, key string) bool {
	v := n.get(key)
	if v == nil || v.kind == kindNull {
		return false
	}
	if v.kind == kindString && v.style == 0 {
		switch strings.ToLower(v.text) {
		case "yes", "on", "y":
			return true
		case "no", "off", "n":
			return false
		}
	}
	value, _ := d.boolean(v)
	return value
}

// printable replaces what header fields and metric labels cannot hold.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' || r == '"' || r == '\\' {
			return '_'
		}
		return r
	}, s)
}
