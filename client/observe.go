package client

import (
	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/internal/lease/agent"
	"github.com/stint-io/stint/limit"
)

// LeaseState is how a lease stands, in one word, for [Options].OnLease.
type LeaseState uint8

// The states. Each lease is in one of them at a time.
const (
	LeaseClosed     LeaseState = iota // it is not open yet, or not any more
	LeaseUnanswered                   // no coordinator has answered: LimitOptions.Start is in force
	LeaseIdle                         // there is an answer and nothing is leased: it is not wanted, or not free yet
	LeaseHeld                         // a lease runs, and the limit is not saturated
	LeaseSaturated                    // all instances together demand more than the limit
	LeaseRecovering                   // the coordinator is new and lends only what is surely free: leases, or LimitOptions.Expiry, go on
	LeaseExpired                      // the lease has run out: LimitOptions.Expiry is in force
	LeaseRefused                      // the coordinator lends nothing: see Limiter.Err

	// LeaseStateCount is one more than the last state.
	LeaseStateCount int = iota
)

var leaseStateNames = [...]string{
	LeaseClosed: "closed", LeaseUnanswered: "unanswered", LeaseIdle: "idle", LeaseHeld: "held", LeaseSaturated: "saturated",
	LeaseRecovering: "recovering", LeaseExpired: "expired", LeaseRefused: "refused",
}

// String returns the state as a label of a metric, such as "held".
func (s LeaseState) String() string {
	if int(s) < len(leaseStateNames) {
		return leaseStateNames[s]
	}
	return "unknown"
}

// leaseState is the state in one word. The reasons for which nothing can be spent come first.
func (l *leasedLimit) leaseState(st *agent.State) LeaseState {
	switch {
	case l.gone.Load():
		return LeaseClosed
	case st.Expired && (!st.Recovering || !l.lane().connected()):
		return LeaseExpired
	case !st.Known:
		return LeaseUnanswered
	case st.Status != lease.StatusOK || st.Limit.Semaphore != l.semaphore:
		return LeaseRefused
	case st.Recovering:
		return LeaseRecovering
	case st.Saturated:
		return LeaseSaturated
	case st.Leased:
		return LeaseHeld
	default:
		return LeaseIdle
	}
}

// leaseChange is a call of OnLease that is due.
type leaseChange struct {
	limit   string
	was, is LeaseState
}

// touch notes that the state of l may have changed. The lane's mu is held.
func (l *leasedLimit) touch() {
	if l.client.opts.OnLease != nil && !l.touched {
		l.touched = true
		a := l.lane()
		a.touched = append(a.touched, l)
	}
}

// leaseChanges returns the changes since the last call, each lease once.
func (a *lane) leaseChanges() (out []leaseChange) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, l := range a.touched {
		l.touched = false
		st := a.agent.State(l.place.Load().handle)
		if is := l.leaseState(&st); is != l.shown {
			out = append(out, leaseChange{l.id.Limit, l.shown, is})
			l.shown = is
		}
	}
	clear(a.touched)
	a.touched = a.touched[:0]
	return out
}

// notify calls OnLease and OnConnection for what has changed. It is called by the goroutines of
// Run, one at a time, with no lock of a lane.
func (c *Client) notify() {
	c.notifying.Lock()
	defer c.notifying.Unlock()
	if c.opts.OnConnection != nil {
		if up := c.Connected(); up != c.shownUp {
			c.shownUp = up
			c.opts.OnConnection(up)
		}
	}
	if c.opts.OnLease == nil {
		return
	}
	for _, a := range c.lanes() {
		for _, change := range a.leaseChanges() {
			c.opts.OnLease(change.limit, change.was, change.is)
		}
	}
}

// admitted calls the hook for a cost that was taken.
func (l *leasedLimit) admitted(n int64) { l.client.opts.Hooks.Admitted(l.id.Limit, n) }

// admits returns a done that calls OnAdmit before done; done itself where nobody counts.
func (l *leasedLimit) admits(n int64, done func(error)) func(error) {
	if l.client.opts.Hooks.OnAdmit == nil {
		return done
	}
	return func(err error) {
		if err == nil {
			l.admitted(n)
		}
		done(err)
	}
}

// refused calls the hook for a cost that Allow or TryAcquire has refused, with the reason.
func (l *leasedLimit) refused(n int64) {
	if l.client.opts.Hooks.OnRefuse != nil {
		l.client.opts.Hooks.OnRefuse(l.id.Limit, n, l.reason(l.state.Load(), n))
	}
}

// reason is why cost is refused by a lease in state st.
func (l *leasedLimit) reason(st *agent.State, cost int64) limit.Reason {
	leased := int64(l.client.now()) < l.lane().agent.Deadline().Load()
	switch {
	case l.fault() != nil:
		return limit.ReasonStoreFailure
	case cost < 0 || st.Known && cost > st.Limit.Burst.Floor():
		return limit.ReasonCost
	case !st.Known || !leased, st.Former && st.Held == (lease.Capacity{}):
		return limit.ReasonStoreFailure
	case st.Recovering && st.Held == (lease.Capacity{}):
		return limit.ReasonRecovering
	case l.semaphore:
		return limit.ReasonConcurrency
	case st.Suppression.Reject > 0:
		return limit.ReasonSuppressed
	default:
		return limit.ReasonRate
	}
}
