package split

import (
	"cmp"
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stint-io/stint/internal/partition"
	"github.com/stint-io/stint/internal/waitline"
	"github.com/stint-io/stint/limit"
)

// Pacing says when in its window a permit is available. It has no effect without windows.
type Pacing uint8

// The pacings.
const (
	// AtOnce makes all permits of a window available at its beginning.
	AtOnce Pacing = Pacing(partition.PaceNone)

	// Even makes each permit available when it is due.
	Even Pacing = Pacing(partition.PaceEven)

	// PID moves permits from the beginning of their window towards the time at which they are
	// due. A controller sets the delay by how the windows before were used: none while the
	// demand is below the limit or evenly spread, the full delay after six windows in which all
	// permits would have been taken at once. A bounded wait is then decided exactly within the
	// present window, and by an estimate beyond it.
	PID Pacing = Pacing(partition.PacePID)
)

// Options say how a limiter works. The zero value is a limiter called "split", without windows,
// by this host's wall clock.
type Options struct {
	// Name is the limit's name in decisions; empty = "split".
	Name string

	// Window is the length of windows: 0 = none, else 1 ms to 24 h. They begin at multiples
	// of it since the Unix epoch, so that those of one second are the wall clock's.
	Window time.Duration

	// Pacing spreads the permits of a window.
	Pacing Pacing

	// Wall reads the wall clock, for the phase; nil = time.Now. It is called by New and then at
	// most once a second, in the goroutines that use the limiter, so it must be quick and must
	// not use the limiter itself.
	Wall func() time.Time

	// Hooks are called for decisions and waits, under the limit's name. The zero value calls
	// nothing.
	Hooks limit.Hooks
}

// Limiter is an instance's part of a split limit, with the verbs of [limit.Limiter]: Allow
// refuses when there is no permit, Wait waits for it, WaitFunc waits without blocking, and Take
// is Allow with the full Decision. They decide in this process alone.
//
// Waiters are served first in, first out. While some wait, Allow refuses: no request overtakes a
// waiter.
//
// The zero value refuses everything; use [New]. A Limiter is safe for concurrent use and must
// not be copied. It starts no goroutine but that of a timer, while there are waiters, and one
// that makes the call-backs of WaitFunc, while some are due.
type Limiter struct {
	name   string
	window time.Duration
	wall   func() time.Time
	hooks  limit.Hooks
	origin time.Time // of the monotonic clock; zero in the zero value

	shift atomic.Int64 // the limit.Time at origin
	opens atomic.Int64 // before this time Allow refuses, without a lock

	mu    sync.Mutex
	split partition.Limiter
	phase partition.Phase
	terms Terms

	line  line
	known limit.Time // until when the planned times of the waiters hold
	timer waitline.Timer[Limiter]
	calls waitline.Dispatcher
}

// New returns a limiter with this instance's part by t. It begins empty: a process that it
// replaces may have used the tokens that were due before. (With windows, tokens due in the rest
// of the present one may have been used too.)
func New(t Terms, o Options) (*Limiter, error) {
	terms, from, err := t.shared(o.Window)
	if err != nil {
		return nil, err
	}
	l := &Limiter{name: cmp.Or(o.Name, "split"), window: o.Window, wall: o.Wall, hooks: o.Hooks, origin: time.Now(), terms: t}
	if l.wall == nil {
		l.wall = time.Now
	}
	l.phase = partition.NewPhase(0, max(0, limit.At(l.wall())))
	l.shift.Store(int64(l.phase.Shift()))
	// Tokens that were due before now may have been used by a predecessor of this process.
	nothing := terms
	nothing.Total = limit.Rate{}
	s, err := partition.New(partition.Options{Window: o.Window, Pacing: partition.Pacing(o.Pacing)}, nothing)
	if err != nil {
		return nil, fmt.Errorf("split: %w", err)
	}
	l.split = *s
	now := l.now()
	if err := l.split.Change(now, terms, max(now, from)); err != nil {
		return nil, fmt.Errorf("split: %w", err)
	}
	l.publish()
	return l, nil
}

