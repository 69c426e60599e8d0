package rules

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/stint-io/stint/internal/document"
	"github.com/stint-io/stint/limit"
)

// A file whose root has rules: is a security policy of Google Cloud Armor, as
// `gcloud compute security-policies export` writes it, or with the names of Terraform
// (rate_limit_options for rateLimitOptions). Its rules are tried by priority, the smallest number
// first, and the first whose match holds decides: a limit of a later rule applies only where no
// earlier rule holds. Rules in preview decide nothing and end nothing; they become shadow limits.

// isArmor reports whether root is a security policy.
func isArmor(root *document.Node) bool {
	return root.Kind == document.Map && root.Get("rules") != nil && root.Get("limits") == nil && root.Get("domain") == nil
}

// armorField returns a field by the name of the API, or by Terraform's. A block of Terraform is a list of
// one map, and stands for that map.
func armorField(n *document.Node, name string) *document.Node {
	if n == nil || n.Kind != document.Map {
		return nil
	}
	v := n.Get(name)
	if v == nil {
		var b strings.Builder
		for _, r := range name {
			if r >= 'A' && r <= 'Z' {
				b.WriteByte('_')
				r += 'a' - 'A'
			}
			b.WriteRune(r)
		}
		v = n.Get(b.String())
	}
	if v != nil && v.Kind == document.List && len(v.Items) == 1 && v.Items[0].Kind == document.Map {
		return v.Items[0]
	}
	return v
}

// armorRule is one rule, read.
type armorRule struct {
	at       *document.Node
	priority int64
	action   string
	preview  bool
	clause   clause
	text     string // of the clause
}

// Of one policy: more rules than Cloud Armor allows by default, since each is tried against those before it.
const maxArmorRules = 500

// armor compiles a security policy.
func (b *builder) armor(d *file) {
	list := d.Root.Get("rules")
	if list.Kind != document.List {
		d.Wants(list, "a list of rules", "")
		return
	}
	if len(list.Items) > maxArmorRules {
		d.Fault(list, "split the policy", "%d rules, want at most %d", len(list.Items), maxArmorRules)
		return
	}
	policy := "armor"
	if n := d.Root.Get("name"); n != nil {
		if text, ok := d.str(n, "a name"); ok && text != "" {
			policy = printable(text)
		}
	}
	users := b.armorUserHeaders(d)
	all := make([]*armorRule, 0, len(list.Items))
	lines := map[int64]int{}
	for _, n := range list.Items {
		r := b.armorRule(d, n)
		if r == nil {
			continue
		}
		if line := lines[r.priority]; line > 0 {
			d.Fault(n, "give each rule a priority of its own", "priority %d is that of the rule in line %d", r.priority, line)
		}
		lines[r.priority] = n.Line
		all = append(all, r)
	}
	slices.SortStableFunc(all, func(x, y *armorRule) int { return cmp.Compare(x.priority, y.priority) })
	var before []*clause
	for _, r := range all {
		if r.action != "allow" {
			b.armorLimit(d, r, fmt.Sprintf("%s.%d", policy, r.priority), before, users)
		}
		if !r.preview {
			before = append(before, &r.clause)
		}
	}
}

// armorUserHeaders returns the header fields that name a client behind a proxy, most trusted first.
func (b *builder) armorUserHeaders(d *file) (names []string) {
	list := armorField(armorField(d.Root, "advancedOptionsConfig"), "userIpRequestHeaders")
	if list == nil {
		return nil
	}
	for _, n := range list.Each() {
		if name, ok := d.str(n, "the name of a header field"); ok && d.headerName(n, name) {
			names = append(names, headerPrefix+strings.ToLower(name))
		}
	}
	return names
}

// headerName reports whether name is one of a header field.
func (d *file) headerName(n *document.Node, name string) bool {
	s := scope{file: d}
	return s.fieldName(n, name)
}

// armorRule reads what rules have in common; nil after a fault that leaves nothing to go on with.
func (b *builder) armorRule(d *file, n *document.Node) *armorRule {
	if n.Kind != document.Map {
		d.Wants(n, "a rule: a map with action, priority and match", "")
		return nil
	}
	r := &armorRule{at: n}
	before := d.Faults.Count()
	if v := n.Get("priority"); v == nil {
		d.Fault(n, "add priority: 1000", "a rule has no priority")
	} else {
		r.priority, _ = d.wholeNumber(v, 0, 2147483647)
	}
	if v := n.Get("preview"); v != nil {
		r.preview, _ = d.boolean(v)
	}
	if v := n.Get("action"); v == nil {
		d.Fault(n, "add action: throttle", "a rule has no action")
	} else if text, ok := d.str(v, "an action"); ok {
		r.action = text
	}
	b.armorMatch(d, r, n)
	if d.Faults.Count() > before {
		return nil
	}
	return r
}

