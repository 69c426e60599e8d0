package limit

import (
	"math"
	"time"
)

// Reservation is a permit for a later time: its holder waits for Delay and acts. It is a value;
// the zero value is not OK.
//
// A reservation keeps its time whatever others do. When one is cancelled, its time goes to the
// next request.
type Reservation struct {
	limiter *Limiter
	id, gen uint64
	act     Time
	ok      bool
}

// Reserve is shorthand for ReserveN(time.Now(), 1).
func (l *Limiter) Reserve() Reservation { return l.ReserveN(time.Now(), 1) }

// ReserveN takes n at the earliest time from t on that earlier callers leave. The Reservation is
// not OK, and nothing is taken, when there is no such time: n is negative or above the quota, or
// the rate is 0.
func (l *Limiter) ReserveN(t time.Time, n int64) Reservation {
	now := l.at(t)
	l.lock()
	defer l.unlock()
	switch {
	case n < 0 || n > l.meter.quota:
		return Reservation{}
	case n == 0 || l.meter.policy.Unlimited:
		return Reservation{limiter: l, act: now, ok: true}
	}
	l.catchUp()
	l.settle(&l.meter, l.clock(now))
	defer l.arm()
	s, ok := l.enter(&l.meter, now, slot{kind: slotPromised, cost: n, from: now, latest: math.MaxInt64})
	if !ok {
		return Reservation{}
	}
	return Reservation{limiter: l, id: s.id, gen: s.gen, act: s.act, ok: true}
}

// OK says whether there is a permit.
func (r Reservation) OK() bool { return r.ok }

// Delay is shorthand for DelayFrom(time.Now()).
func (r Reservation) Delay() time.Duration { return r.DelayFrom(time.Now()) }

// DelayFrom returns how long after t the holder may act: 0 = at once, [Never]
// when the reservation is not OK. It grows when the policy is tightened.
func (r Reservation) DelayFrom(t time.Time) time.Duration {
	if !r.ok {
		return Never
	}
	l := r.limiter
	now, act := l.at(t), r.act
	l.lock()
	defer l.unlock()
	if i := l.find(r.id, r.gen); i >= 0 {
		l.plan(&l.meter, i+1)
		act = max(act, l.slots[i].act)
	}
	return waitUntil(act, now)
}

// Cancel is shorthand for CancelAt(time.Now()).
func (r Reservation) Cancel() bool { return r.CancelAt(time.Now()) }

// CancelAt gives the permit back, for a holder that has not used it and will not. Other
// reservations keep their times. As long as one of them waits, requests stand behind it: what was
// given back is not free for a call that does not wait, and the time of the reservation goes to
// the next one. After that the limiter is as if the permit had never been reserved. CancelAt
// reports whether the cost was given back.
//
// It is not when the reservation was cancelled before; when, since its time, 64 others were
// served, the policy changed, or a refused request was charged by [Request.CountRefused]; or
// when it opened a window (AlignFirstHit) that others have taken from.
func (r Reservation) CancelAt(t time.Time) bool {
	if !r.ok || r.id == 0 {
		return false
	}
	l := r.limiter
	now := l.at(t)
	l.lock()
	defer l.unlock()
	l.settle(&l.meter, l.clock(now))
	i := l.find(r.id, r.gen)
	if i < 0 {
		l.arm()
		return false
	}
	back := l.vacate(&l.meter, i, now)
	l.settle(&l.meter, l.clock(now))
	l.arm()
	return back
}
