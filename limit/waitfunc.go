package limit

import (
	"context"
	"time"
)

// WaitFunc is WaitMaxN for a caller who does not block: done is called, exactly once,
// when n has been taken or it is known that it will not be in time. [Never] waits as
// long as it takes; a negative d counts as 0. No goroutine waits meanwhile.
//
// done gets nil when n is taken, and otherwise the error that WaitMaxN returns:
// [ErrWaitTooLong], [ErrExceedsQuota] or [ErrNegativeCost]. When the answer is known at
// once, done is called before WaitFunc returns, in the caller's goroutine, so hold no lock
// that done takes; but for a permit that is there at once it is called in order when other
// call-backs are due, and so always when WaitFunc is called by a done. All others are called
// by one goroutine, which ends when none is due.
//
// Call-backs come in the order of the calls of WaitFunc, one after the other: a done that
// takes long delays the next, and nothing else. Those who block in Wait are in the same line
// and do not wait for call-backs. A done may use the limiter in any way except waiting for
// another done. A panic in it is as in any function of its goroutine: it ends the program
// unless WaitFunc's caller recovers from that of a done called at once.
//
// cancel gives the place in line up, and those behind move up. It reports whether it
// did: then done is not called. Nothing happens when the wait has ended before.
func (l *Limiter) WaitFunc(n int64, d time.Duration, done func(error)) (cancel func() bool) {
	if n < 0 {
		done(ErrNegativeCost)
		return ended
	}
	if n == 0 {
		done(nil)
		return ended
	}
	w, end := l.hooks.Load().NewWait(limiterName, n), done
	if w != nil {
		end = func(err error) {
			w.End(err)
			done(err)
		}
	}
	s, direct, err := l.lineFunc(n, max(d, 0), end)
	switch {
	case err != nil:
		done(err)
	case direct:
		l.calls.Direct(done)
	case s.kind == slotWaiting:
		w.Start()
		return func() bool {
			left := l.leave(s.id, s.gen)
			if left {
				w.End(context.Canceled)
			}
			return left
		}
	}
	return ended
}

// ended is the cancel of a wait that has ended.
func ended() bool { return false }

// lineFunc is line for one who is called. It says whether the caller is to call done
// directly for a permit that was there at once; otherwise done is called in order.
func (l *Limiter) lineFunc(n int64, longest time.Duration, done func(error)) (s slot, direct bool, err error) {
	l.lock()
	defer l.unlock()
	s, err = l.stand(context.Background(), n, longest, done)
	if err == nil && s.kind != slotWaiting {
		direct = l.calls.Claim(done)
	}
	return s, direct, err
}
