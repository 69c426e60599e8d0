package sim

import (
	"container/heap"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stint-io/stint/limit"
)

// loop is the least that baselines run in: a delay, clocks that are right, even
// arrivals. Tests of single rules use it, so that they stand without the engine.
type loop struct {
	t       *testing.T
	system  System
	setup   Setup
	delay   time.Duration
	now     limit.Time
	seq     int
	queue   loopQueue
	nodes   map[Address]*loopEnv
	drop    func(from, to Address, message any) bool // nil = nothing
	bytes   map[Address]int
	demand  func(i int, now time.Duration) float64 // tokens per second
	carry   []float64
	admits  []limit.Time // in order
	by      []int        // admitted, per instance
	refused int
}

type loopEvent struct {
	at  limit.Time
	seq int
	do  func()
}

type loopQueue []loopEvent

func (q loopQueue) Len() int { return len(q) }
func (q loopQueue) Less(i, j int) bool {
	return q[i].at < q[j].at || q[i].at == q[j].at && q[i].seq < q[j].seq
}
func (q loopQueue) Swap(i, j int) { q[i], q[j] = q[j], q[i] }
func (q *loopQueue) Push(x any)   { *q = append(*q, x.(loopEvent)) }
func (q *loopQueue) Pop() any {
	last := (*q)[len(*q)-1]
	*q = (*q)[:len(*q)-1]
	return last
}

func newLoop(t *testing.T, s System, setup Setup, seed uint64) *loop {
	t.Helper()
	l := &loop{
		t: t, system: s, setup: setup, delay: setup.RoundTrip / 2, nodes: map[Address]*loopEnv{},
		bytes: map[Address]int{}, carry: make([]float64, setup.Instances), by: make([]int, setup.Instances),
	}
	for a := Coordinator; a < Address(setup.Instances); a++ {
		l.start(a, 0, seed)
	}
	return l
}

// start makes the process at a, in place of the one that was there.
func (l *loop) start(a Address, restart int, seed uint64) {
	env := &loopEnv{loop: l, self: a, rand: rand.New(rand.NewPCG(seed, uint64(int64(a))+uint64(restart)<<32))}
	l.stop(a)
	l.nodes[a] = env
	if a < 0 {
		env.node = l.system.Coordinator(env, l.setup, a, restart)
	} else {
		env.node = l.system.Instance(env, l.setup, int(a), restart)
	}
	if env.node == nil {
		delete(l.nodes, a)
	}
}

func (l *loop) stop(a Address) {
	if env := l.nodes[a]; env != nil {
		env.dead = true
		delete(l.nodes, a)
	}
}

func (l *loop) instance(i int) Enforcer { return l.nodes[Address(i)].node.(Enforcer) }

func (l *loop) at(t limit.Time, do func()) {
	l.seq++
	heap.Push(&l.queue, loopEvent{max(t, l.now), l.seq, do})
}

// run goes on until end after the start of time. Demand is drawn each millisecond.
func (l *loop) run(end time.Duration) {
	const grain = time.Millisecond
	for step := time.Duration(l.now) / grain; step < end/grain; step++ {
		until := limit.Time((step + 1) * grain)
		for len(l.queue) > 0 && l.queue[0].at <= until {
			e := heap.Pop(&l.queue).(loopEvent)
			l.now = e.at
			e.do()
		}
		l.now = until
		if l.demand == nil {
			continue
		}
		for k := range l.by {
			i := (k + int(step)) % len(l.by)
			l.carry[i] += l.demand(i, time.Duration(l.now)) * grain.Seconds()
			for ; l.carry[i] >= 1; l.carry[i]-- {
				if l.nodes[Address(i)] != nil {
					l.arrive(i)
				}
			}
		}
	}
}

func (l *loop) arrive(i int) {
	if l.instance(i).Take(1) {
		l.admits = append(l.admits, l.now)
		l.by[i]++
	} else {
		l.refused++
	}
}

// rate is what was admitted per second between two times.
func (l *loop) rate(from, to time.Duration) float64 {
	n := 0
	for _, at := range l.admits {
		if at > limit.Time(from) && at <= limit.Time(to) {
			n++
		}
	}
	return float64(n) / (to - from).Seconds()
}

// worst is the most that was admitted in one second between two times.
func (l *loop) worst(from, to time.Duration) int {
	most, first := 0, 0
	for i, at := range l.admits {
		for l.admits[first] <= at-limit.Time(time.Second) {
			first++
		}
		if at > limit.Time(from) && at <= limit.Time(to) {
			most = max(most, i-first+1)
		}
	}
	return most
}

// shares is the sum of the shares.
func (l *loop) shares() float64 {
	sum := 0.0
	for i := range l.by {
		if l.nodes[Address(i)] != nil {
			sum += l.instance(i).Share()
		}
	}
	return sum
}

// reach is when the share of instance i first is at least want, or end.
func (l *loop) reach(i int, want float64, end time.Duration) time.Duration {
	for at := time.Duration(l.now); at < end; at += 100 * time.Millisecond {
		if l.instance(i).Share() >= want {
			return at
		}
		l.run(at + 100*time.Millisecond)
	}
	return end
}

type loopEnv struct {
	loop  *loop
	self  Address
	node  Node
	rand  *rand.Rand
	timer int
	dead  bool
}

func (e *loopEnv) Now() limit.Time  { return e.loop.now }
func (e *loopEnv) Wall() limit.Time { return e.loop.now }
func (e *loopEnv) Rand() *rand.Rand { return e.rand }

func (e *loopEnv) Send(to Address, message any, bytes int) {
	l := e.loop
	l.bytes[e.self] += bytes
	if l.drop != nil && l.drop(e.self, to, message) {
		return
	}
	l.at(l.now.Add(l.delay), func() {
		if n := l.nodes[to]; n != nil {
			n.node.Receive(e.self, message)
		}
	})
}

func (e *loopEnv) WakeAt(t limit.Time) {
	e.timer++
	if t == modelNever {
		return
	}
	timer := e.timer
	e.loop.at(t, func() {
		if timer == e.timer && !e.dead {
			e.node.Wake()
		}
	})
}
