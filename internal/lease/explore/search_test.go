package explore

import (
	"bytes"
	"fmt"
	"strings"
	"time"
)

// Search is a breadth-first search of all states that events lead to from one.
type Search struct {
	*Universe
	States int // that were found
	Steps  int // events that were tried
	Depth  int // up to which every order of events was tried

	seen   map[digest]struct{}
	parent []uint32
	action []Action
	start  *World
	code   []byte // scratch
}

// Violation is a history that breaks an invariant.
type Violation struct {
	Fault   string
	Actions []Action
}

// NewSearch returns a search from w.
func NewSearch(u *Universe, w *World) *Search {
	s := &Search{Universe: u, seen: map[digest]struct{}{}, start: w}
	s.add(w.encode(nil), 0, 0)
	return s
}

func (s *Search) add(code []byte, parent uint32, a Action) bool {
	d := sum(code)
	if _, ok := s.seen[d]; ok {
		return false
	}
	s.seen[d] = struct{}{}
	s.parent, s.action = append(s.parent, parent), append(s.action, a)
	s.States++
	return true
}

// Run searches until most states are found, and calls each for every one that is new, which returns
// what is wrong with it.
func (s *Search) Run(most int, each func(*World) string) *Violation {
	level := [][]byte{s.start.encode(nil)}
	first := uint32(0) // the number of the first state of the level
	for s.Depth = 0; len(level) > 0; s.Depth++ {
		var next [][]byte
		for i, code := range level {
			if s.States >= most {
				return nil
			}
			var violation *Violation
			if next, violation = s.expand(code, first+uint32(i), next, each); violation != nil {
				return violation
			}
			level[i] = nil
		}
		first += uint32(len(level))
		level = next
	}
	return nil
}

// expand finds the states that one event leads to, and appends those that are new to next.
func (s *Search) expand(code []byte, from uint32, next [][]byte, each func(*World) string) ([][]byte, *Violation) {
	var violation *Violation
	state := decode(code)
	every(func(a Action) {
		w := *state // the lists in it are never changed in place
		fault, ok := s.apply(&w, a)
		if !ok || violation != nil {
			return
		}
		s.Steps++
		if fault == "" {
			fault = s.check(&w)
		}
		if fault == "" {
			s.code = w.encode(s.code[:0])
			if s.add(s.code, from, a) {
				next = append(next, bytes.Clone(s.code))
				fault = each(&w)
			}
		}
		if fault != "" {
			violation = &Violation{fault, append(s.path(from), a)}
		}
	})
	return next, violation
}

// path is how a state was reached.
func (s *Search) path(n uint32) []Action {
	var back []Action
	for ; n != 0; n = s.parent[n] {
		back = append(back, s.action[n])
	}
	path := make([]Action, 0, len(back)+1)
	for i := range back {
		path = append(path, back[len(back)-1-i])
	}
	return path
}

// Trace describes a history from the start of the search, event by event.
func (s *Search) Trace(actions []Action) string {
	var b strings.Builder
	w := decode(s.start.encode(nil))
	for _, a := range actions {
		fault, _ := s.apply(w, a)
		fmt.Fprintf(&b, "%8v  %-14s %s %s\n", w.now.Round(time.Millisecond), a, s.describe(w), fault)
	}
	return b.String()
}

// describe returns what is in force.
func (u *Universe) describe(w *World) string {
	var b strings.Builder
	fmt.Fprintf(&b, "bucket %v", w.level)
	for i := range w.processes {
		if p := &w.processes[i]; p.term != 0 {
			fmt.Fprintf(&b, "; process %d leads in epoch %d", i, p.term)
		}
	}
	for i := range w.instances {
		m := &w.instances[i]
		have := u.fleet.spendable(m.machine, u.local(w, i))
		fmt.Fprintf(&b, "; instance %d at %d has %v/s %v, %d now (%d up, %d down, %d waiting)", i, m.to, have.rate, have.burst, have.tokens, len(m.up), len(m.down), len(m.waiting))
	}
	return b.String()
}
