package limit

import (
	"math"
	"slices"
	"sort"

	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/internal/waitline"
)

// schedule is the order in which requests are served that could not be served at once.
//
// Each has a slot. A slot is planned when its cost is charged to the plan, so that the time at
// which it is served is known, and has acted when that time has come. Slots are planned in
// order, each from the state that the one before it leaves; state is the state after all planned
// slots, base the state before all slots. From base everything is planned again when a waiter
// leaves or the rate changes.
//
//	slots:  acted ... | planned ... | not planned yet
//	        ^ base                  ^ state
//
// Waiters, unlike reservations, are planned as late as possible: the time of the first is
// computed, but not charged, so that a waiter that leaves costs nothing. Where the sum of the
// costs determines the state after all waiters (see skip), the wait of a new one follows from
// that sum, however many there are. Otherwise all have to be planned, which is work only for the
// first new waiter after one has left.
//
// Slots that have acted are kept only behind a reservation that may still be cancelled: it is
// given back by replaying what happened since without it.
type schedule struct {
	base, state ledger

	slots          []slot // by act
	acted, planned int    // acted <= planned
	sighted        bool   // take and act of slots[acted] hold, though it is not planned

	pending   int        // slots that have not acted, without vacant ones
	waiting   int        // of these, slots of waiters
	cost      fixed.Wide // of the pending slots; 128 bits, since costs go up to 2^62
	unplanned fixed.Wide // of the pending slots that are not planned
	largest   int64      // cost since the schedule was empty
	holes     int        // vacant slots that the plan still charges
	firstHole uint64     // no slot with a lower id is a hole
	floor     Time       // waiters are planned from this time on, not from the past
	serial    uint64

	calls waitline.Dispatcher // of waiters that do not block
}

// slot is one entry of a schedule.
type slot struct {
	id   uint64 // ascending
	gen  uint64 // distinguishes successive owners of the slot
	kind slotKind
	cost int64
	from Time // the earliest time: a waiter's arrival, or the time of a reservation

	// take is when the cost is taken, act when the owner is served: later than take if it is
	// held back, MaxInt64 = never. Once a cost before the slot is given back, the slot keeps
	// its act, and its cost is taken then.
	take, act Time

	// latest is the owner's deadline; MaxInt64 = none. It is checked again when the slot is
	// planned: a change of policy may have made the wait too long.
	latest Time

	signal waitline.Signal // of a waiter
}

type slotKind uint8

const (
	slotGranted slotKind = iota
	slotRefused          // counted and refused
	slotPromised
	slotWaiting
	slotVacant // given up
)

// journal is how many slots are kept behind a reservation that has acted. Not fewer: it may be
// cancelled after that many others were served. Not more: each cancellation replays them, at
// some 20 ns each.
const journal = 64

// apply repeats on a ledger what a slot that has acted did. It returns false when the slot's
// cost does not fit at its time; it is then charged as soon as it fits.
func (m *meter) apply(l *ledger, s *slot) bool {
	switch s.kind {
	case slotVacant:
		return true
	case slotRefused:
		m.refuse(l, s.take, s.cost)
		return true
	}
	if m.owed(s) {
		m.owe(l, s.take, s.cost)
		return true
	}
	take, _, ok := m.earliest(l, s.take, s.cost)
	if ok {
		m.take(l, take, s.cost)
	}
	return ok && take == s.take
}

// owed reports whether a slot is a reservation above the present quota. Its owner acts at its
// time all the same; the cost becomes debt.
func (m *meter) owed(s *slot) bool {
	return s.kind == slotPromised && s.cost > m.quota && !m.policy.Unlimited
}

// sight computes when the first slot that is not planned is served. It returns false when that
// is vacant, or becomes so because it would be served too late.
func (c *schedule) sight(m *meter, s *slot) (ok bool) {
	if s.kind == slotVacant {
		s.act = 0
		return false
	}
	from := s.from
	if s.kind == slotWaiting {
		from = max(from, c.floor)
	}
	if m.owed(s) {
		s.take = max(from, c.state.last)
		s.act = s.take
		return true
	}
	s.take, s.act, _ = m.earliest(&c.state, from, s.cost)
	if s.kind == slotWaiting && s.act > s.latest {
		c.dismiss(s, &tooLong{changed: true, wait: waitUntil(s.act, s.latest)})
		return false
	}
	return true
}

// charge charges the slot to the plan.
func (c *schedule) charge(m *meter, s *slot) {
	c.unplanned = c.unplanned.Minus(fixed.Wide{Lo: uint64(s.cost)})
	if s.act == math.MaxInt64 {
		// A waiter that cannot be served blocks those behind it.
		c.state.last = math.MaxInt64
		return
	}
	if m.owed(s) {
		m.owe(&c.state, s.take, s.cost)
		return
	}
	m.take(&c.state, s.take, s.cost)
}

