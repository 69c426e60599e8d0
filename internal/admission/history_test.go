package admission

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"testing"

	"github.com/stint-io/stint/internal/seeding"

	"github.com/stint-io/stint/internal/waitline"
	"github.com/stint-io/stint/limit"
)

// source draws numbers: at random, or from the bytes of a fuzzer.
type source interface{ IntN(n int) int }

type bytesSource struct{ rest []byte }

func (b *bytesSource) IntN(n int) int {
	if len(b.rest) < 2 {
		b.rest = nil
		return 0
	}
	v := int(b.rest[0])<<8 | int(b.rest[1])
	b.rest = b.rest[2:]
	return v % n
}

// history drives a Machine and the oracle through the same events.
type history struct {
	source
	config  Config
	machine *Machine
	oracle  *naive
	now     int64
	items   []*naiveItem
	keys    int

	// meter is how much was charged beyond the rate, in the interval in which that is most. It is
	// kept apart from the machine's bucket, to see that no interval has too much.
	meter   float64
	metered int64
	charged map[*Item]int64
}

func newHistory(s source) *history {
	c := Config{MaxWaiting: 1 + s.IntN(20)}
	if kind := s.IntN(3); kind != 0 {
		c.Rate = []float64{0.5, 1, 2}[s.IntN(3)]
		c.Burst = int64(2 + 2*s.IntN(40))
		if kind == 2 {
			c.Concurrency = 1 + s.IntN(4)
		}
	} else {
		c.Concurrency = 1 + s.IntN(4)
	}
	if s.IntN(2) == 0 {
		c.MaxCost = int64(2 + 2*s.IntN(60))
	}
	if s.IntN(2) == 0 {
		c.MaxWait = int64(1 + s.IntN(200))
	}
	c.NewestFirst = s.IntN(3) == 0
	// As many keys as may be remembered: the oracle forgets none for want of room.
	return &history{source: s, config: c, machine: New(c), oracle: newNaive(c), now: 1, keys: 1 + s.IntN(c.MaxWaiting), charged: map[*Item]int64{}}
}

func (h *history) String() string { return fmt.Sprintf("%+v at %d", h.config, h.now) }

// pick returns one of the requests in a state, or nil.
func (h *history) pick(s State) *naiveItem {
	var in []*naiveItem
	for _, it := range h.items {
		if it.outcome == s {
			in = append(in, it)
		}
	}
	if len(in) == 0 {
		return nil
	}
	return in[h.IntN(len(in))]
}

// event draws one event. It returns the request of it, if any.
func (h *history) event(t *testing.T) {
	next := h.machine.Next()
	if h.IntN(4) == 0 && next != waitline.Never {
		h.now = max(h.now, next)
	} else {
		h.now += int64([]int{0, 0, 1, 3, 20, 100}[h.IntN(6)])
	}
	if h.machine.Step(h.now); h.now < next && len(h.machine.Ended()) > 0 {
		t.Fatalf("%v: a wait ended, and the machine said %d", h, next)
	}
	h.oracle.step(h.now)
	h.checkRate(t)
	switch h.IntN(8) {
	case 0, 1, 2, 3:
		it := &naiveItem{Item: &Item{
			Class: uint8(h.IntN(3)), Level: uint8(h.IntN(4)), Key: uint64(h.IntN(h.keys)),
			Cost: int64(2 + 2*h.IntN(30)), Deadline: waitline.Never,
		}}
		if h.IntN(3) == 0 {
			it.Deadline = h.now + int64(h.IntN(150))
		}
		h.items = append(h.items, it)
		h.offer(t, it)
	case 4:
		if it := h.pick(Waiting); it != nil {
			if !h.machine.Leave(h.now, it.Item) {
				t.Fatalf("%v: one that waits could not leave", h)
			}
			h.oracle.leave(h.now, it)
		}
	case 5, 6:
		if it := h.pick(Running); it != nil {
			cost := int64(2 * h.IntN(50))
			h.machine.Finish(h.now, it.Item, cost, false)
			h.oracle.finish(h.now, it, cost)
		}
	default:
		if it := h.pick(Running); it != nil && h.IntN(2) == 0 {
			cost := int64(2 * h.IntN(50))
			h.machine.Charge(h.now, it.Item, cost)
			if cost > it.charge {
				h.oracle.settle(h.now, it, cost)
			}
		}
	}
	h.machine.Step(h.now)
	h.oracle.step(h.now)
}

// offer brings a request to both, and holds the machine to its order.
func (h *history) offer(t *testing.T, it *naiveItem) {
	h.machine.Offer(h.now, it.Item)
	if slices.Contains(h.machine.ended, it.Item) {
		t.Fatalf("%v: a request that is being offered is among those whose wait has ended", h)
	}
	h.oracle.offer(h.now, it)
	if it.Reason() != limit.ReasonQueueFull {
		return
	}
	below, count := int64(0), 0
	for _, o := range h.items {
		if o.State() == Waiting && o.rank() < it.rank() {
			below += h.oracle.bounded(o.Cost)
			count++
		}
	}
	fits := h.machine.cost-below+h.oracle.bounded(it.Cost) <= h.oracle.config.MaxCost
	if count > 0 && fits && !h.oracle.flooded(it) {
		t.Fatalf("%v: a request was refused while %d lower ones wait, and without them there would be room", h, count)
	}
}

