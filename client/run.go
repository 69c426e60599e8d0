package client

import (
	"context"
	"errors"
	"math"
	"slices"
	"time"

	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/internal/lease/agent"
)

var errNotMaster = errors.New("client: it is not the coordinator of the limits, and names no other that is")

// sweepEvery is how often idle keys are closed. Not more often: it visits
// every key. Not less: idle keys keep their lease that much longer.
const sweepEvery = 10 * time.Second

// Run connects to the coordinator and keeps the leases until ctx ends. It then gives
// them back, which takes at most [Options.Grace], and returns nil when all that it
// started has ended. Nothing is admitted afterwards, and waiters get [ErrClosed].
// It may be called once.
func (c *Client) Run(ctx context.Context) error {
	c.mu.Lock()
	if c.running {
		c.mu.Unlock()
		return errors.New("client: Run was called twice")
	}
	c.running, c.group.ctx = true, ctx
	for _, a := range c.lanes() {
		c.group.Go(func() { a.run(ctx) })
	}
	c.mu.Unlock()
	c.group.Wait()
	return nil
}

// run is Run of one lane.
func (a *lane) run(ctx context.Context) {
	hard, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	connected := make(chan struct{})
	go func() {
		defer close(connected)
		a.connect(ctx, hard)
	}()
	a.loop.timer = time.NewTimer(0)
	defer a.loop.timer.Stop()
	sweep := time.NewTicker(sweepEvery)
	defer sweep.Stop()
	for ctx.Err() == nil {
		a.client.notify()
		select {
		case <-ctx.Done():
		case <-sweep.C:
			if a.shard == 0 {
				a.client.sweep()
			}
		case <-a.wake:
			a.takeSignals()
		case <-a.loop.timer.C:
			a.step(lease.Tick{}, nil)
		case k := <-a.loop.links:
			a.loop.current = k
			a.link.Store(linkUp)
			a.step(agent.Connected{}, nil)
		case k := <-a.loop.lost:
			a.lose(k)
		case g := <-a.loop.granted:
			if g.from == a.loop.current {
				a.client.widen(g.grant.Shards)
				a.step(g.grant, g.grant.Shares)
			}
		}
	}
	a.leave(cancel, connected)
}

// takeSignals takes what the upper half signals.
func (a *lane) takeSignals() {
	a.starving.Lock()
	handles := a.starving.handles
	a.starving.handles = nil
	a.starving.Unlock()
	a.mu.Lock()
	for _, h := range handles {
		if l := a.leases[h]; l != nil {
			a.decided.watch(l)
		}
		a.agent.Starve(a.client.now(), h)
	}
	a.mu.Unlock()
	a.step(lease.Tick{}, nil)
	if a.failed.Swap(false) {
		a.review()
	}
}

// step steps the agent and shows the leases what came for them.
func (a *lane) step(e lease.Event, shares []lease.Share) {
	type faultOf struct {
		limit string
		err   error
	}
	var faults []faultOf
	var moves []move
	lower := uint64(0)
	defer func() {
		a.client.move(moves)
		for _, f := range faults {
			a.client.reportFault(f.limit, f.err)
		}
		if lower != 0 {
			a.logLowerEpoch(lower)
		}
	}()
	a.mu.Lock()
	defer a.mu.Unlock()
	now := a.client.now()
	a.send(a.agent.Step(now, e))
	if epoch := a.agent.LowerEpoch(); epoch != a.loop.lower {
		a.loop.lower, lower = epoch, epoch
	}
	for i := range shares {
		if l := a.leases[shares[i].Handle]; l != nil {
			before, st := *l.state.Load(), a.agent.State(l.place.Load().handle)
			if shares[i].Status == lease.StatusElsewhere && st.Held == (lease.Capacity{}) {
				moves = append(moves, move{l, int(shares[i].Shard)})
				continue // its waiters wait for an answer as before
			}
			l.setState(now, st)
			l.touch()
			if err := l.noteFault(before, *l.state.Load()); err != nil {
				faults = append(faults, faultOf{l.id.Limit, err})
			}
		}
	}
	a.arm()
}

// arm sets the timer to when the agent is due.
func (a *lane) arm() {
	next := a.agent.Next()
	if next == math.MaxInt64 {
		a.loop.timer.Stop()
		return
	}
	a.loop.timer.Reset(max(0, time.Duration(next-a.client.now())))
}

// send hands a report to the stream, if there is one and it takes it.
func (a *lane) send(r *lease.Report) {
	if r == nil || a.loop.current == nil {
		return
	}
	own := *r // r is the agent's, until its next step
	own.Demands = slices.Clone(r.Demands)
	own.Usage = a.usage(a.client.now(), r.Leaving)
	select {
	case a.loop.current.reports <- &own:
	default:
		a.loop.dropped++
	}
}

// lose ends a stream.
func (a *lane) lose(k *link) {
	close(k.reports)
	if a.loop.current != k {
		return
	}
	a.loop.current = nil
	if k.heard {
		a.lost.Store(int64(a.client.now()))
	}
	next := linkDown
	if k.sentOn {
		next = linkNew // the answer comes from elsewhere, and is waited for
	}
	a.link.Store(next)
	a.step(agent.Disconnected{}, nil)
	a.review()
}

// review lets those go who wait for an answer that does not come.
func (a *lane) review() {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := a.client.now()
	for _, l := range a.leases {
		l.setState(now, a.agent.State(l.place.Load().handle))
		l.touch()
	}
}

func (c *Client) sweep() {
	c.mu.Lock()
	tables := slices.Clone(c.tables)
	c.mu.Unlock()
	for _, k := range tables {
		k.table.Sweep(c.now())
	}
}

// leave gives everything back and ends whatever was started.
func (a *lane) leave(cancel context.CancelFunc, connected <-chan struct{}) {
	c := a.client
	c.mu.Lock()
	c.ended = true
	c.mu.Unlock()
	a.end()
	defer c.notify() // there is no connection any more then
	grace := time.NewTimer(c.opts.Grace)
	defer grace.Stop()
	for {
		select {
		case <-connected:
			a.link.Store(linkDown)
			return
		case <-grace.C:
			cancel()
			grace.Stop()
		case <-a.loop.granted: // nobody needs it
		case k := <-a.loop.lost:
			_ = k // its reports are closed
		case k := <-a.loop.links:
			close(k.reports)
		}
	}
}
