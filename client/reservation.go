package client

import (
	"math"
	"time"

	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/internal/waitline"
	"github.com/stint-io/stint/limit"
)

// Reservation is a permit for a time to come: the caller waits for Delay and acts. The
// zero value is not OK. It is safe for concurrent use.
//
// The time is computed from the present lease. A larger lease later does not make it earlier;
// a smaller one makes Delay grow, so ask for it once more when the time has come.
type Reservation struct {
	limiter *Limiter
	waiter  *waiter // nil = nothing was taken
	act     limit.Time
	ok      bool
}

// Reserve is shorthand for ReserveN(time.Now(), 1).
func (l *Limiter) Reserve() Reservation { return l.ReserveN(time.Now(), 1) }

// ReserveN takes n at the earliest time from t on that earlier callers leave.
// The Reservation is not OK, and nothing is taken, when no time is known: n is
// negative or above the limit's burst, or the coordinator has never answered. Where
// nothing is leased at the moment, it is asked for, and the time is a guess.
func (l *Limiter) ReserveN(t time.Time, n int64) Reservation {
	c := l.lease.client
	now, from := c.at(t), c.on(t)
	switch {
	case n < 0 || n > l.lease.quota():
		return Reservation{}
	case n == 0:
		return Reservation{limiter: l, act: max(now, from), ok: true}
	}
	if from <= now {
		if taken, _ := l.lease.spender.Try(now, n); taken {
			return l.reservation(n, now)
		}
	}
	l.lease.mu.Lock()
	defer l.lease.unlock()
	l.lease.starve(now)
	if l.lease.closed != nil {
		return Reservation{}
	}
	wait := l.lease.expected(now, l.lease.line.Cost()+n, n)
	if wait == limit.Never {
		l.bucket.Refuse(n)
		return Reservation{}
	}
	act := max(now.Add(wait), l.lease.line.act, from)
	r := l.reservation(n, act)
	l.lease.enter(now, r.waiter)
	return r
}

func (l *Limiter) reservation(n int64, act limit.Time) Reservation {
	w := newWaiter(n, math.MaxInt64)
	w.until, w.act = math.MaxInt64, act
	return Reservation{limiter: l, waiter: w, act: act, ok: true}
}

// expected is how long it takes until cost has come, the last n of it at once: by the
// leasedLimit, or where that does not bring it, by the whole limit after an answer.
// limit.Never if nothing is known.
func (l *leasedLimit) expected(now limit.Time, cost, n int64) time.Duration {
	if n <= l.spender.MaxCost(now) {
		if wait := l.spender.Earliest(now, cost); wait != limit.Never {
			return wait
		}
	}
	st := l.state.Load()
	if !st.Known || st.Status != lease.StatusOK || st.Limit.Rate == 0 {
		return limit.Never
	}
	return time.Duration(limit.Time(l.ask()).Add(span(cost, st.Limit.Rate)))
}

// OK says whether there is a permit.
func (r Reservation) OK() bool { return r.ok }

// Delay is shorthand for DelayFrom(time.Now()).
func (r Reservation) Delay() time.Duration { return r.DelayFrom(time.Now()) }

// DelayFrom returns how long after t the caller may act: 0 = at once, [limit.Never] when
// the reservation is not OK, or nothing is leased any more.
func (r Reservation) DelayFrom(t time.Time) time.Duration {
	if !r.ok {
		return limit.Never
	}
	c := r.limiter.lease.client
	from, act := c.on(t), r.act
	if r.waiter != nil {
		l := &r.limiter.lease
		l.mu.Lock()
		defer l.unlock()
		now := c.now()
		if r.waiter.Waiting() {
			l.settle(now) // its time may have come just now
		}
		switch {
		case r.waiter.lost:
			return limit.Never
		case r.waiter.Waiting():
			cost, ahead := r.waiter.Cost, limit.Time(0)
			for b := r.waiter.Prev(); b != nil; b = b.Prev() {
				cost, ahead = waitline.Sum(cost, b.Cost), max(ahead, b.Value.act)
			}
			// The caller was given this time, so it is not served before.
			act = max(r.waiter.act, ahead, now.Add(max(1, l.expected(now, cost, r.waiter.Cost))))
			if act < math.MaxInt64 {
				r.waiter.act, l.line.act = act, max(l.line.act, act)
			}
		default:
			act = r.waiter.act
		}
	}
	if act == math.MaxInt64 {
		return limit.Never
	}
	return time.Duration(max(0, act-from))
}

// Cancel gives the permit back, for a caller who will not act. It reports whether
// something came back: nothing does when it was cancelled before.
func (r Reservation) Cancel() bool {
	if !r.ok || r.waiter == nil {
		return false
	}
	l := &r.limiter.lease
	l.mu.Lock()
	defer l.unlock()
	if r.waiter.lost {
		return false
	}
	now := l.client.now()
	r.waiter.lost = true
	if r.waiter.Waiting() {
		l.leave(r.waiter)
		l.settle(now)
		return true
	}
	r.limiter.refund(now, r.waiter.Cost)
	l.settle(now)
	return true
}
