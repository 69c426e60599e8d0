package rules

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/stint-io/stint/internal/document"
	"github.com/stint-io/stint/limit"
)

// The keys of stint's format. The schema and the reference page name the same.
var (
	rootKeys     = []string{"store", "defaults", "limits", "throttle", "identity", "events", "estimates", "plans", "customers"}
	settingKeys  = []string{"store", "throttle", "identity", "events", "estimates"} // of a file that may have no limits
	limitKeys    = []string{"name", "match", "when", "key", "rate", "burst", "algorithm", "max_in_flight", "timeout", "align", "timezone", "rounding", "rise", "start", "count_refused", "charge", "unlimited", "usage", "purpose", "within", "soft", "hard", "horizons", "events", "shadow", "mode", "enforce", "missing", "ipv6_prefix", "overrides", "on_exceed", "on_condition_error", "on_store_failure", "sharing", "lease", "split", "suppress", "share"}
	notInherited = []string{"name", "match", "when", "overrides", "horizons", "within", "share"}
	horizonKeys  = []string{"rate", "burst", "algorithm", "align", "timezone", "rounding", "soft", "hard", "events", "count_refused", "charge", "usage", "purpose", "within", "shadow", "on_exceed", "sharing"}
	overrideKeys = []string{"when", "rate", "burst", "max_in_flight", "timeout", "rise", "start", "unlimited"}
	leaseKeys    = []string{"allocation", "safe", "guarantees", "tolerance", "change", "sites"}
	splitKeys    = []string{"instances", "weight"}
	suppressKeys = []string{"report", "window", "interval", "average", "ramp", "full", "draws"}
	stores       = []string{
		"memory", "file",
		"redis", "rediss", "redis+cluster", "rediss+cluster", "redis+sentinel", "rediss+sentinel",
		"valkey", "valkeys", "valkey+cluster", "valkeys+cluster", "valkey+sentinel", "valkeys+sentinel",
	}
)

const (
	maxName = 128 // of a limit; it goes into header fields

	// maxParts bounds the attributes of a key and of a match. Nobody reads a
	// limit with more.
	maxParts = 32
)

// native compiles a document in stint's format.
func (b *builder) native(d *file) {
	if d.Root.Kind != document.Map {
		d.Fault(d.Root, "begin with limits:, as in "+exampleFile(d.Root), "want a map, this is %v", d.Root.Kind)
		return
	}
	if d.Root.Get("apiVersion") != nil && d.Root.Get("kind") != nil {
		d.Fault(d.Root, "give the file that it holds: mount it, or copy what is below data:", "this is a Kubernetes object, no limit file")
		return
	}
	if d.Root.Get("limits") == nil && !slices.ContainsFunc(d.Root.Fields, func(f document.Field) bool { return contains(rootKeys, f.Key.Text) }) {
		b.foreignFile(d)
		return
	}
	d.known(d.Root, "the file", rootKeys)
	if store := d.Root.Get("store"); store != nil {
		b.store(d, store)
	}
	defaults := d.Root.Get("defaults")
	if defaults != nil && defaults.Kind != document.Map {
		if defaults.Kind != document.Null {
			d.Wants(defaults, "a map", "write it as defaults: {rate: 100/s}")
		}
		defaults = nil
	}
	if defaults != nil {
		for _, f := range defaults.Fields {
			if contains(notInherited, f.Key.Text) {
				d.Fault(f.Key, "write it in each limit", "%s cannot have a default", f.Key.Text)
			}
		}
		d.known(defaults, "defaults", limitKeys)
	}
	identity := d.Root.Get("identity")
	if identity != nil {
		b.identity(d, identity)
	}
	events := d.Root.Get("events")
	if events != nil {
		b.events(d, events)
	}
	if estimates := d.Root.Get("estimates"); estimates != nil {
		b.estimates(d, estimates)
	}
	throttle := d.Root.Get("throttle")
	if throttle != nil {
		b.throttle(d, throttle)
	}
	plans, customers := d.Root.Get("plans"), d.Root.Get("customers")
	if plans != nil || customers != nil {
		b.plans(d, plans, customers, defaults)
	}
	limits := d.Root.Get("limits")
	if limits == nil {
		return
	}
	if limits.Kind != document.List {
		hint := "put a dash before each limit"
		if limits.Kind == document.Map && len(limits.Fields) > 0 && limits.Fields[0].Value.Kind == document.Map {
			hint = fmt.Sprintf("write - name: %s, and below name what the limit has", limits.Fields[0].Key.Text)
		}
		d.Wants(limits, "a list of limits", hint)
		return
	}
	for _, n := range limits.Items {
		if b.full {
			return
		}
		if !d.section(n, "a limit", "a limit: a map with name and rate", limitKeys) {
			continue
		}
		b.one(d, n, defaults)
	}
}

