package limit

import (
	"context"
	"time"
)

// WaitFunc is WaitMaxN for a caller that does not block: done is called exactly once, when n has
// been taken or is known not to be in time. [Never] waits without a bound; a negative d counts
// as 0. Waiting takes no goroutine.
//
// done gets nil when n is taken, and otherwise the error that WaitMaxN returns:
// [ErrWaitTooLong], [ErrExceedsQuota] or [ErrNegativeCost]. When the answer is known at once,
// the caller's goroutine calls done before WaitFunc returns, so hold no lock that done takes. If
// other call-backs are due then, as always when a done calls WaitFunc, a permit that is granted
// at once waits for its place among them. All other call-backs are made by one goroutine, which
// ends when none is due.
//
// Call-backs are made in the order of the calls of WaitFunc, one after the other: a done that
// takes long delays the next call-backs, but no caller of Wait, although both wait in the same
// line. A done may use the limiter in any way except waiting for another done. A panic in done
// ends the program, unless it was called at once and WaitFunc's caller recovers.
//
// cancel gives up the place in line, and the waiters behind move up. It reports whether it did:
// then done is not called. It does nothing when the wait has ended.
func (l *Limiter) WaitFunc(n int64, d time.Duration, done func(error)) (cancel func() bool) {
	if n < 0 {
		done(ErrNegativeCost)
		return ended
	}
	if n == 0 {
		done(nil)
		return ended
	}
	return l.waitFunc(n, max(d, 0), done)
}

func (l *Limiter) waitFunc(n int64, longest time.Duration, then func(error)) (cancel func() bool) {
	h := l.hooks.Load()
	done := h.admits(limiterName, n, then)
	w, end := h.NewWait(limiterName, n), done
	if w != nil {
		end = func(err error) {
			w.End(err)
			done(err)
		}
	}
	s, direct, err := l.lineFunc(n, longest, end)
	switch {
	case err != nil:
		done(err)
	case direct:
		l.calls.Direct(done)
	case s.kind == slotWaiting:
		w.Start()
		return func() bool { return w.canceled(l.leave(s.id, s.gen)) }
	}
	return ended
}

// ended is the cancel function of a wait that has ended.
func ended() bool { return false }

// lineFunc is line for WaitFunc. direct says that the permit was granted at once and the caller
// is to call done itself; otherwise done is called in order.
func (l *Limiter) lineFunc(n int64, longest time.Duration, done func(error)) (s slot, direct bool, err error) {
	l.lock()
	defer l.unlock()
	s, err = l.stand(context.Background(), n, longest, done)
	if err == nil && s.kind != slotWaiting {
		direct = l.calls.Claim(done)
	}
	return s, direct, err
}
