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

// spender is what a lease is spent from: a bucket or places.
type spender interface {
	agent.Bucket
	UpdateFallback(now limit.Time, rate, depth fixed.Amount)
	Declare(wanted fixed.Amount)

	Try(now limit.Time, n int64) (taken, decided bool)
	Prepare(now limit.Time, n int64) (h bucket.Prepared, taken, decided bool)
	Commit(n int64)
	Refuse(n int64)
	Remaining(now limit.Time) int64
	MaxCost(now limit.Time) int64
	Earliest(now limit.Time, n int64) time.Duration

	// For the line: see share.Bucket.
	Freeze()
	Thaw()
	Join(n int64)
	Serve(now limit.Time, n int64) bool
	Leave(n int64)
	WaitUntil(t limit.Time)
}

// leasedLimit is the upper half of one lease: the purse, and the line of those who wait. It
// is the Spender that the holder amends.
//
// While the line is not empty the purse is frozen, so nobody passes those in it. The
// first in line is served when there is enough, which one timer tells, or whoever
// amends the lease or gives something back. A lease that moves or ends keeps the line.
type leasedLimit struct {
	client    *Client
	id        lease.ResourceID
	handle    uint32
	semaphore bool
	opts      LimitOptions
	spender   spender

	state     atomic.Pointer[agent.State] // as the coordinator told last
	starvedAt atomic.Int64                // limit.Time
	outcomes  outcomes
	counted   struct{ admitted, refused int64 } // in the client's usage; guarded by its mu

	mu      sync.Mutex // given back by unlock where waits may have ended
	line    line
	timer   waitline.Timer[leasedLimit] // serves the first in line
	checker waitline.Timer[leasedLimit] // sends away those whose time is over
	calls   waitline.Dispatcher         // of those who do not block
	closed  error
	gone    atomic.Bool // closed is set

	adjuster    *agent.Adjuster // nil = the whole lease is spent
	rate, burst fixed.Amount    // in force before it is adjusted
	leaseless   bool            // by AmendFallback
}

// Observe implements share.Spender.
func (l *leasedLimit) Observe(now limit.Time) bucket.Reading { return l.spender.Observe(now) }

// Update implements share.Spender.
func (l *leasedLimit) Update(now limit.Time, rate, depth, add fixed.Amount) (surplus, held fixed.Amount) {
	l.mu.Lock()
	defer l.unlock()
	if l.semaphore && rate > 0 {
		depth = 0 // it is a rate, as fault says soon: those are no places
	}
	l.rate, l.burst, l.leaseless = rate, depth, false
	l.client.decided.watch(l)
	if l.adjuster == nil {
		surplus, held = l.spender.Update(now, rate, depth, add)
	} else {
		r, d := l.adjusted()
		surplus, _ = l.spender.Update(now, r, d, add)
		held = fixed.Whole(depth.Floor())
	}
	l.settle(now)
	return surplus, held
}

// UpdateFallback puts in force what may be spent without a lease.
func (l *leasedLimit) UpdateFallback(now limit.Time, rate, depth fixed.Amount) {
	l.mu.Lock()
	defer l.unlock()
	l.rate, l.burst, l.leaseless = rate, depth, true
	l.client.decided.watch(l)
	if l.adjuster != nil {
		rate, depth = l.adjusted()
	}
	l.spender.UpdateFallback(now, rate, depth)
	l.settle(now)
}

// Suppress puts in force what part of what is asked is refused, for a limit that is
// shared by suppression.
func (l *leasedLimit) Suppress(now limit.Time, s bucket.Suppression, independent bool) {
	l.mu.Lock()
	defer l.unlock()
	if b, ok := l.spender.(*bucket.Bucket); ok {
		b.Suppress(now, s, independent)
	}
	l.settle(now)
}

// adjusted is what is spent of the rate and depth in force.
func (l *leasedLimit) adjusted() (rate, depth fixed.Amount) {
	rate = l.adjuster.Rate(l.rate)
	if rate >= l.rate {
		return rate, l.burst
	}
	// A deep bucket would let a burst go to a receiver that was just slowed down for.
	part := rate.Float() / l.rate.Float()
	return rate, min(l.burst, max(fixed.Token, fixed.Whole(int64(l.burst.Float()*part))))
}

