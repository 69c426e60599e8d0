package plans

import (
	"hash/maphash"
	"maps"
	"math"
	"strings"
	"sync"
	"time"

	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/limit"
)

// Count is another count of one budget of a customer's plan.
type Count struct {
	// N is the count; Percent is it as a share of the plan's, where N is 0.
	N       int64 `json:"count,omitempty"`
	Percent int64 `json:"percent,omitempty"`
	// Until is when it ends; zero = never.
	Until time.Time `json:"until,omitzero"`
}

// of returns the count in place of the plan's.
func (c *Count) of(nominal int64) int64 {
	if c.N > 0 {
		return c.N
	}
	return int64(min(fixed.Product(uint64(nominal), uint64(c.Percent)).Div(100), limit.MaxCount))
}

// Assignment is what a customer has.
type Assignment struct {
	// Plan is the plan until Until, zero = for ever; then Then, "" = what the files say.
	Plan  string    `json:"plan"`
	Until time.Time `json:"until,omitzero"`
	Then  string    `json:"then,omitempty"`
	// Counts are other counts of budgets, by the name that the limit has in the plan. They end with it.
	Counts map[string]Count `json:"counts,omitempty"`
}

// simple reports whether there is nothing but a plan.
func (a *Assignment) simple() bool { return a.Until.IsZero() && len(a.Counts) == 0 }

// Directory has the customers that were set while it runs. It is safe for concurrent use; make it with [NewDirectory].
//
// A customer takes some 20 to 40 bytes: the hash of the name, and the number of the plan. The hash has 64 bits and a
// seed of this process: of a million customers two have the same once in 37 million processes.
type Directory struct {
	seed maphash.Seed
	now  func() time.Time

	mu    sync.RWMutex
	plans []string // that customers have, or had
	of    map[string]uint32
	live  table
}

// table has customers by the hash of their names.
type table struct {
	plan map[uint64]uint32
	more map[uint64]*Assignment // of those that have more than a plan
}

func newTable(customers int) table {
	return table{make(map[uint64]uint32, customers), make(map[uint64]*Assignment)}
}

// NewDirectory returns a directory of nobody. now nil = the system's clock.
func NewDirectory(now func() time.Time) *Directory {
	if now == nil {
		now = time.Now
	}
	return &Directory{seed: maphash.MakeSeed(), now: now, of: make(map[string]uint32), live: newTable(0)}
}

// View is a directory as the files of one configuration have it: the plans that there are, and the customers that are
// written in them. It is safe for concurrent use; make it with [Directory.Read].
type View struct {
	dir    *Directory
	plans  []string
	by     []string
	usual  string
	exists map[string]bool
	files  table
	plain  map[string]int64 // how many customers of files have nothing but a plan, by plan
}

// By returns the attributes that name customers; nil = there are no plans.
func (v *View) By() []string { return v.by }

// Exists reports whether there is a plan of that name.
func (v *View) Exists(plan string) bool { return v.exists[plan] }

// Plan returns the plan of a request: that of the customer it names, and the default one where it names none. known
// says that it is a customer's own.
func (v *View) Plan(attrs []limit.Attribute) (plan string, known bool) {
	v.dir.mu.RLock()
	defer v.dir.mu.RUnlock()
	plan, _, known = v.find(attrs)
	return plan, known
}

// Count returns the count that the customer of a request has in place of nominal, the plan's, of the budget of that name.
func (v *View) Count(attrs []limit.Attribute, budget string, nominal int64) int64 {
	v.dir.mu.RLock()
	defer v.dir.mu.RUnlock()
	if len(v.dir.live.more) == 0 {
		return nominal
	}
	if _, a, _ := v.find(attrs); a != nil {
		return v.count(a, budget, nominal)
	}
	return nominal
}

// find goes through the attributes that name customers. The directory's lock is held.
func (v *View) find(attrs []limit.Attribute) (plan string, more *Assignment, known bool) {
	for _, by := range v.by {
		for i := range attrs {
			if !sameName(by, attrs[i].Name) {
				continue
			}
			if plan, more = v.of(maphash.String(v.dir.seed, attrs[i].Value)); plan != "" {
				return plan, more, true
			}
			break
		}
	}
	return v.usual, nil, false
}

// sameName compares an attribute of the files with one of a request: the names of header fields have no case.
func sameName(by, name string) bool {
	return by == name || len(by) == len(name) && strings.HasPrefix(by, "header:") && strings.EqualFold(by, name)
}

