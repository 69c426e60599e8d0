package agent

import (
	"time"

	"github.com/stint-io/stint/internal/bucket"
	"github.com/stint-io/stint/internal/demand"
	"github.com/stint-io/stint/internal/due"
	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/limit"
)

// resource is what an Agent knows of one resource under one handle.
type resource struct {
	id     lease.ResourceID
	handle uint32
	closed bool // by the application; forgotten once the coordinator has acknowledged it
	opts   LeaseOptions
	bucket Bucket

	succession
	lease    leased
	fallback fallback
	answer   answer
	acks     acks
	sent     sent
	report   pending

	load        load
	site        *site // nil = the instance spends what it is lent itself
	refusals    refusals
	permits     recentPermits
	sampling    sampling
	suppression suppression
	timer       timer
}

// succession is the handles of one resource: a coordinator knows one at a time. The resource opened
// anew is blocked until the earlier handle is acknowledged as closed.
type succession struct {
	earlier, later *resource
	blocked        bool
}

// leased is the lease of a resource: its name, and the running totals by which agent and
// coordinator count the same capacity.
type leased struct {
	number  uint64 // names the lease; 0 = none
	epoch   uint64 // of the coordinator that granted it
	current uint64 // epoch of the present coordinator
	dropped uint64 // the latest lease that expired or was given up: it never comes back

	granted, returned lease.Capacity // running totals
	token             []byte         // proves the lease to the next coordinator
	claiming          bool           // a former coordinator granted it, the present one has not confirmed
	orphan            bool           // and it cannot be claimed: it is spent until it expires
}

// held is what the lease allows the instance to use.
func (l *leased) held() lease.Capacity { return l.granted.Sub(l.returned) }

// counted is the number of the lease as far as the present coordinator counts it.
func (l *leased) counted() uint64 {
	if l.orphan {
		return 0
	}
	return l.number
}

// drop forgets the lease. One of the present coordinator is remembered as dropped, so that
// a late grant does not revive it.
func (l *leased) drop() {
	if l.epoch == l.current {
		l.dropped = max(l.dropped, l.number)
	}
	l.number, l.granted, l.returned, l.claiming, l.orphan, l.token = 0, lease.Capacity{}, lease.Capacity{}, false, false, nil
}

// answer is what the coordinator said in its latest grant for the resource.
type answer struct {
	known                            bool // there was one, or the limit is known not to exist
	former                           bool // whoever coordinates now has not answered yet what it lends
	status                           lease.Status
	saturated, contended, recovering bool
	terms                            *lease.Terms // read-only, and shared with other resources; nil = there was no answer
	safe                             fixed.Amount // rate, or permits, for ExpiryMode Safe
	capRate, capBurst                fixed.Amount // hold at most this; MaxAmount = no cap
}

// limit is the limit as the coordinator sent it.
func (a *answer) limit() *lease.Terms {
	if a.terms == nil {
		return &lease.Terms{}
	}
	return a.terms
}

// acks are the numbers by which both sides know which messages have arrived.
type acks struct {
	named     bool   // the coordinator knows which resource the handle stands for
	report    uint64 // the latest Report that the coordinator acknowledged
	grant     uint64 // the latest Grant that arrived
	changed   uint64 // the latest Grant that changed what is granted
	confirmed uint64 // the latest Grant that a Report acknowledged
}

// unconfirmed says whether a Grant that changed the lease has not been acknowledged in a
// Report yet.
func (k *acks) unconfirmed() bool { return k.changed > k.confirmed }

// sent is what the latest Report said about the resource.
type sent struct {
	number            uint64 // of the Report; 0 = none yet
	at                limit.Time
	demand, shortfall fixed.Amount
	attempted         fixed.Amount // suppression: the running total
	more              bool         // suppression: that total was above the one sent before
	closed            bool
	tries             uint32 // reports in a row without an answer
}

// pending is the Report that is planned.
type pending struct {
	urgent    bool          // something is to be reported
	notBefore limit.Time    // when
	gap       time.Duration // between reports that ask for more and get nothing; doubles up to maxAskGap
}

