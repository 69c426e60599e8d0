package rules

import (
	"slices"
	"strings"
	"time"

	"github.com/stint-io/stint/internal/document"
	"github.com/stint-io/stint/limit"
)

// PlanAttribute is the attribute that has a request's plan. It is found by the customer.
const PlanAttribute = "plan"

// Plans is the sections plans and customers of a limits file: named sets of limits, and who has which. The zero value
// has none.
type Plans struct {
	// Names are those of the plans, in the order of the file.
	Names []string
	// By are the attributes that name the customer; the first counts whose value is a customer.
	By []string
	// Default is the plan of everyone else.
	Default string
	// From is the path of a CSV file of customers; "" = none.
	From string
	// List are customers of the file itself.
	List []Customer
}

// Customer is one that has a plan.
type Customer struct {
	Name, Plan string
	File       string
	Line       int
}

// The keys of the sections.
var (
	planKeys      = []string{"name", "limits"}
	customersKeys = []string{"by", "default", "from", "list"}
)

// maxPlans bounds the plans of a file, and maxCustomer the bytes of a customer's name. Not more: each limit of a plan has
// a counter in memory and series of metrics, and a name is a part of keys.
const (
	maxPlans    = 1000
	maxCustomer = 512
)

// Plans returns the sections plans and customers of the files. Read-only.
func (s *Set) Plans() *Plans { return &s.plans }

// plans reads both sections. They are in one file: the limits of plans have the customer as their key.
func (b *builder) plans(d *file, plans, customers, defaults *document.Node) {
	switch {
	case plans == nil:
		d.Fault(customers, "add plans: with a list of limits each", "customers have plans, and there are none in this file")
		return
	case customers == nil:
		d.Fault(plans, "add customers: {by: customer, default: "+planHint(plans)+"}", "there are plans, and nothing in this file says who has which")
		return
	case b.plansAt != nil:
		d.Fault(plans, "write them in one file only", "other plans are in line %d of another place", b.plansAt.Line)
		return
	}
	b.plansAt = plans
	p := &b.set.plans
	if !b.customers(d, customers, p) {
		return
	}
	if plans.Kind != document.List || len(plans.Items) == 0 {
		d.Wants(plans, "a list of plans", "write a dash before each: - name: free")
		return
	}
	if len(plans.Items) > maxPlans {
		d.Fault(plans, "", "%d plans, want at most %d", len(plans.Items), maxPlans)
		return
	}
	for _, n := range plans.Items {
		if d.section(n, "a plan", "a plan: a map with name and limits", planKeys) {
			b.plan(d, n, defaults, p)
		}
	}
	if len(p.Names) > 0 { // else each plan has a fault of its own
		b.assigned(d, customers, p)
	}
}

func planHint(plans *document.Node) string {
	for _, n := range plans.Items {
		if name := n.Get("name"); name != nil && name.Text != "" {
			return name.Text
		}
	}
	return "free"
}

// customers reads the section of that name, except that the plans in it exist.
func (b *builder) customers(d *file, n *document.Node, p *Plans) bool {
	if !d.section(n, "customers", "a map such as {by: customer, default: free}", customersKeys) {
		return false
	}
	by := n.Get("by")
	if by == nil {
		d.Fault(n, "add by: customer", "customers does not say which attribute of a request names the customer")
		return false
	}
	for _, item := range by.Each() {
		name, ok := d.attribute(item)
		switch {
		case !ok:
			return false
		case name == PlanAttribute:
			d.Fault(item, "name the attribute that has the customer", "plan is what is found by it")
			return false
		}
		p.By = append(p.By, name)
	}
	if len(p.By) > maxParts {
		d.Fault(by, "", "by has %d attributes, want at most %d", len(p.By), maxParts)
		return false
	}
	d.texts(n, map[string]*string{"default": &p.Default, "from": &p.From})
	return true
}

// assigned reads which customers of the file have which plan, and checks that the plans exist.
func (b *builder) assigned(d *file, n *document.Node, p *Plans) {
	exists := func(at *document.Node, name string) {
		if slices.Contains(p.Names, name) {
			return
		}
		hint := "the plans are " + strings.Join(p.Names[:min(len(p.Names), 10)], ", ")
		if near, ok := document.Suggest(name, p.Names); ok {
			hint = "did you mean " + near + "?"
		}
		d.Fault(at, hint, "there is no plan %.100q", name)
	}
	if at := n.Get("default"); at == nil {
		d.Fault(n, "add default: "+p.Names[0], "customers does not say which plan everyone else has: without one they would have no limits")
	} else {
		exists(at, p.Default)
	}
	list := n.Get("list")
	if list == nil {
		return
	}
	if list.Kind != document.Map {
		d.Wants(list, "a map of customers and their plans, such as {acme: pro}", "")
		return
	}
	for _, f := range list.Fields {
		if name := f.Key.Text; name == "" || len(name) > maxCustomer || strings.ContainsFunc(name, func(r rune) bool { return r < ' ' || r == 0x7f }) {
			d.Fault(f.Key, "", "%.100q cannot be the name of a customer: want 1 to %d bytes without control characters", name, maxCustomer)
			continue
		}
		if plan, ok := d.str(f.Value, "a plan"); ok {
			exists(f.Value, plan)
			p.List = append(p.List, Customer{f.Key.Text, plan, d.Name, f.Key.Line})
		}
	}
}

