package agent

import (
	"time"

	"github.com/stint-io/stint/internal/bucket"
	"github.com/stint-io/stint/internal/demand"
	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/limit"
)

// resource is what a Holder has of one resource.
type resource struct {
	id        lease.ResourceID
	handle    uint32
	opts      LeaseOptions
	bucket    Bucket
	heapIndex int        // in the agenda; -1 = it is not
	dueAt     limit.Time // as the agenda has it
	blocked   bool       // its resource is still being closed under another handle
	before    *resource  // the same resource under an earlier handle, not closed yet
	after     *resource  // and under a later one

	lease             uint64 // 0 = none
	epoch             uint64 // that gave it
	current           uint64 // epoch of the coordinator
	dropped           uint64 // the latest that ran out or was given up: it never comes back
	granted, returned lease.Capacity
	token             []byte
	claiming          bool       // the lease is of a former coordinator and not confirmed
	orphan            bool       // and cannot be claimed: it is spent until it runs out
	expired           bool       // it ran out, and the mode of expiry is in force
	starting          bool       // no lease has come, and the optimistic start is in force
	aloneTo           limit.Time // when that ends even if no lease comes; 0 = not known yet

	// What the coordinator told last.
	known, named               bool
	status                     lease.Status
	saturated, contended       bool
	recovering                 bool
	terms                      lease.Terms
	safe                       fixed.Amount
	capRate, capBurst          fixed.Amount
	ackedGrant, confirmed      uint64 // number of the last Grant; of those, what was told back
	brought                    uint64 // number of the last Grant that brought something
	ackedReport                uint64 // number of the last Report that it has taken note of
	sent                       uint64 // number of the last Report that told of this
	sentAt                     limit.Time
	sentDemand, sentShortfall  fixed.Amount
	meter                      demand.Meter
	admitted                   *demand.Meter // for demand that is known by use alone
	others                     fixed.Amount  // was asked for, and not admitted at once
	demand, shortfall, waiting fixed.Amount
	attempted, passed          fixed.Amount // totals, for a limit that is shared by suppression
	sentAttempted              fixed.Amount
	sentMore                   bool         // than was sent before
	largest                    fixed.Amount // cost of the largest request of late
	suppressing                bool
	suppression                bucket.Suppression // as told last
	recentUntil                limit.Time         // a gauge keeps the places it used of late
	recentPermits              fixed.Amount
	starved                    bool
	refusedAt                  limit.Time // an attempt was refused then
	shortUntil                 limit.Time // and until then that is recent
	shortfallUntil             limit.Time // an attempt was refused not long before
	waitUntil                  limit.Time // when those who wait go away; 0 = not known, or nobody
	steady                     int        // looks without a change
	sampleAt                   limit.Time
	urgent                     bool
	askAt                      limit.Time    // not before, when urgent
	gap                        time.Duration // between asks that bring nothing
	idleSince                  limit.Time
	closed, sentClosed         bool
	tries                      int // reports in a row without an answer
}

const (
	// minSampleGap is between two looks at a bucket that is being used, longestLook
	// between those at one that is quiet. A look costs a fraction of a
	// microsecond; what it sees late is capacity that stays where nobody uses it.
	minSampleGap = 10 * time.Millisecond
	maxSampleGap = 160 * time.Millisecond
	// confirmWithin is how soon a raise is confirmed, if nothing else is told.
	confirmWithin = 100 * time.Millisecond
)

func (l *resource) held() lease.Capacity { return l.granted.Sub(l.returned) }

// next is when the lease needs a Tick.
func (l *resource) next(h *Agent) limit.Time {
	if l.blocked {
		return lease.Never
	}
	next := l.sampleAt
	if l.urgent {
		next = min(next, l.askAt)
	}
	if l.sent > l.ackedReport {
		next = min(next, l.sentAt.Add(l.patience(h)))
	}
	if l.aloneTo != 0 {
		next = min(next, l.aloneTo)
	}
	return next
}

// patience is how long to wait for an answer; the longer the more were lost, since a
// coordinator that is gone is not found by asking often.
func (l *resource) patience(h *Agent) time.Duration {
	return min(h.retry()<<min(l.tries, 6), max(h.refresh, h.retry()))
}

