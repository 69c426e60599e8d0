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

func (a timers) Len() int           { return len(a) }
func (a timers) Less(i, j int) bool { return a[i].dueAt < a[j].dueAt }
func (a timers) Swap(i, j int) {
	a[i], a[j] = a[j], a[i]
	a[i].heapIndex, a[j].heapIndex = i, j
}

// Push and Pop are for package heap.
func (a *timers) Push(x any) {
	l := x.(*resource)
	l.heapIndex = len(*a)
	*a = append(*a, l)
}

func (a *timers) Pop() any {
	old := *a
	l := old[len(old)-1]
	old[len(old)-1] = nil
	*a = old[:len(old)-1]
	l.heapIndex = -1
	return l
}

// plan puts l where it belongs, after something about it has changed.
func (h *Agent) plan(l *resource) {
	at := l.next(h)
	switch {
	case l.heapIndex >= 0 && at == lease.Never:
		heap.Remove(&h.timers, l.heapIndex)
		l.dueAt = lease.Never
	case l.heapIndex >= 0:
		if at != l.dueAt {
			l.dueAt = at
			heap.Fix(&h.timers, l.heapIndex)
		}
	case at != lease.Never:
		l.dueAt = at
		heap.Push(&h.timers, l)
	}
}

// due returns the leases that need something at now, in the order of their handles:
// the order of a heap is nobody's business.
func (h *Agent) due(now limit.Time) []*resource {
	list := h.ready[:0]
	for len(h.timers) > 0 && h.timers[0].dueAt <= now {
		list = append(list, heap.Pop(&h.timers).(*resource))
	}
	slices.SortFunc(list, func(a, b *resource) int { return cmp.Compare(a.handle, b.handle) })
	h.ready = list
	return list
}
