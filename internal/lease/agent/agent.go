package agent

import (
	"cmp"
	"slices"
	"time"

	"github.com/stint-io/stint/internal/bucket"
	"github.com/stint-io/stint/internal/due"
	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/limit"
)

// Options are the options of an Agent. Member is required.
type Options struct {
	lease.Member
	Version uint32         // 0 = ProtocolVersion
	Site    bool           // it lends on what it is lent: each Bucket is a Lender
	Jitter  func() float64 // in [0, 1); nil = always 0.5
}

// Agent is an instance's side of the protocol: it has the leases of all resources that the
// instance uses. It is a state machine: Step it with every event, and with a Tick when Next
// says so. It is not safe for concurrent use; the Buckets are.
type Agent struct {
	opts     Options
	deadline bucket.Deadline // of all leases

	leases map[uint32]*resource           // by handle
	list   []*resource                    // in the order of handles, which is that of opening
	of     map[lease.ResourceID]*resource // under the handle by which it was opened last
	serial uint32                         // the latest handle of all resources

	timers      due.Queue[*resource] // by when they need a Tick
	ready       []*resource          // with something to report now; they are in no timer
	unconfirmed []*resource          // see acks.unconfirmed

	timing  timing
	epochs  epochs
	reports reports
	terms   *lease.Terms // the latest that a Grant had; keys of one limit have the same
	left    bool
}

// epochs are those of the coordinators that sent grants.
type epochs struct {
	current uint64 // the highest; 0 = none
	lower   uint64 // a lower one that came after it; 0 = none
	claims  bool   // some lease may be of a former coordinator
	whole   whole
}

// whole is how the coordinator learns that it knows every lease of the instance.
type whole struct {
	wanted bool       // since a new connection
	after  uint64     // the number of the last report before that
	sent   limit.Time // when a complete report was sent; 0 = not yet
}

// reports are the Reports of all resources together.
type reports struct {
	number   uint64     // of the latest
	sentAt   limit.Time // the latest
	answered limit.Time // when the latest one that was answered was sent
	renew    limit.Time // when one is due even if there is nothing to report
	last     lease.Report
}

// Starved says that a request found the bucket of a handle empty. The Agent then asks the
// coordinator for more at once, if it may get more.
type Starved struct{ Handle uint32 }

// Connected says that the connection is new. Everything is reported again.
type Connected struct{}

// Disconnected says that the connection has ended. The leases stay in force until they end, but the next coordinator may
// answer otherwise than the former one.
type Disconnected struct{}

// Leave gives everything back. The Report that the Step returns is the last one.
type Leave struct{}

func (Starved) Event()      {}
func (Connected) Event()    {}
func (Disconnected) Event() {}
func (Leave) Event()        {}

// New returns an Agent without leases.
func New(o Options) *Agent {
	o.Version = cmp.Or(o.Version, lease.ProtocolVersion)
	if o.Jitter == nil {
		o.Jitter = func() float64 { return 0.5 }
	}
	return &Agent{
		opts: o, leases: map[uint32]*resource{}, of: map[lease.ResourceID]*resource{},
		timing: timing{refresh: lease.DefaultRefresh}, reports: reports{renew: lease.Never},
	}
}

// Deadline is the time at which the leases expire unless they are renewed.
func (a *Agent) Deadline() *bucket.Deadline { return &a.deadline }

// Open begins to use a resource. The Bucket must be empty. A resource that was closed may be
// opened again; its new handle is reported when the coordinator has acknowledged that the
// earlier one is closed.
func (a *Agent) Open(now limit.Time, id lease.ResourceID, o LeaseOptions, b Bucket) (handle uint32) {
	a.serial++
	r := &resource{
		id: id, handle: a.serial, opts: o, bucket: b, lease: leased{current: a.epochs.current},
		answer: answer{capRate: fixed.MaxAmount, capBurst: fixed.MaxAmount},
		report: pending{gap: lease.MinReportGap}, sampling: sampling{next: now},
	}
	if r.earlier = a.of[id]; r.earlier != nil {
		r.earlier.later, r.blocked = r, true
	}
	r.opts.Weight = max(1, o.Weight)
	if lender, ok := b.(Lender); ok {
		r.site = &site{lender: lender}
	}
	r.load.meter.Observe(now, b.Observe(now).Attempted, 1)
	if o.Start > 0 {
		r.fallback.starting = true
		r.startFallback(now, o.Start)
	}
	// The first request needs to know what kind of limit it is. An instance that is connected opens a
	// resource for a request: the report that this causes says both that it is open and what is demanded.
	if r.report.plan(now); a.timing.trip > 0 {
		r.report.notBefore = now.Add(lease.MinReportGap)
	}
	a.leases[r.handle], a.of[id] = r, r
	a.list = append(a.list, r)
	a.plan(r)
	if a.reports.renew == lease.Never {
		a.reports.renew = now // the answer measures the round trip
	}
	return r.handle
}

