package cluster

import (
	"cmp"
	"container/heap"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"
	"time"
)

// world is a group of members and one register in virtual time. Each member has a clock of its own
// rate; messages take any time, answers are lost, and members are paused.
type world struct {
	t       testing.TB
	random  *rand.Rand    // nil = nothing is left to chance, and all delays are the longest
	now     time.Duration // true time
	queue   queue
	serial  int
	record  Record
	writes  uint64
	members []*node
	faults  faults
	log     *strings.Builder // nil = no log

	terms     int
	epochs    uint64        // the highest that led
	led       uint64        // the epoch of the latest term that led
	spoke     uint64        // the epoch of the latest term whose leader knows that something it published is written
	early     map[int]bool  // states of terms that were given up before they led
	loses     bool          // the register does
	earlier   []byte        // what it once held
	lost      time.Duration // when it lost a record last
	born      time.Duration // when a record was written where there was none
	hidden    uint64        // the epoch of a record that it lost and that not all had seen
	published int           // the state that was published last: states are numbers that rise
	kept      int           // the highest that its publisher knows to be written
}

// faults are what goes wrong, each with a probability.
type faults struct {
	delay   time.Duration // the most that a message takes each way
	long    float64       // a message takes up to 3 TTLs instead
	request float64       // lost on the way to the register
	answer  float64       // lost on the way back
	pause   float64       // a member stands still for up to 3 TTLs when it would step
	down    bool          // nothing reaches the register
}

type event struct {
	at     time.Duration
	serial int
	do     func()
}

// queue is a heap of events by time, and of one time by the order in which they were added.
type queue []event

func (q queue) Len() int      { return len(q) }
func (q queue) Swap(i, j int) { q[i], q[j] = q[j], q[i] }
func (q queue) Less(i, j int) bool {
	return cmp.Or(cmp.Compare(q[i].at, q[j].at), cmp.Compare(q[i].serial, q[j].serial)) < 0
}
func (q *queue) Push(e any) { *q = append(*q, e.(event)) }
func (q *queue) Pop() any {
	last := (*q)[len(*q)-1]
	*q = (*q)[:len(*q)-1]
	return last
}

// node is a member: a machine, its clock, and the program that it elects for.
type node struct {
	machine
	w      *world
	name   string
	rate   float64       // of its clock
	zero   time.Duration // of its clock
	paused time.Duration // true time
	wakes  int           // only the latest timer counts
	calls  int           // only the latest call's answer is delivered
	cut    bool          // none of its messages arrives
	deaf   bool          // none of the answers to it arrives
	wrong  error         // what Began returns
	began  []Term
	ends   int
	done   bool
}

const ttl = time.Second

func newWorld(t testing.TB, seed uint64, members int, f faults) *world {
	w := &world{t: t, faults: f, early: map[int]bool{}}
	if seed != 0 {
		w.random = rand.New(rand.NewPCG(seed, 1))
	}
	for i := range members {
		n := &node{w: w, name: string(rune('A' + i)), rate: 1}
		n.cfg = config{self: Member{ID: n.name}, run: "run" + n.name, ttl: ttl, first: true, epoch: func() uint64 { return 0 }}
		w.members = append(w.members, n)
	}
	return w
}

// local is the member's clock.
func (n *node) local() time.Duration { return n.zero + time.Duration(float64(n.w.now)*n.rate) }

// leads is what Election.Leads would return.
func (n *node) leads() bool { return n.local() < n.leadsUntil() }

func (w *world) after(d time.Duration, do func()) {
	w.serial++
	heap.Push(&w.queue, event{w.now + d, w.serial, do})
}

// run makes events happen until d from now, and checks the invariant after each.
func (w *world) run(d time.Duration) {
	end := w.now + d
	for len(w.queue) > 0 && w.queue[0].at <= end {
		next := heap.Pop(&w.queue).(event)
		w.now = next.at
		next.do()
		w.check()
	}
	w.now = end
}

func (w *world) check() {
	var leader *node
	for _, n := range w.members {
		if !n.leads() {
			continue
		}
		if leader != nil {
			w.t.Fatalf("at %v both %s in epoch %d and %s in epoch %d lead", w.now, leader.name, leader.term.epoch, n.name, n.term.epoch)
		}
		leader = n
	}
}

