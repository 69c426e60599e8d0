package engine

import (
	"github.com/stint-io/stint/limit"
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

// Quota returns how much a counter admits for a key of these attributes. own = its charges have to say so.
func (e *Engine) Quota(c *Counted, attrs []limit.Attribute) (quota int64, own bool) {
	if c.Variant.Pool == "" {
		return c.Variant.Policy.Quota(), false
	}
	quota, _ = e.live.Load().derived.own(c.Limit, c.Variant, attrs)
	return quota, true
}

// taking is what requests are charged to.
func taking(b *bound) store.Counters { return b.counters }

// Counters returns the counters of the limit of that name, its own first; none for a limit that is unlimited
// or unknown. A budget of plans is found by its name alone as well: attrs say whose, and so which plan's.
func (e *Engine) Counters(name string, attrs []limit.Attribute) (list []Counted) {
	s := e.live.Load()
	for _, l := range s.set.Limits() {
		if l.Name == name {
			return s.of(l, taking)
		}
	}
	plan := ""
	for _, l := range s.set.Limits() {
		if l.Base.Pool != name || name == "" {
			continue
		}
		if plan == "" {
			for _, a := range s.derived.of(attrs) {
				if a.Name == rules.PlanAttribute {
					plan = a.Value
				}
			}
		}
		if l.Plan == plan {
			return s.of(l, taking)
		}
	}
	return nil
}

// Banners returns the counters of attempts, behind which are bans, of the limit of that name, or of all limits for "".
func (e *Engine) Banners(name string) (list []Counted) {
	s := e.live.Load()
	for _, l := range s.set.Limits() {
		if l.Ban != nil && (name == "" || l.Name == name) {
			list = append(list, s.of(l, func(b *bound) store.Counters { return b.ban })...)
		}
	}
	return list
}

// of returns counters of a limit and of its overrides, where they have some.
func (s *snapshot) of(l *rules.Limit, counters func(*bound) store.Counters) (list []Counted) {
	add := func(v *rules.Variant, when string) {
		if c := counters(&s.bound[v.Index]); c != nil {
			list = append(list, Counted{l, v, when, c})
		}
	}
	add(&l.Base, "")
	for i := range l.Overrides {
		add(&l.Overrides[i].Variant, l.Overrides[i].When)
	}
	return list
}

// BanKeeper returns the store as one that lists and lifts bans, if it does.
func (e *Engine) BanKeeper() (k store.BanKeeper, ok bool) {
	k, ok = e.store.(store.BanKeeper)
	return k, ok
}