// foreignFile reports a map of which stint knows no key.
func (b *builder) foreignFile(d *file) {
	at := d.Root
	hint := "begin with limits:, as in " + exampleFile(d.Root) + ", or with domain: for Envoy's format"
	for _, f := range d.Root.Fields {
		near := foreignHint(d.Root, f.Key, f.Value, rootKeys)
		switch {
		case near != "" && contains(limitKeys, f.Key.Text):
			hint = "a limit is written in a list below limits:, as in " + exampleFile(d.Root)
		case near != "":
			hint = near
		case document.Meant(f.Key.Text, rootKeys) != "":
			hint = document.Meant(f.Key.Text, rootKeys)
		default:
			continue
		}
		at = f.Key
		break
	}
	d.Fault(at, hint, "the file has no limits")
}

// exampleFile is a limits file with the rate that n states in the words of another limiter.
func exampleFile(n *document.Node) string {
	return "limits: [{name: login, key: [ip], " + cmp.Or(foreignRate(n, 0), "rate: 5/minute") + "}]"
}

// one compiles a limit, of one rate or of several.
func (b *builder) one(d *file, n, defaults *document.Node) {
	if list := n.Get("horizons"); list != nil {
		b.horizons(d, n, list, defaults)
		return
	}
	b.limit(&scope{file: d, limit: n, defaults: defaults})
}

func (b *builder) store(d *file, n *document.Node) {
	if n.Kind != document.Text || len(n.Text) > 20 || strings.Trim(strings.ToLower(n.Text), "abcdefghijklmnopqrstuvwxyz") != "" {
		d.Conceal(n) // else it is a word, such as memory misspelled
	}
	text, ok := d.str(n, "a store, such as memory or redis://host:6379")
	if !ok {
		return
	}
	// What follows the scheme may hold a password, and nothing shows it.
	scheme, _, _ := strings.Cut(text, ":")
	isURL := strings.HasPrefix(text, scheme+"://")
	if !contains(stores, scheme) || isURL == (scheme == "memory") {
		hint := "known stores: memory, file:///PATH, redis://, redis+cluster://, redis+sentinel://; an s, as in rediss://, is TLS, and valkey may stand for redis"
		w, near := document.Suggest(scheme, stores)
		if near && w != scheme {
			hint = fmt.Sprintf("did you mean %s?", w)
		}
		if !isURL && !near && !contains(stores, scheme) || strings.Trim(scheme, "abcdefghijklmnopqrstuvwxyz+") != "" {
			d.Fault(n, hint, "unknown store: it begins with no scheme") // what it begins with may be a user or a password
			return
		}
		d.Fault(n, hint, "unknown store %q", scheme)
		return
	}
	if b.storeAt != "" && text != b.set.store {
		d.Fault(n, "name it in one file only", "another store is named at %s", b.storeAt)
		return
	}
	if i := strings.Index(text, "${"); i >= 0 && strings.Contains(text[i:], "}") {
		b.warn(d, n, "set STINT_STORE in the environment, which goes first, or name a file with ?password_file=", "the store has a ${...} in it, which is taken as it stands: variables are not expanded in a limits file")
	}
	b.set.store, b.storeAt = text, fmt.Sprintf("%s:%d", d.Name, n.Line)
}

// scope is where a limit's keys are looked up: an override, the limit, the
// defaults.
type scope struct {
	*file
	override, limit, defaults *document.Node
}

// at is the node of the override or limit in this scope, where its faults are reported.
func (s *scope) at() *document.Node {
	if s.override != nil {
		return s.override
	}
	return s.limit
}

// get returns a value written in the limit itself, or inherited from defaults.
func (s *scope) get(key string) *document.Node {
	if n := s.limit.Get(key); n != nil {
		return n
	}
	return s.defaults.Get(key)
}

