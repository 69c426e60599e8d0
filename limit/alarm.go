package limit

import (
	"container/heap"
	"math"
	"time"
)

// alarm is something that a Queue has to do at a time, for a waiter or a lane. The zero
// value is not set.
type alarm struct {
	at     Time
	serial uint64 // among those at the same time the one set first is first
	index  int    // in the heap, plus 1; 0 = not set
	waiter *waiter
	lane   *lane
}

// alarms is a heap, the earliest first.
type alarms []*alarm

func (a alarms) Len() int { return len(a) }

func (a alarms) Less(i, j int) bool {
	return a[i].at < a[j].at || a[i].at == a[j].at && a[i].serial < a[j].serial
}

func (a alarms) Swap(i, j int) {
	a[i], a[j] = a[j], a[i]
	a[i].index, a[j].index = i+1, j+1
}

// Push implements heap.Interface.
func (a *alarms) Push(x any) {
	set := x.(*alarm)
	*a = append(*a, set)
	set.index = len(*a)
}

// Pop implements heap.Interface.
func (a *alarms) Pop() any {
	last := len(*a) - 1
	x := (*a)[last]
	(*a)[last] = nil
	*a = (*a)[:last]
	x.index = 0
	return x
}

// set sets an alarm, or moves it; MaxInt64 = never, which unsets it.
func (q *Queue) set(a *alarm, at Time) {
	switch {
	case at == math.MaxInt64:
		q.unset(a)
	case a.index == 0:
		q.serial++
		a.at, a.serial = at, q.serial
		heap.Push(&q.alarms, a)
	case a.at != at:
		a.at = at
		heap.Fix(&q.alarms, a.index-1)
	}
}

func (q *Queue) unset(a *alarm) {
	if a.index > 0 {
		heap.Remove(&q.alarms, a.index-1)
	}
}

// arm sets the timer to the first alarm.
func (q *Queue) arm() {
	next := Time(0)
	if len(q.alarms) > 0 {
		next = q.alarms[0].at
	}
	if next == q.ringsAt {
		return
	}
	q.ringsAt = next
	switch {
	case next == 0:
		q.timer.Stop()
	case q.timer == nil:
		q.timer = time.AfterFunc(time.Duration(next-q.now()), q.ring)
	default:
		q.timer.Reset(time.Duration(next - q.now()))
	}
}

// ring is what the timer does.
func (q *Queue) ring() {
	q.lock()
	q.ringsAt = 0
	now := q.now()
	for n := 0; n < together && len(q.alarms) > 0 && q.alarms[0].at <= now; n++ {
		switch a := q.alarms[0]; {
		case a.lane != nil:
			q.makeReady(a.lane)
		case a.waiter.held != nil:
			q.end(a.waiter, reply{d: *a.waiter.held})
		default:
			q.expire(a.waiter, now)
		}
	}
	if q.release() {
		q.calls.run()
	}
}
