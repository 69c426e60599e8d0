package sim

import (
	"fmt"
	"math"
	"time"

	"github.com/stint-io/stint/limit"
)

// probe is a system whose nodes write down all that happens to them, and do what the
// test says.
type probe struct {
	log []string

	coordinator func(*probeNode)                    // when it starts; nil = there is none
	instance    func(*probeNode)                    // when it starts; nil = nothing
	receive     func(*probeNode, Address, any)      // nil = nothing
	wake        func(*probeNode)                    // nil = nothing
	take        func(*probeNode, int64) bool        // nil = admit
	within      func(*probeNode, int64, func(bool)) // nil = admit
	quiet       bool                                // do not write down requests
}

func (p *probe) Name() string { return "probe" }

func (p *probe) Coordinator(env Env, setup Setup, address Address, restart int) Node {
	if p.coordinator == nil || address != Coordinator {
		return nil
	}
	n := &probeNode{probe: p, env: env, setup: setup, address: address}
	n.note("start %d", restart)
	p.coordinator(n)
	return n
}

func (p *probe) Instance(env Env, setup Setup, i, restart int) Enforcer {
	n := &probeNode{probe: p, env: env, setup: setup, address: Address(i)}
	n.note("start %d", restart)
	if p.instance != nil {
		p.instance(n)
	}
	return n
}

type probeNode struct {
	*probe
	env     Env
	setup   Setup
	address Address
	share   float64
}

var (
	_ Waiter      = (*probeNode)(nil)
	_ Leaver      = (*probeNode)(nil)
	_ LimitSetter = (*probeNode)(nil)
)

// note writes a line with the time of a right clock.
func (n *probeNode) note(format string, args ...any) {
	at := time.Duration(n.env.(*env).engine.now)
	n.log = append(n.log, fmt.Sprintf("%v %d: ", at, n.address)+fmt.Sprintf(format, args...))
}

// after is a time by the node's own clock.
func (n *probeNode) after(d time.Duration) limit.Time { return n.env.Now().Add(d) }

func (n *probeNode) Receive(from Address, message any) {
	n.note("from %d: %v", from, message)
	if n.receive != nil {
		n.receive(n, from, message)
	}
}

func (n *probeNode) Wake() {
	n.note("wake")
	if n.wake != nil {
		n.wake(n)
	}
}

func (n *probeNode) Take(cost int64) bool {
	if !n.quiet {
		n.note("take %d", cost)
	}
	return n.take == nil || n.take(n, cost)
}

func (n *probeNode) TakeWithin(cost int64, wait time.Duration, decided func(bool)) {
	n.note("take %d within %v", cost, wait)
	if n.within == nil {
		decided(true)
		return
	}
	n.within(n, cost, decided)
}

func (n *probeNode) Share() float64   { return n.share }
func (n *probeNode) Leave()           { n.note("leave"); n.env.Send(Coordinator, "bye", 10) }
func (n *probeNode) SetLimit(l Limit) { n.note("limit %v", l.Rate) }

// split is limit/N in every instance, with a part of the burst.
type split struct{}

func (split) Name() string                              { return "split" }
func (split) Coordinator(Env, Setup, Address, int) Node { return nil }
func (split) Instance(env Env, s Setup, _, _ int) Enforcer {
	n := int64(s.Instances)
	rate := limit.Rate{Count: s.Limit.Rate.Count, Period: s.Limit.Rate.Period * time.Duration(n)}
	return &splitNode{
		env: env, rate: s.Limit.PerSecond() / float64(n),
		bucket: limit.NewBucket(limit.Policy{Rate: rate, Burst: max(s.Limit.Burst/n, 1)}),
	}
}

type splitNode struct {
	env    Env
	rate   float64
	bucket limit.Bucket
	state  limit.BucketState
}

func (*splitNode) Receive(Address, any) {}
func (*splitNode) Wake()                {}
func (n *splitNode) Share() float64     { return n.rate }
func (n *splitNode) Take(cost int64) bool {
	return n.bucket.Take(&n.state, n.env.Now(), cost).Allowed
}

// remote asks a coordinator with one bucket about every request: exact, and one round
// trip late. Without a wait it refuses.
type remote struct{}

func (remote) Name() string { return "remote" }

func (remote) Coordinator(env Env, s Setup, a Address, _ int) Node {
	if a != Coordinator {
		return nil
	}
	return &remoteNode{env: env, bucket: limit.NewBucket(limit.Policy{Rate: s.Limit.Rate, Burst: s.Limit.Burst})}
}

func (remote) Instance(env Env, _ Setup, _, _ int) Enforcer {
	return &remoteClient{env: env, open: map[int]func(bool){}}
}

type remoteAsk struct {
	id      int
	cost    int64
	allowed bool
}

type remoteNode struct {
	env    Env
	bucket limit.Bucket
	state  limit.BucketState
}

func (n *remoteNode) Wake() {}
func (n *remoteNode) Receive(from Address, m any) {
	ask := m.(remoteAsk)
	ask.allowed = n.bucket.Take(&n.state, n.env.Now(), ask.cost).Allowed
	n.env.Send(from, ask, 20)
}

type remoteClient struct {
	env  Env
	last int
	open map[int]func(bool)
}

func (n *remoteClient) Wake()           { n.env.WakeAt(math.MaxInt64) }
func (n *remoteClient) Take(int64) bool { return false }
func (n *remoteClient) Share() float64  { return 0 }

func (n *remoteClient) TakeWithin(cost int64, _ time.Duration, decided func(bool)) {
	n.last++
	n.open[n.last] = decided
	n.env.Send(Coordinator, remoteAsk{id: n.last, cost: cost}, 30)
}

func (n *remoteClient) Receive(_ Address, m any) {
	ask := m.(remoteAsk)
	if decided := n.open[ask.id]; decided != nil {
		delete(n.open, ask.id)
		decided(ask.allowed)
	}
}
