package waitline

import (
	"math"
	"time"
)

// Never is a time that does not come.
const Never = math.MaxInt64

// Alarm is a time at which the owner has something to do, such as to end a wait that has
// lasted too long. The zero value is not set. It must not be copied while it is set.
type Alarm struct {
	in    *Alarms // nil = it is not set
	index int     // in the heap
	of    any
}

// IsSet says whether a is set.
func (a *Alarm) IsSet() bool { return a.in != nil }

// Alarms is a heap of those that are set, the earliest first. Setting and unsetting one
// takes a time that is logarithmic in their number.
type Alarms struct {
	heap   []entry
	serial uint64
}

// entry has what is compared, so that a comparison follows no pointer.
type entry struct {
	at     int64
	serial uint64 // among equal times the alarm that was set first is first
	alarm  *Alarm
}

func (e *entry) before(o *entry) bool {
	return e.at < o.at || e.at == o.at && e.serial < o.serial
}

// Len is how many are set.
func (h *Alarms) Len() int { return len(h.heap) }

// First returns the earliest alarm's time and whose it is; Never and nil without one.
func (h *Alarms) First() (at int64, of any) {
	if len(h.heap) == 0 {
		return Never, nil
	}
	return h.heap[0].at, h.heap[0].alarm.of
}

// Set sets a, or moves it, to a time. Never unsets it. of is what First returns.
func (h *Alarms) Set(a *Alarm, of any, at int64) {
	switch {
	case at == Never:
		a.Unset()
	case a.in == nil:
		h.serial++
		a.in, a.of = h, of
		h.heap = append(h.heap, entry{})
		h.place(entry{at, h.serial, a}, len(h.heap)-1)
	case h.heap[a.index].at != at:
		h.place(entry{at, h.heap[a.index].serial, a}, a.index)
	}
}

// Unset unsets a, if it is set.
func (a *Alarm) Unset() {
	h := a.in
	if h == nil {
		return
	}
	n := len(h.heap) - 1
	last := h.heap[n]
	h.heap[n] = entry{}
	h.heap = h.heap[:n]
	if last.alarm != a {
		h.place(last, a.index)
	}
	a.in, a.of = nil, nil
}

// place puts e where it belongs, from the free place i on: towards the first as far as it
// is before its parents, else away from it as far as a child is before it.
func (h *Alarms) place(e entry, i int) {
	for i > 0 {
		parent := (i - 1) / 2
		if !e.before(&h.heap[parent]) {
			break
		}
		h.put(h.heap[parent], i)
		i = parent
	}
	for {
		child := 2*i + 1
		if child >= len(h.heap) {
			break
		}
		if right := child + 1; right < len(h.heap) && h.heap[right].before(&h.heap[child]) {
			child = right
		}
		if !h.heap[child].before(&e) {
			break
		}
		h.put(h.heap[child], i)
		i = child
	}
	h.put(e, i)
}

func (h *Alarms) put(e entry, i int) {
	h.heap[i] = e
	e.alarm.index = i
}

// Timer calls its owner once at a time: one timer for all waiters. It goes by the
// runtime's clock; a simulator has its own and does without.
type Timer[O any] struct {
	timer *time.Timer // nil until it is set for the first time
	at    int64       // 0 = it is not set
}

// IsSetTo says whether the timer is set to at already, so that Set would do nothing. It
// spares the owner a call of the clock.
func (t *Timer[O]) IsSetTo(at int64) bool { return at == t.at || at == Never && t.at == 0 }

// Set sets the timer to at, where it is now by the owner's clock: fire is called with the
// owner in a goroutine of its own, which first locks, then calls Fired. 0 and Never unset
// the timer. A call that has begun is not stopped.
func (t *Timer[O]) Set(owner *O, fire func(*O), at, now int64) {
	if t.IsSetTo(at) {
		return
	}
	if at == Never {
		at = 0
	}
	t.at = at
	switch wait := time.Duration(at - now); {
	case at == 0:
		t.timer.Stop()
	case t.timer == nil:
		t.timer = time.AfterFunc(wait, func() { fire(owner) })
	default:
		t.timer.Reset(wait)
	}
}

// Fired takes note that the timer has called its owner.
func (t *Timer[O]) Fired() { t.at = 0 }