// of returns what a customer has; "" = no plan that exists. What was set comes before the files.
func (v *View) of(h uint64) (plan string, more *Assignment) {
	d := v.dir
	if n, ok := d.live.plan[h]; ok {
		plan, more = v.now(d.plans[n], d.live.more[h])
		if v.exists[plan] {
			return plan, more
		}
	}
	if n, ok := v.files.plan[h]; ok {
		plan, more = v.now(v.plans[n], v.files.more[h])
		if v.exists[plan] {
			return plan, more
		}
	}
	return "", nil
}

// named returns the plan of a customer, and where it is from.
func (v *View) named(name string) (plan, from string) {
	v.dir.mu.RLock()
	defer v.dir.mu.RUnlock()
	h := maphash.String(v.dir.seed, name)
	if plan, _ = v.of(h); plan == "" {
		return v.usual, "default"
	}
	if n, ok := v.dir.live.plan[h]; ok {
		if set, _ := v.now(v.dir.plans[n], v.dir.live.more[h]); v.exists[set] {
			return plan, "set"
		}
	}
	return plan, "files"
}

// now is the plan that a customer has at this time. Other counts are those of the plan, and end with it.
func (v *View) now(plan string, more *Assignment) (string, *Assignment) {
	if more != nil && !more.Until.IsZero() && !v.dir.now().Before(more.Until) {
		return more.Then, nil
	}
	return plan, more
}

// put sets what a customer has in t; nil = nothing. d.mu is held.
func (d *Directory) put(t *table, name string, a *Assignment) {
	h := maphash.String(d.seed, name)
	delete(t.more, h)
	if a == nil {
		delete(t.plan, h)
		return
	}
	n, ok := d.of[a.Plan]
	if !ok {
		n = uint32(len(d.plans))
		d.plans = append(d.plans, a.Plan)
		d.of[a.Plan] = n
	}
	t.plan[h] = n
	if !a.simple() {
		t.more[h] = a
	}
}

// Stats are figures of a view.
type Stats struct {
	// Customers are those of the files, Live those that were set while it runs.
	Customers, Live int
	// Lost are those that were set to a plan that does not exist: they have what the files say.
	Lost int
}

// Stats returns the figures. It goes through the customers if a plan is missing.
func (v *View) Stats() (s Stats) {
	d := v.dir
	d.mu.RLock()
	defer d.mu.RUnlock()
	s.Customers, s.Live = len(v.files.plan), len(d.live.plan)
	gone := false
	for _, name := range d.plans {
		gone = gone || !v.exists[name]
	}
	if gone {
		for _, n := range d.live.plan {
			if !v.exists[d.plans[n]] {
				s.Lost++
			}
		}
	}
	return s
}

// Assigned returns how much customers with a plan of their own are assigned of a budget, all together, and how many they
// are. nominal has its count by plan; a plan that is not in it assigns nothing. It goes through the customers that were
// set.
func (v *View) Assigned(budget string, nominal map[string]int64) (sum int64, customers int) {
	add := func(plan string, more *Assignment, times int64) {
		count, ok := nominal[plan]
		if !ok {
			return
		}
		if customers += int(times); more != nil {
			count = v.count(more, budget, count)
		}
		sum = int64(fixed.Product(uint64(count), uint64(times)).Add(uint64(sum)).Min(math.MaxInt64))
	}
	d := v.dir
	d.mu.RLock()
	defer d.mu.RUnlock()
	plain := maps.Clone(v.plain)
	live := make(map[string]int64)
	for h, n := range d.live.plan {
		plan, more := v.now(d.plans[n], d.live.more[h])
		if !v.exists[plan] {
			continue // it has what the files say
		}
		if n, ok := v.files.plan[h]; ok && v.files.more[h] == nil {
			plain[v.plans[n]]--
		}
		if more == nil {
			live[plan]++
		} else {
			add(plan, more, 1)
		}
	}
	for h, a := range v.files.more {
		if n, ok := d.live.plan[h]; ok {
			if plan, _ := v.now(d.plans[n], d.live.more[h]); v.exists[plan] {
				continue
			}
		}
		plan, more := v.now(a.Plan, a)
		add(plan, more, 1)
	}
	for _, times := range []map[string]int64{plain, live} {
		for plan, n := range times {
			add(plan, nil, n)
		}
	}
	return sum, customers
}

// count is what an assignment says of a budget now, in place of the plan's.
func (v *View) count(a *Assignment, budget string, nominal int64) int64 {
	if c, ok := a.Counts[budget]; ok && (c.Until.IsZero() || v.dir.now().Before(c.Until)) {
		return c.of(nominal)
	}
	return nominal
}
