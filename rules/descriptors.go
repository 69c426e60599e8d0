package rules

import (
	"strings"

	"github.com/stint-io/stint/limit"
)

// descriptors is one level of an Envoy file: the rules for one entry of a
// request's descriptor.
type descriptors struct {
	exact map[entry]*descriptor
	stars []*descriptor // with a star in key or value, in the order of the file
	any   map[string]*descriptor
	// seen holds the rules by key and value as written, to find duplicates.
	seen map[entry]bool
}

// entry is a key and a value kept apart, so that ("a_b", "c") is not ("a", "b_c").
type entry struct{ key, value string }

// descriptor is one rule.
type descriptor struct {
	key     string
	pattern pattern // key_value as written
	value   pattern
	limit   *Limit       // nil when a descriptor that ends here has no limit
	below   *descriptors // nil when there is no level below
}

func newDescriptors() *descriptors {
	return &descriptors{
		exact: make(map[entry]*descriptor), any: make(map[string]*descriptor), seen: make(map[entry]bool),
	}
}

// add adds a rule; false means that the level has one for the same key and value.
func (d *descriptors) add(r *descriptor, hasValue bool) bool {
	e := entry{r.key, r.value.text}
	if d.seen[e] {
		return false
	}
	d.seen[e] = true
	if !r.pattern.exact() {
		d.stars = append(d.stars, r)
	}
	// A text with a star also matches itself literally.
	if hasValue {
		d.exact[e] = r
	} else {
		d.any[r.key] = r
	}
	return true
}

// find returns the rule for an entry: the exact one, else the first with stars
// that matches, else the one for the key whatever its value.
func (d *descriptors) find(key, value string) *descriptor {
	if r := d.exact[entry{key, value}]; r != nil {
		return r
	}
	for _, r := range d.stars {
		if r.matches(key, value) {
			return r
		}
	}
	return d.any[key]
}

// matches tells whether a rule with stars fits. Where the star is in the key,
// key and value are matched as one text joined by "_", as Envoy's service does.
func (r *descriptor) matches(key, value string) bool {
	if strings.Contains(r.key, "*") {
		return r.pattern.matches(key + "_" + value)
	}
	return r.key == key && r.value.matches(value)
}

// match finds the rule for a whole descriptor, one level for each entry, without backtracking.
func (d *descriptors) match(attrs []limit.Attribute, dst []Matched, first int, scratch []byte) ([]Matched, []byte) {
	level := d
	var rule *descriptor
	for i := range attrs {
		if level == nil {
			return dst, scratch
		}
		if rule = level.find(attrs[i].Name, attrs[i].Value); rule == nil {
			return dst, scratch
		}
		level = rule.below
	}
	if rule == nil || rule.limit == nil {
		return dst, scratch
	}
	l := rule.limit
	at := len(scratch)
	for i := range attrs {
		value := attrs[i].Value
		if l.share[i] != "" {
			value = l.share[i]
		}
		scratch = appendPart(appendPart(scratch, attrs[i].Name), value)
	}
	dst = append(dst, Matched{})
	place := len(dst) - 1
	for place > first && dst[place-1].Limit.order > l.order {
		dst[place] = dst[place-1]
		place--
	}
	dst[place] = Matched{Limit: l, Variant: &l.Base, Key: scratch[at:len(scratch):len(scratch)], Shadow: l.Shadow}
	return dst, scratch
}
