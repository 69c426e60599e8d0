package rules

import (
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/stint-io/stint/internal/document"
	"github.com/stint-io/stint/limit"
)

// Throttle says how many requests one server does at once, how many wait, and which are more important: the
// section throttle of a limits file. It is read-only once loaded, and belongs to its [Set]. A proxy keeps to
// it; a service has no server behind it.
type Throttle struct {
	// Concurrency is how many requests run at most; 0 = not bounded. Where it is Adaptive, the bound
	// follows the server and is never above.
	Concurrency int
	Adaptive    bool
	// Rate is the CPU time of requests that are started, in CPU-seconds per second; 0 = not bounded.
	Rate float64

	// MaxWaiting bounds the requests that wait, and MaxWaitingCost their predicted CPU time together;
	// 0 = the default of package throttle. MaxWait is how long one waits at most.
	MaxWaiting     int
	MaxWaitingCost time.Duration
	MaxWait        time.Duration
	NewestFirst    bool

	// User is the attribute that chooses the level inside a class, Key the one whose values share a class
	// fairly; "" = neither.
	User, Key string

	// Cost is the CPU time of a request of which nothing is known; 0 = the default.
	Cost time.Duration

	// Classes are tried in order: the first that holds says how important a request is.
	Classes []Class

	// File and Line say where it is written.
	File string
	Line int

	set *Set
}

// Class is how important some requests are.
type Class struct {
	// When is the condition as text, such as "path=/checkout*"; "" = every request.
	When string
	// Criticality is sheddable, sheddable_plus, critical or critical_plus.
	Criticality string
	// CountsUntil is answer or end: for how long its requests hold their places; "" = an event stream until its answer
	// has begun, all others until it has ended.
	CountsUntil string

	clause clause
}

var (
	throttleKeys      = []string{"concurrency", "rate", "adaptive", "queue", "user", "key", "cost", "classes"}
	throttleQueueKeys = []string{"max", "cost", "max_wait", "order"}
	classKeys         = []string{"match", "when", "criticality", "counts_until"}
	orders            = []string{"oldest_first", "newest_first"}
	countsUntil       = []string{"answer", "end"}
	criticalities     = []string{"sheddable", "sheddable_plus", "critical", "critical_plus"}
)

const (
	maxClasses     = 256
	maxConcurrency = 1 << 20
)

// Throttle returns the section throttle of the files; nil = there is none.
func (s *Set) Throttle() *Throttle { return s.throttle }

// Class returns the first class that holds for a request with these attributes; nil = none does.
func (t *Throttle) Class(attrs []limit.Attribute) *Class {
	sub := subject{attrs: attrs, set: t.set}
	for i := range t.Classes {
		if c := &t.Classes[i]; c.clause.holds(&sub) {
			return c
		}
	}
	return nil
}

// Same reports whether two sections say the same.
func (t *Throttle) Same(o *Throttle) bool {
	a, b := *t, *o
	a.Classes, a.File, a.Line, a.set = nil, "", 0, nil
	b.Classes, b.File, b.Line, b.set = nil, "", 0, nil
	return reflect.DeepEqual(a, b) && slices.EqualFunc(t.Classes, o.Classes, func(x, y Class) bool {
		return x.When == y.When && x.Criticality == y.Criticality && x.CountsUntil == y.CountsUntil
	})
}

// names are the attributes that it reads.
func (t *Throttle) names() (out []string) {
	for _, name := range []string{t.User, t.Key} {
		if name != "" {
			out = append(out, name)
		}
	}
	for i := range t.Classes {
		out = t.Classes[i].clause.names(out)
	}
	return out
}

