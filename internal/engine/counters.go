package engine

import (
	"github.com/stint-io/stint/rules"
	"github.com/stint-io/stint/store"
)

// Counted is a counter of a limit.
type Counted struct {
	Limit   *rules.Limit
	Variant *rules.Variant
	// When is the condition of the override whose counter it is; "" = the limit's own.
	When     string
	Counters store.Counters
}

// Counters returns the counters of the limit of that name, its own first; none for a limit that is unlimited
// or unknown.
func (e *Engine) Counters(name string) (list []Counted) {
	s := e.live.Load()
	for _, l := range s.set.Limits() {
		if l.Name != name {
			continue
		}
		add := func(v *rules.Variant, when string) {
			if c := s.bound[v.Index].counters; c != nil {
				list = append(list, Counted{l, v, when, c})
			}
		}
		add(&l.Base, "")
		for i := range l.Overrides {
			add(&l.Overrides[i].Variant, l.Overrides[i].When)
		}
	}
	return list
}
