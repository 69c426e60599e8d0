package client

import (
	"context"
	"errors"
	"fmt"

	"github.com/stint-io/stint/internal/bucket"
	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/internal/keytable"
	"github.com/stint-io/stint/limit"
)

var (
	_ limit.Preparer = (*Limiter)(nil)
	_ limit.Preparer = (*Semaphore)(nil)
	_ limit.Preparer = (*Keyed)(nil)
)

// What the marks of a Prepared are: those of [bucket.Prepared], and whether it has been counted.
const (
	markAt      = iota
	markSetting // with markCounted
	markRate
	markBefore
	markAfter
)

// markCounted, in markSetting, says that what is held has been counted as admitted, for it
// was waited for. No number is that large.
const markCounted = 1 << 63

// prepare is the first phase of take. Where the lease is short while capacity may be free
// elsewhere it asks only when it may wait.
func (l *leasedLimit) prepare(ctx context.Context, req limit.Request, wait bool, r *limit.Result) (limit.Prepared, error) {
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
		// What is not here may come.
		l.describeTo(r, cost, l.remaining(l.client.now()) >= cost || l.hopeful(cost))
		return limit.Prepared{}, nil
	}
	now := l.client.now()
	h, taken, decided := l.spender.Prepare(now, cost)
	if taken {
		l.describeTo(r, cost, true)
		return limit.Prepared{Cost: cost, Of: l, Mark: [6]uint64{
			markAt: uint64(h.At), markSetting: h.Setting, markRate: uint64(h.Rate),
			markBefore: h.Before, markAfter: h.After,
		}}, nil
	}
	if !wait && l.hopeful(cost) && l.fault() == nil {
		l.describeTo(r, cost, false)
		return limit.Prepared{More: true}, nil
	}
	taken, err := l.takeShort(ctx, now, cost, decided, wait)
	if err != nil {
		return limit.Prepared{}, err
	}
	l.describeTo(r, cost, taken)
	if !taken {
		return limit.Prepared{}, nil
	}
	return limit.Prepared{Cost: cost, Of: l, Mark: [6]uint64{markAt: uint64(l.client.now()), markSetting: markCounted}}, nil
}

// commit makes final what was prepared.
func (l *leasedLimit) commit(h limit.Prepared) {
	if h.Mark[markSetting]&markCounted == 0 {
		l.spender.Commit(h.Cost)
		l.spender.Arrived(limit.Time(h.Mark[markAt]))
	}
}

// rollback gives back what was taken of a rate.
func (l *Limiter) rollback(h limit.Prepared) {
	now := l.lease.client.now()
	// Of what was waited for the setting is not known, so it counts as taken under another.
	rollback := l.bucket.Rollback
	if l.lease.paced != nil {
		rollback = l.lease.paced.Rollback
	}
	rollback(now, bucket.Prepared{
		At: limit.Time(h.Mark[markAt]), Setting: h.Mark[markSetting] &^ markCounted, Rate: fixed.Amount(h.Mark[markRate]),
		Before: h.Mark[markBefore], After: h.Mark[markAfter],
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
	return l.lease.prepare(ctx, req, wait, r)
}

// Commit implements [limit.Preparer].
func (l *Limiter) Commit(h limit.Prepared) {
	if h.Of == any(&l.lease) {
		l.lease.commit(h)
	}
}

// Rollback implements [limit.Preparer]. What is above the burst of a lease that has
// become smaller is not given back.
func (l *Limiter) Rollback(h limit.Prepared) {
	if h.Of == any(&l.lease) {
		l.rollback(h)
	}
}

// Shared implements [limit.Preparer].
func (g *Semaphore) Shared() bool { return true }

// Prepare implements [limit.Preparer]. Prepared.Permit is for Finish, after a Commit.
func (g *Semaphore) Prepare(ctx context.Context, req limit.Request, wait bool, r *limit.Result) (limit.Prepared, error) {
	h, err := g.lease.prepare(ctx, req, wait, r)
	if h.Cost > 0 {
		h.Permit = g.permit(h.Cost)
	}
	return h, err
}

// Commit implements [limit.Preparer].
func (g *Semaphore) Commit(h limit.Prepared) {
	if h.Of == any(&g.lease) {
		g.lease.commit(h)
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
	if errors.Is(err, keytable.ErrFull) {
		k.refuseTo(r, req, limit.ReasonTableFull, k.opts.Idle)
		return limit.Prepared{}, nil
	}
	if err != nil {
		return limit.Prepared{}, err
	}
	defer e.Done()
	var h limit.Prepared
	if e.Value.semaphore != nil {
		h, err = e.Value.semaphore.Prepare(ctx, req, wait, r)
	} else {
		h, err = e.Value.limiter.Prepare(ctx, req, wait, r)
	}
	if h.Of != nil {
		h.Of = e
	}
	return h, err
}

// Commit implements [limit.Preparer].
func (k *Keyed) Commit(h limit.Prepared) {
	if e, ok := h.Of.(*entry); ok {
		e.Value.lease().commit(h)
	}
}

// Rollback implements [limit.Preparer].
func (k *Keyed) Rollback(h limit.Prepared) {
	e, ok := h.Of.(*entry)
	switch {
	case !ok:
	case e.Value.semaphore != nil:
		_ = e.Value.semaphore.Finish(context.Background(), limit.Request{}, h.Permit) // it returns nil
	default:
		e.Value.limiter.rollback(h)
	}
}
