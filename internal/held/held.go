// Package held holds the permits of a request in flight for as long as its handler runs.
package held

import (
	"context"
	"sync"
	"time"

	"github.com/stint-io/stint/limit"
)

const (
	// callTime bounds a Keep and a Finish, for which a client's answer may wait. Where they fail the limit's time-out
	// ends the permit.
	callTime = time.Second
	// keeps is how often a permit is kept within its time-out, so that one that fails is made up for.
	keeps = 3
)

// Permit is what a request holds. Make it with [Hold].
type Permit struct {
	ctx      context.Context
	finisher limit.Finisher
	req      limit.Request
	permit   uint64
	every    time.Duration

	mu    sync.Mutex
	over  bool
	timer *time.Timer // nil = it is not kept
}

// Hold keeps the permit of a Decision, and its PermitFor, until Release. req, with its attributes, must not change before.
func Hold(ctx context.Context, f limit.Finisher, req limit.Request, permit uint64, permitFor time.Duration) *Permit {
	p := &Permit{ctx: context.WithoutCancel(ctx), finisher: f, req: req, permit: permit, every: permitFor / keeps}
	if keeper, ok := f.(limit.Keeper); ok && p.every > 0 {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.timer = time.AfterFunc(p.every, func() { p.keep(keeper) })
	}
	return p
}

func (p *Permit) keep(keeper limit.Keeper) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.over {
		return
	}
	ctx, cancel := context.WithTimeout(p.ctx, min(callTime, p.every))
	defer cancel()
	_ = keeper.Keep(ctx, p.req, p.permit) // the next one makes up for it
	p.timer.Reset(p.every)
}

// Release gives the permits back. It outlives the context of the request, which has ended when the client has gone.
func (p *Permit) Release() {
	p.mu.Lock()
	p.over = true
	if p.timer != nil {
		p.timer.Stop()
	}
	p.mu.Unlock()
	ctx, cancel := context.WithTimeout(p.ctx, callTime)
	defer cancel()
	_ = p.finisher.Finish(ctx, p.req, p.permit) // the time-out does the same
}
