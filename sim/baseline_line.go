package sim

import (
	"math"
	"time"

	"github.com/stint-io/stint/limit"
)

// Line is our model of the limiter of LINE's campaign of 2020 as described, with the
// published reference code: an instance has the whole part of limit/N requests in each
// second of its own wall clock, and a counter that starts anew with each. N and the
// limit come from a configuration service. A request that finds the counter used up
// waits for the next second and tries again, together with all others that wait, or is
// refused at once when that second is not within what it may wait.
//
// As published, the first request of a second is counted and not held against the
// limit: where N is above the limit, so that an instance's part is 0, each of them
// still admits one request per second. Any other second begins the count anew, an
// earlier one too.
//
// Where the description leaves a choice: limit/N is rounded down. N is that of [Setup],
// known to all from the start, and a new limit is known everywhere at once. A request
// of a higher cost needs as much of the counter. Waiters try again in the order
// in which they came, to the nanosecond of the second, and go by a timer, which a clock
// that is set does not move. [EqualSplit] is the same division with a token bucket.
//
// The zero value is as published.
type Line struct {
	// RoundUp gives an instance at least one request per second: limit/N rounded up.
	RoundUp bool
	// CheckFirst holds the first request of a second against the limit too.
	CheckFirst bool
}

// Name returns "line".
func (Line) Name() string { return "line" }

// Coordinator returns nil: there is none.
func (Line) Coordinator(Env, Setup, Address, int) Node { return nil }

// Instance makes an instance that admits its part of the limit in each second.
func (l Line) Instance(env Env, setup Setup, _, _ int) Enforcer {
	i := &lineInstance{Line: l, env: env, instances: max(1, setup.Instances), next: modelNever}
	i.second = lineSecond(env.Wall())
	i.SetLimit(setup.Limit)
	return i
}

type lineInstance struct {
	Line
	env       Env
	instances int
	part      int64 // requests per second
	second    int64 // which the counter is of
	counter   int64
	waiting   []lineWaiter
	next      limit.Time // when the first of them is due
}

// lineWaiter is a request that tries again at due.
type lineWaiter struct {
	cost         int64
	bound, spent time.Duration // what it may wait, and has up to due
	due          limit.Time
	decided      func(bool)
}

func lineSecond(t limit.Time) int64 { return int64(t) / second }

func (l *lineInstance) SetLimit(to Limit) {
	part := to.PerSecond() / float64(l.instances)
	if l.RoundUp {
		l.part = int64(math.Ceil(part - modelGrain))
		return
	}
	l.part = int64(math.Floor(part + modelGrain))
}

// Share is the part of the limit, in tokens per second.
func (l *lineInstance) Share() float64 { return float64(l.part) }

// Take counts a request, or refuses it.
func (l *lineInstance) Take(cost int64) bool { return l.count(cost) == 0 }

// count admits a request and returns 0, or returns how long the second still lasts.
func (l *lineInstance) count(cost int64) time.Duration {
	now := l.env.Wall()
	if this := lineSecond(now); this != l.second {
		l.second, l.counter = this, 0
		if !l.CheckFirst {
			l.counter = cost
			return 0
		}
	}
	if cost > l.part-l.counter {
		return time.Duration(second - int64(now)%second)
	}
	l.counter += cost
	return 0
}

// TakeWithin counts a request, or lets it try again at each second that begins within
// wait.
func (l *lineInstance) TakeWithin(cost int64, wait time.Duration, decided func(bool)) {
	before := l.next
	l.try(lineWaiter{cost: cost, bound: wait, decided: decided})
	if l.next != before {
		l.env.WakeAt(l.next)
	}
}

// try decides about a request, or puts it in the line.
func (l *lineInstance) try(w lineWaiter) {
	left := l.count(w.cost)
	if left == 0 {
		w.decided(true)
		return
	}
	if w.spent += left; w.bound <= w.spent {
		w.decided(false)
		return
	}
	w.due = l.env.Now().Add(left)
	l.stay(w)
}

func (l *lineInstance) stay(w lineWaiter) {
	l.waiting = append(l.waiting, w)
	l.next = min(l.next, w.due)
}

func (l *lineInstance) Receive(Address, any) {}

// Wake retries the waiters that are due.
func (l *lineInstance) Wake() {
	now, before := l.env.Now(), l.waiting
	l.waiting, l.next = make([]lineWaiter, 0, len(before)), modelNever
	for _, w := range before {
		if w.due <= now {
			l.try(w)
		} else {
			l.stay(w)
		}
	}
	if l.next != modelNever {
		l.env.WakeAt(l.next)
	}
}