func (n *node) step(e any) {
	w := n.w
	if n.done {
		return
	}
	if w.now >= n.paused && w.chance(w.faults.pause) {
		n.paused = w.now + w.upTo(3*ttl)
	}
	if w.now < n.paused {
		w.after(n.paused-w.now, func() { n.step(e) })
		return
	}
	held, led := n.term.held, n.app == serving && n.term.held
	out := n.machine.step(n.local(), e)
	if w.log != nil {
		line := fmt.Sprintf("%6.3f %s %-30s %s", w.now.Seconds(), n.name, describe(e), n.describe(out))
		fmt.Fprintln(w.log, strings.TrimRight(line, " "))
	}
	if out.over != "" && !held {
		w.t.Fatalf("at %v a term of %s is over that it did not have: %s", w.now, n.name, out.over)
	}
	if !led && n.leads() {
		if n.term.epoch <= w.epochs {
			w.t.Fatalf("at %v %s leads in epoch %d, after epoch %d", w.now, n.name, n.term.epoch, w.epochs)
		}
		w.epochs, w.led = n.term.epoch, n.term.epoch
	}
	if n.term.held && n.state.written == n.state.version {
		w.kept = max(w.kept, number(n.state.value))
		if n.state.version > n.term.version {
			w.spoke = max(w.spoke, n.term.epoch)
		}
	}
	if out.begin != nil {
		w.checkTerm(n, *out.begin)
		w.terms++
		n.began = append(n.began, *out.begin)
		w.after(w.short(), func() { n.step(began{n.wrong}) })
	}
	if out.end {
		if n.leads() {
			w.t.Fatalf("at %v Ended is called while %s leads", w.now, n.name)
		}
		n.ends++
		w.after(w.short(), func() { n.step(ended{}) })
	}
	if out.done {
		n.done = true
		return
	}
	if out.send != nil {
		n.send(*out.send)
	}
	n.wakes++
	number := n.wakes
	w.after(n.true(out.wake-n.local()), func() {
		if number == n.wakes {
			n.step(tick{})
		}
	})
}

// checkTerm checks what a leader learns of its predecessor: every state that was known to be written
// and was not replaced, and that a predecessor which is said to have resigned does nothing any more.
func (w *world) checkTerm(n *node, t Term) {
	if t.Former >= t.Epoch {
		w.t.Fatalf("at %v epoch %d of %s comes after epoch %d", w.now, t.Epoch, n.name, t.Former)
	}
	if t.Epoch > w.hidden && w.hidden > 0 {
		w.kept, w.led, w.spoke, w.hidden = 0, 0, 0, 0
	}
	if last := max(t.Former, t.Unled); last < w.led && !t.Lost {
		w.t.Fatalf("at %v epoch %d of %s comes after epoch %d, and epoch %d led", w.now, t.Epoch, n.name, last, w.led)
	}
	if t.Former < w.spoke && !t.Lost {
		w.t.Fatalf("at %v epoch %d of %s follows epoch %d, and epoch %d published something", w.now, t.Epoch, n.name, t.Former, w.spoke)
	}
	if t.Unled != 0 && t.Unled <= t.Former {
		w.t.Fatalf("at %v epoch %d of %s follows epoch %d, and epoch %d before it published nothing", w.now, t.Epoch, n.name, t.Former, t.Unled)
	}
	if t.Lost {
		if !w.loses {
			w.t.Fatalf("at %v epoch %d of %s takes records for lost", w.now, t.Epoch, n.name)
		}
		w.kept = 0
		return
	}
	if w.early[number(t.State)] {
		w.t.Fatalf("at %v epoch %d of %s begins with the state %s of a term that did not lead", w.now, t.Epoch, n.name, t.State)
	}
	if got := number(t.State); got < w.kept {
		w.t.Fatalf("at %v epoch %d of %s begins with the state %d, after %d was written", w.now, t.Epoch, n.name, got, w.kept)
	}
	for _, other := range w.members {
		if t.Clean && other.term.epoch == t.Former && other.app != idle {
			w.t.Fatalf("at %v epoch %d of %s follows a clean end, and %s is not done with epoch %d", w.now, t.Epoch, n.name, other.name, t.Former)
		}
	}
}

