package sim

import (
	"math/rand/v2"
	"slices"
	"time"
)

// network carries messages with delay, loss and doubles, except over cuts.
type network struct {
	Network
	random *rand.Rand
	slots  []envelope
	unused []int32
	cuts   []*cut          // those in force
	latest map[int64]int64 // InOrder: when the latest message of a pair arrives
	width  int64           // of the table of pairs: how many processes there are

	sent, lost, doubled int64
}

// envelope is a message in transit.
type envelope struct {
	from, to int32 // indices of processes
	bytes    int32
	message  any
}

// cut is a partition in force.
type cut struct {
	inside []bool // by index of process
	way    Direction
}

func newNetwork(n Network, seed uint64, processes int) *network {
	return &network{
		Network: n,
		random:  source(seed, chanceNetwork, 0, 0),
		latest:  map[int64]int64{},
		width:   int64(processes),
	}
}

// carries says whether no cut stands between two processes.
func (n *network) carries(from, to int32) bool {
	for _, c := range n.cuts {
		switch inner, outer := c.inside[from], c.inside[to]; {
		case inner == outer:
		case c.way == BothWays, c.way == Outwards && inner, c.way == Inwards && outer:
			return false
		}
	}
	return true
}

// arrival is when a message arrives that is sent now.
func (n *network) arrival(now int64, from, to int32) int64 {
	at := now + int64(n.Delay)
	if n.Jitter > 0 {
		at += n.random.Int64N(int64(n.Jitter))
	}
	if n.InOrder && n.Jitter > 0 {
		pair := int64(from)*n.width + int64(to)
		at = max(at, n.latest[pair])
		n.latest[pair] = at
	}
	return at
}

func (n *network) put(e envelope) int32 {
	if k := len(n.unused); k > 0 {
		slot := n.unused[k-1]
		n.unused = n.unused[:k-1]
		n.slots[slot] = e
		return slot
	}
	n.slots = append(n.slots, e)
	return int32(len(n.slots) - 1)
}

func (n *network) free(slot int32) {
	n.slots[slot].message = nil
	n.unused = append(n.unused, slot)
}

// send puts a message on its way, or loses it. Messages to an address that the fleet
// does not have are lost.
func (g *engine) send(from *process, to Address, message any, bytes int) {
	n := g.network
	n.sent++
	g.recorder.sent(from, bytes)
	target := g.at(to)
	if target == nil {
		n.lost++
		return
	}
	a, b := int32(from.index), int32(target.index)
	copies := 1
	if n.Loss > 0 && n.random.Float64() < n.Loss {
		copies = 0
	}
	if n.Duplicate > 0 && n.random.Float64() < n.Duplicate && copies == 1 {
		copies = 2
		n.doubled++
	}
	if copies == 0 || !n.carries(a, b) {
		n.lost++
		return
	}
	for range copies {
		slot := n.put(envelope{from: a, to: b, bytes: int32(bytes), message: message})
		g.push(event{At: n.arrival(g.now, a, b), Of: what{kind: eventMessage, ref: slot}})
	}
}

// deliver is the event of a message that arrives.
func (g *engine) deliver(slot int32) {
	e := &g.network.slots[slot]
	p := g.processes[e.to]
	switch {
	case p.state == stateDown || !g.network.carries(e.from, e.to):
		g.network.lost++
		g.network.free(slot)
	case p.state == statePaused:
		p.inbox = append(p.inbox, slot)
	default:
		g.receive(p, slot)
	}
}

// receive hands a message to its node.
func (g *engine) receive(p *process, slot int32) {
	e := g.network.slots[slot]
	g.network.free(slot)
	g.recorder.received(g.now, p, int(e.bytes))
	p.node.Receive(g.processes[e.from].address, e.message)
}

// part puts a partition in force and returns it.
func (g *engine) part(p *Partition) *cut {
	c := &cut{inside: make([]bool, len(g.processes)), way: p.Cut}
	for _, a := range p.Nodes {
		if q := g.at(a); q != nil {
			c.inside[q.index] = true
		}
	}
	g.network.cuts = append(g.network.cuts, c)
	return c
}

// heal takes a partition away.
func (g *engine) heal(c *cut) {
	if i := slices.Index(g.network.cuts, c); i >= 0 {
		g.network.cuts = slices.Delete(g.network.cuts, i, i+1)
	}
}

// end is when something ends that begins at at and lasts for d, 0 = for good.
func end(at, d time.Duration) int64 {
	if d == 0 {
		return never
	}
	return int64(at + d)
}
