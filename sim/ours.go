package sim

import (
	"cmp"
	"errors"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/stint-io/stint/internal/bucket"
	"github.com/stint-io/stint/internal/fairshare"
	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/internal/lease/agent"
	"github.com/stint-io/stint/internal/lease/coordinator"
	"github.com/stint-io/stint/internal/waitline"
	"github.com/stint-io/stint/limit"
)

// Ours is stint's own way to share: the agents and the coordinator of internal/lease, as they
// ship. The zero value has the defaults of the service.
type Ours struct {
	// Label is how tables call it; "" = stint.
	Label string
	// Lease and Refresh are as in coordinator.CoordinatorOptions.
	Lease, Refresh time.Duration
	// Allocation is how the capacity is divided.
	Allocation fairshare.Allocation
	// Suppress shares the limit by suppression, and Split by parts that all have
	// beforehand, without a coordinator; both nil = by leases.
	Suppress *lease.Suppress
	Split    *OwnSplit
	// Options are how instances use their leases.
	Options agent.LeaseOptions
	// Forgetful coordinators keep nothing across a crash: no instance can claim
	// what it had.
	Forgetful bool
	// Watch, if not nil, sees every coordinator that is made.
	Watch func(*coordinator.Coordinator)
}

var _ System = (*Ours)(nil)

// resourceID names the one limit of a scenario.
var resourceID = lease.ResourceID{Limit: "limit"}

// Name implements System.
func (o *Ours) Name() string {
	if o.Label != "" {
		return o.Label
	}
	return "stint"
}

// Coordinator implements System.
func (o *Ours) Coordinator(env Env, setup Setup, address Address, restart int) Node {
	if address != Coordinator || o.Split != nil {
		return nil
	}
	n := &coordinatorNode{env: env, ours: o, limit: setup.Limit, addresses: map[lease.Member]Address{}}
	opts := coordinator.Options{
		Epoch: uint64(restart + 1), Lease: o.Lease, Refresh: o.Refresh, Resolve: n.resolve,
	}
	if restart > 0 {
		length := cmp.Or(o.Lease, lease.DefaultLease)
		opts.Recovery = length + length/64
	}
	if !o.Forgetful {
		opts.Seal = coordinator.NewSeal([]byte("the key of this run"))
	}
	n.machine = coordinator.New(opts, env.Now())
	if o.Watch != nil {
		o.Watch(n.machine)
	}
	env.WakeAt(n.machine.Next())
	return n
}

// Instance implements System.
func (o *Ours) Instance(env Env, setup Setup, i, restart int) Enforcer {
	if o.Split != nil {
		return o.Split.instance(env, setup, i)
	}
	n := &instanceNode{env: env}
	n.holder = agent.New(agent.Options{
		Member: lease.Member{Instance: strconv.Itoa(i), Session: uint64(restart + 1)},
		Jitter: env.Rand().Float64,
	})
	n.bucket = bucket.NewBucket(n.holder.Deadline())
	n.bucket.Random(env.Rand().Float64)
	opts := o.Options
	if setup.Weights != nil {
		opts.Weight = setup.Weights[i]
	}
	if setup.Old != nil {
		opts.Silent = setup.Old[i]
	}
	n.handle = n.holder.Open(env.Now(), resourceID, opts, n.bucket)
	n.step(lease.Tick{})
	return n
}

// termsOf returns the limit as a coordinator lends it.
func termsOf(l Limit, a fairshare.Allocation) lease.Terms {
	rate := fixed.Amount(0)
	if l.Rate.Count > 0 {
		// Exact to a millionth of a token per second, rounded down.
		rate = fixed.Amount(math.Floor(l.PerSecond()*float64(fixed.Token) + 1e-6))
	}
	return lease.Terms{Rate: rate, Burst: fixed.Whole(l.Burst), Allocation: a}
}

type coordinatorNode struct {
	env       Env
	ours      *Ours
	limit     Limit
	machine   *coordinator.Coordinator
	addresses map[lease.Member]Address
}

func (n *coordinatorNode) resolve(id lease.ResourceID) (lease.Terms, lease.Status) {
	if id != resourceID {
		return lease.Terms{}, lease.StatusUnknownLimit
	}
	t := termsOf(n.limit, n.ours.Allocation)
	t.Suppress = n.ours.Suppress
	return t, lease.StatusOK
}

func (n *coordinatorNode) Receive(from Address, message any) {
	if r, ok := message.(*lease.Report); ok {
		n.addresses[r.Member] = from
		n.step(r)
	}
}

func (n *coordinatorNode) Wake() { n.step(lease.Tick{}) }

// SetLimit implements LimitSetter.
func (n *coordinatorNode) SetLimit(l Limit) {
	n.limit = l
	n.step(coordinator.Reconfigure{})
}

func (n *coordinatorNode) step(e lease.Event) {
	for _, g := range n.machine.Step(n.env.Now(), e) {
		n.env.Send(n.addresses[g.To], &g, grantBytes(&g))
	}
	n.env.WakeAt(n.machine.Next())
}