// Close gives back everything that is held under a handle and forgets it. Permits of a
// semaphore that are in use are given back as they are released.
func (a *Agent) Close(now limit.Time, handle uint32) {
	r := a.leases[handle]
	if r == nil || r.closed {
		return
	}
	r.giveUp(now)
	if held := r.lease.held(); r.site == nil && held.Rate == 0 && held.Burst == 0 {
		r.bucket = noBucket{} // another agent may fill it
	}
	r.closed, r.report.urgent, r.sampling.next = true, true, now
	if r.blocked {
		a.remove(r) // the coordinator does not know it
		return
	}
	a.plan(r)
}

// remove forgets a resource that is closed.
func (a *Agent) remove(r *resource) {
	r.sampling.next, r.report.urgent, r.acks.report = lease.Never, false, r.sent.number
	a.timers.Remove(r)
	delete(a.leases, r.handle)
	if i, ok := slices.BinarySearchFunc(a.list, r.handle, func(r *resource, handle uint32) int { return cmp.Compare(r.handle, handle) }); ok {
		a.list = slices.Delete(a.list, i, i+1)
	}
	if r.later != nil {
		r.later.earlier = r.earlier
	}
	if r.earlier != nil {
		r.earlier.later = r.later
	} else if r.later != nil {
		r.later.blocked = false
		a.plan(r.later)
	}
	if a.of[r.id] == r {
		if a.of[r.id] = r.earlier; r.earlier == nil {
			delete(a.of, r.id)
		}
	}
}

// Next returns when a Tick is due.
func (a *Agent) Next() limit.Time {
	if a.left {
		return lease.Never
	}
	next := a.reports.renew
	if d := limit.Time(a.deadline.Load()); d != 0 {
		next = min(next, d)
	}
	if at, ok := a.timers.First(); ok {
		next = min(next, at)
	}
	if len(a.ready) > 0 {
		next = min(next, a.reportsFrom())
	}
	return next
}

// Step takes an event at now and returns the Report to send, or nil. It is valid
// until the next Step.
func (a *Agent) Step(now limit.Time, e lease.Event) *lease.Report {
	if a.left {
		return nil
	}
	a.expireLeases(now)
	switch e := e.(type) {
	case *lease.Grant:
		a.receive(now, e)
	case Starved:
		a.Starve(now, e.Handle)
	case Observed:
		for _, h := range e.Handles {
			if r := a.leases[h]; r != nil && !r.closed {
				r.sample(now, &a.timing)
				a.plan(r)
			}
		}
	case Connected:
		a.reportAll(now)
	case Disconnected:
		for _, r := range a.list {
			r.answer.former = true
		}
	case Leave:
		return a.leave(now)
	}
	for r, ok := a.timers.Due(now); ok; r, ok = a.timers.Due(now) {
		if r.fallback.until != 0 && now >= r.fallback.until {
			r.endFallback(now)
		}
		if now >= r.sampling.next {
			r.sample(now, &a.timing)
		}
		if a.plan(r); r.due(now, &a.timing) {
			a.timers.Remove(r)
			r.timer.ready = true
			a.ready = append(a.ready, r)
		}
	}
	return a.makeReport(now)
}

// Starve takes note of what Starved says without a Step, which has to follow. One Step reports many.
func (a *Agent) Starve(now limit.Time, handle uint32) {
	a.expireLeases(now)
	if r := a.leases[handle]; r != nil {
		r.refusals.starved, r.refusals.last = true, now
		r.sample(now, &a.timing)
		a.plan(r)
	}
}

// expireLeases ends all leases at the deadline, when no grant has renewed them: from then on
// each resource spends what its ExpiryMode says.
func (a *Agent) expireLeases(now limit.Time) {
	d := limit.Time(a.deadline.Load())
	if d == 0 || now < d {
		return
	}
	a.deadline.Store(0)
	for _, r := range a.list {
		r.endLease(now, true)
		a.plan(r)
	}
}

// plan moves the timer of r after something in r has changed.
func (a *Agent) plan(r *resource) {
	if next := r.next(&a.timing); r.timer.ready || next == lease.Never {
		a.timers.Remove(r)
	} else {
		a.timers.Set(r, next)
	}
}

