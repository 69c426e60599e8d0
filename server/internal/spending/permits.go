package spending

import (
	"context"
	"sync"
	"time"

	"github.com/stint-io/stint/client"
	"github.com/stint-io/stint/limit"
)

// permits spends the lease of a limit of what is in flight.
type permits struct {
	taker
	semaphore *client.Semaphore
	now       func() limit.Time

	mu sync.Mutex
	// held are the permits in use, by those of the engine.
	held map[uint64]held
	// due are the permits in the order of taking, and so, while the time-out is
	// the same, of ending; those that have ended are left in it for a while.
	due []ending
}

// held is what one permit of the engine holds.
type held struct {
	permits []uint64 // of the client
	timeout time.Duration
	ends    limit.Time
}

type ending struct {
	permit uint64
	ends   limit.Time
}

func (g *permits) prepare(ctx context.Context, p *part, wait bool) error {
	g.expire(g.now())
	return g.taker.prepare(ctx, p, p.charge.Cost, wait)
}

func (g *permits) commit(p *part) {
	g.semaphore.Commit(p.prepared)
	g.mu.Lock()
	defer g.mu.Unlock()
	h := g.held[p.charge.Permit]
	if len(h.permits) == 0 {
		h.timeout = p.own.timeout
		h.ends = g.now().Add(h.timeout)
		g.compact()
		g.due = append(g.due, ending{p.charge.Permit, h.ends})
	}
	h.permits = append(h.permits, p.prepared.Permit)
	g.held[p.charge.Permit] = h
}

func (g *permits) rollback(p *part) { g.semaphore.Rollback(p.prepared) }

// fewDue is how many endings are kept besides those of the permits in use. Not more: they take
// memory. Not fewer: to compact them visits all.
const fewDue = 64

// compact takes out of due what has ended, when that is most of it.
func (g *permits) compact() {
	if len(g.due) < 2*len(g.held)+fewDue {
		return
	}
	left := g.due[:0]
	for _, d := range g.due {
		if h, ok := g.held[d.permit]; ok && h.ends == d.ends {
			left = append(left, d)
		}
	}
	g.due = left
}

// end gives back permits of the client.
func (g *permits) end(permits ...uint64) {
	for _, permit := range permits {
		_ = g.semaphore.Finish(context.Background(), limit.Request{}, permit) // always nil
	}
}

func (g *permits) refund(int64) {}

func (g *permits) owe(int64) {} // what was refused is not in flight

func (g *permits) finish(permit uint64, keep bool) bool {
	if keep {
		return g.keep(permit)
	}
	g.mu.Lock()
	h, ok := g.held[permit]
	delete(g.held, permit)
	g.mu.Unlock()
	g.end(h.permits...)
	return ok
}

// keep has a permit end a whole time-out from now.
func (g *permits) keep(permit uint64) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	h, ok := g.held[permit]
	if ok {
		h.ends = g.now().Add(h.timeout)
		g.held[permit] = h
		g.compact()
		g.due = append(g.due, ending{permit, h.ends})
	}
	return ok
}

func (g *permits) reset() {
	g.mu.Lock()
	all := g.held
	g.held, g.due = map[uint64]held{}, nil
	g.mu.Unlock()
	for _, h := range all {
		g.end(h.permits...)
	}
}

func (g *permits) expire(now limit.Time) (inUse bool) {
	var over []uint64
	g.mu.Lock()
	n := 0
	for ; n < len(g.due) && now >= g.due[n].ends; n++ {
		// A permit may have ended, and have been taken anew.
		if h, ok := g.held[g.due[n].permit]; ok && now >= h.ends {
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
