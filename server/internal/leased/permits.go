package leased

import (
	"context"
	"sync"
	"time"

	"github.com/stint-io/stint/client"
	"github.com/stint-io/stint/limit"
)

// permits is the purse of a limit of what is in flight.
type permits struct {
	semaphore *client.Semaphore
	doubt     doubt

	mu sync.Mutex
	// held are the places in use, by the engine's permits.
	held map[uint64]place
	// due are the permits in the order of taking, and so, while the time-out is
	// the same, of ending; those that have ended are left in it for a while.
	due []ending
}

// place is what one permit holds.
type place struct {
	permits []uint64 // of the client
	ends    time.Time
}

type ending struct {
	permit uint64
	ends   time.Time
}

func (g *permits) take(ctx context.Context, p *part) error { return g.hold(ctx, p, true) }

func (g *permits) hold(ctx context.Context, p *part, wait bool) error {
	now := time.Now()
	g.expire(now)
	if !wait && g.semaphore.Remaining() < p.charge.Cost {
		d, err := g.semaphore.Take(ctx, limit.Request{Cost: p.charge.Cost, Peek: true})
		if err == nil {
			if v := &d.Results[0].Verdict; v.Allowed { // came this moment, when it was decided
				v.Allowed, v.Reason, v.RetryAfter = false, limit.ReasonConcurrency, time.Nanosecond
			}
			p.verdict(d)
		}
		return err
	}
	d, err := g.semaphore.Take(ctx, limit.Request{Cost: p.charge.Cost})
	if err == nil && !d.Allowed && g.doubt.worth(p.charge.Cost) {
		var came bool
		if came, err = await(ctx, pollFull, func() bool { return g.semaphore.Remaining() >= p.charge.Cost }); came {
			d, err = g.semaphore.Take(ctx, limit.Request{Cost: p.charge.Cost})
		}
	}
	if err != nil {
		return err
	}
	p.verdict(d)
	if !d.Allowed {
		return nil
	}
	p.held, p.permit = true, d.Permit
	g.mu.Lock()
	defer g.mu.Unlock()
	had := g.held[p.charge.Permit]
	if len(had.permits) == 0 {
		had.ends = now.Add(p.own.timeout)
		g.compact()
		g.due = append(g.due, ending{p.charge.Permit, had.ends})
	}
	had.permits = append(had.permits, d.Permit)
	g.held[p.charge.Permit] = had
	return nil
}

// compact takes out of due what has ended, when that is most of it.
func (g *permits) compact() {
	if len(g.due) < 2*len(g.held)+fewLooked {
		return
	}
	left := g.due[:0]
	for _, d := range g.due {
		if h, ok := g.held[d.permit]; ok && h.ends.Equal(d.ends) {
			left = append(left, d)
		}
	}
	g.due = left
}

func (g *permits) undo(p *part) {
	if !p.held {
		return
	}
	p.held = false
	g.mu.Lock()
	h := g.held[p.charge.Permit]
	if n := len(h.permits) - 1; n > 0 {
		h.permits = h.permits[:n] // undone in any order, they are of one request
		g.held[p.charge.Permit] = h
	} else {
		delete(g.held, p.charge.Permit)
	}
	g.mu.Unlock()
	g.end(p.permit)
}

// end gives back the places of the client's permits.
func (g *permits) end(permits ...uint64) {
	for _, permit := range permits {
		_ = g.semaphore.Finish(context.Background(), limit.Request{}, permit) // always nil
	}
}

func (g *permits) peek(p *part) error {
	lease := g.semaphore.Lease()
	d, err := g.semaphore.Take(context.Background(), limit.Request{Cost: p.charge.Cost, Peek: true})
	if err != nil {
		return err
	}
	if v := &d.Results[0].Verdict; !v.Allowed && (p.charge.Cost == 0 || !lease.Full && v.Reason != limit.ReasonRecovering) {
		v.Allowed, v.Reason, v.RetryAfter = true, limit.ReasonNone, 0
		d.Results[0].StoreFailed = false
	}
	p.verdict(d)
	return nil
}

func (g *permits) refund(int64) {}

func (g *permits) drain(int64) {} // what was refused is not in flight

func (g *permits) finish(permit uint64) bool {
	g.mu.Lock()
	h, ok := g.held[permit]
	delete(g.held, permit)
	g.mu.Unlock()
	g.end(h.permits...)
	return ok
}

func (g *permits) reset() {
	g.mu.Lock()
	held := g.held
	g.held, g.due = map[uint64]place{}, nil
	g.mu.Unlock()
	for _, h := range held {
		g.end(h.permits...)
	}
}

func (g *permits) expire(now time.Time) (inUse bool) {
	var over []uint64
	g.mu.Lock()
	n := 0
	for ; n < len(g.due) && !now.Before(g.due[n].ends); n++ {
		// A permit may have ended, and have been taken anew.
		if h, ok := g.held[g.due[n].permit]; ok && !now.Before(h.ends) {
			over = append(over, h.permits...)
			delete(g.held, g.due[n].permit)
		}
	}
	if n > 0 {
		g.due = append(g.due[:0], g.due[n:]...)
	}
	inUse = len(g.held) > 0
	g.mu.Unlock()
	g.end(over...)
	return inUse
}

func (g *permits) close() { g.semaphore.Close() }
