package explore

import (
	"fmt"

	"github.com/stint-io/stint/limit"
)

// number names a state of a machine, a message or a set of holders: equal ones have one number.
type number uint32

// input is what a machine is stepped with, and when.
type input struct {
	now  limit.Time
	kind inputKind
	arg  number // of the message, or what the kind says
}

type inputKind uint8

const (
	beginning inputKind = iota // the machine is made; arg is that of its maker
	ticked
	received    // arg is a message
	takenOver   // arg is a takeover
	followed    // a replica begins
	unfollowed  // there is no replica any more
	handedOver  // the last record is made
	asked       // a server asks for a token
	connected   // the instance has a new stream
	spent       // the application takes all that it may, or asks for a token
	left        // the instance leaves
	transitions // how many kinds there are
)

// outcome is the result of a step.
type outcome struct {
	next     number
	messages []number
	must     []uint64 // for each grant, and then for an answer: the number of the Level that replicas have to know first
	levels   number   // what replicas are told; 0 = nothing
	used     number   // what the last record says of the buckets; 0 = nothing
	admitted int64    // tokens that the application took, or a server that asked
	fault    string
}

// machines are the states of one kind of machine, M, with the facts F that can be seen in each.
// They hold recent ones in memory, and make others again from the state before.
type machines[M, F any] struct {
	layouts layouts
	copier  *copier
	encoder *encoder

	make  func(in input) *M
	step  func(m *M, in input) outcome
	facts func(m *M) F

	known map[digest]number
	list  []*state[M, F]
	steps map[step]outcome
	made  int // steps that were made

	recent []number // a ring of the states whose machines are in memory
	oldest int
}

type state[M, F any] struct {
	machine *M // nil = to be made again
	facts   F
	before  number
	by      input
}

type step struct {
	of number
	in input
}

// inMemory is how many machines of a kind are held in memory, of some 6 kB each.
const inMemory = 150_000

func newMachines[M, F any](l layouts) *machines[M, F] {
	return &machines[M, F]{
		layouts: l, copier: newCopier(l), encoder: newEncoder(l),
		known: map[digest]number{}, list: []*state[M, F]{nil}, steps: map[step]outcome{}, recent: make([]number, inMemory),
	}
}

func (s *machines[M, F]) factsOf(n number) *F { return &s.list[n].facts }

// begin returns the state of a new machine.
func (s *machines[M, F]) begin(now limit.Time, maker number) number {
	out := s.after(0, input{now: now, kind: beginning, arg: maker})
	return out.next
}

// after returns what a machine does in a state by an input.
func (s *machines[M, F]) after(n number, in input) outcome {
	key := step{n, in}
	if out, ok := s.steps[key]; ok {
		return out
	}
	s.made++
	out := outcome{}
	m := s.run(n, in, &out)
	if out.fault == "" {
		out.next = s.intern(m, n, in)
	}
	s.steps[key] = out
	return out
}

// run makes the step. A panic is the fault of the outcome.
func (s *machines[M, F]) run(n number, in input, out *outcome) (m *M) {
	defer func() {
		if e := recover(); e != nil {
			out.fault = fmt.Sprint("panic: ", e)
		}
	}()
	if in.kind == beginning {
		return s.make(in)
	}
	m = deepCopy(s.copier, s.machine(n))
	*out = s.step(m, in)
	return m
}

// machine returns the machine in a state. It is not to be changed.
func (s *machines[M, F]) machine(n number) *M {
	st := s.list[n]
	if st.machine != nil {
		return st.machine
	}
	m := s.run(st.before, st.by, &outcome{})
	s.remember(n, m)
	return m
}

func (s *machines[M, F]) remember(n number, m *M) {
	if out := s.recent[s.oldest]; out != 0 {
		s.list[out].machine = nil
	}
	s.recent[s.oldest] = n
	s.oldest = (s.oldest + 1) % len(s.recent)
	s.list[n].machine = m
}

func (s *machines[M, F]) intern(m *M, before number, by input) number {
	d := digestOf(s.encoder, m)
	if n, ok := s.known[d]; ok {
		return n
	}
	n := number(len(s.list))
	s.known[d] = n
	s.list = append(s.list, &state[M, F]{facts: s.facts(m), before: before, by: by})
	s.remember(n, m)
	return n
}
