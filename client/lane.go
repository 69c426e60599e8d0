package client

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stint-io/stint/internal/lease/agent"
	"github.com/stint-io/stint/limit"
)

// lane is a client's side of one coordinator: the stream, the agent that reports over it, and
// the leases.
type lane struct {
	client *Client
	shard  int // of the keys that the coordinator has

	link   atomic.Int32 // linkState
	lost   atomic.Int64 // when the latest stream ended that a coordinator, or a member, has answered; 0 = none has
	failed atomic.Bool  // the first try failed, and waiters are to be notified

	// cause is why no coordinator has answered since; nil = one has, or it was not tried.
	cause atomic.Pointer[error]

	// mu is of the network's half. A goroutine that holds it may lock a lease's mu, and not the client's.
	mu      sync.Mutex
	agent   *agent.Agent
	leases  map[uint32]*leasedLimit
	decided usage
	touched []*leasedLimit // whose state may have changed, for Options.OnLease

	outage outage // of the goroutine that connects

	starving struct {
		sync.Mutex
		handles []uint32
	}
	wake chan struct{} // holds one

	loop struct { // of the goroutine that runs Run
		lower   uint64     // the last lower epoch that was logged; 0 = none since the epoch rose
		links   chan *link // new ones
		lost    chan *link
		granted chan granted
		current *link
		timer   *time.Timer
		dropped uint64
	}
}

// linkState says whether it is worth while to wait for an answer.
type linkState = int32

const (
	linkNew  linkState = iota // not tried yet
	linkUp                    // there is a stream
	linkDown                  // there was none at the latest try
)

func newLane(c *Client, shard int) *lane {
	a := &lane{client: c, shard: shard, leases: map[uint32]*leasedLimit{}, wake: make(chan struct{}, 1)}
	a.agent = agent.New(agent.Options{Member: c.member, Jitter: rand.Float64})
	a.loop.links, a.loop.lost, a.loop.granted = make(chan *link), make(chan *link), make(chan granted)
	return a
}

// mayAnswer says whether it is worth while to wait for an answer. One who waits for patience outlasts a coordinator that
// resigns, restarts or is not known yet; while none answers for longer, nobody waits.
func (a *lane) mayAnswer(now limit.Time, patience time.Duration) bool {
	lost := limit.Time(a.lost.Load())
	return a.link.Load() != linkDown || lost != 0 && now < lost.Add(patience)
}

// connected says whether there is a stream.
func (a *lane) connected() bool { return a.link.Load() == linkUp }

// open registers a lease with the agent.
func (a *lane) open(l *leasedLimit, o agent.LeaseOptions) {
	a.mu.Lock()
	defer a.mu.Unlock()
	l.spender.Follow(a.agent.Deadline())
	l.place.Store(&place{lane: a}) // which the agent may ask for already
	p := &place{a, a.agent.Open(a.client.now(), l.id, o, l)}
	l.place.Store(p)
	a.leases[p.handle] = l
	l.touch()
}

// shut closes a lease, and says whether it was open here. mu is held.
func (a *lane) shut(l *leasedLimit) bool {
	handle := l.place.Load().handle
	if a.leases[handle] != l {
		return false
	}
	a.decided.count(a.client.now(), l)
	a.agent.Close(a.client.now(), handle) // which empties l, so that it is watched again
	delete(a.decided.active, l)
	delete(a.leases, handle)
	return true
}

// err is why the coordinator does not answer; nil while it does.
func (a *lane) err() error {
	if cause := a.cause.Load(); cause != nil {
		return *cause
	}
	return nil
}

// nudge wakes the network's half without waiting for it.
func (a *lane) nudge() {
	select {
	case a.wake <- struct{}{}:
	default:
	}
}

// starve signals to the network's half that a lease was found short.
func (a *lane) starve(handle uint32) {
	a.starving.Lock()
	a.starving.handles = append(a.starving.handles, handle)
	a.starving.Unlock()
	a.nudge()
}

// end gives all leases back, which then admit nothing.
func (a *lane) end() {
	a.mu.Lock()
	a.send(a.agent.Step(a.client.now(), agent.Leave{}))
	leases := a.leases
	a.leases = map[uint32]*leasedLimit{}
	a.mu.Unlock()
	for _, l := range leases {
		l.end(ErrClosed)
	}
	a.mu.Lock()
	for _, l := range leases {
		l.touch()
	}
	a.mu.Unlock()
	if k := a.loop.current; k != nil {
		a.loop.current = nil
		close(k.reports)
	}
}
