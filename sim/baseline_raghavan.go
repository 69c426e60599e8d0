package sim

import (
	"cmp"
	"time"

	"github.com/stint-io/stint/limit"
)

// Published constants of both designs.
const (
	raghavanInterval  = 50 * time.Millisecond
	raghavanSmoothing = 0.1
	raghavanPeers     = 3
)

// raghavanMesh is up to how many limiters each sends to all others, as in the published
// experiments with a few; those with 490 had random peers. A hundred is more than was
// published and takes 0.7 Mbps in each direction: it favours them.
const raghavanMesh = 100

// raghavanFanout is how many others a limiter sends to in each interval.
func raghavanFanout(peers int, setup Setup) int {
	switch {
	case peers > 0:
		return peers
	case setup.Instances <= raghavanMesh:
		return raghavanMesh
	}
	return raghavanPeers
}

// raghavanName marks the names of those that have random peers in fleets of any size.
func raghavanName(name string, peers int) string {
	if peers > 0 {
		return name + "-gossip"
	}
	return name
}

// GlobalRandomDrop is our model of GRD of Raghavan and others ("Cloud Control with
// Distributed Rate Limiting", 2007) as described: each limiter measures what arrives,
// refused requests included, in each Interval, smooths it, and sends it to all others,
// or gossips it to Peers random ones. Each drops a request with probability (R - L)/R, where R is what
// arrives everywhere.
//
// Where the description leaves a choice: gossip is a push-sum in epochs, which bears
// loss and restarts, and is direct when all others are peers. A limiter's own part of
// R is always of this moment. There is no burst. Old versions gossip like others.
//
// The zero value has the published constants.
type GlobalRandomDrop struct {
	Interval  time.Duration // 0 = 50 ms
	Smoothing float64       // weight of the newest measure; 0 = 0.1
	Peers     int           // 0 = all others in fleets of up to 100, 3 in larger ones
}

// Name returns "grd", or "grd-gossip" where Peers are given.
func (g GlobalRandomDrop) Name() string { return raghavanName("grd", g.Peers) }

// Coordinator returns nil: there is none.
func (GlobalRandomDrop) Coordinator(Env, Setup, Address, int) Node { return nil }

// Instance makes a limiter.
func (g GlobalRandomDrop) Instance(env Env, setup Setup, i, _ int) Enforcer {
	return &dropInstance{
		demand: newModelDemand(env, cmp.Or(g.Interval, raghavanInterval), cmp.Or(g.Smoothing, raghavanSmoothing)),
		gossip: newPushSum(env, setup, i, raghavanFanout(g.Peers, setup), cmp.Or(g.Interval, raghavanInterval), 0, 0),
		env:    env, limit: setup.Limit.PerSecond(),
	}
}

type dropInstance struct {
	demand modelDemand
	gossip *pushSum
	env    Env
	limit  float64
}

func (d *dropInstance) Receive(from Address, message any) { d.gossip.receive(from, message) }

func (d *dropInstance) Wake() {
	if d.demand.tick(d.env) {
		d.gossip.tick(d.demand.rate, d.demand.interval)
	}
}

// pass is the part of the requests that is not dropped.
func (d *dropInstance) pass() float64 {
	all := d.demand.rate + d.gossip.others
	switch {
	case d.limit <= 0:
		return 0
	case all > d.limit:
		return d.limit / all
	}
	return 1
}

func (d *dropInstance) Take(cost int64) bool {
	d.demand.attempted += cost
	pass := d.pass()
	return pass >= 1 || d.env.Rand().Float64() < pass
}

// Share is what it lets through of what arrives.
func (d *dropInstance) Share() float64 { return d.demand.rate * d.pass() }

func (d *dropInstance) SetLimit(l Limit) { d.limit = l.PerSecond() }

// modelDemand is the smoothed rate of what arrives, in tokens per second.
type modelDemand struct {
	interval  time.Duration
	smoothing float64
	attempted int64 // since the last tick
	last      limit.Time
	next      limit.Time
	rate      float64
}

// newModelDemand begins at a random moment of the interval.
func newModelDemand(env Env, interval time.Duration, smoothing float64) modelDemand {
	now := env.Now()
	d := modelDemand{interval: interval, smoothing: smoothing, last: now}
	d.next = now.Add(time.Duration(1 + env.Rand().Int64N(int64(interval))))
	env.WakeAt(d.next)
	return d
}

