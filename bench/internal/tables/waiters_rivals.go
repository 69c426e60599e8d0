package tables

import (
	"context"
	"errors"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/stint-io/stint/limit"
)

var errTimeout = errors.New("bench: waited too long")

// perToken is the time in which one token comes.
func perToken(p limit.Policy) time.Duration { return p.Rate.Period / time.Duration(p.Rate.Count) }

// openFloor lets callers go by one timer, set to one time after the other at which a
// bucket's permits are due, and tells it from the first call on: what is late there is the
// machine, and late everywhere. Callers who would wait too long are refused.
func openFloor(p limit.Policy) (func(time.Duration, func(error)), func(), error) {
	f := &floor{arithmetic: newArithmetic(p), origin: time.Now()}
	return f.wait, func() {}, nil
}

type floor struct {
	*arithmetic
	origin time.Time

	mu    sync.Mutex
	due   []limit.Time
	dones []func(error)
	timer *time.Timer
}

func (f *floor) wait(d time.Duration, done func(error)) {
	f.mu.Lock()
	now := limit.Time(1 + time.Since(f.origin))
	at := f.arithmetic.due(now)
	if at > now.Add(d) {
		f.mu.Unlock()
		done(errTimeout)
		return
	}
	f.take(now)
	if at <= now {
		f.mu.Unlock()
		done(nil)
		return
	}
	f.due, f.dones = append(f.due, at), append(f.dones, done)
	if len(f.due) == 1 {
		if f.timer == nil {
			f.timer = time.AfterFunc(time.Duration(at-now), f.ring)
		} else {
			f.timer.Reset(time.Duration(at - now))
		}
	}
	f.mu.Unlock()
}

func (f *floor) ring() {
	f.mu.Lock()
	now := limit.Time(1 + time.Since(f.origin))
	n := 0
	for n < len(f.due) && f.due[n] <= now {
		n++
	}
	dones := f.dones[:n]
	f.due, f.dones = f.due[n:], f.dones[n:]
	if len(f.due) > 0 {
		f.timer.Reset(time.Duration(f.due[0] - now))
	}
	f.mu.Unlock()
	for _, done := range dones {
		done(nil)
	}
}

// openXTime is rate.Limiter.Wait, with the bound as its context's deadline. A bound of 0
// is Allow: its Wait refuses a context that has ended.
func openXTime(p limit.Policy) (func(time.Duration, func(error)), func(), error) {
	l := rate.NewLimiter(rate.Every(perToken(p)), int(p.Burst))
	ended, end := context.WithCancel(context.Background())
	return func(d time.Duration, done func(error)) {
		if d == 0 {
			if l.Allow() {
				done(nil)
			} else {
				done(errTimeout)
			}
			return
		}
		ctx, cancel := context.WithTimeout(ended, d)
		defer cancel()
		done(l.Wait(ctx))
	}, end, nil
}

// line is our model of the limiter that LINE describes: a counter for the wall clock's
// second. Who finds it used up comes again when the next second begins, unless all the
// waits together are longer than wanted; nothing keeps their order.
type line struct {
	mu     sync.Mutex
	limit  int64
	second int64
	count  int64
	closed bool
}

func openLINE(p limit.Policy) (func(time.Duration, func(error)), func(), error) {
	l := &line{limit: max(1, p.Rate.Count*int64(time.Second)/int64(p.Rate.Period))}
	return func(d time.Duration, done func(error)) { l.acquire(d, 0, done) }, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.closed = true
	}, nil
}

func (l *line) acquire(longest, waited time.Duration, done func(error)) {
	wait := l.try(time.Now())
	switch waited += wait; {
	case wait == 0:
		done(nil)
	case longest <= waited:
		done(errTimeout)
	default:
		time.AfterFunc(wait, func() { l.acquire(longest, waited, done) })
	}
}

// try counts, or says when the next second begins, in whole milliseconds as it does.
func (l *line) try(now time.Time) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return 1 << 62
	}
	if l.second != now.Unix() {
		l.second, l.count = now.Unix(), 1
		return 0
	}
	if l.count >= l.limit {
		return time.Duration((now.Unix()+1)*1000-now.UnixMilli()) * time.Millisecond
	}
	l.count++
	return 0
}