// reportBytes and grantBytes are the sizes on the wire: protobuf, gRPC's five bytes
// and the nine of an HTTP/2 frame.
func reportBytes(r *lease.Report) int {
	n := 14 + 6 + len(r.Instance) + 9 + 2 + 10 + 6 + 9
	for i := range r.Demands {
		d := &r.Demands[i]
		n += 2 + 2 + len(d.Resource.Limit) + len(d.Resource.Key) + 4 + len(d.Claim) + 18 + 4 + 4 + 3*9
	}
	return n
}

func grantBytes(g *lease.Grant) int {
	n := 14 + 10 + 10 + 2*9 + 2*6
	for i := range g.Shares {
		n += 2 + 2 + 4 + 4 + 3*9 + 2*9 + 6 + 6 + 14 + len(g.Shares[i].Token)
	}
	return n
}

type instanceNode struct {
	env    Env
	holder *agent.Agent
	bucket *bucket.Bucket
	handle uint32

	line      waitline.Line[limit.Time]
	deadlines waitline.Alarms
	calls     waitline.Dispatcher
}

// newWaiter is a request that waits, until a time.
func newWaiter(cost int64, until limit.Time, decided func(bool)) *waitline.Waiter[limit.Time] {
	return &waitline.Waiter[limit.Time]{
		Cost: cost, Value: until,
		Signal: waitline.Callback(waitline.HandlerFunc(func(err error) { decided(err == nil) })),
	}
}

// errLate ends the wait of a request that is not served in time.
var errLate = errors.New("late")

func (n *instanceNode) Receive(_ Address, message any) {
	if g, ok := message.(*lease.Grant); ok {
		n.step(g)
	}
}

func (n *instanceNode) Wake() { n.step(lease.Tick{}) }

// report hands an event to the agent and sends what it reports.
func (n *instanceNode) report(e lease.Event) {
	if r := n.holder.Step(n.env.Now(), e); r != nil {
		sent := *r
		sent.Demands = slices.Clone(r.Demands)
		n.env.Send(Coordinator, &sent, reportBytes(&sent))
	}
}

func (n *instanceNode) step(e lease.Event) {
	n.report(e)
	n.serve()
	next := n.holder.Next()
	if first := n.line.First(); first != nil {
		at, _ := n.deadlines.First()
		next = min(next, limit.Time(at))
		if d := n.bucket.Earliest(n.env.Now(), first.Cost); d != limit.Never {
			next = min(next, n.env.Now().Add(d))
		}
	}
	n.env.WakeAt(next)
}

// Take implements Enforcer.
func (n *instanceNode) Take(cost int64) bool {
	if n.line.First() != nil {
		n.bucket.Refuse(cost)
		return false
	}
	ok, _ := n.bucket.Allow(n.env.Now(), cost)
	if !ok {
		n.step(agent.Starved{Handle: n.handle})
	} else if n.env.Now() > 0 && n.holder.Next() == limit.Time(math.MaxInt64) {
		n.step(lease.Tick{})
	}
	return ok
}

// TakeWithin implements Waiter.
func (n *instanceNode) TakeWithin(cost int64, wait time.Duration, decided func(bool)) {
	n.bucket.Join(cost)
	if n.line.First() == nil {
		if n.bucket.Serve(n.env.Now(), cost) {
			decided(true)
			return
		}
		n.bucket.Freeze()
	}
	until := n.env.Now().Add(wait)
	w := newWaiter(cost, until, decided)
	n.line.Push(w)
	n.deadlines.Set(&w.Deadline, w, int64(until))
	n.bucket.WaitUntil(until)
	n.step(agent.Starved{Handle: n.handle})
}

// serve serves the waiters in their order, and refuses those whose deadline has passed.
func (n *instanceNode) serve() {
	if n.line.First() == nil {
		return
	}
	now := n.env.Now()
	for {
		first := n.line.Serve(&n.calls, func(w *waitline.Waiter[limit.Time]) bool { return n.bucket.Serve(now, w.Cost) })
		if first == nil {
			n.bucket.Thaw()
			break
		}
		at, late := n.deadlines.First()
		if at > int64(now) {
			break
		}
		w := late.(*waitline.Waiter[limit.Time])
		n.bucket.Leave(w.Cost)
		n.line.Remove(w)
		w.End(&n.calls, errLate)
	}
	n.calls.Run()
}

// Share implements Enforcer.
func (n *instanceNode) Share() float64 {
	now := n.env.Now()
	if int64(now) >= n.holder.Deadline().Load() {
		return 0
	}
	st := n.holder.State(n.handle)
	if st.Suppression.Reject > 0 {
		return min(st.Held.Rate, st.Suppression.Rate).Float()
	}
	return st.Held.Rate.Float()
}

// Leave implements Leaver.
func (n *instanceNode) Leave() { n.report(agent.Leave{}) }