// reportsFrom is from when on a Report may be sent. While one is unanswered, what is to be reported is
// collected for the next one: as long as a round trip takes, so that each request waits for one at
// most, and Reports are as many as round trips, however many resources have something to report.
// Where a round trip takes longer than MinReportGap nothing waits for it.
func (a *Agent) reportsFrom() limit.Time {
	if trip := a.timing.trip; trip == 0 || trip > lease.MinReportGap || a.reports.answered >= a.reports.sentAt {
		return 0
	}
	return a.reports.sentAt.Add(lease.MinReportGap)
}

// makeReport returns the Report that is due at now, or nil.
func (a *Agent) makeReport(now limit.Time) *lease.Report {
	if now < a.reports.renew && (len(a.ready) == 0 || now < a.reportsFrom()) {
		return nil
	}
	// In the order of handles, since a heap has no order of its own that could be relied on.
	slices.SortFunc(a.ready, func(a, b *resource) int { return cmp.Compare(a.handle, b.handle) })
	demands, left := a.reports.last.Demands[:0], a.ready[:0]
	for _, r := range a.ready {
		if len(demands) == maxDemands {
			left = append(left, r)
			continue
		}
		if r.timer.ready = false; a.leases[r.handle] != r {
			continue
		}
		if r.due(now, &a.timing) {
			demands = append(demands, r.makeDemand(now, a.reports.number+1, a.timing.trip))
		}
		a.plan(r)
	}
	clear(a.ready[len(left):])
	a.ready = left
	rest := a.unconfirmed[:0]
	for _, r := range a.unconfirmed {
		switch {
		case !r.acks.unconfirmed() || a.leases[r.handle] != r:
		case len(demands) < maxDemands && !r.blocked:
			demands = append(demands, r.makeDemand(now, a.reports.number+1, a.timing.trip))
			a.plan(r)
		default:
			rest = append(rest, r)
		}
	}
	clear(a.unconfirmed[len(rest):])
	a.unconfirmed = rest
	return a.send(now, demands)
}

// send makes a Report and plans the next renewal.
func (a *Agent) send(now limit.Time, demands []lease.Demand) *lease.Report {
	a.reports.number++
	a.reports.sentAt = now
	// Jitter spreads the renewals of a fleet that started together.
	a.reports.renew = now.Add(a.timing.refresh - time.Duration(a.opts.Jitter()*float64(a.timing.refresh)/4))
	a.reports.last = lease.Report{
		Member: a.opts.Member, Version: a.opts.Version, Epoch: a.epochs.current, Number: a.reports.number,
		Stamp: time.Duration(now), Demands: demands, Complete: a.epochs.whole.wanted && a.complete(), Site: a.opts.Site,
	}
	if a.reports.last.Complete {
		a.epochs.whole.sent = now
	}
	return &a.reports.last
}

// complete says whether with the latest Report the coordinator has every lease: each is in that one,
// or in one since the connection that was acknowledged. A lease that cannot be claimed is in none.
func (a *Agent) complete() bool {
	for _, r := range a.list {
		if r.lease.number == 0 {
			continue
		}
		known := r.sent.number > a.epochs.whole.after && (r.sent.number == a.reports.number || r.acks.report >= r.sent.number)
		if r.lease.orphan || !known {
			return false
		}
	}
	return true
}

// completed takes note of whether a complete report has arrived, and plans one when there is
// something to complete.
func (a *Agent) completed(now limit.Time, g *lease.Grant) {
	w := &a.epochs.whole
	switch {
	case !w.wanted:
	case w.sent != 0 && limit.Time(g.Echo) >= w.sent:
		w.wanted = false
	case w.sent == 0 && a.complete():
		a.reports.renew = now
	}
}

// reportAll plans a report of everything, for a coordinator that may know nothing.
func (a *Agent) reportAll(now limit.Time) {
	a.reports.renew = now
	for _, r := range a.list {
		r.report.urgent, r.acks.named, r.lease.claiming = true, false, r.lease.number != 0
		r.report.notBefore = now
		a.plan(r)
	}
	a.epochs.claims = true
	a.epochs.whole = whole{wanted: true, after: a.reports.number}
}

// leave gives everything back and makes the last Report.
func (a *Agent) leave(now limit.Time) *lease.Report {
	demands := a.reports.last.Demands[:0]
	for _, r := range a.list {
		// What is returned is named, so that others can spend the tokens. Where there is more than a
		// report has room for they count as spent.
		if r.giveUp(now); r.lease.number != 0 && !r.blocked && len(demands) < maxDemands {
			demands = append(demands, r.makeDemand(now, a.reports.number+1, a.timing.trip))
		}
	}
	r := a.send(now, demands)
	r.Leaving, a.left = true, true
	a.deadline.Store(0)
	return r
}

