package rules

import (
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/stint-io/stint/internal/document"
	"github.com/stint-io/stint/limit"
)

// Division is a limit whose count is handed out by others: what those give to single keys, or to customers, is to fit in
// it together. Whether it does is reported, and changes no decision.
type Division struct {
	Parent *Limit
	// Children are limits whose within names the parent, in the order of the file.
	Children []*Limit
}

// Divisions returns the limits that others are within. Read-only.
func (s *Set) Divisions() []Division { return s.divisions }

// Customers reports whether a limit of a plan has one counter for each customer, so that it hands out its count once for
// each that has the plan.
func (p *Plans) Customers(l *Limit) bool {
	return l.Plan != "" && len(l.Key) == 1 && slices.Contains(p.By, l.Key[0])
}

// withinAt is a limit that says what it is within, and where.
type withinAt struct {
	file *file
	node *document.Node
	l    *Limit
}

// within notes what a limit is within; the other one may stand behind it.
func (b *builder) within(s *scope, l *Limit) {
	n := s.limit.Get("within")
	if n == nil {
		return
	}
	name, ok := s.str(n, "the name of a limit")
	if ok {
		l.Within = name
		b.withins = append(b.withins, withinAt{s.file, n, l})
	}
}

// divisions finds what limits are within, and warns of counts that do not fit together.
func (b *builder) divisions() {
	for _, w := range b.withins {
		parent := b.names[w.l.Plan+"."+w.l.Within]
		if parent == nil || w.l.Plan == "" {
			parent = b.names[w.l.Within]
		}
		if !b.fits(w, parent) {
			continue
		}
		i := slices.IndexFunc(b.set.divisions, func(d Division) bool { return d.Parent == parent })
		if i < 0 {
			i = len(b.set.divisions)
			b.set.divisions = append(b.set.divisions, Division{Parent: parent})
		}
		b.set.divisions[i].Children = append(b.set.divisions[i].Children, w.l)
		b.overAssigned(w, parent)
	}
}

// fits reports whether a limit can be within another.
func (b *builder) fits(w withinAt, parent *Limit) bool {
	fault := func(hint, format string, args ...any) bool {
		w.file.Fault(w.node, hint, format, args...)
		return false
	}
	l := w.l
	if parent == nil {
		var names []string
		for name := range b.names {
			names = append(names, name)
		}
		hint := "it is the name of another limit of the file"
		if near, ok := document.Suggest(l.Within, names); ok {
			hint = "did you mean " + near + "?"
		}
		return fault(hint, "there is no limit %.100q", l.Within)
	}
	p, q := &l.Base.Policy, &parent.Base.Policy
	for _, x := range []*Limit{l, parent} {
		if x.Base.Policy.Unlimited || x.Base.Policy.Algorithm == limit.Concurrency {
			return fault("", "limit %q has no rate", x.Name)
		}
	}
	switch {
	case len(parent.Key) >= len(l.Key) || !subset(parent.Key, l.Key):
		return fault("the key of the other one is a part of its key: [org] and [org, team], or none at all",
			"the key of limit %q is [%s], and [%s] of the one that it is within", l.Name, strings.Join(l.Key, ", "), strings.Join(parent.Key, ", "))
	case p.Rate.Period != q.Rate.Period || p.Algorithm != q.Algorithm || p.Align != q.Align || p.Zone != q.Zone:
		return fault("counts of the same windows can be compared", "limit %q has other windows than %q", l.Name, parent.Name)
	}
	return true
}

func subset(some, all []string) bool {
	return !slices.ContainsFunc(some, func(name string) bool { return !slices.Contains(all, name) })
}

// overAssigned warns of overrides for single keys that are more than the other limit has, all together.
func (b *builder) overAssigned(w withinAt, parent *Limit) {
	type group struct {
		sum  int64
		keys int
	}
	groups := make(map[string]*group) // by the values of the other limit's key
	for i := range w.l.Overrides {
		o := &w.l.Overrides[i]
		if _, single := o.clause.values(w.l.Key); !single || o.Policy.Unlimited {
			continue
		}
		of, _ := o.clause.values(parent.Key)
		at := strings.Join(of, " ")
		g := groups[at]
		if g == nil {
			g = new(group)
			groups[at] = g
		}
		g.keys++
		g.sum += min(o.Nominal, math.MaxInt64-g.sum)
	}
	for _, at := range slices.Sorted(maps.Keys(groups)) {
		has, unlimited := parent.countOf(at)
		if g := groups[at]; !unlimited && g.sum > has {
			of := ""
			if at != "" {
				of = " of " + at
			}
			b.warn(w.file, w.node, "what is handed out is admitted only as far as the other limit has it: lower the counts, or raise its rate",
				"the overrides of %q give %d keys%s %d together, and %q has %d", w.l.Name, g.keys, of, g.sum, parent.Name, has)
		}
	}
}

// countOf is the count of a limit for values of its key.
func (l *Limit) countOf(at string) (n int64, unlimited bool) {
	for i := range l.Overrides {
		o := &l.Overrides[i]
		if of, single := o.clause.values(l.Key); single && strings.Join(of, " ") == at {
			return o.Nominal, o.Policy.Unlimited
		}
	}
	return l.Base.Nominal, false
}

// values returns what a clause asks of attributes, as NAME=VALUE; single = each must have one value, and nothing else is
// asked.
func (c *clause) values(names []string) (list []string, single bool) {
	for _, name := range names {
		i := slices.IndexFunc(c.conditions, func(c condition) bool { return c.name == name })
		if i < 0 || len(c.conditions[i].patterns) != 1 || !c.conditions[i].patterns[0].exact() {
			return nil, false
		}
		list = append(list, quoteIfOdd(name)+"="+quoteIfOdd(c.conditions[i].patterns[0].text))
	}
	return list, len(c.conditions) == len(names) && c.expression == nil
}
