package client

import (
	"context"
	"errors"
	"fmt"

	"github.com/stint-io/stint/internal/bucket"
	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/limit"
)

var (
	_ limit.Preparer = (*Limiter)(nil)
	_ limit.Preparer = (*Semaphore)(nil)
	_ limit.Preparer = (*Keyed)(nil)
)

// What the marks of a Hold are: a share.Hold, and whether it has been counted.
const (
	markAt = iota
	markBegin
	markRate
	markWhole // with markCounted
	markBefore
	markAfter
)

// markCounted, in markWhole, says that what is held has been counted as admitted, for it
// was waited for. No depth is that large.
const markCounted = 1 << 63

// hold is take in two steps. Where the lease is short while capacity may be free
// elsewhere it asks only when it may wait.
func (l *leasedLimit) hold(ctx context.Context, req limit.Request, wait bool, r *limit.Result) (limit.Prepared, error) {
	if req.Cost < 0 {
		return limit.Prepared{}, fmt.Errorf("%w, it is %d", limit.ErrNegativeCost, req.Cost)
	}
	if err := ctx.Err(); err != nil {
		return limit.Prepared{}, err
	}
	cost := max(1, req.Cost)
	if req.Peek {
		if err := l.fault(); err != nil {
			return limit.Prepared{}, err
		}
		// Nobody knows that what is not here would not come.
		l.describeTo(r, cost, l.remaining(l.client.now()) >= cost || l.hopeful(cost))
		return limit.Prepared{}, nil
	}
	now := l.client.now()
	h, taken, _ := l.spender.Prepare(now, cost)
	if taken {
		l.describeTo(r, cost, true)
		return limit.Prepared{Cost: cost, Of: l, Mark: [6]uint64{
			markAt: uint64(h.At), markBegin: uint64(h.Begin), markRate: uint64(h.Rate), markWhole: h.Whole,
			markBefore: h.Before, markAfter: h.After,
		}}, nil
	}
	if err := l.fault(); err != nil {
		l.spender.Refuse(cost)
		return limit.Prepared{}, err
	}
	switch {
	case wait:
		var err error
		if taken, err = l.takeCost(ctx, cost); err != nil {
			return limit.Prepared{}, err
		}
	case l.hopeful(cost):
		l.describeTo(r, cost, false)
		return limit.Prepared{More: true}, nil
	default:
		if taken = l.allow(now, cost); !taken {
			l.starve(now)
		}
	}
	l.describeTo(r, cost, taken)
	if !taken {
		return limit.Prepared{}, nil
	}
	return limit.Prepared{Cost: cost, Of: l, Mark: [6]uint64{markAt: uint64(l.client.now()), markWhole: markCounted}}, nil
}

// keep makes a Hold final.
func (l *leasedLimit) keep(h limit.Prepared) {
	if h.Mark[markWhole]&markCounted == 0 {
		l.spender.Commit(h.Cost)
	}
}

// undo gives back what was taken of a rate.
func (l *Limiter) undo(h limit.Prepared) {
	now := l.lease.client.now()
	// Of what was waited for the terms are not known, so it counts as of others.
	l.bucket.Rollback(now, bucket.Prepared{
		At: limit.Time(h.Mark[markAt]), Begin: limit.Time(h.Mark[markBegin]), Rate: fixed.Amount(h.Mark[markRate]),
		Whole: h.Mark[markWhole] &^ markCounted, Before: h.Mark[markBefore], After: h.Mark[markAfter],
	}, h.Cost)
	l.lease.mu.Lock()
	defer l.lease.unlock()
	if l.lease.line.First() != nil {
		l.lease.settle(now)
	}
}

// Shared implements [limit.Preparer]: a lease is a part of what others spend too.
func (l *Limiter) Shared() bool { return true }

// Prepare implements [limit.Preparer]. What is given back later is no demand, so what another
// limit refuses takes no capacity from other instances.
func (l *Limiter) Prepare(ctx context.Context, req limit.Request, wait bool, r *limit.Result) (limit.Prepared, error) {
	return l.lease.hold(ctx, req, wait, r)
}

// Commit implements [limit.Preparer].
func (l *Limiter) Commit(h limit.Prepared) {
	if h.Of == any(&l.lease) {
		l.lease.keep(h)
	}
}

// Rollback implements [limit.Preparer]. What a lease that became smaller meanwhile has no place
// for is not given back.
func (l *Limiter) Rollback(h limit.Prepared) {
	if h.Of == any(&l.lease) {
		l.undo(h)
	}
}

// Shared implements [limit.Preparer].
func (g *Semaphore) Shared() bool { return true }

// Prepare implements [limit.Preparer]. Prepared.Permit is for Finish, after a Commit.
func (g *Semaphore) Prepare(ctx context.Context, req limit.Request, wait bool, r *limit.Result) (limit.Prepared, error) {
	h, err := g.lease.hold(ctx, req, wait, r)
	if h.Cost > 0 {
		h.Permit = g.permit(h.Cost)
	}
	return h, err
}

// Commit implements [limit.Preparer].
func (g *Semaphore) Commit(h limit.Prepared) {
	if h.Of == any(&g.lease) {
		g.lease.keep(h)
	}
}

// Rollback implements [limit.Preparer].
func (g *Semaphore) Rollback(h limit.Prepared) {
	if h.Of == any(&g.lease) {
		_ = g.Finish(context.Background(), limit.Request{}, h.Permit) // it returns nil
	}
}

// Shared implements [limit.Preparer].
func (k *Keyed) Shared() bool { return true }

// Prepare implements [limit.Preparer].
func (k *Keyed) Prepare(ctx context.Context, req limit.Request, wait bool, r *limit.Result) (limit.Prepared, error) {
	var room [usualKey]byte
	key, err := k.key(room[:0], req)
	if errors.Is(err, errMissing) {
		if *r = (limit.Result{}); k.opts.RefuseMissing {
			k.refuseTo(r, req, limit.ReasonMissing, limit.Never)
		} else {
			k.skip()
		}
		return limit.Prepared{}, nil
	}
	if err != nil {
		return limit.Prepared{}, err
	}
	e, err := k.entry(key)
	if errors.Is(err, errTableFull) {
		k.refuseTo(r, req, limit.ReasonTableFull, k.opts.Idle)
		return limit.Prepared{}, nil
	}
	if err != nil {
		return limit.Prepared{}, err
	}
	defer e.busy.Add(-1)
	var h limit.Prepared
	if e.semaphore != nil {
		h, err = e.semaphore.Prepare(ctx, req, wait, r)
	} else {
		h, err = e.limiter.Prepare(ctx, req, wait, r)
	}
	if h.Of != nil {
		h.Of = e
	}
	return h, err
}

// Commit implements [limit.Preparer].
func (k *Keyed) Commit(h limit.Prepared) {
	if e, ok := h.Of.(*entry); ok {
		e.lease().keep(h)
	}
}

// Rollback implements [limit.Preparer].
func (k *Keyed) Rollback(h limit.Prepared) {
	e, ok := h.Of.(*entry)
	switch {
	case !ok:
	case e.semaphore != nil:
		_ = e.semaphore.Finish(context.Background(), limit.Request{}, h.Permit) // it returns nil
	default:
		e.limiter.undo(h)
	}
}
