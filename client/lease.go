package client

import (
	"errors"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stint-io/stint/internal/bucket"
	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/internal/lease/agent"
	"github.com/stint-io/stint/internal/waitline"
	"github.com/stint-io/stint/limit"
)

// spender is what a lease is spent from: a bucket or permits.
type spender interface {
	agent.Bucket
	UpdateFallback(now limit.Time, rate, burst fixed.Amount)
	Declare(wanted fixed.Amount)

	Try(now limit.Time, n int64) (taken, decided bool)
	Prepare(now limit.Time, n int64) (h bucket.Prepared, taken, decided bool)
	Commit(n int64)
	Arrived(now limit.Time)
	Refuse(n int64)
	Remaining(now limit.Time) int64
	MaxCost(now limit.Time) int64
	Earliest(now limit.Time, n int64) time.Duration

	// For the line: see [bucket.Bucket].
	Freeze()
	Thaw()
	Join(n int64)
	Serve(now limit.Time, n int64) bool
	Leave(n int64)
	WaitUntil(t limit.Time)

	Follow(d *bucket.Deadline)
}

// leasedLimit is one lease as its callers see it: the bucket or semaphore that is spent, and
// the line of waiters. It is the [agent.Bucket] that the agent updates.
//
// While the line is not empty the spender is frozen, so that no caller passes the waiters.
// The first waiter is served when there is enough: one timer knows when, and an update of the
// lease or a refund serves it sooner. A lease that changes or ends keeps the line.
type leasedLimit struct {
	client    *Client
	place     atomic.Pointer[place] // never nil once it is open
	id        lease.ResourceID
	semaphore bool
	opts      LimitOptions
	spender   spender

	moves struct { // between shards; guarded by the client's mu
		at limit.Time
		n  int
	}

	state     atomic.Pointer[agent.State] // as of the latest grant
	starvedAt atomic.Int64                // limit.Time
	outcomes  outcomes
	counted   struct{ admitted, refused int64 } // in the lane's usage; guarded by the lane's mu

	mu      sync.Mutex // given back by unlock where waits may have ended
	line    line
	timer   waitline.Timer[leasedLimit] // serves the first in line
	checker waitline.Timer[leasedLimit] // sends away those whose time is over
	calls   waitline.Dispatcher         // of those who do not block
	closed  error
	gone    atomic.Bool // closed is set

	shown   LeaseState // as OnLease was called last; guarded by the lane's mu, as touched
	touched bool       // it is in the lane's touched

	paced       *paced       // the spender, if Adjust is set; else nil
	rate, burst fixed.Amount // in force before it is paced
	leaseless   bool         // by UpdateFallback
}

// Observe implements [agent.Bucket].
func (l *leasedLimit) Observe(now limit.Time) bucket.Reading { return l.spender.Observe(now) }

// Update implements [agent.Bucket].
func (l *leasedLimit) Update(now limit.Time, rate, burst, add fixed.Amount) (surplus, held fixed.Amount) {
	l.mu.Lock()
	defer l.unlock()
	if l.semaphore && rate > 0 {
		burst = 0 // it is a rate, as fault says soon: those are no permits
	}
	l.rate, l.burst, l.leaseless = rate, burst, false
	l.lane().decided.watch(l)
	l.touch()
	surplus, held = l.spender.Update(now, rate, burst, add)
	l.pace(now)
	l.settle(now)
	return surplus, held
}

// UpdateFallback puts in force what may be spent without a lease.
func (l *leasedLimit) UpdateFallback(now limit.Time, rate, burst fixed.Amount) {
	l.mu.Lock()
	defer l.unlock()
	l.rate, l.burst, l.leaseless = rate, burst, true
	l.lane().decided.watch(l)
	l.touch()
	l.spender.UpdateFallback(now, rate, burst)
	l.pace(now)
	l.settle(now)
}

