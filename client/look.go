package client

import (
	"math"
	"time"

	"github.com/stint-io/stint/limit"
)

// turnHeap has turns by until, the latest first, or by look, the earliest first.
type turnHeap struct {
	turns   []*turn
	byUntil bool
}

func (h *turnHeap) Len() int { return len(h.turns) }

// Less implements sort.Interface.
func (h *turnHeap) Less(i, j int) bool {
	if h.byUntil {
		return h.turns[i].until > h.turns[j].until
	}
	return h.turns[i].look < h.turns[j].look
}

// Swap implements sort.Interface.
func (h *turnHeap) Swap(i, j int) {
	h.turns[i], h.turns[j] = h.turns[j], h.turns[i]
	*h.place(h.turns[i]), *h.place(h.turns[j]) = i+1, j+1
}

// Push implements heap.Interface.
func (h *turnHeap) Push(x any) {
	t := x.(*turn)
	h.turns = append(h.turns, t)
	*h.place(t) = len(h.turns)
}

// Pop implements heap.Interface.
func (h *turnHeap) Pop() any {
	last := len(h.turns) - 1
	t := h.turns[last]
	h.turns[last] = nil
	h.turns = h.turns[:last]
	*h.place(t) = 0
	return t
}

func (h *turnHeap) place(t *turn) *int {
	if h.byUntil {
		return &t.inUntil
	}
	return &t.inLook
}

// armLook sets the timer to when the first of those in line is to be looked at.
func (l *leasedLimit) armLook() {
	next := limit.Time(math.MaxInt64)
	if looks := l.line.looks.turns; len(looks) > 0 {
		next = looks[0].look
	}
	switch {
	case next == l.looksAt:
		return
	case next == math.MaxInt64:
		if l.looker != nil {
			l.looker.Stop()
		}
	case l.looker == nil:
		l.looker = time.AfterFunc(time.Duration(next-l.client.now()), l.look)
	default:
		l.looker.Reset(time.Duration(next - l.client.now()))
	}
	l.looksAt = next
}

// together is how long before its time one who is unsure may be looked at. It is so long
// that a line is gone through a few times only while all in it are; and short, beside
// the patience of one who is unsure.
const together = limit.Time(shortestAsk / 10)

// look sends away those in line whose time is over. Of those who waited for an answer it
// keeps whoever may be in time yet.
func (l *leasedLimit) look() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.looksAt = 0
	now := l.client.now()
	var unsure int
	for looks := &l.line.looks; len(looks.turns) > 0; {
		t := looks.turns[0]
		if t.look > now && (!t.unsure || t.look > now+together) {
			break
		}
		if t.unsure && now < t.latest {
			unsure++
			t.unsure = false
			t.reviewed = true
			l.line.lookAt(t, t.latest)
			continue
		}
		l.dismiss(t, errLate)
	}
	cost := int64(0)
	for t := l.line.first; t != nil && unsure > 0; {
		next := t.next
		cost += t.n
		if t.reviewed {
			t.reviewed = false
			unsure--
			if l.late(now, cost, t) {
				cost -= t.n
				l.dismiss(t, errLate)
			} else {
				l.line.wait(t, t.ends)
			}
		}
		t = next
	}
	l.settle(now)
}
