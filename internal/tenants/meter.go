package tenants

import (
	"container/heap"
	"time"

	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/store"
)

// slack is how many tokens an amount may be off by rounding. It admits nothing above the limit: that is
// counted elsewhere, in whole numbers.
const slack = 1e-6

// hold is [store.ShareHold] in microseconds.
const hold = float64(store.ShareHold / time.Microsecond)

// terms are [store.ShareTerms] in the numbers of the arithmetic: microseconds and tokens.
type terms struct {
	rate, burst float64 // per microsecond, and tokens
	names       []string
	floors      []float64 // the guarantees, per microsecond
	weights     []float64 // of the tenants that have one
}

func termsOf(t *store.ShareTerms) terms {
	m := terms{rate: perMicrosecond(t.Policy.Rate), burst: float64(t.Policy.Burst)}
	for _, g := range t.Guaranteed {
		m.names = append(m.names, g.Tenant)
		m.floors = append(m.floors, perMicrosecond(g.Rate))
		m.weights = append(m.weights, float64(t.Weight([]byte(g.Tenant))))
	}
	return m
}

func perMicrosecond(r limit.Rate) float64 {
	if r.Count == 0 || r.Period <= 0 {
		return 0
	}
	return float64(r.Count) / (float64(r.Period) / 1000)
}

// meter is what the tenants of one bucket have taken and what is not given back yet. The zero value
// is a full bucket of which nobody has asked.
//
// What the rate gives back goes to those that have taken: to each in proportion to its weight, to one with a guarantee at
// least that, until it has taken nothing more. That is max-min fairness by progressive filling, in time: it
// needs no estimate of what a tenant wants. Those without a guarantee are ordered by a virtual time, which
// runs by what a weight of 1 is given back, so that a step costs the logarithm of their number.
type meter struct {
	at      float64 // the time of the latest step, in microseconds
	virtual float64 // tokens that a weight of 1 was given back since nobody had taken anything
	taken   float64 // by all
	weight  float64 // of the debtors
	debtors debtors
	index   map[string]*debtor
	floors  []floor // by place in terms.names

	// Who asked last, when, and when somebody else asked last.
	last              string
	lastAt, otherwise float64
	asked             bool // lastAt has a meaning
	others            bool // otherwise has one
}

// floor is the state of a tenant with a guarantee.
type floor struct {
	taken float64
	asked float64
	known bool // it has asked
	rate  float64
}

// debtor is a tenant without a guarantee that has taken tokens.
type debtor struct {
	name   string
	finish float64 // the virtual time at which all is given back
	weight float64
	place  int
}

type debtors []*debtor

func (d debtors) Len() int { return len(d) }
func (d debtors) Less(i, j int) bool {
	return d[i].finish < d[j].finish || d[i].finish == d[j].finish && d[i].name < d[j].name
}
func (d debtors) Swap(i, j int) { d[i], d[j] = d[j], d[i]; d[i].place, d[j].place = i, j }
func (d *debtors) Push(x any)   { n := x.(*debtor); n.place = len(*d); *d = append(*d, n) }
func (d *debtors) Pop() any {
	last := len(*d) - 1
	n := (*d)[last]
	(*d)[last] = nil
	*d = (*d)[:last]
	return n
}

// level sets the rate of every tenant with a guarantee that has taken, and returns that of a weight of 1:
// guarantees above their tenant's part by weight come first, and the rest goes by weight. more is the weight
// of one that would take besides.
func (m *meter) level(t *terms, more float64) float64 {
	rate, weight := t.rate, m.weight+more
	for i := range m.floors {
		f := &m.floors[i]
		if f.rate = 0; f.taken > 0 {
			weight += t.weights[i]
		}
	}
	for again := true; again; {
		again = false
		for i := range m.floors {
			f := &m.floors[i]
			if f.taken > 0 && f.rate == 0 && t.floors[i]*weight > rate*t.weights[i] {
				f.rate = t.floors[i]
				rate, weight = rate-t.floors[i], weight-t.weights[i]
				again = true
			}
		}
	}
	level := 0.0
	if weight > 0 && rate > 0 {
		level = rate / weight
	}
	for i := range m.floors {
		if f := &m.floors[i]; f.taken > 0 && f.rate == 0 {
			f.rate = level * t.weights[i]
		}
	}
	return level
}

// advance gives back until now. A time before the latest one is taken as that.
func (m *meter) advance(t *terms, now float64) {
	left := now - m.at
	if left <= 0 {
		return
	}
	m.at = now
	for left > 0 && t.rate > 0 && m.owing() {
		level := m.level(t, 0)
		step, first := left, -1 // the one that has nothing taken after the step; -1 = nobody
		if len(m.debtors) > 0 && level > 0 {
			if d := (m.debtors[0].finish - m.virtual) / level; d <= step {
				step, first = max(d, 0), len(m.floors)
			}
		}
		for i := range m.floors {
			if f := &m.floors[i]; f.taken > 0 && f.rate > 0 {
				if d := f.taken / f.rate; d < step {
					step, first = d, i
				}
			}
		}
		m.virtual += level * step
		for i := range m.floors {
			if f := &m.floors[i]; f.taken > 0 {
				if f.taken -= f.rate * step; i == first || f.taken < 0 {
					f.taken = 0
				}
			}
		}
		if first == len(m.floors) {
			m.remove(m.debtors[0])
		}
		left -= step
		m.taken = max(m.taken-t.rate*step, 0)
		m.settle()
	}
}

// owing reports whether a tenant has taken something.
func (m *meter) owing() bool {
	if len(m.debtors) > 0 {
		return true
	}
	for i := range m.floors {
		if m.floors[i].taken > 0 {
			return true
		}
	}
	return false
}

// settle puts right what rounding has made of the sums, as soon as they are known.
func (m *meter) settle() {
	if len(m.debtors) > 0 {
		return
	}
	m.taken, m.weight, m.virtual = 0, 0, 0
	for i := range m.floors {
		m.taken += m.floors[i].taken
	}
}

func (m *meter) remove(d *debtor) {
	heap.Remove(&m.debtors, d.place)
	delete(m.index, d.name)
	m.weight -= d.weight
}
