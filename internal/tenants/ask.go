package tenants

import (
	"container/heap"
	"math"
	"time"

	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/store"
)

// longest is the longest wait in microseconds that is answered: 30 years.
const longest = 1e15

// claimant is a tenant that asks.
type claimant struct {
	name   string
	floor  int // its place among those with a guarantee; -1 = it has none
	weight float64
}

func (t *terms) claimant(s *store.ShareTerms, tenant []byte) claimant {
	c := claimant{name: string(tenant), floor: -1, weight: float64(s.Weight(tenant))}
	for i := range t.names {
		if t.names[i] == c.name {
			c.floor = i
		}
	}
	return c
}

// part is how many tokens are kept for a tenant with a guarantee that has asked lately: its part of half of
// the burst, so that the other half is lent, and one at least.
func (t *terms) part(i int) float64 {
	return max(t.floors[i]/t.rate*t.burst/2, 1)
}

// standing is how a bucket stands for one tenant.
type standing struct {
	own  float64 // what it has taken
	free float64 // tokens that the bucket has
	room float64 // of these, what is kept for nobody else
	part float64 // how many tokens are kept for it
	left float64 // what is left of these
	// alone: nobody else has taken, or asked lately.
	alone bool
	rate  float64 // what it is refilled, per microsecond, or would be if it took something
	grows float64 // how fast room grows
}

// stand returns how the bucket stands for c. The meter is at now.
func (m *meter) stand(t *terms, c claimant) standing {
	s := standing{own: m.takenBy(c), free: t.burst - m.taken, grows: t.rate}
	more := 0.0
	if s.own <= 0 {
		more = c.weight
	}
	s.rate = m.level(t, more) * c.weight
	s.room = s.free
	if c.floor >= 0 {
		s.part = t.part(c.floor)
		s.left = s.part - s.own
		s.rate = max(s.rate, t.floors[c.floor])
	}
	for i := range m.floors {
		f := &m.floors[i]
		if kept := t.part(i) - f.taken; i != c.floor && f.known && m.at-f.asked <= hold && kept > 0 {
			s.room -= kept
			s.grows -= f.rate
		}
	}
	other, known := m.otherwise, m.others
	if m.last != c.name {
		other, known = m.lastAt, m.asked
	}
	s.alone = !(known && m.at-other <= hold) && m.taken-s.own <= slack
	return s
}

func (m *meter) takenBy(c claimant) float64 {
	if c.floor >= 0 {
		return m.floors[c.floor].taken
	}
	if d := m.index[c.name]; d != nil {
		return max((d.finish-m.virtual)*d.weight, 0)
	}
	return 0
}

// fits says whether a tenant may take cost. It may if
//
//   - the tokens are kept for it, or
//   - it has taken nothing that is not refilled, or is alone, and there are as many, or
//   - afterwards it has taken no more than is left for others.
//
// Who has less of its share than others has taken less, and passes the last condition when they do not.
func (s *standing) fits(cost float64) bool {
	if cost <= s.left+slack && cost <= s.free+slack {
		return true
	}
	if cost > s.room+slack {
		return false
	}
	return s.own <= slack || s.alone || s.own+2*cost <= s.room+slack
}

// most is the largest cost that fits.
func (s *standing) most() float64 {
	most := min(s.left, s.free)
	if s.own <= slack || s.alone {
		most = max(most, s.room)
	} else {
		most = max(most, (s.room-s.own)/2)
	}
	return max(math.Floor(most+slack), 0)
}

// wait is after how many microseconds cost fits if nobody takes anything, by the refill of now.
func (s *standing) wait(t *terms, cost float64) float64 {
	after := func(amount, rate float64) float64 {
		if amount <= 0 {
			return 0
		}
		return amount / max(rate, t.rate/1000)
	}
	w := after(cost-s.room, s.grows)
	if !s.alone {
		w = max(w, min(after(s.own, s.rate), after(s.own+2*cost-s.room, s.rate+max(s.grows, 0))))
	}
	if cost <= s.part {
		w = min(w, max(after(cost-s.left, s.rate), after(cost-s.free, t.rate)))
	}
	return w
}

// take decides cost for c at now, and takes it if it fits or force is set.
func (m *meter) take(t *terms, now float64, c claimant, cost float64, force bool) (standing, bool) {
	m.advance(t, now)
	m.note(c)
	s := m.stand(t, c)
	fits := s.fits(cost)
	if fits || force {
		m.add(c, cost)
		s = m.stand(t, c)
	}
	return s, fits
}

// note records that c has asked.
func (m *meter) note(c claimant) {
	if c.floor >= 0 {
		m.floors[c.floor].asked, m.floors[c.floor].known = m.at, true
	}
	if m.asked && m.last != c.name {
		m.otherwise, m.others = m.lastAt, true
	}
	m.last, m.lastAt, m.asked = c.name, m.at, true
}

// add charges cost to c; a negative one gives back as much of what it has taken.
func (m *meter) add(c claimant, cost float64) {
	own := m.takenBy(c)
	cost = max(cost, -own)
	if cost == 0 {
		return
	}
	m.taken = max(m.taken+cost, 0)
	own += cost
	if c.floor >= 0 {
		m.floors[c.floor].taken = own
		m.settle()
		return
	}
	d := m.index[c.name]
	switch {
	case d == nil:
		if m.index == nil {
			m.index = map[string]*debtor{}
		}
		d = &debtor{name: c.name, weight: c.weight, finish: m.virtual + own/c.weight}
		m.index[c.name] = d
		m.weight += d.weight
		heap.Push(&m.debtors, d)
	case own <= 0:
		m.remove(d)
		m.settle()
	default:
		m.weight += c.weight - d.weight
		d.weight, d.finish = c.weight, m.virtual+own/c.weight
		heap.Fix(&m.debtors, d.place)
	}
}

// owed is how many tenants have taken something.
func (m *meter) owed() int {
	n := len(m.debtors)
	for i := range m.floors {
		if m.floors[i].taken > 0 {
			n++
		}
	}
	return n
}

// idle reports whether the meter is as one of which nobody has asked.
func (m *meter) idle() bool {
	return !m.owing() && m.at-m.lastAt > hold
}

// answer fills in s.
func (s *standing) answer(t *terms, m *meter, to *store.Share, fits bool) {
	cost := float64(to.Cost)
	to.Rate, to.Tenants, to.Taken = s.rate*1e6, m.owed(), m.taken
	v := limit.Verdict{Allowed: fits, Remaining: int64(min(s.most(), float64(limit.MaxCount)))}
	switch {
	case fits:
	case cost > t.burst:
		v.Reason, v.RetryAfter = limit.ReasonCost, limit.Never
	default:
		v.Reason = limit.ReasonRate
		if cost <= s.free+slack {
			v.Reason = limit.ReasonShare
		}
		// A time of today has a resolution of an eighth of a microsecond.
		v.RetryAfter = time.Duration(math.Ceil(min(s.wait(t, cost)+0.25, longest))) * time.Microsecond
	}
	to.Verdict = v
}