// due says whether something is to be told at now.
func (l *resource) due(now limit.Time, h *Agent) bool {
	return l.urgent && now >= l.askAt || l.sent > l.ackedReport && now >= l.sentAt.Add(l.patience(h))
}

// unconfirmed says whether the coordinator does not know yet that something was heard.
func (l *resource) unconfirmed() bool { return l.brought > l.confirmed }

// acknowledged says whether the coordinator knows all that there is to know.
func (l *resource) acknowledged() bool { return !l.urgent && l.ackedReport >= l.sent && l.sent > 0 }

// makeDemand is what to tell about the lease in the Report with that number.
func (l *resource) makeDemand(now limit.Time, number uint64, trip time.Duration) lease.Demand {
	if l.sent > l.ackedReport {
		l.tries++
	}
	d := lease.Demand{
		Handle: l.handle, Lease: l.counted(), Silent: l.opts.Silent, Rate: l.demand, Need: l.shortfall,
		Weight: l.opts.Weight, Band: l.opts.Band, Closed: l.closed && l.held().Burst <= 0, Returned: l.returned, AckedGrant: l.ackedGrant,
	}
	if l.terms.Suppress != nil {
		d.Attempted, d.Admitted = l.attempted, l.passed
		d.Need = l.largest
		l.sentMore, l.sentAttempted = l.attempted != l.sentAttempted, l.attempted
	}
	if !l.named || d.Lease == 0 {
		d.Resource, d.Attributes = l.id, l.opts.Attributes
	}
	if l.claiming && !l.orphan {
		d.Claim = l.token
	}
	if l.waitUntil != 0 && now >= l.shortfallUntil {
		// Half of the round trip has passed when the coordinator has it, the
		// other half passes before the answer is here.
		d.Within = max(time.Duration(l.waitUntil-now)-trip, 1)
	}
	if l.closed || l.opts.Silent || l.content() {
		d.Rate, d.Need = 0, 0
	}
	l.sent, l.sentAt, l.sentDemand, l.sentShortfall, l.confirmed = number, now, l.demand, l.shortfall, l.ackedGrant
	l.urgent, l.starved, l.sentClosed = false, false, d.Closed
	return d
}

// ask plans a report, gap after the last one.
func (l *resource) ask(now limit.Time, gap time.Duration) {
	at := max(now, l.sentAt.Add(gap))
	if !l.urgent || at < l.askAt {
		l.urgent, l.askAt = true, at
	}
}

// receive takes what the coordinator tells.
func (l *resource) receive(now limit.Time, h *Agent, g *lease.Grant, s *lease.Share) {
	if g.Number <= l.ackedGrant {
		return // an older one, late or doubled
	}
	l.ackedGrant = g.Number
	if s.AckedReport >= l.sent {
		l.tries = 0
		if l.ackedReport < l.sent && l.held().Rate > l.demand {
			l.sampleAt = min(l.sampleAt, now) // what is not needed can be given back now
		}
	}
	l.ackedReport = max(l.ackedReport, s.AckedReport)
	l.status = s.Status
	switch s.Status {
	case lease.StatusOK, lease.StatusBadDemand, lease.StatusBroken:
	case lease.StatusLeaseGone, lease.StatusBadClaim:
		l.unknown(now, s.Status, h)
		return
	default:
		l.gone(now, h)
		return
	}
	l.known, l.named = true, true
	was := l.content()
	l.saturated, l.contended, l.recovering, l.terms, l.safe = s.Saturated, s.Contended, s.Recovering, s.Limit, s.Safe
	if was && !l.recovering {
		l.ask(now, lease.MinReportGap)
	}
	l.capRate, l.capBurst = s.CapRate, s.CapBurst
	if s.Token != nil {
		l.token = s.Token
	}
	if l.closed {
		if l.granted != s.Granted {
			l.brought = l.ackedGrant
		}
		l.granted = s.Granted
		l.lease, l.orphan = s.Lease, false
		l.shrinkTo(now, 0, 0)
		return
	}
	l.adopt(now, s)
	l.alone(now, h)
	l.suppress(now, s.Suppress)
}

