package main

import "sync"

// queue keeps the requests that were accepted and are to be processed, by the time at which
// they came: first in, first out, and bounded.
type queue struct {
	mu      sync.Mutex
	came    []int64 // a ring
	first   int
	n       int
	more    chan struct{} // holds one when the queue may not be empty any more
	refused int64         // for want of room
}

func newQueue(room int) *queue {
	return &queue{came: make([]int64, room), more: make(chan struct{}, 1)}
}

// accept queues k requests that came at a time, as far as there is room: they are
// acknowledged. It says how many it did; the others are told to come again.
func (q *queue) accept(k int, at int64) int {
	q.mu.Lock()
	defer q.mu.Unlock()
	taken := min(k, len(q.came)-q.n)
	for range taken {
		q.came[(q.first+q.n)%len(q.came)] = at
		q.n++
	}
	q.refused += int64(k - taken)
	if taken > 0 {
		select {
		case q.more <- struct{}{}:
		default:
		}
	}
	return taken
}

// next takes the request that has waited longest, and returns when it came.
func (q *queue) next() (came int64, ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.n == 0 {
		return 0, false
	}
	came = q.came[q.first]
	if q.first++; q.first == len(q.came) {
		q.first = 0
	}
	q.n--
	return came, true
}

// turnedAway counts those for whom there was no room.
func (q *queue) turnedAway() int64 {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.refused
}