// now is the limiter's time. time.Since reads the monotonic clock alone.
func (l *Limiter) now() limit.Time {
	if l.origin.IsZero() {
		return 0
	}
	return limit.Time(l.shift.Load()).Add(time.Since(l.origin))
}

// at converts t by the limiter's clock.
func (l *Limiter) at(t time.Time) limit.Time {
	if l.origin.IsZero() {
		return 0
	}
	return limit.Time(l.shift.Load()).Add(t.Sub(l.origin))
}

// followWall lets the phase follow the wall clock.
func (l *Limiter) followWall(now limit.Time) {
	mono := now - l.phase.Shift()
	if !l.phase.Due(mono) || l.origin.IsZero() {
		return
	}
	l.phase.Adjust(mono, max(0, limit.At(l.wall())), limit.Time(l.window))
	l.shift.Store(int64(l.phase.Shift()))
}

// Name returns the limit's name.
func (l *Limiter) Name() string { return l.name }

// Allow takes 1 if it is available, and reports whether it was.
func (l *Limiter) Allow() bool {
	now := l.now()
	if now < limit.Time(l.opens.Load()) {
		return l.report(limit.ReasonRate, 1)
	}
	return l.report(l.allow(now, 1, true), 1)
}

// AllowN takes n at t if that is available, and reports whether it was. A negative n is refused.
func (l *Limiter) AllowN(t time.Time, n int64) bool { return l.report(l.allow(l.at(t), n, false), n) }

// allow takes n at now, or says why not. present says that it is now.
func (l *Limiter) allow(now limit.Time, n int64, present bool) limit.Reason {
	l.mu.Lock()
	defer l.mu.Unlock()
	if present {
		l.followWall(now)
	}
	if n < 0 || n > l.split.Quota() && l.split.Quota() > 0 {
		return limit.ReasonCost
	}
	if l.line.First() != nil {
		return limit.ReasonRate // the timer serves the waiters: it is due, or nearly so
	}
	allowed := l.split.Allow(now, n)
	if l.opens.Store(int64(l.split.Opens())); !allowed {
		return limit.ReasonRate
	}
	return limit.ReasonNone
}

// report calls the hooks for a decision, and says whether it admits.
func (l *Limiter) report(reason limit.Reason, n int64) bool {
	if reason == limit.ReasonNone {
		l.hooks.Admitted(l.name, n)
		return true
	}
	l.hooks.Refused(l.name, n, reason)
	return false
}

// publish sets the time before which Allow need not ask.
func (l *Limiter) publish() {
	opens := never
	if l.line.First() == nil {
		opens = l.split.Opens()
	}
	l.opens.Store(int64(opens))
}

// Remaining is how much could be taken at this moment: 0 while others wait.
func (l *Limiter) Remaining() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.line.First() != nil {
		return 0
	}
	return l.split.Remaining(l.now())
}

// Take makes a Limiter a [limit.Taker]. The request's attributes do not matter. The only
// errors are [limit.ErrNegativeCost] and that of ctx.
func (l *Limiter) Take(ctx context.Context, req limit.Request) (limit.Decision, error) {
	if req.Cost < 0 {
		return limit.Decision{}, limit.ErrNegativeCost
	}
	if err := ctx.Err(); err != nil {
		return limit.Decision{}, err
	}
	r := l.take(cmp.Or(req.Cost, 1), req.Peek)
	if !req.Peek {
		l.report(r.Reason, r.Cost)
	}
	d := limit.Decision{Allowed: r.Allowed, Results: []limit.Result{r}}
	if !r.Allowed {
		d.Status = statusTooManyRequests
	}
	return d, nil
}

// take is Take without its hooks.
func (l *Limiter) take(cost int64, peek bool) limit.Result {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.now()
	l.followWall(now)
	allowed := false
	switch {
	case l.line.First() != nil:
	case peek:
		allowed = l.split.Earliest(now, 0, cost) <= now
	default:
		allowed = l.split.Allow(now, cost)
		l.publish()
	}
	r := l.split.Result()
	r.Limit, r.Cost = l.name, cost
	r.Verdict = l.split.Verdict(now, allowed, l.line.Cost(), cost)
	return r
}

const statusTooManyRequests = 429
