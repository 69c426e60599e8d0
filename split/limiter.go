package split

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stint-io/stint/internal/partition"
	"github.com/stint-io/stint/internal/waitline"
	"github.com/stint-io/stint/limit"
)

// Pacing says when in its window a permit is there. It means nothing without windows.
type Pacing uint8

// The pacings.
const (
	// AtOnce has all permits of a window there at its beginning.
	AtOnce Pacing = Pacing(partition.PaceNone)

	// Even has each permit there when it is due.
	Even Pacing = Pacing(partition.PaceEven)

	// PID moves permits from the beginning of their window towards the moment they are
	// due, by short delays that a controller takes from how the windows before were
	// used: none while the demand is below the limit or evenly spread by itself, all
	// the way within six windows in which everything would have gone at once. What a
	// bounded wait is told is then true for the present window, and a guess beyond it.
	PID Pacing = Pacing(partition.PacePID)
)

// Options say how a limiter works. The zero value is a limiter called "split", without
// windows, that goes by this host's wall clock.
type Options struct {
	// Name is the limit's name in decisions; empty = "split".
	Name string

	// Window is the length of windows: 0 = none, else 1 ms to 24 h. They begin at multiples
	// of it since the Unix epoch, so that those of one second are the wall clock's.
	Window time.Duration

	// Pacing spreads the permits of a window.
	Pacing Pacing

	// Wall reads the wall clock, for the phase; nil = time.Now. It is called at the
	// beginning and then at most once a second, by whoever uses the limiter, so it must
	// be quick and must not use the limiter itself.
	Wall func() time.Time
}

// Limiter is an instance's part of a split limit, with the verbs of [limit.Limiter]: Allow
// refuses when there is no permit, Wait waits for it, WaitFunc waits without blocking, and
// Take is Allow with the whole answer. They decide in this process alone.
//
// Callers are served in the order in which they came. While some wait, Allow refuses:
// nobody passes them.
//
// The zero value refuses everything; use [New]. A Limiter is safe for concurrent use and
// must not be copied. It starts no goroutine but a timer's, while somebody waits, and one
// that calls those who used WaitFunc, while there is somebody to call.
type Limiter struct {
	name   string
	window time.Duration
	wall   func() time.Time
	origin time.Time // of the monotonic clock; zero in the zero value

	shift atomic.Int64 // the limit.Time at origin
	opens atomic.Int64 // before this time Allow refuses, without a lock

	mu    sync.Mutex
	split partition.Limiter
	phase partition.Phase
	terms Terms

	line  line
	known limit.Time // until when the plan of those who wait stands by itself
	timer waitline.Timer[Limiter]
	calls waitline.Dispatcher
}

// New returns a limiter that holds this instance's part by t. It begins empty: a token that
// was due before it was made is not its to use, since the process that it replaces may
// have used it. (With windows, what is due in the rest of the present one may have been
// used too.)
func New(t Terms, o Options) (*Limiter, error) {
	terms, from, err := t.shared(o.Window)
	if err != nil {
		return nil, err
	}
	l := &Limiter{name: o.Name, window: o.Window, wall: o.Wall, origin: time.Now(), terms: t}
	if l.name == "" {
		l.name = "split"
	}
	if l.wall == nil {
		l.wall = time.Now
	}
	l.phase = partition.NewPhase(0, max(0, limit.At(l.wall())))
	l.shift.Store(int64(l.phase.Shift()))
	// What was due before now may have been used by a process of which this is the next.
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

// look lets the phase follow the wall clock.
func (l *Limiter) look(now limit.Time) {
	mono := now - l.phase.Shift()
	if !l.phase.Due(mono) || l.origin.IsZero() {
		return
	}
	l.phase.Adjust(mono, max(0, limit.At(l.wall())), limit.Time(l.window))
	l.shift.Store(int64(l.phase.Shift()))
}

// Name returns the limit's name.
func (l *Limiter) Name() string { return l.name }

// Allow takes 1 if it is there, and reports whether it was.
func (l *Limiter) Allow() bool {
	now := l.now()
	if now < limit.Time(l.opens.Load()) {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.look(now)
	return l.allow(now, 1)
}

// AllowN takes n at t if it is there, and reports whether it was. A negative n is refused.
func (l *Limiter) AllowN(t time.Time, n int64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.allow(l.at(t), n)
}

func (l *Limiter) allow(now limit.Time, n int64) bool {
	if l.line.First() != nil || n < 0 {
		return false // those in line are let go by the timer, which is due or nearly so
	}
	allowed := l.split.Allow(now, n)
	l.opens.Store(int64(l.split.Opens()))
	return allowed
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
	cost := req.Cost
	if cost == 0 {
		cost = 1
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.now()
	l.look(now)
	allowed := false
	switch {
	case l.line.First() != nil:
	case req.Peek:
		allowed = l.split.Earliest(now, 0, cost) <= now
	default:
		allowed = l.split.Allow(now, cost)
		l.publish()
	}
	r := l.split.Result()
	r.Limit, r.Cost = l.name, cost
	r.Verdict = l.split.Verdict(now, allowed, l.line.Cost(), cost)
	d := limit.Decision{Allowed: allowed, Results: []limit.Result{r}}
	if !allowed {
		d.Status = statusTooManyRequests
	}
	return d, nil
}

const statusTooManyRequests = 429
