package client

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/stint-io/stint/internal/keytable"
	"github.com/stint-io/stint/limit"
)

// ErrSettled is wrapped by the error of a [Hold.Commit] that contradicts an earlier one.
var ErrSettled = errors.New("client: the hold is settled")

// mostDebt bounds what one commit may owe, in bursts of the limit. Not smaller: a cost may be far above its estimate.
// Not larger: each piece of it waits in the queue.
const mostDebt = 64

// pieces is in how many pieces a burst of debt is paid. Not fewer: one instance among many may never be lent a whole
// burst. Not more: each waits for itself.
const pieces = 16

// Hold is a cost that was taken of a lease before it is known. It is settled once, by Commit or Release. Until then the
// process holds it; when the process ends it comes back with the lease. It is safe for concurrent use; [Limiter.Hold] and
// [Keyed.Hold] make it.
type Hold struct {
	limiter *Limiter // nil = no limit applies
	entry   *entry   // of a Keyed, open until it is settled
	cost    int64
	clamped bool

	mu      sync.Mutex
	settled bool
	actual  int64
}

// Hold takes cost, an estimate of at least 1, before it is known. Where the lease is short it asks, as [Limiter.Take]
// does. A refusal is a Decision, and the Hold is nil then. An estimate above the burst of the limit, which would never be
// admitted, is clamped to that.
func (l *Limiter) Hold(ctx context.Context, cost int64) (*Hold, limit.Decision, error) {
	if err := checkHold(cost); err != nil {
		return nil, limit.Decision{}, err
	}
	held := max(1, min(cost, l.lease.quota()))
	d, err := l.Take(ctx, limit.Request{Cost: held})
	if err != nil || !d.Allowed {
		return nil, d, err
	}
	return &Hold{limiter: l, cost: held, clamped: held < cost}, d, nil
}

// Hold is [Limiter.Hold] of the key that req selects, with its cost. A request that lacks an attribute of the key is held
// nothing of, unless [KeyedOptions] refuse it. The key keeps its lease, and its place in the table, until the Hold is
// settled and its debt is paid: settle each one. Of what is in flight nothing can be held: that is an error.
func (k *Keyed) Hold(ctx context.Context, req limit.Request) (*Hold, limit.Decision, error) {
	if k.opts.Semaphore {
		return nil, limit.Decision{}, fmt.Errorf("client: limit %q is of what is in flight, which has no cost to hold: use Take", k.name)
	}
	if err := checkHold(req.Cost); err != nil {
		return nil, limit.Decision{}, err
	}
	var room [usualKey]byte
	key, err := k.key(room[:0], req)
	if errors.Is(err, errMissing) {
		d, err := k.Take(ctx, req)
		if err != nil || !d.Allowed {
			return nil, d, err
		}
		return &Hold{cost: req.Cost}, d, nil
	}
	if err != nil {
		return nil, limit.Decision{}, err
	}
	e, err := k.entry(key)
	if errors.Is(err, keytable.ErrFull) {
		return nil, k.refuse(req, limit.ReasonTableFull, k.opts.Idle), nil
	}
	if err != nil {
		return nil, limit.Decision{}, err
	}
	h, d, err := e.Value.limiter.Hold(ctx, req.Cost)
	if h == nil {
		e.Done()
		return nil, d, err
	}
	h.entry = e
	return h, d, nil
}

func checkHold(cost int64) error {
	if cost < 1 || cost > limit.MaxCount {
		return fmt.Errorf("client: the cost of a hold is %d, want 1 to %d", cost, int64(limit.MaxCount))
	}
	return nil
}

// Cost is what is held.
func (h *Hold) Cost() int64 { return h.cost }

// Clamped says that the estimate was above the burst of the limit, and that Cost is that.
func (h *Hold) Clamped() bool { return h.clamped }

// Commit says what it has cost, at least 0. What is under comes back to the lease at once, as far as it has room. What is
// over is debt: it waits in the queue of the limiter, and nobody behind it is admitted before it is paid; at most 64 bursts
// of it count. The same again changes nothing; another one is an error that wraps [ErrSettled].
func (h *Hold) Commit(actual int64) error {
	if actual < 0 || actual > limit.MaxCount {
		return fmt.Errorf("client: the actual cost is %d, want 0 to %d", actual, int64(limit.MaxCount))
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.settled {
		if h.actual != actual {
			return fmt.Errorf("%w: it was committed with %d", ErrSettled, h.actual)
		}
		return nil
	}
	h.settled, h.actual = true, actual
	switch {
	case h.limiter == nil:
	case actual <= h.cost:
		h.limiter.putBack(h.cost - actual)
	default:
		h.limiter.owe(actual - h.cost)
	}
	if h.entry != nil {
		h.entry.Done()
	}
	return nil
}

// Release is Commit(0): nothing was used.
func (h *Hold) Release() error { return h.Commit(0) }

// putBack gives back n that was taken, and serves whoever waits for it.
func (l *Limiter) putBack(n int64) {
	if n == 0 {
		return
	}
	now := l.lease.client.now()
	l.refund(now, n)
	l.lease.mu.Lock()
	defer l.lease.unlock()
	if l.lease.line.First() != nil {
		l.lease.settle(now)
	}
}

// owe takes n as soon as it is there, before all who come later. Where nothing is lent any more that ends with an error,
// and nothing is admitted either.
func (l *Limiter) owe(n int64) {
	burst := l.lease.quota()
	if burst <= limit.MaxCount {
		n = min(n, mostDebt*burst)
	}
	for n > 0 {
		some := min(n, burst/pieces+1)
		l.WaitFunc(some, limit.Never, func(error) {})
		n -= some
	}
}
