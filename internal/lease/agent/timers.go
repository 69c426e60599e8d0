package agent

import (
	"cmp"
	"container/heap"
	"slices"

	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/limit"
)

// timers orders the leases of a Holder by when they need it, so that an event costs
// the same whether the instance has one lease or ten thousand.
type timers []*resource

func (t timers) Len() int           { return len(t) }
func (t timers) Less(i, j int) bool { return t[i].timer.at < t[j].timer.at }
func (t timers) Swap(i, j int) {
	t[i], t[j] = t[j], t[i]
	t[i].timer.index, t[j].timer.index = i, j
}

// Push and Pop are for package heap.
func (t *timers) Push(x any) {
	l := x.(*resource)
	l.timer.index = len(*t)
	*t = append(*t, l)
}

func (t *timers) Pop() any {
	old := *t
	l := old[len(old)-1]
	old[len(old)-1] = nil
	*t = old[:len(old)-1]
	l.timer.index = -1
	return l
}

// plan puts l where it belongs, after something about it has changed.
func (h *Agent) plan(l *resource) {
	at := l.next(&h.timing)
	switch {
	case l.timer.index >= 0 && at == lease.Never:
		heap.Remove(&h.timers, l.timer.index)
		l.timer.at = lease.Never
	case l.timer.index >= 0:
		if at != l.timer.at {
			l.timer.at = at
			heap.Fix(&h.timers, l.timer.index)
		}
	case at != lease.Never:
		l.timer.at = at
		heap.Push(&h.timers, l)
	}
}

// due returns the leases that need something at now, in the order of their handles:
// the order of a heap is nobody's business.
func (h *Agent) due(now limit.Time) []*resource {
	list := h.ready[:0]
	for len(h.timers) > 0 && h.timers[0].timer.at <= now {
		list = append(list, heap.Pop(&h.timers).(*resource))
	}
	slices.SortFunc(list, func(a, b *resource) int { return cmp.Compare(a.handle, b.handle) })
	h.ready = list
	return list
}
