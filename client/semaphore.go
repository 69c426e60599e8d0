package client

import (
	"context"
	"sync"
	"time"

	"github.com/stint-io/stint/internal/bucket"
	"github.com/stint-io/stint/limit"
)

// Semaphore spends a lease of permits: how many may be in flight at once, in all instances
// together. Permits are held until they are given back, also when the lease shrinks or
// ends: then nobody gets in until few enough are in use.
//
// Callers get in in the order in which they came. It is safe for concurrent use;
// [Client.Semaphore] makes one.
type Semaphore struct {
	semaphore *bucket.Semaphore
	lease     leasedLimit

	mu      sync.Mutex
	permits map[uint64]int64 // how many are held, by Decision.Permit
	serial  uint64
}

// Name returns the name of the limit.
func (g *Semaphore) Name() string { return g.lease.id.Limit }

// TryAcquire takes n permits if they are free, and reports whether they were. It never
// waits.
func (g *Semaphore) TryAcquire(n int64) bool {
	now := g.lease.client.now()
	taken, decided := g.semaphore.Try(now, n)
	if !taken && decided && n > 0 {
		g.semaphore.Refuse(n)
	}
	if taken {
		g.lease.admitted(n)
		return true
	}
	return g.lease.short(now, n, decided)
}

// Acquire waits for n permits, behind earlier callers. Its errors are those
// of [Limiter.WaitN].
func (g *Semaphore) Acquire(ctx context.Context, n int64) error {
	return g.lease.waitMax(ctx, n, limit.Never)
}

// AcquireMax is Acquire for a caller who waits at most d; see [Limiter.WaitMaxN]. When
// permits come free is not known, so it fails early only if none can.
func (g *Semaphore) AcquireMax(ctx context.Context, n int64, d time.Duration) error {
	return g.lease.waitMax(ctx, n, max(d, 0))
}

// Release gives n permits back.
func (g *Semaphore) Release(n int64) {
	if g.semaphore.Release(n) {
		g.lease.mu.Lock()
		defer g.lease.unlock()
		g.lease.settle(g.lease.client.now())
	}
}

// Take makes a Semaphore a [limit.Taker], like [Limiter.Take]. An admitted request holds its
// permits, in the name of Decision.Permit, until Finish.
func (g *Semaphore) Take(ctx context.Context, req limit.Request) (limit.Decision, error) {
	d, err := g.lease.take(ctx, req)
	if err == nil && d.Allowed && !req.Peek {
		d.Permit = g.permit(max(1, req.Cost))
	}
	return d, err
}

func (g *Semaphore) permit(n int64) uint64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.serial++
	g.permits[g.serial] = n
	return g.serial
}

// Finish implements [limit.Finisher]. It returns nil.
func (g *Semaphore) Finish(_ context.Context, _ limit.Request, permit uint64) error {
	g.mu.Lock()
	n := g.permits[permit]
	delete(g.permits, permit)
	g.mu.Unlock()
	g.Release(n)
	return nil
}

// Demand says how many permits the application wants from here on, those in use
// included; see [Limiter.Demand].
func (g *Semaphore) Demand(permits float64) error { return g.lease.demand(permits) }

// InUse is how many permits are in use in this instance.
func (g *Semaphore) InUse() int64 { return g.semaphore.Observe(g.lease.client.now()).InUse.Floor() }

// Remaining is how many permits could be acquired at this moment without asking: 0 while
// others wait.
func (g *Semaphore) Remaining() int64 { return g.lease.remaining(g.lease.client.now()) }

// Close gives the lease back; see [Limiter.Close]. Permits that are in use count as held
// by nobody from here on.
func (g *Semaphore) Close() { g.lease.close(ErrClosed) }

// Err is why nothing is lent of the limit; see [Limiter.Err].
func (g *Semaphore) Err() error { return g.lease.fault() }

// Lease says how the lease stands.
func (g *Semaphore) Lease() Lease { return g.lease.describe() }