func number(state []byte) int {
	n, _ := strconv.Atoi(string(state))
	return n
}

// true converts a duration of the member's clock, and rounds up so that a timer is not early.
func (n *node) true(d time.Duration) time.Duration {
	return max(time.Duration(math.Ceil(float64(d)/n.rate)), 0)
}

// send makes a call of the register. Its timeout is by the member's clock.
func (n *node) send(op operation) {
	w := n.w
	n.calls++
	number := n.calls
	answer := func(a answered) {
		if number == n.calls {
			n.calls++
			n.step(a)
		}
	}
	w.after(n.true(ttl/timeoutsPerTTL), func() { answer(answered{err: errors.New("timeout")}) })
	if n.cut || w.chance(w.faults.request) {
		return
	}
	w.after(w.delay(), func() {
		if w.faults.down {
			return
		}
		a := w.perform(op)
		if n.deaf || w.chance(w.faults.answer) {
			return
		}
		w.after(w.delay(), func() { answer(a) })
	})
}

// perform is the register.
func (w *world) perform(op operation) answered {
	if !op.swap {
		return answered{record: w.record}
	}
	if op.revision != w.record.Revision {
		return answered{err: ErrChanged}
	}
	w.writes++
	if w.record.Revision == 0 {
		w.born = w.now
	}
	w.record = Record{Revision: w.writes, Value: op.claim.encode()}
	return answered{revision: w.writes}
}

func (w *world) chance(p float64) bool { return w.random != nil && w.random.Float64() < p }

func (w *world) delay() time.Duration {
	if w.chance(w.faults.long) {
		return w.upTo(3 * ttl)
	}
	return w.upTo(w.faults.delay)
}

func (w *world) short() time.Duration { return w.upTo(ttl / 20) }

func (w *world) upTo(most time.Duration) time.Duration {
	if w.random == nil {
		return most
	}
	return time.Duration(w.random.Int64N(int64(most) + 1))
}

func describe(e any) string {
	switch e := e.(type) {
	case tick:
		return "tick"
	case hint:
		return "hint"
	case answered:
		switch {
		case e.err != nil:
			return "answer: " + e.err.Error()
		case e.revision != 0:
			return fmt.Sprintf("written as %d", e.revision)
		case e.record.Revision == 0:
			return "read: no record"
		}
		c, err := decodeClaim(e.record.Value)
		if err != nil {
			return err.Error()
		}
		return fmt.Sprintf("read %d: %s", e.record.Revision, c)
	case began:
		return fmt.Sprintf("Began returns %v", e.err)
	case ended:
		return "Ended returns"
	case retire:
		return fmt.Sprintf("retire %q stop=%t", e.state, e.stop)
	case publish:
		return fmt.Sprintf("publish %q", e.state)
	}
	return fmt.Sprintf("%T", e)
}

func (c *claim) String() string {
	s := fmt.Sprintf("%s epoch %d", c.ID, c.Epoch)
	if c.Resigned {
		s += " resigned"
	}
	if c.State != nil {
		s += fmt.Sprintf(" %q", c.State)
	}
	return s
}

func (n *node) describe(out output) string {
	var parts []string
	add := func(format string, args ...any) { parts = append(parts, fmt.Sprintf(format, args...)) }
	if out.over != "" {
		add("over: %s", out.over)
	}
	if out.begin != nil {
		add("begin epoch %d after %d, state %q, clean %t", out.begin.Epoch, out.begin.Former, out.begin.State, out.begin.Clean)
	}
	if out.end {
		add("end")
	}
	if op := out.send; op != nil && op.swap {
		add("swap %d: %s", op.revision, op.claim)
	} else if op != nil {
		add("read")
	}
	if out.done {
		add("done")
	}
	if until := n.leadsUntil(); until != 0 {
		add("leads until %v", until)
	}
	return strings.Join(parts, "; ")
}
