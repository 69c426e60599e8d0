// Package agenda is what is to happen in a simulation, in order of time.
package agenda

// Event is something that happens at a time. Those of one time happen in the order of Seq, which
// is the order in which they were made.
type Event[T any] struct {
	At  int64 // ns since the start of the run
	Seq uint64
	Of  T // what happens
}

func (e *Event[T]) before(o *Event[T]) bool {
	return e.At < o.At || e.At == o.At && e.Seq < o.Seq
}

// Heap is a binary heap, the earliest event first, at index 0. Its owner gives each event a Seq
// of its own.
type Heap[T any] []Event[T]

// Push adds an event.
func (h *Heap[T]) Push(e Event[T]) {
	*h = append(*h, e)
	s := *h
	i := len(s) - 1
	for i > 0 {
		parent := (i - 1) / 2
		if !e.before(&s[parent]) {
			break
		}
		s[i] = s[parent]
		i = parent
	}
	s[i] = e
}

// Pop takes out the earliest event. The heap must not be empty.
func (h *Heap[T]) Pop() Event[T] {
	s := *h
	top := s[0]
	n := len(s) - 1
	last := s[n]
	var none Event[T]
	s[n] = none // it may point at something
	*h = s[:n]
	if n > 0 {
		h.Replace(last)
	}
	return top
}

// Replace puts e in the place of the earliest event: Pop and Push in one.
func (h *Heap[T]) Replace(e Event[T]) {
	s := *h
	i, n := 0, len(s)
	for {
		child := 2*i + 1
		if child >= n {
			break
		}
		if right := child + 1; right < n && s[right].before(&s[child]) {
			child = right
		}
		if !s[child].before(&e) {
			break
		}
		s[i] = s[child]
		i = child
	}
	s[i] = e
}
