package agent

import (
	"cmp"
	"container/heap"
	"slices"

	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/limit"
)

// timers is a heap of resources by when they need a Tick, so that the cost of an event
// grows with the logarithm of the number of resources.
type timers []*resource

func (t timers) Len() int           { return len(t) }
func (t timers) Less(i, j int) bool { return t[i].timer.at < t[j].timer.at }
func (t timers) Swap(i, j int) {
	t[i], t[j] = t[j], t[i]
	t[i].timer.index, t[j].timer.index = i, j
}

// Push and Pop are for package heap.
func (t *timers) Push(x any) {
	r := x.(*resource)
	r.timer.index = len(*t)
	*t = append(*t, r)
}

func (t *timers) Pop() any {
	old := *t
	r := old[len(old)-1]
	old[len(old)-1] = nil
	*t = old[:len(old)-1]
	r.timer.index = -1
	return r
}

// plan moves r to its place after something in it has changed.
func (t *timers) plan(r *resource, at limit.Time) {
	switch {
	case r.timer.index >= 0 && at == lease.Never:
		heap.Remove(t, r.timer.index)
		r.timer.at = lease.Never
	case r.timer.index >= 0:
		if at != r.timer.at {
			r.timer.at = at
			heap.Fix(t, r.timer.index)
		}
	case at != lease.Never:
		r.timer.at = at
		heap.Push(t, r)
	}
}

// due removes and returns the resources that need a Tick at now, in the order of their
// handles: a heap has no order of its own among equals that could be relied on. The result
// is appended to scratch.
func (t *timers) due(now limit.Time, scratch []*resource) []*resource {
	for len(*t) > 0 && (*t)[0].timer.at <= now {
		scratch = append(scratch, heap.Pop(t).(*resource))
	}
	slices.SortFunc(scratch, func(a, b *resource) int { return cmp.Compare(a.handle, b.handle) })
	return scratch
}
