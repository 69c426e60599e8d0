// Package hits counts what Envoy's rate limit service counts of its rules: hits, not requests, by the name that the
// service gives a rule in its statistics.
//
// It decides nothing, and neither shows nor sends what it has counted.
package hits

import (
	"math"
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

// Table counts. Make it with [New]. Its methods are safe for concurrent use.
type Table struct {
	ratio float32
	live  atomic.Pointer[view]

	mu     sync.RWMutex
	byName map[string]*counter // of rules whose name does not vary, and of what is beyond the bound
	varied map[string]*counter // by what the values come to, not yet made a name
	names  map[*counter]string // of the varied
}

// view finds counters without a lock.
type view struct {
	rules []one // by Variant.Index
}

type one struct {
	limit   *rules.Limit
	counter *counter
	varies  bool
}

// New returns a table for the rules of set. near is the share of a rule above which hits are near its limit; 0 = that of
// the engine by default.
func New(set *rules.Set, near float64) *Table {
	if near == 0 {
		near = engine.DefaultNearLimit
	}
	t := &Table{ratio: float32(near), byName: map[string]*counter{}, varied: map[string]*counter{}, names: map[*counter]string{}}
	t.Follow(set)
	return t
}

// Follow makes the rules of set those that are counted. Counts of rules that are still there go on.
func (t *Table) Follow(set *rules.Set) {
	t.mu.Lock()
	defer t.mu.Unlock()
	v := &view{rules: make([]one, len(set.Variants()))}
	byName := make(map[string]*counter, len(t.byName))
	domains := map[string]bool{}
	for _, l := range set.Limits() {
		if !l.Envoy || l.Whitelist || l.Base.Policy.Unlimited {
			continue
		}
		name := clean(l.Name)
		c := byName[name]
		if c == nil {
			if c = t.byName[name]; c == nil {
				c = new(counter)
			}
			byName[name] = c
		}
		domains[l.Domain] = true
		v.rules[l.Base.Index] = one{l, c, l.StatVaries()}
	}
	for d := range domains {
		if c := t.byName[other(d)]; c != nil {
			byName[other(d)] = c
		}
	}
	t.byName = byName
	// What the values of a domain that has gone came to makes room.
	for key, c := range t.varied {
		if domain, _, _ := strings.Cut(key, "\x00"); !domains[domain] {
			delete(t.varied, key)
			delete(t.names, c)
		}
	}
	t.live.Store(v)
}

func other(domain string) string { return clean(domain + ".other") }

// Count counts what became of descriptor i of q, which has been decided. entries are those that came.
func (t *Table) Count(q *engine.Query, i int, entries []limit.Attribute) {
	d := &q.Descriptors[i]
	if q.Peek || d.Refund || d.Cost == 0 {
		return
	}
	hits := q.HitsOf(i)
	for j := range hits {
		h := &hits[j]
		if h.Result < 0 || h.Limit != nil && !h.Limit.Envoy {
			continue
		}
		r := &q.Decision.Results[h.Result]
		if c := t.find(h, q.Domain, entries); c != nil && !r.StoreFailed {
			t.count(c, r, d.Cost)
		}
	}
}

// count adds cost to what r says. A request fits a rule as a whole or not, so all of it is over or none.
func (t *Table) count(c *counter, r *limit.Result, cost int64) {
	n := uint64(cost)
	c.total.Add(n)
	if !r.Allowed {
		c.over.Add(n)
		if r.Shadow {
			c.shadow.Add(n)
		}
		return
	}
	c.within.Add(n)
	// As that service rounds it.
	near := int64(math.Floor(float64(float32(r.Quota) * t.ratio)))
	if above := min(r.Quota-r.Remaining-near, cost); above > 0 {
		c.near.Add(uint64(above))
	}
}

// find returns the counter of a hit; nil = it has none.
func (t *Table) find(h *engine.Hit, domain string, entries []limit.Attribute) *counter {
	if h.Limit == nil {
		return t.vary(domain, nil, entries)
	}
	v := t.live.Load()
	if at := h.Variant.Index; at < len(v.rules) && v.rules[at].limit == h.Limit {
		if one := &v.rules[at]; one.varies {
			return t.vary(domain, h.Limit, entries)
		}
		return v.rules[at].counter
	}
	if h.Limit.Base.Policy.Unlimited {
		return nil
	}
	// The configuration is being replaced.
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.byName[clean(h.Limit.Name)]
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
		name := other(domain)
		if l != nil {
			name = clean(l.Name)
		}
		if c = t.byName[name]; c == nil {
			c = new(counter)
			t.byName[name] = c
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
	all := make(map[string]Counts, len(t.byName)+len(t.varied))
	add := func(name string, c *counter) {
		n, was := c.read(), all[name]
		all[name] = Counts{was.Total + n.Total, was.Over + n.Over, was.Near + n.Near, was.Within + n.Within, was.Shadow + n.Shadow}
	}
	for name, c := range t.byName {
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
