package agent

import (
	"time"

	"github.com/stint-io/stint/internal/bucket"
	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/internal/lease"
)

// State is the state of a resource at the instance.
type State struct {
	Known      bool // a grant has come
	Former     bool // whoever coordinates now has not answered yet what it lends
	Leased     bool // there is a lease, and it has not expired
	Status     lease.Status
	Held       lease.Capacity // rate and burst
	Saturated  bool           // demand is above the limit
	Contended  bool
	Recovering bool
	Expired    bool // the lease has expired
	Limit      lease.Terms
	RoundTrip  time.Duration // 0 = unknown
	Demand     fixed.Amount
	Asking     bool // the latest report asked for more and is not acknowledged
	// Suppression is what is in force of a limit that is shared by suppression.
	Suppression bucket.Suppression
}

// State returns the state of the resource of a handle.
func (a *Agent) State(handle uint32) State {
	r := a.leases[handle]
	if r == nil {
		return State{}
	}
	held := r.lease.granted.Sub(r.lease.returned)
	held.Tokens = 0
	return State{
		Known: r.answer.known, Former: r.answer.former, Leased: r.lease.number != 0, Status: r.answer.status, Held: held, Saturated: r.answer.saturated, Contended: r.answer.contended, Recovering: r.answer.recovering,
		Expired: r.fallback.expired, Limit: *r.answer.limit(), RoundTrip: a.timing.trip, Demand: r.load.demand, Asking: r.sent.number > r.acks.report && r.sent.shortfall > 0, Suppression: r.suppression.sent,
	}
}

// Options returns those that a handle was opened with; the zero value if it is not open.
func (a *Agent) Options(handle uint32) LeaseOptions {
	if r := a.leases[handle]; r != nil {
		return r.opts
	}
	return LeaseOptions{}
}
