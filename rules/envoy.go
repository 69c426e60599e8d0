package rules

import (
	"cmp"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/stint-io/stint/internal/document"
	"github.com/stint-io/stint/limit"
)

// Envoy's rate limit service accepts the same keys at every level.
var envoyKeys = []string{
	"domain", "key", "value", "descriptors", "rate_limit", "unit", "requests_per_unit", "unlimited",
	"shadow_mode", "quota_mode", "name", "replaces", "detailed_metric", "value_to_metric",
	"share_threshold", "metadata",
}

// envoyKeysIn are the keys that have a meaning at each level.
var envoyKeysIn = map[string][]string{
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

func isEnvoy(root *document.Node) bool {
	return root.Kind == document.Map && (root.Get("domain") != nil || root.Get("descriptors") != nil && root.Get("limits") == nil)
}

// envoy compiles a document in the format of Envoy's rate limit service. The
// messages of its faults are those of that service, where it has one.
func (b *builder) envoy(d *file) {
	before := d.Faults.Count()
	b.envoyKeys(d, d.Root, "the file")
	if d.Faults.Count() > before {
		return
	}
	domain := ""
	if n := d.Root.Get("domain"); n != nil {
		domain = n.Text
	}
	if domain == "" {
		d.Fault(d.Root, "name the domain that Envoy sends", "config file cannot have empty domain")
		return
	}
	root := b.set.domains[domain]
	if root != nil && !b.set.options.MergeDomains {
		d.Fault(d.Root.Get("domain"), "put all descriptors of a domain into one file, or have the files merged with --rls-merge-domains", "duplicate domain '%s' in config file", domain)
		return
	}
	if root == nil {
		root = newDescriptors()
		b.set.domains[domain] = root
	}
	b.descriptors(d, envoyPath{domain: domain, shown: domain}, root, d.Root.Get("descriptors"))
}

// envoyKeys checks the keys of a map and all below it.
func (b *builder) envoyKeys(d *file, n *document.Node, where string) {
	for _, f := range n.Fields {
		name := f.Key.Text
		if f.Key.Kind != document.Text {
			d.Fault(f.Key, "", "config error, key is not of type string: %s", name)
			continue
		}
		if !contains(envoyKeys, name) {
			hint := document.Meant(name, envoyKeys)
			if hint == "" && contains(rootKeys, name) {
				hint = "a file with domain: is in Envoy's format; put " + name + " into another file"
			}
			d.Fault(f.Key, hint, "config error, unknown key '%s'", name)
			continue
		}
		if !contains(envoyKeysIn[where], name) {
			b.warn(d, f.Key, "", "%s means nothing in %s", name, where)
			continue
		}
		b.envoyValue(d, f)
	}
}

func (b *builder) envoyValue(d *file, f document.Field) {
	name, n := f.Key.Text, f.Value
	if name == "metadata" || n.Kind == document.Null {
		return
	}
	below := map[string]string{"descriptors": "a descriptor", "rate_limit": "rate_limit", "replaces": "replaces entry"}[name]
	switch {
	case n.Kind == document.List && (name == "descriptors" || name == "replaces"):
		for _, item := range n.Items {
			if item.Kind != document.Map {
				d.Fault(item, "", "config error, yaml file contains list of type other than map: %s", item.Text)
				continue
			}
			b.envoyKeys(d, item, below)
		}
	case n.Kind == document.Map && name == "rate_limit":
		b.envoyKeys(d, n, below)
	case n.Kind == document.Float:
		d.Fault(n, "quote it if it is text", "error checking config: %s is %q, want text, a whole number, true or false", name, n.Text)
	case n.Kind == document.List, n.Kind == document.Map, below != "":
		d.Fault(n, "", "error loading config file: %s is %v", name, n.Kind)
	}
}

// envoyPath says where in the tree a rule is.
type envoyPath struct {
	domain string
	shown  string   // domain.key_value.key_value
	id     string   // the same, injective
	keys   []string // of the entries
	values []string // of the entries, as written
	shares []string // per entry, the pattern that stands for its values, or ""
	metric []bool   // per entry, whether its value is in the name of the rule's statistics
}

func (b *builder) descriptors(d *file, path envoyPath, into *descriptors, list *document.Node) {
	if list == nil {
		return
	}
	for _, n := range list.Items {
		if b.full {
			return
		}
		b.descriptor(d, path, into, n)
	}
}

func text(n *document.Node) string {
	if n == nil || n.Kind == document.Null {
		return ""
	}
	return n.Text
}

func (b *builder) descriptor(d *file, path envoyPath, into *descriptors, n *document.Node) {
	key, value := text(n.Get("key")), text(n.Get("value"))
	if key == "" {
		d.Fault(n, "", "descriptor has empty key")
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
	next.values = append(path.values[:len(path.values):len(path.values)], value)
	share := ""
	if d.flag(n, "share_threshold") {
		if !strings.Contains(value, "*") {
			d.Fault(n.Get("share_threshold"), "", "share_threshold can only be used with wildcard values (containing '*'), but found key '%s'", composite)
		}
		share = value
	}
	next.shares = append(path.shares[:len(path.shares):len(path.shares)], share)
	next.metric = append(path.metric[:len(path.metric):len(path.metric)], d.flag(n, "value_to_metric"))
	if !into.add(rule, value != "") {
		d.Fault(n.Get("key"), "", "duplicate descriptor composite key '%s'", next.shown)
		return
	}
	below := n.Get("descriptors")
	hasBelow := below != nil && len(below.Items) > 0
	if limits := n.Get("rate_limit"); limits != nil && limits.Kind == document.Map || !hasBelow {
		rule.limit = b.envoyLimit(d, next, n, limits)
	}
	if hasBelow {
		rule.below = newDescriptors()
		b.descriptors(d, next, rule.below, below)
	}
}

func (b *builder) envoyLimit(d *file, path envoyPath, n, limits *document.Node) *Limit {
	l := &Limit{
		Name: printable(path.shown), Domain: path.domain, Envoy: true, Key: path.keys, Values: path.values, share: path.shares,
		Status: 429, EnforcePermyriad: 10000, Shadow: d.flag(n, "shadow_mode"), QuotaMode: d.flag(n, "quota_mode"),
		detailed: d.flag(n, "detailed_metric"), metric: path.metric,
		Condition: "domain=" + quoteIfOdd(path.domain) + " descriptor" + path.id, ipv6: 128,
	}
	l.statVaries = l.findStatVaries()
	if m := n.Get("metadata"); m != nil && m.Kind == document.Map {
		l.Metadata, _ = plainValue(m).(map[string]any)
	}
	policy := limit.Policy{Algorithm: limit.FixedWindow, Align: limit.AlignEpoch, CountRefused: !b.set.options.CountAdmitted}
	if limits == nil || limits.Kind != document.Map {
		l.Whitelist = true
		if limits != nil {
			b.warn(d, limits, "leave it out if that is meant", "an empty rate_limit limits nothing")
		}
		policy = limit.Policy{Algorithm: limit.FixedWindow, Unlimited: true}
	} else {
		d.envoyAmount(limits, &policy)
		if n := limits.Get("requests_per_unit"); !policy.Unlimited && (n == nil || n.Kind == document.Null) {
			b.warn(d, limits, "write requests_per_unit: 0 if that is meant", "a rate_limit without requests_per_unit refuses everything")
		}
		l.Alias = text(limits.Get("name"))
		if replaces := limits.Get("replaces"); replaces != nil {
			for _, r := range replaces.Items {
				name := text(r.Get("name"))
				switch name {
				case "":
					d.Fault(r, "", "should not have an empty replaces entry")
				case l.Alias:
					d.Fault(r, "", "replaces should not contain name of same descriptor")
				}
				l.Replaces = append(l.Replaces, name)
			}
		}
	}
	l.Base = Variant{ID: "!envoy " + strconv.Quote(path.domain) + path.id, Policy: policy}
	b.add(d, n, l)
	return l
}

func (d *file) envoyAmount(n *document.Node, p *limit.Policy) {
	unit := text(n.Get("unit"))
	if n := n.Get("requests_per_unit"); n != nil && n.Kind != document.Null {
		p.Rate.Count, _ = d.wholeNumber(n, 0, math.MaxUint32)
	}
	if d.flag(n, "unlimited") {
		*p = limit.Policy{Algorithm: limit.FixedWindow, Unlimited: true}
		if unit != "" {
			d.Fault(n.Get("unit"), "", "should not specify rate limit unit when unlimited")
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
	at := n.Get("unit")
	if at == nil {
		at = n
	}
	hint := cmp.Or(document.Meant(strings.ToLower(unit), names), "want one of "+strings.Join(names, ", "))
	d.Fault(at, hint, "invalid rate limit unit '%s'", unit)
}

// flag reads a truth value as Envoy's service does: YAML 1.1's yes and on are
// true as well.
func (d *file) flag(n *document.Node, key string) bool {
	v := n.Get(key)
	if v == nil || v.Kind == document.Null {
		return false
	}
	if v.Kind == document.Text && v.Style == 0 {
		switch strings.ToLower(v.Text) {
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
