// Package tally counts the answers of limits: admitted, refused and why, without taking a lock.
package tally

import (
	"iter"
	"sync/atomic"

	"github.com/stint-io/stint/internal/engine"
	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/rules"
)

const reasonCount = limit.ReasonCount

// unkeyedAfter is how many requests a limit is meant for before somebody is told that it never applies.
const unkeyedAfter = 10

// Options are the choices of a Table. The zero value is ready to use.
type Options struct {
	// NearLimit is the share of a rule in Envoy's format above which the hits that it admits are counted as near the
	// limit, from 0 to 1; 0 = [engine.DefaultNearLimit].
	NearLimit float64

	// Unkeyed is told of a limit that was meant for ten requests and has never applied, since each lacked an attribute
	// of its key, and why the tenth did; nil = nobody is. It is told once of each limit.
	Unkeyed func(l *rules.Limit, why string)
}

// Table counts the decisions of the engine that it observes, by limit: keys are not counted apart. It is safe for
// concurrent use. Make it with [New].
type Table struct {
	opts      Options
	limits    engine.Limits[counter]
	requests  counter // limits that come with requests
	unlimited unlimitedCounter
	repeated  atomic.Uint64
}

var _ engine.DecisionObserver = (*Table)(nil)

// New returns a table that has counted nothing.
func New(o Options) *Table { return &Table{opts: o} }

// Follow implements [engine.DecisionObserver]. Counts of limits that stay go on.
func (t *Table) Follow(set *rules.Set) {
	t.limits.Follow(set, func(*rules.Limit) *counter { return new(counter) })
}

// Decided implements [engine.DecisionObserver].
func (t *Table) Decided(q *engine.Query) {
	if q.Decision.Repeated {
		t.repeated.Add(1)
		return
	}
	for _, w := range q.Without() {
		t.without(q, &w)
	}
	for i := range q.Decision.Results {
		h := q.HitOf(i)
		c := t.of(h.Limit)
		if c == nil {
			continue
		}
		c.count(&q.Decision.Results[i])
		if h.ConditionFailed() {
			c.despite.Add(1)
		}
		if h.Limit != nil && !h.Limit.Envoy {
			continue
		}
		if _, taken := q.CostOf(i); taken {
			if n := q.Near(i, t.opts.NearLimit); n > 0 {
				c.near.Add(uint64(n))
			}
		}
	}
}

// of returns the counter of a limit; nil = that of limits that come with requests.
func (t *Table) of(l *rules.Limit) *counter {
	if l == nil {
		return &t.requests
	}
	return t.limits.Of(l)
}

func (t *Table) without(q *engine.Query, w *engine.Without) {
	if w.Limit == nil && w.Name == "" {
		t.unlimited.count(w.Why)
		return
	}
	c := t.of(w.Limit)
	if c == nil {
		return
	}
	if c.unlimited.count(w.Why) == unkeyedAfter && w.Why == engine.MissingKey && t.opts.Unkeyed != nil && !c.applied() {
		t.opts.Unkeyed(w.Limit, q.Set().WhyNot(w.Limit, q.Domain, w.Attributes))
	}
}

// Tallies yields the tally of every configured limit, in no particular order, and that of the limits that came with
// requests. It never has more entries than limits.
func (t *Table) Tallies() iter.Seq[Tally] {
	return func(yield func(Tally) bool) {
		limits := t.limits.ByName()
		requests := &t.requests
		if c := limits[engine.OverrideName]; c != nil {
			requests = c // somebody called a limit so: names stay unique
		}
		if !yield(requests.read(engine.OverrideName)) {
			return
		}
		for name, c := range limits {
			if name != engine.OverrideName && !yield(c.read(name)) {
				return
			}
		}
	}
}

// Unlimited counts by [engine.Unlimited] the requests that were admitted because no limit matched or no service decided.
func (t *Table) Unlimited() []uint64 {
	n := t.unlimited.read()
	return n[:]
}

// Repeated is how many requests repeated one by its idempotency key, and took nothing. They are in no other count.
func (t *Table) Repeated() uint64 { return t.repeated.Load() }

// CountUnlimited counts a request that was admitted without the engine, for a reason that concerns no limit in particular.
func (t *Table) CountUnlimited(why engine.Unlimited) { t.unlimited.count(why) }

// Tally counts the answers of the limit of that name since the process began, or since the
// limit was configured. Peeks are not counted.
type Tally struct {
	Limit string
	// Allowed counts the requests that fitted this limit, and Soft those of them above its soft
	// threshold.
	Allowed, Soft uint64
	// NearLimit counts, for a rule in Envoy's format, the hits that were admitted
	// above the share that is called near.
	NearLimit uint64
	// Refused counts by limit.Reason the requests that this limit refused,
	// ShadowRefused those it would have refused were it enforced.
	Refused, ShadowRefused [reasonCount]uint64
	// Tagged counts by limit.Reason the requests over this limit that it let through with a
	// mark.
	Tagged [reasonCount]uint64
	// Unlimited counts by [engine.Unlimited] the requests that were admitted without the limit. Those for which the
	// store failed are in the other counts as well.
	Unlimited [engine.UnlimitedCount]uint64
	// Despite counts the requests to which the limit applied because its condition could not be evaluated.
	Despite uint64
}

// counter is a Tally while it is counted.
type counter struct {
	allowed       atomic.Uint64
	soft          atomic.Uint64
	near          atomic.Uint64
	refused       [reasonCount]atomic.Uint64
	shadowRefused [reasonCount]atomic.Uint64
	tagged        [reasonCount]atomic.Uint64
	unlimited     unlimitedCounter
	despite       atomic.Uint64
}

// read returns the counts, with the name of the limit.
func (t *counter) read(name string) Tally {
	r := Tally{
		Limit: name, Allowed: t.allowed.Load(), Soft: t.soft.Load(), NearLimit: t.near.Load(), Unlimited: t.unlimited.read(), Despite: t.despite.Load(),
	}
	for i := range t.refused {
		r.Refused[i] = t.refused[i].Load()
		r.ShadowRefused[i] = t.shadowRefused[i].Load()
		r.Tagged[i] = t.tagged[i].Load()
	}
	return r
}

// applied reports whether the limit has ever applied to a request.
func (t *counter) applied() bool {
	n := t.allowed.Load()
	for i := range t.refused {
		n += t.refused[i].Load() + t.shadowRefused[i].Load() + t.tagged[i].Load()
	}
	return n > 0
}

func (t *counter) count(r *limit.Result) {
	reason := int(r.Reason)
	if reason >= reasonCount {
		reason = 0
	}
	switch {
	case r.Allowed:
		t.allowed.Add(1)
		if r.Soft {
			t.soft.Add(1)
		}
	case r.Tagged:
		t.tagged[reason].Add(1)
	case r.Shadow:
		t.shadowRefused[reason].Add(1)
	default:
		t.refused[reason].Add(1)
	}
}

type unlimitedCounter [engine.UnlimitedCount]atomic.Uint64

// count counts one request, and returns how many were counted for the same reason.
func (t *unlimitedCounter) count(why engine.Unlimited) uint64 { return t[why].Add(1) }

func (t *unlimitedCounter) read() (n [engine.UnlimitedCount]uint64) {
	for i := range n {
		n[i] = t[i].Load()
	}
	return n
}
