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
// WaitMaxN returns; what is known at once is told before WaitFunc returns, unless others
// are yet to be told; all others are told by one goroutine, in the order of the line. A
// done may use the limiter in any way except waiting for another done.
//
// cancel gives the place in line up, and reports whether it did: then done is not called.
func (l *Limiter) WaitFunc(n int64, d time.Duration, done func(error)) (cancel func() bool) {
	return l.lease.waitFunc(n, max(d, 0), done)
}

// AcquireFunc is AcquireMax for a caller who does not block; see [Limiter.WaitFunc].
func (g *Gauge) AcquireFunc(n int64, d time.Duration, done func(error)) (cancel func() bool) {
	return g.lease.waitFunc(n, max(d, 0), done)
}

func (l *leasedLimit) waitFunc(n int64, longest time.Duration, done func(error)) (cancel func() bool) {
	if n < 0 {
		done(limit.ErrNegativeCost)
		return ended
	}
	if n == 0 {
		done(nil)
		return ended
	}
	now := l.client.now()
	if taken, _ := l.purse.Try(now, n); taken {
		if l.claim(done) {
			defer l.calls.end()
			done(nil)
		}
		return ended
	}
	t := &turn{n: n, latest: now.Add(longest)}
	t.ends = t.latest
	w := l.client.opts.Hooks.NewWait(l.id.Limit, n)
	in, err := l.stand(t, func(err error) {
		if errors.Is(err, errLate) {
			err = l.tooLate(longest, false)
		}
		w.End(err)
		done(err)
	})
	switch {
	case in:
		w.Start()
		return func() bool {
			left := l.giveUp(t)
			if left {
				w.End(context.Canceled)
			}
			return left
		}
	case errors.Is(err, errLate):
		done(l.tooLate(longest, false))
	case err != nil:
		done(err)
	case t.direct:
		defer l.calls.end()
		done(nil)
	}
	return ended
}

// claim says whether the caller is to call done for a permit that was there at once, and
// then to end calls, since nobody is yet to be told. Otherwise done is called in its turn.
func (l *leasedLimit) claim(done func(error)) (direct bool) {
	if l.calls.direct() {
		return true
	}
	if l.calls.add(done, nil) {
		go l.calls.run()
	}
	return false
}

// ended is the cancel of a wait that has ended.
func ended() bool { return false }
