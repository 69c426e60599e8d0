// Package due orders values by when they are due: a priority queue in which the time of a value can
// be changed. It is a heap of four children, with the times inside, since a queue may have a hundred
// thousand values whose times change many times a second. Nothing here is safe for concurrent use.
package due

import "github.com/stint-io/stint/limit"

// Place is where a value is in its queue. The zero value is in none.
type Place struct{ index int32 } // plus one

// In says whether the value is in a queue.
func (p *Place) In() bool { return p.index > 0 }

// Value is what a queue orders. A value is in one queue at a time.
type Value interface{ Place() *Place }

// Queue has values, each with the time at which it is due. The zero value is empty.
type Queue[V Value] struct{ nodes []node[V] }

type node[V Value] struct {
	at    limit.Time
	value V
}

// Len is how many values there are.
func (q *Queue[V]) Len() int { return len(q.nodes) }

// First is the time at which the first value is due; ok is false if there is none.
func (q *Queue[V]) First() (at limit.Time, ok bool) {
	if len(q.nodes) == 0 {
		return 0, false
	}
	return q.nodes[0].at, true
}

// Due returns a value that is due at now, and leaves it in the queue; ok is false if there is none.
// Of several the order is not specified.
func (q *Queue[V]) Due(now limit.Time) (v V, ok bool) {
	if len(q.nodes) == 0 || q.nodes[0].at > now {
		return v, false
	}
	return q.nodes[0].value, true
}

// Set makes v due at a time, whether it is in the queue or not.
func (q *Queue[V]) Set(v V, at limit.Time) {
	p := v.Place()
	if !p.In() {
		q.nodes = append(q.nodes, node[V]{})
		q.up(len(q.nodes)-1, node[V]{at, v})
		return
	}
	i := int(p.index) - 1
	switch was := q.nodes[i].at; {
	case at < was:
		q.up(i, node[V]{at, v})
	case at > was:
		q.down(i, node[V]{at, v})
	}
}

// Remove takes v out of the queue, if it is there.
func (q *Queue[V]) Remove(v V) {
	p := v.Place()
	if !p.In() {
		return
	}
	i, end := int(p.index)-1, len(q.nodes)-1
	p.index = 0
	last := q.nodes[end]
	q.nodes[end] = node[V]{}
	q.nodes = q.nodes[:end]
	switch {
	case i == end:
	case i > 0 && last.at < q.nodes[(i-1)/children].at:
		q.up(i, last)
	default:
		q.down(i, last)
	}
}

// children is how many a node has. Not two: a queue of 100,000 would have 17 levels, each a miss of
// the processor's cache. Not more: all children of a node are compared.
const children = 4

func (q *Queue[V]) put(i int, n node[V]) {
	q.nodes[i] = n
	n.value.Place().index = int32(i) + 1
}

// up puts n, whose place is i or above, where it belongs.
func (q *Queue[V]) up(i int, n node[V]) {
	for i > 0 {
		parent := (i - 1) / children
		if q.nodes[parent].at <= n.at {
			break
		}
		q.put(i, q.nodes[parent])
		i = parent
	}
	q.put(i, n)
}

// down puts n, whose place is i or below, where it belongs.
func (q *Queue[V]) down(i int, n node[V]) {
	for {
		first := children*i + 1
		if first >= len(q.nodes) {
			break
		}
		least := first
		for c := first + 1; c < min(first+children, len(q.nodes)); c++ {
			if q.nodes[c].at < q.nodes[least].at {
				least = c
			}
		}
		if q.nodes[least].at >= n.at {
			break
		}
		q.put(i, q.nodes[least])
		i = least
	}
	q.put(i, n)
}