// plan makes a report urgent at a time, or earlier if it is planned for earlier.
func (p *pending) plan(at limit.Time) {
	if !p.urgent || at < p.notBefore {
		p.urgent, p.notBefore = true, at
	}
}

// load is what the application asks for, as of the latest sample.
type load struct {
	meter         demand.Meter
	admittedMeter *demand.Meter // for Utilisation; nil = not used yet
	notAdmitted   fixed.Amount  // running total of what was refused or has waited
	demand        fixed.Amount  // tokens per second; for a semaphore, permits
	shortfall     fixed.Amount  // tokens that are missing now; for a semaphore, permits in all
	waitUntil     limit.Time    // when the last waiter gives up; 0 = not known, or no waiter

	// Of a limit shared by suppression.
	attempted, admitted fixed.Amount // running totals
	largest             fixed.Amount // cost of the largest recent request
}

// refusals are the recent attempts that found the bucket empty.
type refusals struct {
	starved       bool       // since the latest report
	last          limit.Time // when an attempt was refused
	recentUntil   limit.Time // until then demand is estimated from recent arrivals alone
	expectedUntil limit.Time // until then the next request is expected, and a token kept for it
}

// recentPermits is how many permits were wanted recently: a semaphore keeps them until
// recentUntil.
type recentPermits struct {
	recent      fixed.Amount
	recentUntil limit.Time
}

// sampling is when the bucket is sampled.
type sampling struct {
	next      limit.Time
	steady    int          // samples in a row without a change
	counted   fixed.Amount // what had been attempted when nothing was demanded
	idleSince limit.Time   // 0 = not idle
}

// timer is where a resource is while it waits for its time.
type timer struct {
	place due.Place // in Agent.timers
	ready bool      // in Agent.ready
}

// Place implements due.Value.
func (r *resource) Place() *due.Place { return &r.timer.place }

// timing is what the agent knows about times that hold for all its resources.
type timing struct {
	refresh time.Duration // between renewals, as the coordinator asks
	lease   time.Duration // length of leases; 0 = no grant has come
	trip    time.Duration // round trip, smoothed; 0 = unknown
}

// retry is after how long a report without an answer is sent again: one and a half round
// trips.
func (t *timing) retry() time.Duration {
	if t.trip == 0 {
		return unknownTripRetry
	}
	return max(t.trip+t.trip/2, minRetry)
}

// planReport plans a report, gap after the latest one. MinReportGap is over when that is answered.
func (r *resource) planReport(now limit.Time, gap time.Duration) {
	if gap <= lease.MinReportGap && r.acks.report >= r.sent.number {
		r.report.plan(now)
		return
	}
	r.report.plan(max(now, r.sent.at.Add(gap)))
}

// update puts a rate and a burst in force that are at most what is held, and counts the
// difference as returned.
func (r *resource) update(now limit.Time, rate, burst, add fixed.Amount) {
	held := r.lease.held()
	if r.site != nil {
		held.Tokens = 0
		inForce, surplus := r.site.lender.Hold(now, held, lease.Capacity{Rate: rate, Burst: burst}, add)
		r.lease.returned.Rate += max(0, held.Rate-inForce.Rate)
		r.lease.returned.Burst += max(0, held.Burst-inForce.Burst)
		r.lease.returned.Tokens += surplus
		return
	}
	surplus, inForce := r.bucket.Update(now, rate, burst, add)
	r.lease.returned.Rate += held.Rate - rate
	r.lease.returned.Burst += max(0, held.Burst-inForce)
	r.lease.returned.Tokens += surplus
}

// fallback is what the instance spends without a lease.
type fallback struct {
	expired  bool       // the lease expired, and the ExpiryMode is in force
	starting bool       // no lease has come, and LeaseOptions.Start is in force
	until    limit.Time // when that ends even if no lease comes; 0 = not known yet
}

// suppression is the state of a limit that is shared by suppression.
type suppression struct {
	active bool
	sent   bucket.Suppression // the coordinator's latest
}