// alone ends what is spent without a lease when it is known that no lease comes: not
// while the coordinator learns what is lent, and not before it has had the time to call
// something back, for which one who does not answer has a whole lease.
func (l *resource) alone(now limit.Time, h *Agent) {
	switch {
	case !l.starting && !l.expired:
	case l.lease != 0:
		l.starting, l.expired, l.aloneTo = false, false, 0
	case l.recovering:
		l.aloneTo = 0
	case l.starting:
		l.endAlone(now) // it was for before the first answer
	case l.aloneTo == 0:
		l.aloneTo = now.Add(h.length)
	case now >= l.aloneTo:
		l.endAlone(now)
	}
}

// content says whether the instance asks for nothing because it spends what its mode says,
// and the coordinator learns: the little that is surely free is for those who have nothing.
func (l *resource) content() bool {
	return l.recovering && l.lease == 0 && l.terms.Suppress == nil && (l.starting || l.expired && l.opts.Expiry != Pessimistic)
}

// endAlone spends nothing without a lease any more.
func (l *resource) endAlone(now limit.Time) {
	l.starting, l.expired, l.aloneTo = false, false, 0
	l.bucket.Update(now, 0, 0, 0)
}

// unknown takes note that the coordinator does not know the lease, and asks for another.
// One that a former coordinator gave is spent until it runs out all the same: this one
// lends nothing of it before that.
func (l *resource) unknown(now limit.Time, status lease.Status, h *Agent) {
	l.named = false
	switch {
	case l.closed:
		l.gone(now, h)
	case l.orphan, l.lease == 0 && (l.starting || l.expired):
		l.ask(now, lease.MinReportGap)
	case l.lease != 0 && l.claiming && l.token != nil && status == lease.StatusLeaseGone:
		l.ask(now, lease.MinReportGap)
	case l.lease != 0 && l.epoch != l.current:
		l.orphan, l.token = true, nil
		l.ask(now, lease.MinReportGap)
	default:
		l.gone(now, h)
	}
}

// counted is the lease as far as the coordinator counts it.
func (l *resource) counted() uint64 {
	if l.orphan {
		return 0
	}
	return l.lease
}

// gone drops a lease of which the coordinator lends nothing, and asks again.
func (l *resource) gone(now limit.Time, h *Agent) {
	l.drop(now, false)
	l.starting, l.expired, l.aloneTo = false, false, 0
	l.named = false
	if l.closed {
		return
	}
	if l.status == lease.StatusLeaseGone || l.status == lease.StatusBadClaim {
		l.ask(now, lease.MinReportGap)
		return
	}
	// The limit may come with the next configuration.
	l.urgent, l.askAt, l.shortfall = true, now.Add(max(h.refresh, lease.DefaultRefresh)), 0
	l.known = true
}

// adopt puts in force what was granted since, and comes down to what may be kept.
func (l *resource) adopt(now limit.Time, s *lease.Share) {
	more := lease.Capacity{}
	switch {
	case s.Lease == 0 || s.Lease <= l.dropped && s.Lease != l.lease:
		l.claiming = l.claiming && l.lease != 0
		l.unanswered()
		return
	case s.Lease != l.lease:
		if l.orphan {
			// The tokens that are left of it were not lent by this coordinator.
			l.orphan = false
			l.bucket.Update(now, 0, 0, 0)
		}
		// A claim that was taken keeps the tokens that are in the bucket.
		more = s.Granted
		l.lease, l.epoch, l.granted, l.returned = s.Lease, l.current, s.Granted, lease.Capacity{}
		l.dropped = max(l.dropped, s.Lease-1)
	default:
		more = s.Granted.Sub(l.granted)
		if more.Rate < 0 || more.Burst < 0 || more.Tokens < 0 {
			return
		}
		l.granted = s.Granted
	}
	l.claiming = false
	if more != (lease.Capacity{}) {
		l.brought = l.ackedGrant
	}
	before := l.returned
	held := l.held()
	l.update(now, min(held.Rate, l.capRate), min(held.Burst, l.capBurst), more.Tokens)
	switch {
	case l.returned != before:
		l.urgent, l.askAt = true, now // others wait for it
	case more != (lease.Capacity{}):
		l.gap, l.sentShortfall = lease.MinReportGap, 0
		if !l.urgent {
			l.urgent, l.askAt = true, now.Add(confirmWithin)
		}
		// See soon whether it is enough.
		l.sampleAt = min(l.sampleAt, now.Add(minSampleGap))
	default:
		l.unanswered()
	}
}