// Suppress puts in force what part of what is asked is refused, for a limit that is
// shared by suppression.
func (l *leasedLimit) Suppress(now limit.Time, s bucket.Suppression, independent bool) {
	l.mu.Lock()
	defer l.unlock()
	if b, ok := l.spender.(interface {
		Suppress(now limit.Time, s bucket.Suppression, independent bool)
	}); ok {
		b.Suppress(now, s, independent)
	}
	l.settle(now)
}

// slowed says whether n is refused for the sake of a receiver that fails, and not because the lease is short.
func (l *leasedLimit) slowed(now limit.Time, n int64) bool {
	return l.paced != nil && l.paced.binds(now, n)
}

// pace puts in force at which rate the lease is spent. Where tokens are lent without a rate it is a part of that of the
// limit.
func (l *leasedLimit) pace(now limit.Time) {
	if l.paced == nil {
		return
	}
	rate, burst := l.rate, l.burst
	if whole := &l.state.Load().Limit; rate == 0 {
		rate, burst = whole.Rate, whole.Burst
	}
	l.paced.set(now, rate, burst)
}

// The least time between two signals that a lease is short: what is asked has to be
// answered before it is worth asking again, the more so when there is no more.
const (
	starveGap     = 5 * time.Millisecond
	starveGapFull = 100 * time.Millisecond
)

// starve signals to the network's half that the lease was found short at now.
func (l *leasedLimit) starve(now limit.Time) {
	if last := l.starvedAt.Load(); int64(now)-last >= int64(starveGap) {
		l.signal(now, last)
	}
}

// signal is starve for when the last signal, at last, was not just before.
func (l *leasedLimit) signal(now limit.Time, last int64) {
	if int64(now)-last < int64(starveGapFull) && l.saturated() {
		return
	}
	if l.starvedAt.CompareAndSwap(last, int64(now)) {
		l.demandNow()
	}
}

// hopeful says whether an answer may bring n that is not there.
func (l *leasedLimit) hopeful(n int64) bool {
	now := l.client.now()
	return l.undecided(now, n) && l.awaits(now, n)
}

// awaits says whether it is worth while to wait for an answer about n.
func (l *leasedLimit) awaits(now limit.Time, n int64) bool {
	return l.opts.Ask >= 0 && l.lane().mayAnswer(now, l.patience(now, n))
}

// undecided says whether the present coordinator may still lend n: it has not refused yet. The answers of a former one do
// not count.
func (l *leasedLimit) undecided(now limit.Time, n int64) bool {
	st := l.state.Load()
	answered := st.Known && !st.Former
	switch {
	case l.slowed(now, n):
		return false
	case st.Known && st.Limit.Suppress != nil && st.Held != (lease.Capacity{}):
		return false // it has the whole limit
	case answered && st.Recovering && st.Held == (lease.Capacity{}):
		return false // nothing is lent before the recovery is over
	case answered && (l.opts.Silent || st.Saturated || st.Status != lease.StatusOK || n > st.Limit.Burst.Floor()):
		return false
	default:
		return true
	}
}

// saturated says whether the coordinator has answered that all instances together demand more than the limit.
func (l *leasedLimit) saturated() bool {
	st := l.state.Load()
	return st.Saturated && !st.Former
}

// ask is how long to wait for an answer.
func (l *leasedLimit) ask() time.Duration {
	if l.opts.Ask != 0 {
		return l.opts.Ask
	}
	if trip := l.state.Load().RoundTrip; trip > 0 {
		return min(max(2*trip, shortestAsk), longestAsk)
	}
	return longestAsk
}

// patience is how long a Take of n waits for an answer. A lease that is too small for n decides
// nothing about it, and the limit may have it: an answer that a busy coordinator, or one who takes over,
// gives late is worth the longest wait, where a refusal would be early.
func (l *leasedLimit) patience(now limit.Time, n int64) time.Duration {
	if l.opts.Ask == 0 && (l.state.Load().Former || l.spender.MaxCost(now) < n) {
		return longestAsk
	}
	return l.ask()
}