// tick measures when an interval is over and reports whether one is.
func (d *modelDemand) tick(env Env) bool {
	now := env.Now()
	if now < d.next {
		return false
	}
	sample := float64(d.attempted) / modelSeconds(d.last, now)
	d.rate += d.smoothing * (sample - d.rate)
	d.attempted, d.last = 0, now
	d.next = modelNext(d.next, now, int64(d.interval))
	env.WakeAt(d.next)
	return true
}

// FlowProportionalShare is our model of FPS of Raghavan and others (2007) as
// described: each limiter has a token bucket of L w/(w + W), with its own weight w and
// the gossiped weight W of the others. A limiter whose demand reaches its limit has
// the weight of its flows; one below it has the weight that makes the limit equal to
// the demand, w = d W/(L - d), so that others have the rest. Weights are smoothed.
//
// Where the description leaves a choice: flows are the clients of an instance
// ([Setup].Weights), none limited by anything but the limiter. All start with the
// weight of their flows and know that of the others. The demand is what arrives,
// refused requests included. A weight is at least a millionth of the flows, so that
// an idle fleet keeps proportions. Gossip is as in [GlobalRandomDrop].
//
// The zero value has the published constants.
type FlowProportionalShare struct {
	Interval  time.Duration // 0 = 50 ms
	Smoothing float64       // weight of the newest; 0 = 0.1
	Peers     int           // 0 = all others in fleets of up to 100, 3 in larger ones
}

// Name returns "fps", or "fps-gossip" where Peers are given.
func (f FlowProportionalShare) Name() string { return raghavanName("fps", f.Peers) }

// Coordinator returns nil: there is none.
func (FlowProportionalShare) Coordinator(Env, Setup, Address, int) Node { return nil }

// Instance makes a limiter.
func (f FlowProportionalShare) Instance(env Env, setup Setup, i, _ int) Enforcer {
	interval := cmp.Or(f.Interval, raghavanInterval)
	all := 0.0
	for j := range setup.Instances {
		all += modelWeight(setup, j)
	}
	p := &flowInstance{flows: modelWeight(setup, i)}
	p.weight = p.flows
	p.gossip = newPushSum(env, setup, i, raghavanFanout(f.Peers, setup), interval, p.weight, all-p.flows)
	p.modelLimiter = newModelLimiter(env, setup.Limit, setup.Limit.PerSecond()*p.flows/all)
	p.smoothing = cmp.Or(f.Smoothing, raghavanSmoothing)
	p.interval = interval
	p.since = env.Now()
	p.timers.set(flowTick, p.since.Add(time.Duration(1+env.Rand().Int64N(int64(interval)))))
	return p
}

// flowTick is the timer of the interval, beside that of the queue.
const flowTick = 1

const flowLeastWeight = 1e-6

type flowInstance struct {
	modelLimiter
	gossip    *pushSum
	interval  time.Duration
	smoothing float64

	flows  float64
	weight float64
	demand float64 // smoothed, tokens per second
	since  limit.Time
	before int64 // attempted in all at the last tick
}

func (p *flowInstance) Receive(from Address, message any) { p.gossip.receive(from, message) }

func (p *flowInstance) Wake() {
	p.timers.woken()
	if p.timers.due(flowTick) {
		now := p.timers.env.Now()
		sample := float64(p.attempted-p.before) / modelSeconds(p.since, now)
		p.demand += p.smoothing * (sample - p.demand)
		p.since, p.before = now, p.attempted
		p.estimate()
		p.divide()
		p.gossip.tick(p.weight, p.interval)
		p.timers.set(flowTick, modelNext(p.timers.at[flowTick], now, int64(p.interval)))
	}
	p.serve()
}

// estimate puts the weight anew.
func (p *flowInstance) estimate() {
	whole, others := p.limit.PerSecond(), p.gossip.others
	ideal := p.flows
	if p.demand < p.rate {
		ideal = p.demand * others / (whole - p.demand)
	}
	p.weight += p.smoothing * (ideal - p.weight)
	p.weight = max(p.weight, flowLeastWeight*p.flows)
}

// divide puts the limit of the bucket to the part that the weight is of all.
func (p *flowInstance) divide() {
	p.setRate(p.limit.PerSecond() * p.weight / (p.weight + p.gossip.others))
}

func (p *flowInstance) SetLimit(l Limit) {
	p.limit = l
	p.divide()
}
