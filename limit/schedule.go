package limit

import (
	"cmp"
	"math"
	"slices"
)

// schedule is the order in which those who could not be let go at once will be.
//
// Each has a slot. A slot is planned when the time at which it is let go is known,
// and has acted when that time has come. Slots are planned in order, each from the
// state that the one before it leaves; state is the state after all that are
// planned, so the wait of a newcomer is known without looking at those before it.
// base is the state before all slots: from it everything can be planned anew when
// somebody leaves or the rate changes.
//
//	slots:  acted ... | planned ... | not planned yet
//	        ^ base                  ^ state
//
// Slots that have acted are kept only behind a reservation that may still be given
// back: to give back exactly is to replay what happened since without it.
type schedule struct {
	base, state ledger

	slots          []slot // by act
	acted, planned int    // acted <= planned

	pending int  // slots that have not acted, vacant ones apart
	waiting int  // those of them in which somebody waits
	holes   int  // slots that were given up, and that the plan still charges
	floor   Time // waiters are planned anew from here, not from the past
	serial  uint64
}

// slot is one place in a schedule.
type slot struct {
	id   uint64 // ascending
	gen  uint64 // tells apart those who had the slot one after another
	kind slotKind
	cost int64
	from Time // not before this: a waiter's arrival, the time a reservation was told

	// take is when the cost is taken, act when the owner is let go: later than
	// take if held back, MaxInt64 = never. Once something before a slot is
	// given back, it is held back no more, but acts when it was told to, so its
	// cost is taken then.
	take, act Time

	wake chan error // of one who waits; holds one
}

type slotKind uint8

const (
	slotGranted slotKind = iota
	slotRefused          // counted and refused
	slotPromised
	slotWaiting
	slotVacant // given up
)

// journal is how many slots are kept behind a reservation that has acted. Not
// fewer: a reservation is given back before some others were let go, or not at
// all. Not more: each give-back replays them, at some 20 ns each.
const journal = 64

// apply repeats what a slot that has acted did to a ledger. It says false when
// the slot's cost does not fit there; it is then charged as soon as it does.
func (m *meter) apply(l *ledger, s *slot) bool {
	switch s.kind {
	case slotVacant:
		return true
	case slotRefused:
		m.refuse(l, s.take, s.cost)
		return true
	}
	take, _, ok := m.earliest(l, s.take, s.cost)
	if ok {
		m.take(l, take, s.cost)
	}
	return ok && take == s.take
}

// plan plans the first k slots, as far as they are not.
func (c *schedule) plan(m *meter, k int) {
	for ; c.planned < k; c.planned++ {
		s := &c.slots[c.planned]
		if s.kind == slotVacant {
			s.act = 0
			continue
		}
		from := s.from
		if s.kind == slotWaiting {
			from = max(from, c.floor)
		}
		take, act, ok := m.earliest(&c.state, from, s.cost)
		s.take, s.act = take, act
		if ok {
			m.take(&c.state, take, s.cost)
		} else {
			// Nobody behind passes one who cannot be served.
			c.state.last = math.MaxInt64
		}
	}
}

// settle lets go whoever's time has come by now.
func (c *schedule) settle(m *meter, now Time) {
	for c.acted < len(c.slots) {
		c.plan(m, c.acted+1)
		s := &c.slots[c.acted]
		if s.act > now {
			break
		}
		switch s.kind {
		case slotVacant:
		case slotWaiting:
			s.wake <- nil
			s.wake, s.kind = nil, slotGranted
			c.waiting--
			c.pending--
		default:
			c.pending--
		}
		if c.holes > 0 {
			s.take = s.act
		}
		c.acted++
	}
	if c.pending == 0 && c.holes > 0 {
		c.rewind(m, now) // nobody took what was given up
	}
	c.trim(m, journal)
}

// trim moves slots that have acted into base, but for a reservation and at most
// keep slots from it on.
func (c *schedule) trim(m *meter, keep int) {
	k := 0
	for k < c.acted && (c.slots[k].kind != slotPromised || c.acted-k > keep) {
		m.apply(&c.base, &c.slots[k])
		k++
	}
	if k == 0 {
		return
	}
	clear(c.slots[:k])
	c.slots = c.slots[k:]
	c.acted -= k
	c.planned -= k
	if len(c.slots) == 0 {
		c.base, c.floor = ledger{}, 0
	}
}

