package sim

import (
	"time"

	"github.com/stint-io/stint/internal/share"
	"github.com/stint-io/stint/limit"
)

// OwnSplit says how instances use the parts that they have beforehand: the machine of
// package split, as it ships. Its zero value uses each token when it is due.
type OwnSplit struct {
	Window time.Duration // of the wall clock; 0 = none
	Pacing share.Pacing
}

// ownSplitNode is an instance that has its part beforehand.
type ownSplitNode struct {
	env   Env
	split *share.Split
	phase share.Phase
	own   OwnSplit
	part  share.Part
	limit Limit
	line  []waiter
	cost  int64 // of all in line
}

func (o *OwnSplit) instance(env Env, setup Setup, i int) Enforcer {
	n := &ownSplitNode{env: env, own: *o, limit: setup.Limit, part: share.Part{First: int64(i), Weight: 1, Of: int64(max(1, setup.Instances))}}
	if setup.Weights != nil {
		n.part = share.Part{}
		for j, w := range setup.Weights {
			if n.part.Of += int64(max(1, w)); j < i {
				n.part.First += int64(max(1, w))
			}
		}
		n.part.Weight = int64(max(1, setup.Weights[i]))
	}
	n.phase = share.NewPhase(env.Now(), env.Wall())
	split, err := share.NewSplit(share.SplitOptions{Window: o.Window, Pacing: o.Pacing}, n.terms())
	if err != nil {
		// Among more instances than units there is nothing for each; nor can more than
		// one per nanosecond be numbered.
		n.limit, n.part = Limit{}, share.Part{Of: 1}
		split, _ = share.NewSplit(share.SplitOptions{}, n.terms())
	}
	n.split = split
	return n
}

// terms are those of the limit in force. A burst of less than one token would admit
// nothing.
func (n *ownSplitNode) terms() share.SplitTerms {
	t := share.SplitTerms{Total: n.limit.Rate, Part: n.part, Burst: max(1, n.limit.Burst)}
	if n.own.Window > 0 {
		t.Burst = 0
	}
	return t
}

// now is the time of day, as the node carries it on.
func (n *ownSplitNode) now() limit.Time {
	mono := n.env.Now()
	n.phase.Look(mono, n.env.Wall(), limit.Time(n.own.Window))
	return mono + n.phase.Shift()
}

// Take implements Enforcer.
func (n *ownSplitNode) Take(cost int64) bool {
	return len(n.line) == 0 && n.split.Allow(n.now(), cost)
}

// TakeWithin implements Waiter. Who cannot be let go in time is told at once.
func (n *ownSplitNode) TakeWithin(cost int64, wait time.Duration, decided func(bool)) {
	now := n.now()
	if n.Take(cost) {
		decided(true)
		return
	}
	if n.split.Earliest(now, n.cost, cost) > now.Add(wait) {
		decided(false)
		return
	}
	n.line = append(n.line, waiter{cost, now.Add(wait), decided})
	n.cost += cost
	n.arm(now)
}

// arm wakes the node when the first in line can be let go, or has waited long enough.
func (n *ownSplitNode) arm(now limit.Time) {
	if len(n.line) == 0 {
		n.env.WakeAt(modelNever)
		return
	}
	at := min(n.split.Earliest(now, 0, n.line[0].cost), n.line[0].until)
	n.env.WakeAt(max(at, now) - n.phase.Shift())
}

// Wake implements Node.
func (n *ownSplitNode) Wake() {
	now := n.now()
	for len(n.line) > 0 {
		first := n.line[0]
		ok := n.split.Allow(now, first.cost)
		if !ok && now < first.until {
			break
		}
		n.line = n.line[1:]
		n.cost -= first.cost
		first.decided(ok)
	}
	n.arm(now)
}

// Receive implements Node.
func (n *ownSplitNode) Receive(Address, any) {}

// SetLimit implements LimitSetter.
func (n *ownSplitNode) SetLimit(l Limit) {
	n.limit = l
	now := n.now()
	if n.split.Change(now, n.terms(), 0) == nil {
		n.arm(now)
	}
}

// Share implements Enforcer.
func (n *ownSplitNode) Share() float64 {
	return n.limit.PerSecond() * float64(n.part.Weight) / float64(n.part.Of)
}