func (b *builder) limit(s *scope) {
	d, n := s.file, s.limit
	l := &Limit{Status: 429, EnforcePermyriad: 10000, ipv6: 64}
	b.name(s, l)
	c, text, _ := b.clause(d, n.Get("match"), n.Get("when"))
	l.clause, l.Condition = c, text
	b.key(s, l)
	b.options(s, l)
	b.purpose(s, l)
	algorithm := s.algorithm()
	policy, ok := s.policy(algorithm)
	l.Base = Variant{ID: l.Name, Policy: policy}
	b.doubtBudget(s, l, policy)
	b.restrict(s, l, &l.Base)
	if exceed := s.get("on_exceed"); exceed != nil {
		b.exceed(s, l, exceed)
	}
	if ok {
		b.ban(s, l, &l.Base)
	}
	if list := n.Get("overrides"); list != nil && ok {
		b.overrides(s, l, list, algorithm)
	}
	b.local(s, l)
	b.split(s, l)
	b.suppress(s, l)
	b.tenants(s, l)
	b.limitEvents(s, l)
	b.pool(s, l)
	b.within(s, l)
	b.add(d, n, l)
}

func (b *builder) name(s *scope, l *Limit) {
	n := s.limit.Get("name")
	if n == nil {
		s.Fault(s.limit, "add name: something-unique", "a limit has no name")
		return
	}
	name, ok := s.str(n, "a name")
	if !ok {
		return
	}
	if !plainName(name) {
		s.Fault(n, `use up to 128 printable ASCII characters without " \ and !`, "%q cannot be the name of a limit", name)
		return
	}
	if first := b.names[name]; first != nil {
		s.Fault(n, "give each limit a name of its own: it names its counters", "duplicate limit name %q, first at %s:%d", name, first.File, first.Line)
		return
	}
	l.Name = name
	l.File, l.Line = s.Name, n.Line
	b.names[name] = l
}

// plainName reports whether a name can stand in header fields as quoted text and, before a "!", in the identity of
// counters.
func plainName(name string) bool {
	plain := func(r rune) bool { return r >= ' ' && r <= '~' && r != '"' && r != '\\' && r != '!' }
	return name != "" && len(name) <= maxName && strings.TrimSpace(name) == name &&
		!strings.ContainsFunc(name, func(r rune) bool { return !plain(r) })
}

func (b *builder) key(s *scope, l *Limit) {
	n := s.get("key")
	if n == nil {
		return
	}
	if n.Kind == document.Null {
		s.Fault(n, "name attributes, as in [ip], or leave it out: one bucket for all", "the key is empty")
		return
	}
	items := n.Each()
	if len(items) > maxParts {
		s.Fault(n, "", "key has %d attributes, want at most %d", len(items), maxParts)
		return
	}
	for _, item := range items {
		name, ok := s.attribute(item)
		if !ok {
			continue
		}
		if contains(l.Key, name) {
			s.Fault(item, "", "attribute %q is twice in the key", name)
			continue
		}
		b.doubtName(s.file, item, name)
		l.Key = append(l.Key, name)
	}
}

// attribute reads the name of an attribute.
func (d *file) attribute(n *document.Node) (string, bool) {
	if n.Kind == document.Map && len(n.Fields) == 1 && strings.EqualFold(n.Fields[0].Key.Text, "header") {
		d.Wants(n, "the name of an attribute", "write it as header:NAME, without a space")
		return "", false
	}
	name, ok := d.str(n, "the name of an attribute")
	if !ok {
		return "", false
	}
	// Without quotes it is a list without brackets; as one name it would silently match
	// nothing.
	if n.Style == 0 && strings.ContainsAny(name, ", ") {
		parts := strings.FieldsFunc(name, func(r rune) bool { return r == ',' || r == ' ' })
		d.Fault(n, "write several as ["+strings.Join(parts, ", ")+"], and one such name in quotes", "%q is not the name of one attribute", name)
		return "", false
	}
	if name == "" || len(name) > 256 || strings.TrimSpace(name) != name || strings.ContainsFunc(name, func(r rune) bool { return !strconv.IsPrint(r) }) {
		d.Fault(n, "use a name such as ip, user, path or header:X-Tenant", "%q cannot be the name of an attribute", name)
		return "", false
	}
	if kind, rest, ok := strings.Cut(name, ":"); ok && rest == "" {
		d.Fault(n, "write it as "+kind+":NAME", "attribute %q lacks a name after the colon", name)
		return "", false
	}
	return canonicalName(name), true
}

