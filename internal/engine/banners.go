package engine

import (
	"github.com/stint-io/stint/rules"
	"github.com/stint-io/stint/store"
)

// Banner is a counter of attempts behind a ban.
type Banner struct {
	Limit   *rules.Limit
	Variant *rules.Variant
	// When is the condition of the override whose counter it is; "" = the limit's own.
	When     string
	Counters store.Counters
}

// Banners returns the counters of attempts of the limit of that name, or of all limits for "".
func (e *Engine) Banners(name string) (list []Banner) {
	s := e.live.Load()
	for _, l := range s.set.Limits() {
		if l.Ban == nil || name != "" && l.Name != name {
			continue
		}
		add := func(v *rules.Variant, when string) {
			if c := s.bound[v.Index].ban; c != nil {
				list = append(list, Banner{l, v, when, c})
			}
		}
		add(&l.Base, "")
		for i := range l.Overrides {
			add(&l.Overrides[i].Variant, l.Overrides[i].When)
		}
	}
	return list
}

// Store returns where the counters are.
func (e *Engine) Store() store.Store { return e.store }
