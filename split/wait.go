package split

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/stint-io/stint/internal/waitline"
	"github.com/stint-io/stint/limit"
)

// Wait is shorthand for WaitN(ctx, 1).
func (l *Limiter) Wait(ctx context.Context) error { return l.WaitN(ctx, 1) }

// WaitN waits until n can be taken, in line behind earlier waiters, and takes it. When ctx ends
// first it returns ctx's error, has taken nothing, and the waiters behind move up.
//
// It fails at once with [limit.ErrExceedsQuota] when n is above what this part can admit at
// once, and with [limit.ErrWaitTooLong], which is then also a context.DeadlineExceeded, when the
// wait would outlast ctx's deadline. While the total is 0 it waits for that to change.
func (l *Limiter) WaitN(ctx context.Context, n int64) error { return l.wait(ctx, n, limit.Never) }

// WaitMax is shorthand for WaitMaxN(ctx, 1, d).
func (l *Limiter) WaitMax(ctx context.Context, d time.Duration) error { return l.WaitMaxN(ctx, 1, d) }

// WaitMaxN is WaitN for a caller that waits at most d: it fails with [limit.ErrWaitTooLong] as
// soon as it is known that the wait would be longer. That is at once, unless the terms change or
// tokens expire because this process stood still.
func (l *Limiter) WaitMaxN(ctx context.Context, n int64, d time.Duration) error {
	return l.wait(ctx, n, max(d, 0))
}

func (l *Limiter) wait(ctx context.Context, n int64, longest time.Duration) error {
	if n < 0 {
		return limit.ErrNegativeCost
	}
	if err := ctx.Err(); err != nil || n == 0 {
		return err
	}
	told := l.hooks.NewWait(l.name, n)
	w, hurried, err := l.stand(ctx, n, longest)
	waits := err == nil && w != nil
	if waits {
		told.Start()
		err = w.Await(ctx, func() bool { return l.leave(w) })
	}
	switch {
	case err == nil:
		defer l.hooks.Admitted(l.name, n)
	case !errors.Is(err, errLate):
	case hurried:
		err = fmt.Errorf("%w: no permit of %q before the deadline: %w", limit.ErrWaitTooLong, l.name, context.DeadlineExceeded)
	default:
		err = fmt.Errorf("%w: no permit of %q within %v", limit.ErrWaitTooLong, l.name, longest)
	}
	if waits {
		told.End(err)
	}
	return err
}

// stand takes n at once and returns nil, or enters the line for it. hurried says that the
// deadline of ctx is before the end of longest.
func (l *Limiter) stand(ctx context.Context, n int64, longest time.Duration) (w *waiter, hurried bool, err error) {
	l.mu.Lock()
	defer l.unlock()
	now := l.now()
	if taken := l.takeNow(now, n); taken {
		return nil, false, nil
	}
	w = newWaiter(n, now.Add(longest))
	w.Signal = waitline.Wake()
	if deadline, ok := ctx.Deadline(); ok {
		if d := now.Add(time.Until(deadline)); d < w.latest {
			w.latest, hurried = d, true
		}
	}
	return w, hurried, l.enter(now, w)
}

// takeNow takes n if that is available and nobody waits.
func (l *Limiter) takeNow(now limit.Time, n int64) bool {
	l.followWall(now)
	if l.line.First() != nil {
		l.settle(now)
	}
	if l.line.First() != nil || !l.split.Allow(now, n) {
		return false
	}
	l.arm(now)
	return true
}

// WaitFunc is WaitMaxN for a caller that does not block: done is called exactly once, with nil
// when n has been taken, or with the error of WaitMaxN as soon as it is known that it will not
// be in time. [limit.Never] waits without a bound; a negative d counts as 0. Waiting takes no
// goroutine.
//
// When the answer is known at once, the caller's goroutine calls done before WaitFunc returns,
// so hold no lock that done takes. If other call-backs are due then, as always when a done calls
// WaitFunc, a permit that is granted at once waits for its place among them. All other
// call-backs are made by one goroutine, which ends when none is due.
//
// Call-backs are made in the order in which waits end, one after the other: a done that takes
// long delays the next. It may use the limiter in any way except waiting for another done. A
// panic in done ends the program, unless it was called at once and WaitFunc's caller recovers.
//
// cancel gives up the place in line, and the waiters behind move up. It reports whether it did:
// then done is not called. It does nothing when the wait has ended.
func (l *Limiter) WaitFunc(n int64, d time.Duration, done func(error)) (cancel func() bool) {
	if n <= 0 {
		if n < 0 {
			done(limit.ErrNegativeCost)
		} else {
			done(nil)
		}
		return ended
	}
	admits := l.admits(n, done)
	told, end := l.hooks.NewWait(l.name, n), admits
	if told != nil {
		end = func(err error) {
			told.End(err)
			admits(err)
		}
	}
	w, direct, err := l.standFunc(n, max(d, 0), end)
	switch {
	case err != nil:
		done(l.reason(err))
	case direct:
		l.calls.Direct(admits)
	case w != nil:
		told.Start()
		return func() bool {
			left := l.leave(w)
			if left {
				told.End(context.Canceled)
			}
			return left
		}
	}
	return ended
}

// admits returns a done that calls OnAdmit before done. It is done itself where nobody counts,
// which allocates nothing.
func (l *Limiter) admits(n int64, done func(error)) func(error) {
	if l.hooks.OnAdmit == nil {
		return done
	}
	return func(err error) {
		if err == nil {
			l.hooks.OnAdmit(l.name, n)
		}
		done(err)
	}
}

// ended is the cancel function of a wait that has ended.
func ended() bool { return false }

// standFunc is stand for WaitFunc. direct says that n was taken at once and the caller is to
// call done itself.
func (l *Limiter) standFunc(n int64, longest time.Duration, done func(error)) (w *waiter, direct bool, err error) {
	l.mu.Lock()
	defer l.unlock()
	now := l.now()
	if l.takeNow(now, n) {
		return nil, l.calls.Claim(done), nil
	}
	w = newWaiter(n, now.Add(longest))
	w.limiter, w.done, w.Signal = l, done, waitline.Callback(w)
	return w, false, l.enter(now, w)
}