// plan plans the first k slots.
func (c *schedule) plan(m *meter, k int) {
	for ; c.planned < k; c.planned++ {
		s := &c.slots[c.planned]
		if c.sight(m, s) {
			c.charge(m, s)
		}
		c.sighted = false
	}
}

// settle serves the slots that are due by now.
func (c *schedule) settle(m *meter, now Time) { c.settleSome(m, now, math.MaxInt) }

// settleSome is settle for at most that many slots. Afterwards the time of the next one is
// known, due or not: the timer is set to it.
func (c *schedule) settleSome(m *meter, now Time, most int) {
	for ; c.acted < len(c.slots); most-- {
		s := &c.slots[c.acted]
		if c.planned == c.acted && !c.sighted {
			c.sighted = c.sight(m, s)
		}
		if s.act > now || most == 0 {
			break // a vacant slot never stops the loop: its act is 0
		}
		if c.planned == c.acted {
			if c.sighted {
				c.charge(m, s)
			}
			c.planned, c.sighted = c.planned+1, false
		}
		if s.kind != slotVacant {
			c.pending--
			c.cost = c.cost.Minus(fixed.Wide{Lo: uint64(s.cost)})
			if s.kind == slotWaiting {
				c.waiting--
				c.end(s, nil)
				s.kind = slotGranted
			}
		}
		if c.holes > 0 {
			s.take = s.act
		}
		c.acted++
	}
	if c.pending == 0 && c.holes > 0 {
		c.rewind(m, now) // nobody took the vacant slots
	}
	c.trim(m, journal)
}

// end ends the wait of a slot's owner.
func (c *schedule) end(s *slot, err error) {
	s.signal.End(&c.calls, err)
	s.signal = waitline.Signal{}
}

// dismiss ends the wait of a slot that is not planned.
func (c *schedule) dismiss(s *slot, err error) {
	c.end(s, err)
	c.unplanned = c.unplanned.Minus(fixed.Wide{Lo: uint64(s.cost)})
	c.clear(s)
}

// clear makes a slot that has not acted vacant.
func (c *schedule) clear(s *slot) {
	c.pending--
	c.cost = c.cost.Minus(fixed.Wide{Lo: uint64(s.cost)})
	if s.kind == slotWaiting {
		c.waiting--
	}
	s.kind, s.signal, s.act = slotVacant, waitline.Signal{}, 0
}

// trim moves slots that have acted into base, but for a reservation and at most
// keep slots from it on.
func (c *schedule) trim(m *meter, keep int) {
	k := 0
	for k < c.acted && (c.slots[k].kind != slotPromised || c.acted-k > keep) {
		k++
	}
	if k == 0 {
		return
	}
	if k == c.planned && c.holes == 0 && m.policy.Algorithm != SlidingWindowLog {
		c.base = c.state // the same as applying the slots, with less work
	} else {
		for i := range k {
			m.apply(&c.base, &c.slots[i])
		}
	}
	clear(c.slots[:k])
	c.slots = c.slots[k:]
	c.acted -= k
	c.planned -= k
	if len(c.slots) == 0 {
		c.base, c.floor, c.largest = ledger{}, 0, 0
	}
}

// rewind forgets the plan, to plan again from now on. It returns false when a slot that has
// acted could not have acted then without a slot that became vacant.
func (c *schedule) rewind(m *meter, now Time) bool {
	c.state = c.base.clone()
	c.planned, c.holes, c.sighted = c.acted, 0, false
	c.unplanned = c.cost
	c.floor = max(c.floor, now)
	ok := true
	for i := range c.acted {
		ok = m.apply(&c.state, &c.slots[i]) && ok
	}
	c.compact()
	return ok
}

// compact drops vacant slots when most slots that have not acted are vacant. Nothing is planned.
func (c *schedule) compact() {
	left := c.slots[c.acted:]
	if vacant := len(left) - c.pending; c.pending == 0 || vacant > len(left)/2+16 {
		left = slices.DeleteFunc(left, func(s slot) bool { return s.kind == slotVacant })
		c.slots = c.slots[:c.acted+len(left)]
	}
}