// receive puts a Grant in force.
func (a *Agent) receive(now limit.Time, g *lease.Grant) {
	if g.To != a.opts.Member || g.NotMaster || g.Status != lease.StatusOK {
		return
	}
	if g.Epoch < a.epochs.current {
		// This coordinator may lend what another one has lent already. A report carries the
		// higher epoch, and the coordinator then goes above it. Not at once each time: a
		// coordinator of another version may stay below, and each of its grants would be
		// answered by a report.
		a.epochs.lower = g.Epoch
		a.reports.renew = min(a.reports.renew, max(now, a.reports.sentAt.Add(a.timing.refresh/4)))
		return
	}
	if g.Epoch > a.epochs.current {
		a.beginEpoch(g.Epoch)
	}
	if g.Refresh > 0 {
		a.timing.refresh = min(g.Refresh, time.Minute)
	}
	if age := time.Duration(now) - g.Echo - g.Age; g.Echo > 0 && g.Age < time.Second && age >= 0 {
		if a.timing.trip == 0 || age < a.timing.trip {
			a.timing.trip = max(age, time.Microsecond)
		}
		a.timing.trip += (age - a.timing.trip) / 8
	}
	a.timing.lease = g.Lease
	a.reports.answered = max(a.reports.answered, limit.Time(g.Echo))
	a.extend(now, g)
	// The end that this grant itself brings counts as well: a later grant may have extended
	// the deadline after the coordinator took back what this one grants.
	if limit.Time(g.Echo).Add(g.Lease) <= now || limit.Time(a.deadline.Load()) <= now {
		return // too late; the totals of the next grant include it
	}
	defer a.extend(now, g) // a share of this grant may confirm the last claim
	defer a.completed(now, g)
	for i := range g.Shares {
		s := &g.Shares[i]
		if r := a.leases[s.Handle]; r != nil {
			r.receive(now, &a.timing, g, s, &a.terms)
			a.epochs.claims = a.epochs.claims || r.lease.claiming
			if r.acks.unconfirmed() {
				a.unconfirmed = append(a.unconfirmed, r)
			}
			if r.sent.closed && r.acknowledged() {
				a.remove(r)
			} else {
				a.plan(r)
			}
		} else if s.Lease != 0 {
			a.giveBackForgotten(s, g.Number)
		}
	}
}

// extend renews the leases. Their length counts from when the report was made, which is
// before the coordinator received it, so they expire here before they expire there. While a
// lease of a former coordinator is not confirmed, nothing is extended: the new coordinator
// does not count that lease yet.
func (a *Agent) extend(now limit.Time, g *lease.Grant) {
	if a.epochs.claims {
		for _, r := range a.list {
			if r.lease.claiming && r.lease.number != 0 {
				return
			}
		}
		a.epochs.claims = false
	}
	if end := limit.Time(g.Echo).Add(g.Lease); g.Echo > 0 && end > now {
		a.deadline.Store(max(int64(end), a.deadline.Load()))
	}
}

// LowerEpoch is the epoch of the latest grant that came from a coordinator of an epoch below
// Epoch; 0 = none.
func (a *Agent) LowerEpoch() uint64 { return a.epochs.lower }

// Epoch is the highest epoch of a coordinator that sent a grant; 0 = none.
func (a *Agent) Epoch() uint64 { return a.epochs.current }

// beginEpoch begins with a new coordinator. Leases of the former one are in force until they
// expire or are claimed.
func (a *Agent) beginEpoch(epoch uint64) {
	first := a.epochs.current == 0
	a.epochs.claims = true
	a.epochs.current, a.epochs.lower = epoch, 0
	for _, r := range a.list {
		r.acks.grant, r.acks.confirmed, r.acks.changed, r.lease.dropped, r.lease.current = 0, 0, 0, 0, epoch
		if r.lease.number != 0 {
			r.lease.claiming, r.report.urgent, r.report.notBefore = true, true, 0
		}
		if !first {
			r.acks.named = false
		}
		a.plan(r)
	}
}

// giveBackForgotten gives back what was granted to a handle that is forgotten.
func (a *Agent) giveBackForgotten(s *lease.Share, number uint64) {
	r := &resource{
		handle: s.Handle, bucket: noBucket{}, closed: true,
		lease:  leased{number: s.Lease, granted: s.Granted, returned: s.Granted},
		answer: answer{capRate: fixed.MaxAmount, capBurst: fixed.MaxAmount},
		acks:   acks{named: true, grant: number, changed: number},
		report: pending{urgent: true, gap: lease.MinReportGap}, sampling: sampling{next: lease.Never},
	}
	a.leases[r.handle] = r
	i, _ := slices.BinarySearchFunc(a.list, r.handle, func(r *resource, handle uint32) int { return cmp.Compare(r.handle, handle) })
	a.list = slices.Insert(a.list, i, r)
	a.plan(r)
}