// plan compiles the limits of a plan as limits of requests whose plan it is.
func (b *builder) plan(d *file, n, defaults *document.Node, p *Plans) {
	at := n.Get("name")
	if at == nil {
		d.Fault(n, "add name: something-unique", "a plan has no name")
		return
	}
	name, ok := d.str(at, "a name")
	if !ok {
		return
	}
	if !plainName(name) || strings.ContainsAny(name, "./*") {
		d.Fault(at, `use up to 128 printable ASCII characters without " \ ! . / and *`, "%.100q cannot be the name of a plan", name)
		return
	}
	if slices.Contains(p.Names, name) {
		d.Fault(at, "give each plan a name of its own", "duplicate plan name %q", name)
		return
	}
	p.Names = append(p.Names, name)
	limits := n.Get("limits")
	if limits == nil || limits.Kind != document.List || len(limits.Items) == 0 {
		d.Fault(n, "add limits: with a list of limits, or one with unlimited: true", "plan %q has no limits", name)
		return
	}
	b.inPlan = name
	from := len(b.set.limits)
	defer func() {
		b.inPlan = ""
		b.doubtMoment(d, at, name, b.set.limits[from:])
	}()
	for _, item := range limits.Items {
		if !d.section(item, "a limit", "a limit: a map with name and rate", limitKeys) {
			continue
		}
		if one := b.ofPlan(d, item, defaults, name, p); one != nil {
			b.one(d, one, defaults)
		}
	}
}

// doubtMoment warns of a plan without a limit for the moment: what is for an hour or a month may be used within a second.
func (b *builder) doubtMoment(d *file, at *document.Node, plan string, limits []*Limit) {
	shortest := time.Duration(0)
	for _, l := range limits {
		p := &l.Base.Policy
		switch {
		case p.Algorithm == limit.Concurrency:
			return
		case !p.Unlimited && (shortest == 0 || p.Rate.Period < shortest):
			shortest = p.Rate.Period
		}
	}
	if shortest > time.Minute {
		b.warn(d, at, "add a limit for the moment, such as {name: moment, rate: 100/s}",
			"the shortest window of plan %q is %v: all of it may be used within a second", plan, shortest)
	}
}

// ofPlan returns a limit of a plan as it would be written outside of it.
func (b *builder) ofPlan(d *file, n, defaults *document.Node, plan string, p *Plans) *document.Node {
	one := &document.Node{Kind: document.Map, Line: n.Line, Column: n.Column}
	match := &document.Node{Kind: document.Map, Line: n.Line, Column: n.Column}
	for _, f := range n.Fields {
		switch {
		case f.Key.Text == "name" && f.Value.Kind == document.Text:
			one.Fields = append(one.Fields, written("name", plan+"."+f.Value.Text, f.Value))
		case f.Key.Text == "match":
			if f.Value.Kind != document.Map {
				d.Wants(f.Value, "a map, such as {path: /api/*}", "")
				return nil
			}
			if f.Value.Get(PlanAttribute) != nil {
				d.Fault(f.Value, "leave it out", "a limit of a plan is for requests of that plan")
				return nil
			}
			match.Fields = append(match.Fields, f.Value.Fields...)
		default:
			one.Fields = append(one.Fields, f)
		}
	}
	match.Fields = append(match.Fields, written(PlanAttribute, plan, n))
	one.Fields = append(one.Fields, document.Field{Key: written("match", "", n).Key, Value: match})
	if n.Get("key") == nil && defaults.Get("key") == nil {
		key := &document.Node{Kind: document.List, Line: n.Line, Column: n.Column}
		key.Items = append(key.Items, written("", p.By[0], n).Value)
		one.Fields = append(one.Fields, document.Field{Key: written("key", "", n).Key, Value: key})
	}
	return one
}

// pool makes a budget of a plan share its counter with those of the same name in other plans: what a customer has used
// stays used when the plan changes. They must count the same way.
func (b *builder) pool(s *scope, l *Limit) {
	p := &l.Base.Policy
	l.Plan = b.inPlan
	if l.Plan == "" || p.Algorithm != limit.FixedWindow || p.Unlimited || l.Ban != nil || l.Sharing != SharingExact {
		return
	}
	name := strings.TrimPrefix(l.Name, l.Plan+".")
	l.Base.Pool = name
	l.Base.ID = name + "!plans"
	first := b.pools[name]
	if first == nil {
		b.pools[name] = l
		return
	}
	was, is := first.Base.Policy, *p
	was.Rate.Count, is.Rate.Count = 0, 0
	differs := ""
	switch {
	case was != is:
		differs = "windows"
	case !slices.Equal(first.Key, l.Key):
		differs = "key"
	case first.HardPercent != l.HardPercent:
		differs = "hard"
	case first.SoftPercent != l.SoftPercent:
		differs = "soft"
	case first.ChargeAfter != l.ChargeAfter:
		differs = "charge"
	case !slices.Equal(first.Events, l.Events):
		differs = "events"
	case first.Shadow != l.Shadow:
		differs = "shadow"
	default:
		return
	}
	s.Fault(s.limit, "write the same, or give the limit another name",
		"%q and %q of line %d share what a customer has used, and differ: %s", l.Name, first.Name, first.Line, differs)
}
