// Package hits counts what Envoy's rate limit service counts of its rules: hits, not requests, by the name that the
// service gives a rule in its statistics.
//
// It decides nothing, and neither shows nor sends what it has counted.
package hits

import (
	"maps"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/stint-io/stint/internal/engine"
	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/rules"
)

// MaxSeries is how many names there are at most for rules whose name has values of requests in it, and for limits that
// come with requests. What is beyond is counted under the name of the rule as it is written, or DOMAIN.other. Not more:
// each has up to six series, and clients choose the values. Not less: some thousand tenants fit.
const MaxSeries = 10_000

// Counts are the hits under one name.
type Counts struct {
	Total, Over, Near, Within, Shadow uint64
}

// counter is Counts while they are counted.
type counter struct{ total, over, near, within, shadow atomic.Uint64 }

func (c *counter) read() Counts {
	return Counts{c.total.Load(), c.over.Load(), c.near.Load(), c.within.Load(), c.shadow.Load()}
}

// Table counts the decisions of the engine that it observes. Make it with [New]. It is safe for concurrent use.
type Table struct {
	near   float64
	limits engine.Limits[counter]

	mu     sync.RWMutex
	beyond map[string]*counter // of limits that come with requests and are beyond the bound, by [other]
	varied map[string]*counter // by what the values come to, not yet made a name
	names  map[*counter]string // of the varied
}

var _ engine.DecisionObserver = (*Table)(nil)

// New returns a table that has counted nothing. near is the share of a rule above which hits are near its limit; 0 =
// [engine.DefaultNearLimit].
func New(near float64) *Table {
	return &Table{near: near, beyond: map[string]*counter{}, varied: map[string]*counter{}, names: map[*counter]string{}}
}

// Follow implements [engine.DecisionObserver]. Counts of rules that are still there go on.
func (t *Table) Follow(set *rules.Set) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.limits.Follow(set, func(*rules.Limit) *counter { return new(counter) })
	domains, others := map[string]bool{}, map[string]bool{}
	for _, l := range set.Limits() {
		if counts(l) {
			domains[l.Domain], others[other(l.Domain)] = true, true
		}
	}
	// What the values of a domain that has gone came to makes room.
	for key, c := range t.varied {
		if domain, _, _ := strings.Cut(key, "\x00"); !domains[domain] {
			delete(t.varied, key)
			delete(t.names, c)
		}
	}
	maps.DeleteFunc(t.beyond, func(name string, _ *counter) bool { return !others[name] })
}

// counts reports whether a limit has statistics.
func counts(l *rules.Limit) bool { return l.Envoy && !l.Whitelist && !l.Base.Policy.Unlimited }

func other(domain string) string { return clean(domain + ".other") }

// Decided implements [engine.DecisionObserver].
func (t *Table) Decided(q *engine.Query) {
	if q.Decision.Repeated {
		return
	}
	for i := range q.Decision.Results {
		h := q.HitOf(i)
		if q.Decision.Results[i].StoreFailed || h.Limit != nil && !counts(h.Limit) {
			continue
		}
		if cost, _ := q.CostOf(i); cost > 0 {
			if c := t.find(q, i); c != nil {
				t.count(c, q, i, cost)
			}
		}
	}
}

// count adds cost to what result i says. A request fits a rule as a whole or not, so all of it is over or none.
func (t *Table) count(c *counter, q *engine.Query, i int, cost int64) {
	n, r := uint64(cost), &q.Decision.Results[i]
	c.total.Add(n)
	if !r.Allowed {
		c.over.Add(n)
		if r.Shadow {
			c.shadow.Add(n)
		}
		return
	}
	c.within.Add(n)
	if near := q.Near(i, t.near); near > 0 {
		c.near.Add(uint64(near))
	}
}

// find returns the counter of result i; nil = its limit is no more.
func (t *Table) find(q *engine.Query, i int) *counter {
	l := q.HitOf(i).Limit
	if l == nil || l.StatVaries() {
		return t.vary(q.Domain, l, q.DescriptorOf(i).Attributes)
	}
	return t.limits.Of(l)
}

// vary returns the counter of a name with values in it, of a rule or of a limit that came with the request.
func (t *Table) vary(domain string, l *rules.Limit, entries []limit.Attribute) *counter {
	key := append(make([]byte, 0, 200), domain...)
	key = append(key, 0)
	from := len(key)
	if l != nil {
		key = l.AppendStatKey(key, entries[:min(len(entries), len(l.Key))])
	} else {
		key = append(key, domain...)
		for _, e := range entries {
			key = append(append(key, '.'), e.Name...)
			if e.Value != "" {
				key = append(append(key, '_'), e.Value...)
			}
		}
	}
	t.mu.RLock()
	c := t.varied[string(key)]
	full := len(t.varied) >= MaxSeries
	t.mu.RUnlock()
	if c != nil {
		return c
	}
	// A name longer than this is nothing to look at, and clients choose the values.
	const longest = 1000
	t.mu.Lock()
	defer t.mu.Unlock()
	if full || len(key) > longest || len(t.varied) >= MaxSeries {
		if l != nil {
			return t.limits.Of(l)
		}
		if c = t.beyond[other(domain)]; c == nil {
			c = new(counter)
			t.beyond[other(domain)] = c
		}
		return c
	}
	if c = t.varied[string(key)]; c == nil {
		c = new(counter)
		t.varied[string(key)], t.names[c] = c, clean(string(key[from:]))
	}
	return c
}

// Read gives every name that has hits, sorted, with its counts. Names of different values can be the same.
func (t *Table) Read(each func(name string, c Counts)) {
	t.mu.RLock()
	limits := t.limits.ByName()
	all := make(map[string]Counts, len(limits)+len(t.varied))
	add := func(name string, c *counter) {
		n, was := c.read(), all[name]
		all[name] = Counts{was.Total + n.Total, was.Over + n.Over, was.Near + n.Near, was.Within + n.Within, was.Shadow + n.Shadow}
	}
	for name, c := range limits {
		add(clean(name), c)
	}
	for name, c := range t.beyond {
		add(name, c)
	}
	for _, c := range t.varied {
		add(t.names[c], c)
	}
	t.mu.RUnlock()
	sorted := make([]string, 0, len(all))
	for name, c := range all {
		if c != (Counts{}) {
			sorted = append(sorted, name)
		}
	}
	slices.Sort(sorted)
	for _, name := range sorted {
		each(name, all[name])
	}
}

// address is an IPv4 address, whose dots would divide a name.
var address = regexp.MustCompile(`\d{1,3}\.\d{1,3}\.\d{1,3}\.\d{1,3}`)

// clean makes a name of a key, as that service does: what StatsD gives a meaning is an underscore. So is what would
// begin another line there.
func clean(key string) string {
	key = strings.Map(func(r rune) rune {
		if r == ':' || r == '|' || r < ' ' || r == 0x7f {
			return '_'
		}
		return r
	}, strings.ToValidUTF8(key, "_"))
	return address.ReplaceAllStringFunc(key, func(ip string) string { return strings.ReplaceAll(ip, ".", "_") })
}
