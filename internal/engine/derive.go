package engine

import (
	"slices"

	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/rules"
)

// Deriver finds attributes of a request from others, such as the region of its ip. It is safe for
// concurrent use.
type Deriver interface {
	// Derives reports whether it may find attributes of that name.
	Derives(name string) bool
	// Needs returns the attributes from which it finds those of names, beside those.
	Needs(names []string) []string
	// Derive returns attrs, and behind them those of names that it finds and that are not there. It
	// does not change attrs.
	Derive(names []string, attrs []limit.Attribute) []limit.Attribute
	// Translates reports whether a descriptor of Envoy's may have the attribute of that name in another form, or under
	// another name.
	Translates(name string) bool
	// Translate returns the entries of such a descriptor in the forms and under the names that limits know. It does not
	// change entries.
	Translate(entries []limit.Attribute) []limit.Attribute
}

// Counter knows other counts of budgets of plans. It is safe for concurrent use.
type Counter interface {
	// Count returns what a request has in place of nominal, the count that its plan says, of the budget of that name.
	Count(attrs []limit.Attribute, budget string, nominal int64) int64
}

// derivation is what d does for the limits of one configuration. The zero value derives nothing.
type derivation struct {
	deriver Deriver
	counts  Counter  // nil = every budget has the count of its plan
	names   []string // that limits read, and that may be derived
	// translates is set where limits read what descriptors of Envoy's have in another form.
	translates bool
}

// derivationOf returns it for limits that read these attributes, and all attributes that are then needed.
func derivationOf(d Deriver, read []string) (x derivation, all []string) {
	if d == nil {
		return x, read
	}
	x.deriver, all = d, slices.Clone(read)
	x.counts, _ = d.(Counter)
	for i := 0; i < len(all); i++ { // what others are found from may be derived as well
		name := all[i]
		if !d.Derives(name) {
			continue
		}
		x.names = append(x.names, name)
		for _, more := range d.Needs([]string{name}) {
			if !slices.Contains(all, more) {
				all = append(all, more)
			}
		}
	}
	x.translates = slices.ContainsFunc(all, d.Translates)
	if len(x.names) == 0 {
		x.counts = nil
		return x, read
	}
	slices.Sort(all)
	return x, all
}

// ofDescriptor returns what limits in stint's format see of a descriptor.
func (x *derivation) ofDescriptor(d *Descriptor) []limit.Attribute {
	if d.Described && x.translates {
		return x.of(x.deriver.Translate(d.Attributes))
	}
	return x.of(d.Attributes)
}

// of returns attrs with those that are derived from them.
func (x *derivation) of(attrs []limit.Attribute) []limit.Attribute {
	if len(x.names) == 0 {
		return attrs
	}
	return x.deriver.Derive(x.names, attrs)
}

// own returns the count of a budget of a plan for a request: how much is admitted, and the nominal count.
func (x *derivation) own(l *rules.Limit, v *rules.Variant, attrs []limit.Attribute) (quota, nominal int64) {
	quota, nominal = v.Policy.Quota(), v.Nominal
	if x.counts == nil {
		return quota, nominal
	}
	if n := x.counts.Count(attrs, v.Pool, nominal); n != nominal {
		quota, nominal = l.Restricted(n), n
	}
	return quota, nominal
}