// unanswered waits longer before it asks again for what did not come.
func (l *resource) unanswered() {
	if l.shortfall > 0 {
		l.gap = min(2*l.gap, time.Second)
	}
}

// update puts a rate and a depth in force that are at most what is held, and notes
// what was given back by it.
func (l *resource) update(now limit.Time, rate, depth, add fixed.Amount) {
	held := l.held()
	surplus, inForce := l.bucket.Update(now, rate, depth, add)
	l.returned.Rate += held.Rate - rate
	l.returned.Burst += max(0, held.Burst-inForce)
	l.returned.Tokens += surplus
}

// shrinkTo gives back what is held above rate and depth, of its own accord.
func (l *resource) shrinkTo(now limit.Time, rate, depth fixed.Amount) {
	held := l.held()
	if l.lease == 0 || held.Rate <= rate && held.Burst <= depth {
		return
	}
	before := l.returned
	l.update(now, min(rate, held.Rate), min(depth, held.Burst), 0)
	if l.returned != before {
		l.ask(now, lease.MinReportGap)
	}
}

// giveUp gives back everything and spends nothing without a lease either.
func (l *resource) giveUp(now limit.Time) {
	l.shrinkTo(now, 0, 0)
	if l.lease == 0 {
		l.endAlone(now)
	}
}

// drop stops spending under the lease, which nobody may count on any more.
func (l *resource) drop(now limit.Time, expired bool) {
	if l.lease != 0 || (l.starting || l.expired) && !expired {
		l.bucket.Update(now, 0, 0, 0)
	}
	had := l.lease != 0
	if l.epoch == l.current {
		l.dropped = max(l.dropped, l.lease)
	}
	l.lease, l.granted, l.returned, l.claiming, l.orphan, l.token = 0, lease.Capacity{}, lease.Capacity{}, false, false, nil
	if !expired {
		return
	}
	l.ask(now, lease.MinReportGap)
	if l.closed {
		return
	}
	l.sampleAt = min(l.sampleAt, now.Add(minSampleGap))
	if !had && !l.known {
		return
	}
	l.expired, l.aloneTo = true, 0
	if l.suppressing {
		l.suppressAlone(now)
		return
	}
	switch l.opts.Expiry {
	case Optimistic:
		// What it wants, up to the whole limit. It may begin to want only now.
		whole := l.terms.Rate
		if l.terms.Semaphore {
			whole = l.terms.Burst
		}
		if l.opts.Estimator == Declared && l.demand > 0 {
			whole = min(whole, l.demand)
		}
		l.fallBack(now, whole)
	case Safe:
		l.fallBack(now, l.safe)
	}
}

// fallback is a Spender that can be used without a lease.
type fallback interface {
	// UpdateFallback puts in force what may be spent without a lease, whatever the
	// deadline, until the next Amend.
	UpdateFallback(now limit.Time, rate, depth fixed.Amount)
}

// fallBack spends rate without a lease, or as many places of a gauge.
func (l *resource) fallBack(now limit.Time, rate fixed.Amount) {
	f, ok := l.bucket.(fallback)
	if !ok || rate <= 0 {
		return
	}
	depth := max(fixed.Token, rate/10/fixed.Token*fixed.Token) // a tenth of a second
	if l.terms.Semaphore {
		rate, depth = 0, max(fixed.Token, rate/fixed.Token*fixed.Token)
	} else if l.terms.Rate > 0 {
		depth = max(fixed.Token, l.terms.Burst.Scale(min(rate, l.terms.Rate), l.terms.Rate)/fixed.Token*fixed.Token)
	}
	f.UpdateFallback(now, rate, depth)
}
