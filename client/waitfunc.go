package client

import (
	"context"
	"errors"
	"time"

	"github.com/stint-io/stint/limit"
)

// WaitFunc is WaitMaxN for a caller who does not block: done is called, exactly once,
// when n has been taken or it is known that it will not be in time. [limit.Never] waits
// as long as it takes; a negative d counts as 0. No goroutine waits meanwhile. It is to
// this Limiter what [limit.Limiter.WaitFunc] is to that: done gets nil or the error that
// WaitMaxN returns; when the answer is known at once it is called before WaitFunc returns,
// unless other call-backs are due; all others are called by one goroutine, in the order of
// the line. A done may use the limiter in any way except waiting for another done.
//
// cancel leaves the line, and reports whether it did: then done is not called.
func (l *Limiter) WaitFunc(n int64, d time.Duration, done func(error)) (cancel func() bool) {
	return l.lease.waitFunc(n, max(d, 0), done)
}

// AcquireFunc is AcquireMax for a caller who does not block; see [Limiter.WaitFunc].
func (g *Semaphore) AcquireFunc(n int64, d time.Duration, done func(error)) (cancel func() bool) {
	return g.lease.waitFunc(n, max(d, 0), done)
}

func (l *leasedLimit) waitFunc(n int64, longest time.Duration, then func(error)) (cancel func() bool) {
	done := l.admits(n, then)
	if n < 0 {
		done(limit.ErrNegativeCost)
		return ended
	}
	if n == 0 {
		done(nil)
		return ended
	}
	now := l.client.now()
	if taken, _ := l.spender.Try(now, n); taken {
		if l.claim(done) {
			l.calls.Direct(done)
		}
		return ended
	}
	t := newWaiter(n, now.Add(longest))
	t.ends, t.done, t.lease, t.longest = t.latest, done, l, longest
	t.hook = l.client.opts.Hooks.NewWait(l.id.Limit, n)
	in, err := l.stand(t)
	switch {
	case in:
		t.hook.Start()
		return t.cancel
	case errors.Is(err, errLate):
		done(l.tooLate(longest, false))
	case err != nil:
		done(err)
	case t.direct:
		l.calls.Direct(done)
	}
	return ended
}

// cancel gives up the wait of one that does not block.
func (t *waiter) cancel() bool {
	left := t.lease.giveUp(t)
	if left {
		t.hook.End(context.Canceled)
	}
	return left
}

// claim says whether the caller is to call done directly for a permit that was there at
// once. Otherwise done is called behind those who are due before it.
func (l *leasedLimit) claim(done func(error)) (direct bool) {
	direct = l.calls.Claim(done)
	if !direct {
		l.calls.Start()
	}
	return direct
}

// ended is the cancel of a wait that has ended.
func ended() bool { return false }