// vacate gives up the i-th slot at now, after a settle. It reports whether the slot's cost was
// given back.
func (c *schedule) vacate(m *meter, i int, now Time) bool {
	s := &c.slots[i]
	was := *s
	if i < c.acted {
		s.kind, s.signal = slotVacant, waitline.Signal{}
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
	c.clear(s)
	switch {
	case i >= c.planned:
		c.unplanned = c.unplanned.Minus(fixed.Wide{Lo: uint64(was.cost)})
		if i == c.acted {
			c.sighted = false
			c.floor = max(c.floor, now) // the next slot is planned from now on
		}
		if c.planned == c.acted {
			c.compact()
		}
	case c.pending == 0 || c.waiting > 0:
		c.rewind(m, now) // the slots behind move up
	default:
		// Reservations keep their times. The time of this one is for a new request.
		s.act = was.act
		if c.holes == 0 || was.id < c.firstHole {
			c.firstHole = was.id
		}
		c.holes++
	}
	return true
}

// after returns the state after all slots; it uses room where that is not c.state.
func (c *schedule) after(m *meter, room *ledger, s *slot) *ledger {
	largest := max(c.largest, s.cost)
	if c.planned < len(c.slots) && c.pending == c.waiting && s.kind == slotWaiting && c.unplanned.Hi == 0 && c.unplanned.Lo <= MaxCount {
		*room = c.state
		if m.skip(room, int64(c.unplanned.Lo), largest) {
			return room
		}
	}
	c.plan(m, len(c.slots))
	return &c.state
}

// enter gives s, with kind, cost, from and latest filled in, a slot at the end or a vacant one,
// unless it would act after latest. The caller has settled the schedule. enter returns the slot;
// one without an id has acted and is not kept.
func (c *schedule) enter(m *meter, now Time, s slot) (slot, bool) {
	if i := c.hole(now, s.cost); i >= 0 && c.slots[i].act <= s.latest {
		return c.fill(i, s), true
	}
	if c.holes > 0 {
		c.rewind(m, now)
	}
	if s.kind == slotWaiting && s.latest == math.MaxInt64 && c.pending > 0 && c.planned < len(c.slots) {
		return c.append(s), true
	}
	var room ledger
	back := c.after(m, &room, &s)
	take, act, ok := m.earliest(back, now, s.cost)
	s.take, s.act = take, act
	if act > s.latest || !ok && s.kind == slotPromised {
		return s, false
	}
	if act <= now && c.pending == 0 {
		return c.enterAtOnce(m, s), true
	}
	if len(c.slots) == 0 {
		c.base = c.state.clone()
	}
	if s.kind == slotPromised {
		s.from = act
	}
	first := c.pending == 0
	s = c.append(s)
	switch {
	case s.kind == slotPromised:
		c.charge(m, &s)
		c.planned++
	case first:
		c.sighted = c.planned == c.acted && c.acted == len(c.slots)-1
	}
	return s, true
}

// enterAtOnce is enter for a request that need not wait and has no slot before it.
func (c *schedule) enterAtOnce(m *meter, s slot) slot {
	if s.kind == slotWaiting {
		s.kind = slotGranted
	}
	if len(c.slots) == 0 && s.kind != slotGranted {
		c.base = c.state.clone()
	}
	m.take(&c.state, s.take, s.cost)
	if s.kind == slotPromised {
		s.from = s.act
	}
	if len(c.slots) > 0 || s.kind != slotGranted {
		s = c.push(s)
		c.acted++
		c.planned++
		c.trim(m, journal)
	}
	return s
}

// append gives s, which waits or is to be planned, a slot at the end.
func (c *schedule) append(s slot) slot {
	c.pending++
	if s.kind == slotWaiting {
		c.waiting++
	}
	c.cost = c.cost.Add(uint64(s.cost))
	c.unplanned = c.unplanned.Add(uint64(s.cost))
	c.largest = max(c.largest, s.cost)
	return c.push(s)
}

func (c *schedule) push(s slot) slot {
	c.serial++
	s.id, s.gen = c.serial, c.serial
	c.slots = append(c.slots, s)
	return s
}

// record notes what was taken at once, or counted and refused.
func (c *schedule) record(m *meter, kind slotKind, at Time, cost int64) {
	if len(c.slots) == 0 {
		return
	}
	c.push(slot{kind: kind, cost: cost, take: at, act: at})
	c.acted++
	c.planned++
	c.trim(m, journal)
}

// hole returns the first vacant slot that a new request of that cost may have, or -1.
func (c *schedule) hole(now Time, cost int64) int {
	if c.holes == 0 {
		return -1
	}
	first := c.search(c.firstHole)
	seen := false
	for i := max(first, c.acted); i < c.planned; i++ {
		s := &c.slots[i]
		if s.kind != slotVacant || s.act <= now {
			continue
		}
		if !seen {
			seen, c.firstHole = true, s.id // so that the search begins here next time
		}
		if s.cost >= cost {
			return i
		}
	}
	return -1
}

// search returns the index of the first slot whose id is not below id.
func (c *schedule) search(id uint64) int {
	return sort.Search(len(c.slots), func(i int) bool { return c.slots[i].id >= id })
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
	c.cost = c.cost.Add(uint64(s.cost))
	if s.kind == slotWaiting {
		c.waiting++
	}
	return s
}

// find returns the index of a slot, or -1 when it does not exist any more.
func (c *schedule) find(id, gen uint64) int {
	i := c.search(id)
	if i == len(c.slots) || c.slots[i].id != id || c.slots[i].gen != gen || c.slots[i].kind == slotVacant {
		return -1
	}
	return i
}