// armorLimit makes the limit of a rule that is no plain allow.
func (b *builder) armorLimit(d *file, r *armorRule, name string, before []*clause, users []string) {
	l := &Limit{
		Name: name, Status: 429, EnforcePermyriad: 10000, ipv6: 64, Shadow: r.preview, cut: true, users: users,
		Missing: MissingAll, clause: r.clause, Condition: r.text,
	}
	l.clause.unless = slices.Clone(before)
	if first := b.names[name]; first != nil {
		d.Fault(r.at, "give each policy a name of its own", "duplicate rule %q, first at %s:%d", name, first.File, first.Line)
		return
	}
	b.names[name] = l
	s := &scope{file: d, limit: r.at}
	l.Base = Variant{ID: name, Policy: limit.Policy{Rate: limit.Rate{Period: time.Second}}}
	before2 := d.Faults.Count()
	switch status, ok := armorDeny(r.action); {
	case ok:
		l.Status = status
	case r.action == "throttle", r.action == "rate_based_ban":
		b.armorRate(s, r, l)
	case r.action == "redirect":
		b.armorRedirect(s, l, armorField(r.at, "redirectOptions"), "type", "target")
	default:
		d.Fault(r.at.Get("action"), "known are allow, deny(403), throttle, rate_based_ban and redirect", "unknown action %q", r.action)
	}
	if d.Faults.Count() == before2 {
		b.ban(s, l, &l.Base)
		b.add(d, r.at, l)
	}
}

// armorDeny reads deny(403), and deny-403 as gcloud writes it.
func armorDeny(text string) (status int, ok bool) {
	text, ok = strings.CutPrefix(text, "deny")
	if !ok {
		return 0, false
	}
	text = strings.TrimSuffix(strings.TrimLeft(text, "(-"), ")")
	switch text {
	case "", "403":
		return 403, true
	case "404", "429", "502":
		status, _ = strconv.Atoi(text)
		return status, true
	}
	return 0, false
}

// armorRate reads the options of throttle and rate_based_ban.
func (b *builder) armorRate(s *scope, r *armorRule, l *Limit) {
	o := armorField(r.at, "rateLimitOptions")
	if o == nil || o.Kind != document.Map {
		s.Fault(r.at, "add rateLimitOptions", "action %s has no rateLimitOptions", r.action)
		return
	}
	if v := armorField(o, "conformAction"); v != nil && v.Text != "allow" {
		s.Fault(v, "write allow: there is no other", "conformAction is %q", v.Text)
	}
	rate, ok := s.armorThreshold(o, "rateLimitThreshold", true)
	b.armorExceed(s, l, o)
	b.armorKey(s, l, o)
	if !ok {
		return
	}
	p := &l.Base.Policy
	p.Rate = rate
	// "Within any 1,200 seconds": any window, exactly, where a log of the requests is not too long.
	p.Algorithm = limit.SlidingWindowLog
	if rate.Count > limit.MaxLogCount {
		p.Algorithm = limit.SlidingWindowCounter
	}
	if r.action != "rate_based_ban" {
		return
	}
	b.armorBan(s, r, l, o, rate)
}

// armorBan reads the ban of a rule. Without a banThreshold a client is banned by the first request above
// the rate; its interval begins with its first request, and the ban lasts from the end of that
// interval. With one, the requests above the rate are counted, which in an interval of the same length are
// all but the rate's.
func (b *builder) armorBan(s *scope, r *armorRule, l *Limit, o *document.Node, rate limit.Rate) {
	l.Ban = &Ban{After: rate}
	// The interval of the rate is that of the ban: the client's first request begins both.
	l.Base.Policy.Algorithm, l.Base.Policy.Align = limit.FixedWindow, limit.AlignFirstHit
	if v := armorField(o, "banDurationSec"); v == nil {
		s.Fault(o, "add banDurationSec: 600", "a rate_based_ban has no banDurationSec")
	} else if n, ok := s.wholeNumber(v, 1, 1<<31); ok {
		l.Ban.For = time.Duration(n) * time.Second
	}
	if armorField(o, "banThreshold") == nil {
		return
	}
	ban, ok := s.armorThreshold(o, "banThreshold", false)
	if !ok {
		return
	}
	if ban.Period != rate.Period {
		s.Fault(armorField(o, "banThreshold"), "give both the same intervalSec", "the requests above a rate per %v cannot be counted exactly per %v", rate.Period, ban.Period)
		return
	}
	l.Ban.After.Count = rate.Count + ban.Count
}