// options reads the keys that are neither policy nor condition.
func (b *builder) options(s *scope, l *Limit) {
	choice(s.file, s.get("missing"), &l.Missing, missingNames[:]...)
	if s.get("missing") == nil {
		for _, name := range l.Key {
			if kind, _, ok := strings.Cut(name, ":"); ok && contains([]string{"header", "cookie", "query"}, kind) {
				b.warn(s.file, s.get("key"), "write missing: reject, or missing: all for one bucket of all that lack it, or missing: skip where that is meant", "a client that leaves %s out is not limited", name)
				break
			}
		}
	}
	b.thresholds(s, l)
	l.ChargeAfter = s.chargedAfter(s.get("charge"))
	b.shadow(s, l)
	if n := s.get("enforce"); n != nil && n.Kind == document.Bool {
		s.Wants(n, "a percentage from 0% to 100%", map[bool]string{true: "leave it out", false: "write shadow: true"}[n.Text == "true"])
	} else if n != nil {
		if p, ok := s.percent(n); ok {
			l.EnforcePermyriad = p
			if len(l.Key) == 0 && p > 0 && p < 10000 {
				b.warn(s.file, n, "add a key, or use shadow", "enforce chooses among keys; a limit without one is enforced for all requests or for none")
			}
		}
	}
	if n := s.get("ipv6_prefix"); n != nil {
		if bits, ok := s.integer(n, 1, 128); ok {
			l.ipv6 = int(bits)
		}
	}
	if n := s.get("on_condition_error"); n != nil {
		var c ConditionError
		choice(s.file, n, &c, conditionErrorNames[:]...)
		l.OnConditionError = c + 1
	}
	choice(s.file, s.get("on_store_failure"), &l.OnStoreFailure, failureNames[:]...)
	choice(s.file, s.get("sharing"), &l.Sharing, sharingNames[:]...)
}

// shadow reads shadow: true and its other spelling, mode: shadow.
func (b *builder) shadow(s *scope, l *Limit) {
	shadow, mode := s.limit.Get("shadow"), s.limit.Get("mode")
	if shadow != nil && mode != nil {
		s.Fault(mode, "leave one out", "shadow and mode say the same thing")
		return
	}
	if shadow == nil && mode == nil {
		shadow, mode = s.defaults.Get("shadow"), s.defaults.Get("mode")
	}
	if shadow != nil {
		if v, ok := s.boolean(shadow); ok {
			l.Shadow = v
		}
	}
	byMode := false
	s.either(mode, &byMode, "enforce", "shadow")
	l.Shadow = l.Shadow || byMode
}

func trimmed(err error) string {
	return strings.ReplaceAll(strings.ReplaceAll(err.Error(), "limit: ", ""), "\n", "; ")
}

func (b *builder) overrides(s *scope, l *Limit, list *document.Node, algorithm limit.Algorithm) {
	if list.Kind != document.List {
		hint := "put a dash before each override"
		if list.Kind == document.Map && len(list.Fields) > 0 && !contains(overrideKeys, list.Fields[0].Key.Text) {
			hint = fmt.Sprintf("write [{when: {user: %s}, rate: 100/minute}]", list.Fields[0].Key.Text)
		}
		s.Wants(list, "a list of overrides", hint)
		return
	}
	lines := make(map[string]int)
	var wide []*Override // those before that may cover others
	for _, n := range list.Items {
		if !s.section(n, "an override", "an override: a map with when and rate", overrideKeys) {
			continue
		}
		o := Override{}
		id, ok := "", false
		if match := n.Get("when"); match == nil {
			s.Fault(n, "add when: {user: acme}", "an override has no when")
		} else {
			var when *document.Node
			if match.Kind != document.Map {
				match, when = nil, match
			}
			o.clause, o.When, id = b.clause(s.file, match, when)
			ok = id != ""
		}
		if len(n.Fields) <= 1 && n.Get("when") != nil {
			s.Fault(n, "add rate, burst, max_in_flight or unlimited", "an override changes nothing")
			continue
		}
		if line := lines[id]; ok && line > 0 {
			s.Fault(n, "", "an override with the condition of line %d is never reached", line)
		}
		lines[id] = n.Line
		of := *s
		of.override = n
		policy, fine := of.policy(algorithm)
		if !fine || !ok {
			continue
		}
		if i := slices.IndexFunc(wide, func(w *Override) bool { return w.clause.covers(&o.clause) }); i >= 0 {
			b.warn(s.file, n, "write it before that one: the first that holds counts", "the override is never reached: when %s holds before it for all of its requests", wide[i].When)
		} else if len(wide) < maxWide && o.clause.wide() {
			wide = append(wide, &o)
		}
		o.Variant = Variant{ID: l.Name + "!" + id, Policy: policy, Detail: "override when " + o.When}
		b.restrict(&of, l, &o.Variant)
		b.ban(&of, l, &o.Variant)
		l.Overrides = append(l.Overrides, o)
	}
}
