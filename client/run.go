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

// sweepEvery is how often tables of keys are looked through. Not more often: it visits
// every key. Not less: idle keys keep their lease that much longer.
const sweepEvery = 10 * time.Second

// Run connects to the coordinator and keeps the leases until ctx ends. It then gives
// them back, which takes at most [Options.Grace], and returns nil when all that it
// started has ended. Nothing is admitted afterwards, and those who wait get [ErrClosed].
// It may be called once.
func (c *Client) Run(ctx context.Context) error {
	c.mu.Lock()
	if c.running {
		c.mu.Unlock()
		return errors.New("client: Run was called twice")
	}
	c.running = true
	c.mu.Unlock()

	hard, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	connected := make(chan struct{})
	go func() {
		defer close(connected)
		c.connect(ctx, hard)
	}()
	c.loop.timer = time.NewTimer(0)
	defer c.loop.timer.Stop()
	sweep := time.NewTicker(sweepEvery)
	defer sweep.Stop()
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-sweep.C:
			c.sweep()
		case <-c.wake:
			c.hear()
		case <-c.loop.timer.C:
			c.step(lease.Tick{}, nil)
		case k := <-c.loop.links:
			c.loop.current = k
			c.link.Store(linkUp)
			c.step(agent.Connected{}, nil)
		case k := <-c.loop.lost:
			c.lose(k)
		case g := <-c.loop.granted:
			if g.from == c.loop.current {
				c.step(g.grant, g.grant.Shares)
			}
		}
	}
	c.leave(cancel, connected)
	return nil
}

// hear takes what the upper half signals.
func (c *Client) hear() {
	c.starving.Lock()
	handles := c.starving.handles
	c.starving.handles = nil
	c.starving.Unlock()
	c.mu.Lock()
	for _, h := range handles {
		if l := c.leases[h]; l != nil {
			c.decided.watch(l)
		}
		c.send(c.holder.Step(c.now(), agent.Starved{Handle: h}))
	}
	c.mu.Unlock()
	c.step(lease.Tick{}, nil)
	if c.failed.Swap(false) {
		c.review()
	}
}

// step steps the holder and tells the leases that shares came for.
func (c *Client) step(e lease.Event, shares []lease.Share) {
	type told struct {
		limit string
		err   error
	}
	var faults []told
	lower := uint64(0)
	defer func() {
		for _, f := range faults {
			c.say(f.limit, f.err)
		}
		if lower != 0 {
			c.sayLower(lower)
		}
	}()
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.now()
	c.send(c.holder.Step(now, e))
	if epoch := c.holder.LowerEpoch(); epoch != c.loop.lower {
		c.loop.lower, lower = epoch, epoch
	}
	for i := range shares {
		if l := c.leases[shares[i].Handle]; l != nil {
			before := *l.state.Load()
			l.shown(now, c.holder.State(l.handle))
			if err := l.noted(before, *l.state.Load()); err != nil {
				faults = append(faults, told{l.id.Limit, err})
			}
		}
	}
	c.arm()
}

// arm sets the timer to when the holder is due.
func (c *Client) arm() {
	next := c.holder.Next()
	if next == math.MaxInt64 {
		c.loop.timer.Stop()
		return
	}
	c.loop.timer.Reset(max(0, time.Duration(next-c.now())))
}

// send hands a report to the stream, if there is one and it takes it.
func (c *Client) send(r *lease.Report) {
	if r == nil || c.loop.current == nil {
		return
	}
	own := *r // r is the holder's, until its next step
	own.Demands = slices.Clone(r.Demands)
	own.Usage = c.usage(c.now(), r.Leaving)
	select {
	case c.loop.current.reports <- &own:
	default:
		c.loop.dropped++
	}
}

// lose ends a stream.
func (c *Client) lose(k *link) {
	close(k.reports)
	if c.loop.current != k {
		return
	}
	c.loop.current = nil
	c.link.Store(linkDown)
	c.review()
}

// review lets those go who wait for an answer that does not come.
func (c *Client) review() {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.now()
	for _, l := range c.leases {
		l.shown(now, c.holder.State(l.handle))
	}
}

func (c *Client) sweep() {
	c.mu.Lock()
	tables := slices.Clone(c.tables)
	c.mu.Unlock()
	for _, k := range tables {
		k.sweep(c.now())
	}
}

// leave gives everything back and ends whatever was started.
func (c *Client) leave(cancel context.CancelFunc, connected <-chan struct{}) {
	c.mu.Lock()
	c.ended = true
	r := c.holder.Step(c.now(), agent.Leave{})
	c.send(r)
	leases := c.leases
	c.leases = map[uint32]*leasedLimit{}
	c.mu.Unlock()
	for _, l := range leases {
		l.end(ErrClosed)
	}
	if k := c.loop.current; k != nil {
		c.loop.current = nil
		close(k.reports)
	}
	grace := time.NewTimer(c.opts.Grace)
	defer grace.Stop()
	for {
		select {
		case <-connected:
			c.link.Store(linkDown)
			return
		case <-grace.C:
			cancel()
			grace.Stop()
		case <-c.loop.granted: // nobody needs it
		case k := <-c.loop.lost:
			_ = k // its reports are closed
		case k := <-c.loop.links:
			close(k.reports)
		}
	}
}