// armorThreshold reads a count per interval.
func (s *scope) armorThreshold(o *document.Node, name string, required bool) (rate limit.Rate, ok bool) {
	n := armorField(o, name)
	if n == nil || n.Kind != document.Map {
		if required {
			s.Fault(o, "add "+name+": {count: 100, intervalSec: 60}", "there is no %s", name)
		}
		return rate, false
	}
	count, interval := armorField(n, "count"), armorField(n, "intervalSec")
	if count == nil || interval == nil {
		s.Fault(n, "write {count: 100, intervalSec: 60}", "%s lacks count or intervalSec", name)
		return rate, false
	}
	c, ok1 := s.wholeNumber(count, 1, 1_000_000)
	sec, ok2 := s.wholeNumber(interval, 1, 86_400)
	return limit.Rate{Count: c, Period: time.Duration(sec) * time.Second}, ok1 && ok2
}

// armorExceed reads what becomes of a request above the rate.
func (b *builder) armorExceed(s *scope, l *Limit, o *document.Node) {
	v := armorField(o, "exceedAction")
	if v == nil {
		s.Fault(o, "add exceedAction: deny(429)", "there is no exceedAction")
		return
	}
	if v.Text == "redirect" {
		b.armorRedirect(s, l, armorField(o, "exceedRedirectOptions"), "type", "target")
		return
	}
	status, ok := armorDeny(v.Text)
	if !ok {
		s.Fault(v, "write deny(403), deny(404), deny(429), deny(502) or redirect", "unknown exceedAction %q", v.Text)
		return
	}
	l.Status = status
}

// armorRedirect reads {type: EXTERNAL_302, target: URL}.
func (b *builder) armorRedirect(s *scope, l *Limit, o *document.Node, kind, target string) {
	k, to := armorField(o, kind), armorField(o, target)
	switch {
	case k != nil && k.Text != "EXTERNAL_302":
		s.Fault(k, "write EXTERNAL_302 and a target", "redirect of type %s is not known here", k.Text)
	case to == nil:
		s.Fault(s.limit, "add the options of the redirect: {type: EXTERNAL_302, target: 'https://example.com/busy'}", "a redirect has no target")
	default:
		b.redirect(s, l, to)
	}
}

// armorKeys are the kinds of key, and the attributes that they are.
var armorKeys = map[string]string{
	"ALL": "", "IP": ipAttribute, "XFF_IP": xffAttribute, "HTTP_HEADER": "header:", "HTTP_COOKIE": "cookie:", "HTTP_PATH": "path", "SNI": "sni",
	"REGION_CODE": "region", "ASN": "asn", "USER_IP": userIPAttribute,
}

// armorKey reads enforceOnKey, or up to three enforceOnKeyConfigs.
func (b *builder) armorKey(s *scope, l *Limit, o *document.Node) {
	one, list := armorField(o, "enforceOnKey"), armorField(o, "enforceOnKeyConfigs")
	if list == nil || list.Kind == document.List && len(list.Items) == 0 {
		if one != nil && one.Text != "" {
			b.armorPart(s, l, one, armorField(o, "enforceOnKeyName"))
		}
		return
	}
	if one != nil && one.Text != "" {
		s.Fault(one, "leave it out", "enforceOnKey and enforceOnKeyConfigs exclude each other")
		return
	}
	items := list.Each()
	if len(items) > 3 {
		s.Fault(list, "", "%d keys, want at most 3", len(items))
		return
	}
	for _, n := range items {
		if kind := armorField(n, "enforceOnKeyType"); kind == nil {
			s.Fault(n, "add enforceOnKeyType: IP", "a key has no enforceOnKeyType")
		} else {
			b.armorPart(s, l, kind, armorField(n, "enforceOnKeyName"))
		}
	}
}

func (b *builder) armorPart(s *scope, l *Limit, kind, name *document.Node) {
	attribute, ok := armorKeys[kind.Text]
	if !ok {
		known := make([]string, 0, len(armorKeys))
		for k := range armorKeys {
			known = append(known, k)
		}
		slices.Sort(known)
		hint := "known are " + strings.Join(known, ", ")
		if strings.HasPrefix(kind.Text, "TLS_") {
			hint = "no door here sees the client's TLS hello; " + hint
		}
		s.Fault(kind, hint, "unknown key %q", kind.Text)
		return
	}
	if strings.HasSuffix(attribute, ":") {
		if name == nil || name.Text == "" {
			s.Fault(kind, "add enforceOnKeyName", "key %s has no name", kind.Text)
			return
		}
		if attribute == "header:" && !s.fieldName(name, name.Text) {
			return
		}
		attribute = canonicalName(attribute + name.Text)
	}
	if attribute == "" {
		return
	}
	if contains(l.Key, attribute) {
		s.Fault(kind, "", "key %s is there twice", kind.Text)
		return
	}
	l.Key = append(l.Key, attribute)
}