// check compares both and holds the machine to its bounds.
func (h *history) check(t *testing.T) {
	m := h.machine
	ended := map[*Item]bool{}
	for _, e := range m.Ended() {
		if ended[e] {
			t.Fatalf("%v: a request ended twice", h)
		}
		ended[e] = true
		if e.State() == Waiting {
			t.Fatalf("%v: a request ended and waits", h)
		}
	}
	waiting, cost := 0, int64(0)
	for i, it := range h.items {
		if it.State() != it.outcome || it.Reason() != it.reason {
			t.Fatalf("%v: request %d (%+v) is %d for %q, the oracle says %d for %q", h, i, it.Item, it.State(), it.Reason(), it.outcome, it.reason)
		}
		if it.State() == Waiting {
			waiting++
			cost += min(it.Cost, m.config.MaxCost)
		}
	}
	if m.Waiting() != waiting || m.WaitingCost() != cost || waiting > h.config.MaxWaiting || cost > m.config.MaxCost {
		t.Fatalf("%v: %d wait and cost %d, the machine says %d and %d", h, waiting, cost, m.Waiting(), m.WaitingCost())
	}
	if m.Running() != h.oracle.running || h.config.Concurrency > 0 && m.Running() > h.config.Concurrency {
		t.Fatalf("%v: %d run", h, m.Running())
	}
	for i := range m.classes {
		if n := len(m.classes[i].flows); n > 2*h.config.MaxWaiting {
			t.Fatalf("%v: %d keys are remembered", h, n)
		}
	}
	if next := m.Next(); next <= h.now && next != waitline.Never {
		t.Fatalf("%v: the machine wants to be stepped at %d", h, next)
	}
}

// checkRate holds the machine to burst + rate x T in any time T. What is settled comes before
// what starts.
func (h *history) checkRate(t *testing.T) {
	if h.config.Rate == 0 {
		return
	}
	h.meter = max(0, h.meter-float64(h.now-h.metered)*h.config.Rate)
	h.metered = h.now
	for _, starts := range []bool{false, true} {
		for _, it := range h.items {
			was, known := h.charged[it.Item]
			if it.State() != Running && it.State() != Finished || known == starts || known && was == it.Item.charged {
				continue
			}
			h.meter = max(h.meter, 0) + float64(it.Item.charged-was)
			h.charged[it.Item] = it.Item.charged
			if most := float64(max(h.config.Burst, it.Cost)); starts && h.meter > most+1e-6 {
				t.Fatalf("%v: %v of cost started beyond the rate, at most %v may", h, h.meter, most)
			}
		}
	}
}

// With rates and costs that divide into no whole nanoseconds, no interval has more than burst +
// rate x T of cost.
func TestRateIsNeverExceeded(t *testing.T) {
	for seed := range seeding.Draw(t, histories(1000)) {
		r := rand.New(rand.NewPCG(uint64(seed), 7))
		c := Config{Rate: 0.01 + 3*r.Float64(), Burst: 1 + r.Int64N(60), MaxWaiting: 5, Concurrency: 3}
		h := &history{config: c, machine: New(c), now: 1, charged: map[*Item]int64{}}
		for range 150 {
			if h.now += r.Int64N(20); r.IntN(2) == 0 {
				it := &naiveItem{Item: &Item{Cost: 1 + r.Int64N(40), Deadline: waitline.Never}}
				h.items = append(h.items, it)
				h.machine.Offer(h.now, it.Item)
				h.checkRate(t)
			}
			for _, it := range h.items {
				if it.State() == Running && r.IntN(4) == 0 {
					h.machine.Finish(h.now, it.Item, r.Int64N(60), true)
					h.checkRate(t)
				}
			}
			h.machine.Step(h.now)
			h.checkRate(t)
		}
	}
}

func histories(normal int) int {
	if n, err := strconv.Atoi(os.Getenv("STINT_HISTORIES")); err == nil {
		return n
	}
	return normal
}

// Every request has the outcome, at the time, that the oracle says; the bounds on count, cost
// and running requests hold; nobody is refused for want of room that an eviction would make.
func TestAgainstOracle(t *testing.T) {
	for seed := range seeding.Draw(t, histories(1500)) {
		h := newHistory(rand.New(rand.NewPCG(uint64(seed), 13)))
		for range 150 {
			h.event(t)
			h.check(t)
			h.checkRate(t)
		}
	}
}

func FuzzAgainstOracle(f *testing.F) {
	f.Add([]byte("\x00\x03\x00\x01\x00\x01\x00\x02\x00\x05\x00\x01"))
	r := rand.New(rand.NewPCG(5, 5))
	for range 4 {
		seed := make([]byte, 600)
		for i := range seed {
			seed[i] = byte(r.Uint32())
		}
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		b := &bytesSource{data}
		h := newHistory(b)
		for len(b.rest) > 0 {
			h.event(t)
			h.check(t)
			h.checkRate(t)
		}
	})
}