// The least time between two signals that a lease is short: what is asked has to be
// answered before it is worth asking again, the more so when there is no more.
const (
	starveGap     = 5 * time.Millisecond
	starveGapFull = 100 * time.Millisecond
)

// starve tells the network's half that the lease was found short at now.
func (l *leasedLimit) starve(now limit.Time) {
	if last := l.starvedAt.Load(); int64(now)-last >= int64(starveGap) {
		l.signal(now, last)
	}
}

// signal is starve for when the last signal, at last, was not just before.
func (l *leasedLimit) signal(now limit.Time, last int64) {
	if int64(now)-last < int64(starveGapFull) && l.state.Load().Saturated {
		return
	}
	if l.starvedAt.CompareAndSwap(last, int64(now)) {
		l.client.starve(l.handle)
	}
}

// hopeful says whether an answer may bring n that is not there.
func (l *leasedLimit) hopeful(n int64) bool {
	st := l.state.Load()
	switch {
	case st.Known && st.Limit.Suppress != nil && st.Held != (lease.Capacity{}):
		return false // it has the whole limit
	case st.Known && st.Recovering && st.Held == (lease.Capacity{}):
		return false // nothing is lent before the learning is over
	case st.Known && (l.opts.Silent || st.Saturated || st.Status != lease.StatusOK || n > st.Limit.Burst.Floor()):
		return false
	default:
		return l.opts.Ask >= 0 && l.client.link.Load() != linkDown
	}
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

// fault is why nothing is lent at all, or nil.
func (l *leasedLimit) fault() error {
	if l.gone.Load() {
		return l.closed // not changed any more
	}
	if err := l.client.Err(); errors.Is(err, ErrDuplicate) && int64(l.client.now()) >= l.client.holder.Deadline().Load() {
		return err
	}
	st := l.state.Load()
	switch {
	case !st.Known || st.Status == lease.StatusOK && st.Limit.Semaphore == l.semaphore:
		return nil
	case st.Status == lease.StatusOK && l.semaphore:
		return fmt.Errorf("%w: %q is a rate, open it with Limit", ErrKind, l.id.Limit)
	case st.Status == lease.StatusOK:
		return fmt.Errorf("%w: %q counts what is in flight, open it with Gauge", ErrKind, l.id.Limit)
	case st.Status == lease.StatusUnknownLimit, st.Status == lease.StatusNotLeased,
		st.Status == lease.StatusBadKey, st.Status == lease.StatusTooMany, st.Status == lease.StatusWrongAttributes:
		return fmt.Errorf("%w of limit %q: %v: %s", ErrRefused, l.id.Limit, st.Status, wayOut[st.Status])
	default:
		return nil
	}
}

// wayOut says what a refusal of the coordinator means and what to do about it.
var wayOut = map[lease.Status]string{
	lease.StatusUnknownLimit: "it has no limit of that name, which must be written as in its limits file",
	lease.StatusNotLeased:    "the limit is not shared by leases, add sharing: leased to it",
	lease.StatusBadKey:       "the key has not as many values as that of the limit, or is too long: use Keyed with the attributes of the limit's key, or Limit or Gauge for one without",
	lease.StatusTooMany:      "its table of keys is full, try again later",

	lease.StatusWrongAttributes: "the limit's key has other attributes, or another order: give Keyed those that stand in its limits file",
}

// quota is the largest cost that the limit ever admits; MaxInt64 while it is unknown.
func (l *leasedLimit) quota() int64 {
	if st := l.state.Load(); st.Known && st.Status == lease.StatusOK {
		return st.Limit.Burst.Floor()
	}
	return math.MaxInt64
}

// shown takes note of what the coordinator told.
func (l *leasedLimit) shown(now limit.Time, st agent.State) {
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

// close gives everything back; those who wait get err.
func (l *leasedLimit) close(err error) {
	c := l.client
	c.mu.Lock()
	if c.leases[l.handle] == l {
		c.decided.count(c.now(), l)
		delete(c.decided.active, l)
		c.holder.Close(c.now(), l.handle)
		delete(c.leases, l.handle)
		delete(c.named, l.id)
	}
	c.mu.Unlock()
	c.nudge()
	l.end(err)
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

// idle says whether nobody waits and nothing is in use.
func (l *leasedLimit) idle() bool {
	r := l.spender.Observe(l.client.now())
	return r.Waiting == 0 && r.InUse == 0
}
