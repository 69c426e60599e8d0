package sim

import (
	"time"

	"github.com/stint-io/stint/internal/partition"
	"github.com/stint-io/stint/internal/waitline"
	"github.com/stint-io/stint/limit"
)

// OwnSplit says how instances use the parts that they have beforehand: the machine of
// package split, as it ships. Its zero value uses each token when it is due. Where a
// limit cannot be split so, as partition.Terms says, nothing is admitted: a file with
// such a limit is refused.
//
// A process that starts again does not know which tokens the one before has used: it
// may use those of its part once more that are still good, a burst at most.
type OwnSplit struct {
	Window time.Duration // of the wall clock; 0 = none
	Pacing partition.Pacing
}

// ownSplitNode is an instance that has its part beforehand.
type ownSplitNode struct {
	env   Env
	split *partition.Limiter
	phase partition.Phase
	own   OwnSplit
	part  partition.Part
	limit Limit
	line  waitline.Line[limit.Time]
	calls waitline.Dispatcher

	tail    partition.Line // behind all in line
	planned limit.Time     // until when their times stay as they were planned
}

func (o *OwnSplit) instance(env Env, setup Setup, i int) Enforcer {
	n := &ownSplitNode{env: env, own: *o, part: partOf(setup.Weights, setup.Instances, i)}
	n.phase = partition.NewPhase(env.Now(), env.Wall())
	for _, n.limit = range [...]Limit{setup.Limit, {}} {
		split, err := partition.New(partition.Options{Window: o.Window, Pacing: o.Pacing}, n.terms())
		if err == nil {
			n.split = split
			return n
		}
		n.part = partition.Part{Of: 1}
	}
	return nothing{}
}

// nothing admits nothing.
type nothing struct{}

func (nothing) Take(int64) bool      { return false }
func (nothing) Share() float64       { return 0 }
func (nothing) Receive(Address, any) {}
func (nothing) Wake()                {}

// partOf is the part of instance i of so many.
func partOf(weights []uint32, instances, i int) partition.Part {
	if weights == nil {
		return partition.Part{First: int64(i), Weight: 1, Of: int64(max(1, instances))}
	}
	part := partition.Part{Weight: int64(max(1, weights[i]))}
	for j, w := range weights {
		if part.Of += int64(max(1, w)); j < i {
			part.First += int64(max(1, w))
		}
	}
	return part
}

// terms are those of the limit in force. A burst of less than one token would admit
// nothing.
func (n *ownSplitNode) terms() partition.Terms { return splitTerms(n.limit, n.part, n.own.Window) }

func splitTerms(l Limit, part partition.Part, window time.Duration) partition.Terms {
	t := partition.Terms{Total: l.Rate, Part: part, Burst: max(1, l.Burst)}
	if t.Total.Period == 0 {
		t.Total.Period = time.Second
	}
	if window > 0 {
		t.Burst = 0
	}
	return t
}

// now is the time of day, as the node carries it on.
func (n *ownSplitNode) now() limit.Time {
	mono := n.env.Now()
	n.phase.Adjust(mono, n.env.Wall(), limit.Time(n.own.Window))
	return mono + n.phase.Shift()
}

// Take implements Enforcer.
func (n *ownSplitNode) Take(cost int64) bool {
	return n.line.First() == nil && n.split.Allow(n.now(), cost)
}

// TakeWithin implements Waiter. What cannot be served in time is refused at once.
func (n *ownSplitNode) TakeWithin(cost int64, wait time.Duration, decided func(bool)) {
	now := n.now()
	if n.Take(cost) {
		decided(true)
		return
	}
	if n.line.First() == nil {
		n.settle(now)
	}
	at, tail := n.split.Behind(n.tail, cost)
	if at > now.Add(wait) {
		decided(false)
		return
	}
	n.tail = tail
	n.line.Push(newWaiter(cost, now.Add(wait), decided))
	n.arm(now)
}

// settle serves the waiters that are due. If the times of the others may have become later,
// it plans them anew, and refuses those that cannot be served in time any more.
func (n *ownSplitNode) settle(now limit.Time) {
	defer n.calls.Run()
	first := n.line.Serve(&n.calls, func(w *waitline.Waiter[limit.Time]) bool { return n.split.Allow(now, w.Cost) })
	if first != nil && now < n.planned && n.split.Stands(n.tail) {
		return
	}
	n.tail, n.planned = n.split.Front(now), n.split.Known(now)
	n.line.Review(&n.calls, func(w *waitline.Waiter[limit.Time], _ int64) error {
		at, tail := n.split.Behind(n.tail, w.Cost)
		if at > w.Value {
			return errLate
		}
		n.tail = tail
		return nil
	})
}

// arm wakes the node when the first in line is due.
func (n *ownSplitNode) arm(now limit.Time) {
	first := n.line.First()
	if first == nil {
		n.env.WakeAt(modelNever)
		return
	}
	at := min(n.split.Earliest(now, 0, first.Cost), n.planned)
	n.env.WakeAt(max(at, now) - n.phase.Shift())
}

// Wake implements Node.
func (n *ownSplitNode) Wake() {
	now := n.now()
	n.settle(now)
	n.arm(now)
}

// Receive implements Node.
func (n *ownSplitNode) Receive(Address, any) {}

// SetLimit implements LimitSetter.
func (n *ownSplitNode) SetLimit(l Limit) {
	now := n.now()
	for _, n.limit = range [...]Limit{l, {}} {
		if n.split.Change(now, n.terms(), 0) == nil {
			break
		}
	}
	n.settle(now)
	n.arm(now)
}

// Share implements Enforcer.
func (n *ownSplitNode) Share() float64 {
	return n.limit.PerSecond() * float64(n.part.Weight) / float64(n.part.Of)
}