// fault is why nothing is lent at all, or nil.
func (l *leasedLimit) fault() error {
	if l.gone.Load() {
		return l.closed // not changed any more
	}
	if err := l.lane().err(); errors.Is(err, ErrDuplicate) && int64(l.client.now()) >= l.lane().agent.Deadline().Load() {
		return err
	}
	st := l.state.Load()
	switch {
	case !st.Known || st.Status == lease.StatusOK && st.Limit.Semaphore == l.semaphore:
		return nil
	case st.Status == lease.StatusOK && l.semaphore:
		return fmt.Errorf("%w: %q is a rate, open it with Limit", ErrKind, l.id.Limit)
	case st.Status == lease.StatusOK:
		return fmt.Errorf("%w: %q counts what is in flight, open it with Semaphore", ErrKind, l.id.Limit)
	case st.Status == lease.StatusUnknownLimit, st.Status == lease.StatusNotLeased,
		st.Status == lease.StatusBadKey, st.Status == lease.StatusTooMany, st.Status == lease.StatusWrongAttributes, st.Status == lease.StatusForbidden:
		return fmt.Errorf("%w of limit %q: %v: %s", ErrRefused, l.id.Limit, st.Status, wayOut[st.Status])
	default:
		return nil
	}
}

// wayOut says what a refusal of the coordinator means and what to do about it.
var wayOut = map[lease.Status]string{
	lease.StatusUnknownLimit: "it has no limit of that name, which must be written as in its limits file",
	lease.StatusNotLeased:    "the limit is not shared by leases, add sharing: leased to it",
	lease.StatusBadKey:       "the key has not as many values as that of the limit, or is too long: use Keyed with the attributes of the limit's key, or Limit or Semaphore for one without",
	lease.StatusTooMany:      "its table of keys is full, or this identity has as many as it may, try again later",
	lease.StatusForbidden:    "this identity may not be lent it: add the limit to its role lease in the coordinator's file of --auth",

	lease.StatusWrongAttributes: "the limit's key has other attributes, or another order: give Keyed those that stand in its limits file",
}

// quota is the largest cost that the limit ever admits; MaxInt64 while it is unknown.
func (l *leasedLimit) quota() int64 {
	if st := l.state.Load(); st.Known && st.Status == lease.StatusOK {
		return st.Limit.Burst.Floor()
	}
	return math.MaxInt64
}

// setState stores what the coordinator has answered, and checks the waiters by it.
func (l *leasedLimit) setState(now limit.Time, st agent.State) {
	l.state.Store(&st)
	l.mu.Lock()
	defer l.unlock()
	if l.line.First() == nil {
		return
	}
	if err := l.fault(); err != nil {
		l.empty(err)
		return
	}
	l.hopeless(now)
	l.settle(now)
}

// allow decides at once about n at now, for which Allow could not be asked without the
// lock, or which it did not decide.
func (l *leasedLimit) allow(now limit.Time, n int64) bool {
	if n < 0 {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.line.First() == nil {
		for {
			if taken, decided := l.spender.Try(now, n); taken {
				return true
			} else if decided {
				break
			}
		}
	}
	l.spender.Refuse(n)
	return false
}

// close gives everything back; waiters get err.
func (l *leasedLimit) close(err error) {
	c := l.client
	c.mu.Lock()
	a := l.lane() // it does not move before c.mu is unlocked
	a.mu.Lock()
	if a.shut(l) {
		delete(c.named, l.id)
	}
	a.mu.Unlock()
	c.mu.Unlock()
	l.end(err)
	a.mu.Lock()
	l.touch()
	a.mu.Unlock()
	a.nudge()
}

// end lets nobody wait any more.
func (l *leasedLimit) end(err error) {
	l.mu.Lock()
	defer l.unlock()
	if l.closed == nil {
		l.closed = err
		l.gone.Store(true)
	}
	if l.leaseless {
		l.spender.Update(l.client.now(), 0, 0, 0)
	}
	l.empty(err)
}