// rewind forgets the plan, to make another from now on. It says false when what
// has acted could not have acted then without a slot that became vacant.
func (c *schedule) rewind(m *meter, now Time) bool {
	c.state = c.base.clone()
	c.planned, c.holes = c.acted, 0
	c.floor = max(c.floor, now)
	ok := true
	for i := range c.acted {
		ok = m.apply(&c.state, &c.slots[i]) && ok
	}
	left := c.slots[c.acted:]
	if vacant := len(left) - c.pending; c.pending == 0 || vacant > len(left)/2+16 {
		left = slices.DeleteFunc(left, func(s slot) bool { return s.kind == slotVacant })
		c.slots = c.slots[:c.acted+len(left)]
	}
	return ok
}

// vacate gives up the i-th slot, and reports whether its cost came back.
func (c *schedule) vacate(m *meter, i int, now Time) bool {
	s := &c.slots[i]
	was := *s
	s.kind, s.wake = slotVacant, nil
	if i < c.acted {
		for j := i + 1; j < c.acted; j++ {
			c.slots[j].take = c.slots[j].act
		}
		if c.rewind(m, now) {
			c.trim(m, journal)
			return true
		}
		// A window opened by its first hit stays as it was opened: others
		// have taken from it.
		*s = was
		c.rewind(m, now)
		return false
	}
	c.pending--
	if was.kind == slotWaiting {
		c.waiting--
	}
	if c.pending == 0 || c.waiting > 0 || i >= c.planned {
		c.rewind(m, now) // those behind move up
		return true
	}
	// Reservations were told a time and keep it. The time of this one is for
	// a newcomer.
	c.holes++
	return true
}

// enter gives s, with kind, cost and from filled in, a slot at the end, or one
// that was given up, unless it would act after latest. It returns the slot; one
// without an id has acted and is not kept.
func (c *schedule) enter(m *meter, now, latest Time, s slot) (slot, bool) {
	if i := c.hole(now, s.cost); i >= 0 && c.slots[i].act <= latest {
		return c.fill(i, s), true
	}
	if c.holes > 0 {
		c.rewind(m, now)
	}
	if s.kind == slotWaiting && latest == math.MaxInt64 && c.planned < len(c.slots) {
		c.pending++
		c.waiting++
		return c.push(s), true
	}
	c.plan(m, len(c.slots))
	take, act, ok := m.earliest(&c.state, now, s.cost)
	s.take, s.act = take, act
	if act > latest || !ok && s.kind == slotPromised {
		return s, false
	}
	atOnce := act <= now && c.pending == 0
	if atOnce && s.kind == slotWaiting {
		s.kind = slotGranted
	}
	if len(c.slots) == 0 && s.kind != slotGranted {
		c.base = c.state.clone()
	}
	if ok {
		m.take(&c.state, take, s.cost)
	} else {
		c.state.last = math.MaxInt64
	}
	if s.kind == slotPromised {
		s.from = act
	}
	if len(c.slots) == 0 && s.kind == slotGranted {
		return s, true
	}
	s = c.push(s)
	c.planned++
	switch {
	case atOnce:
		c.acted++
		c.trim(m, journal)
	case s.kind == slotWaiting:
		c.waiting++
		fallthrough
	default:
		c.pending++
	}
	return s, true
}

func (c *schedule) push(s slot) slot {
	c.serial++
	s.id, s.gen = c.serial, c.serial
	c.slots = append(c.slots, s)
	return s
}

// record notes what was taken, or counted and refused, at once.
func (c *schedule) record(m *meter, kind slotKind, at Time, cost int64) {
	if len(c.slots) == 0 {
		return
	}
	c.push(slot{kind: kind, cost: cost, take: at, act: at})
	c.acted++
	c.planned++
	c.trim(m, journal)
}

// hole returns the first vacant slot that a newcomer may have, or -1.
func (c *schedule) hole(now Time, cost int64) int {
	if c.holes == 0 {
		return -1
	}
	for i := c.acted; i < c.planned; i++ {
		if s := &c.slots[i]; s.kind == slotVacant && s.act > now && s.cost >= cost {
			return i
		}
	}
	return -1
}

// fill gives the i-th slot, which is vacant, to s.
func (c *schedule) fill(i int, s slot) slot {
	old := &c.slots[i]
	if s.cost == old.cost {
		c.holes-- // else the plan still charges the rest
	}
	c.serial++
	s.id, s.gen, s.take, s.act = old.id, c.serial, old.take, old.act
	if s.kind == slotPromised {
		s.from = s.act
	}
	*old = s
	c.pending++
	if s.kind == slotWaiting {
		c.waiting++
	}
	return s
}

// find returns the index of a slot, or -1 when it is no more.
func (c *schedule) find(id, gen uint64) int {
	i, ok := slices.BinarySearchFunc(c.slots, id, func(s slot, id uint64) int { return cmp.Compare(s.id, id) })
	if !ok || c.slots[i].gen != gen || c.slots[i].kind == slotVacant {
		return -1
	}
	return i
}