// throttle reads the section.
func (b *builder) throttle(d *file, n *document.Node) {
	if !d.section(n, "throttle", "a map with concurrency or rate", throttleKeys) {
		return
	}
	if first := b.set.throttle; first != nil {
		d.Fault(n, "write it in one file only", "another throttle is at %s:%d", first.File, first.Line)
		return
	}
	t := &Throttle{File: d.Name, Line: n.Line}
	b.set.throttle = t
	if c := n.Get("concurrency"); c != nil {
		if v, ok := d.integer(c, 1, maxConcurrency); ok {
			t.Concurrency = int(v)
		}
	}
	if r := n.Get("rate"); r != nil {
		t.Rate = d.share(r)
	}
	if n.Get("concurrency") == nil && n.Get("rate") == nil {
		d.Fault(n, "add concurrency: 64, or rate: 1600ms/s", "a throttle without concurrency and rate holds nothing back")
	}
	if a := n.Get("adaptive"); a != nil {
		if v, ok := d.boolean(a); ok {
			t.Adaptive = v
		}
		if t.Adaptive && n.Get("concurrency") == nil {
			d.Fault(a, "add concurrency: the most that it may rise to", "adaptive needs a bound")
		}
	}
	b.throttleQueue(d, n.Get("queue"), t)
	for key, to := range map[string]*string{"user": &t.User, "key": &t.Key} {
		if a := n.Get(key); a != nil {
			if name, ok := d.attribute(a); ok {
				b.doubtName(d, a, name)
				*to = name
			}
		}
	}
	if c := n.Get("cost"); c != nil && d.section(c, "cost", "a map such as {default: 5ms}", []string{"default"}) {
		if v := c.Get("default"); v != nil {
			t.Cost, _ = d.duration(v)
		}
	}
	b.classes(d, n.Get("classes"), t)
}

func (b *builder) throttleQueue(d *file, n *document.Node, t *Throttle) {
	if n == nil || !d.section(n, "queue", "a map such as {max: 1000, max_wait: 1s}", throttleQueueKeys) {
		return
	}
	if m := n.Get("max"); m != nil {
		if v, ok := d.integer(m, 1, maxConcurrency); ok {
			t.MaxWaiting = int(v)
		}
	}
	if c := n.Get("cost"); c != nil {
		t.MaxWaitingCost, _ = d.duration(c)
	}
	if w := n.Get("max_wait"); w != nil {
		t.MaxWait, _ = d.duration(w)
	}
	d.either(n.Get("order"), &t.NewestFirst, orders[0], orders[1])
}

func (b *builder) classes(d *file, n *document.Node, t *Throttle) {
	if n == nil {
		return
	}
	if n.Kind != document.List {
		d.Wants(n, "a list of classes", "put a dash before each class")
		return
	}
	if len(n.Items) > maxClasses {
		d.Fault(n, "", "there are %d classes, want at most %d", len(n.Items), maxClasses)
		return
	}
	lines := map[string]int{}
	for _, item := range n.Items {
		if !d.section(item, "a class", "a class: a map with match and criticality", classKeys) {
			continue
		}
		c := Class{}
		var id string
		c.clause, c.When, id = b.clause(d, item.Get("match"), item.Get("when"))
		every := item.Get("match") == nil && item.Get("when") == nil
		if first := lines[id]; (id != "" || every) && first > 0 {
			d.Fault(item, "", "a class with the condition of line %d is never reached", first)
		}
		lines[id] = item.Line
		word := item.Get("criticality")
		if word == nil {
			d.Fault(item, "add criticality: critical", "a class has no criticality")
			continue
		}
		if until := item.Get("counts_until"); until != nil {
			if i, ok := d.Word(until, countsUntil...); ok {
				c.CountsUntil = countsUntil[i]
			}
		}
		if i, ok := d.Word(word, criticalities...); ok {
			c.Criticality = criticalities[i]
			t.Classes = append(t.Classes, c)
		}
	}
}

// share reads CPU time per time, such as 1600ms/s, as CPU-seconds per second.
func (d *file) share(n *document.Node) float64 {
	used, per, ok := strings.Cut(n.Text, "/")
	cpu, err := time.ParseDuration(strings.TrimSpace(used))
	if !ok || n.Kind != document.Text || err != nil || cpu <= 0 {
		d.Wants(n, "CPU time per time", "write it as 1600ms/s, which is 80 % of two cores")
		return 0
	}
	r, err := limit.ParseRate("1/" + strings.TrimSpace(per))
	share := cpu.Seconds() / r.Period.Seconds()
	if err != nil || math.IsInf(share, 0) || math.IsNaN(share) || share > 1e6 {
		d.Wants(n, "CPU time per time", fmt.Sprintf("write it as 1600ms/s, not above %d CPU-seconds per second", int(1e6)))
		return 0
	}
	return share
}
