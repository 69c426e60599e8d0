// Package waitline is how callers wait in every limiter of this module: one line, first
// in, first out ([Line]), deadlines ([Alarms]), one timer for the earliest of them
// ([Timer]), and the end of a wait, by waking the goroutine that waits or by a call-back
// ([Signal], [Dispatcher]).
//
// It does not know what is waited for. When the first in line can be served is the
// owner's arithmetic: a bucket that plans exact times, a lease that is about to grow, a
// store that has to be asked. The owner passes it in as a function to [Line.Serve] and
// [Line.Review], and as a time to [Timer.Set].
//
// Times are nanoseconds by a clock of the owner's, so that a simulator drives the same
// line in virtual time. Line, Alarms and Timer are guarded by the owner's lock; Signal and
// Dispatcher are safe for concurrent use. Zero values are ready for use.
package waitline

import (
	"math"
	"math/bits"
)

// Waiter is a place in a [Line]. It must not be copied while it is in one.
type Waiter[V any] struct {
	Signal         // how it learns that its wait has ended
	Cost     int64 // what it waits for, at least 0; constant while it is in a line
	Deadline Alarm // Remove unsets it
	Value    V     // the owner's

	line       *Line[V] // nil = in none
	prev, next *Waiter[V]
}

// Waiting says whether w is in a line.
func (w *Waiter[V]) Waiting() bool { return w.line != nil }

// Prev returns the waiter ahead of w, or nil.
func (w *Waiter[V]) Prev() *Waiter[V] { return w.prev }

// Line is a first-in-first-out line. Push, Remove and First take constant time, but for a
// deadline that Remove unsets: that is logarithmic in the number of deadlines.
type Line[V any] struct {
	first, last *Waiter[V]
	hi, lo      uint64 // the sum of costs: 128 bits, since 100,000 times 2^62 do not fit in 64
}

// First returns the waiter that is served next, or nil.
func (l *Line[V]) First() *Waiter[V] { return l.first }

// Cost is the sum of all costs, at most math.MaxInt64.
func (l *Line[V]) Cost() int64 {
	if l.hi > 0 || l.lo > math.MaxInt64 {
		return math.MaxInt64
	}
	return int64(l.lo)
}

// Push puts w, which is in no line, at the end.
func (l *Line[V]) Push(w *Waiter[V]) {
	if w.line != nil {
		panic("waitline: a waiter was put in two lines")
	}
	w.line, w.prev = l, l.last
	if l.last == nil {
		l.first = w
	} else {
		l.last.next = w
	}
	l.last = w
	var carry uint64
	l.lo, carry = bits.Add64(l.lo, uint64(w.Cost), 0)
	l.hi += carry
}

// Remove takes w out and reports whether it was in l. Those behind it move up. Its wait
// does not end by that: see [Signal.End].
func (l *Line[V]) Remove(w *Waiter[V]) bool {
	if w.line != l {
		return false
	}
	if w.prev == nil {
		l.first = w.next
	} else {
		w.prev.next = w.next
	}
	if w.next == nil {
		l.last = w.prev
	} else {
		w.next.prev = w.prev
	}
	w.line, w.prev, w.next = nil, nil, nil
	w.Deadline.Unset()
	var borrow uint64
	l.lo, borrow = bits.Sub64(l.lo, uint64(w.Cost), 0)
	l.hi -= borrow
	return true
}

// Serve ends the waits of those for whom take says true, with nil, in their order. It
// stops at the first for whom take says false, and returns that one, or nil when the line
// is empty. take must not change the line.
func (l *Line[V]) Serve(d *Dispatcher, take func(*Waiter[V]) bool) *Waiter[V] {
	for w := l.first; w != nil && take(w); w = l.first {
		l.Remove(w)
		w.End(d, nil)
	}
	return l.first
}

// Review ends the wait of each waiter for which check returns an error, with that error.
// cost is what the waiter and those ahead of it that stay in line wait for together.
// check must not change the line.
func (l *Line[V]) Review(d *Dispatcher, check func(w *Waiter[V], cost int64) error) {
	ahead := int64(0)
	for w := l.first; w != nil; {
		next := w.next
		cost := Sum(ahead, w.Cost)
		if err := check(w, cost); err != nil {
			l.Remove(w)
			w.End(d, err)
		} else {
			ahead = cost
		}
		w = next
	}
}

// Sum is a + b, at most math.MaxInt64, for costs of at least 0.
func Sum(a, b int64) int64 {
	if a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}
