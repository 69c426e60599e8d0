package agent

import (
	"cmp"
	"slices"
	"time"

	"github.com/stint-io/stint/internal/bucket"
	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/limit"
)

// Estimator says how an instance knows its demand. The zero value is Attempted.
type Estimator uint8

// The ways to know the demand.
const (
	Attempted   Estimator = iota // arrivals, refused and waiting ones included
	Declared                     // the caller says
	Utilisation                  // only what was admitted is known, as with pull consumers
)

// ExpiryMode says what an instance spends when its lease has run out, because no
// coordinator could be reached. The zero value is Pessimistic.
type ExpiryMode uint8

// The modes at expiry.
const (
	Pessimistic ExpiryMode = iota // nothing
	Optimistic                    // what it wants, up to the whole limit
	Safe                          // the safe capacity that came with every answer
)

// LeaseOptions are how an instance uses one resource. The zero value measures its
// makeDemand, waits for its first lease and stops at expiry.
type LeaseOptions struct {
	Weight    uint32 // such as the number of clients behind the instance; 0 counts as 1
	Band      uint8  // higher goes first
	Silent    bool   // does not report demand and keeps an equal share
	Estimator Estimator
	Expiry    ExpiryMode
	// Start is the rate to spend before the first answer, in tokens per second, or
	// the places of a gauge; 0 = nothing (strict).
	Start fixed.Amount
	// Attributes are those that the values of the resource's key come from, which the
	// coordinator compares with the limit's; nil = not said.
	Attributes []string
}

// Options are the choices of a Holder. Member is required.
type Options struct {
	lease.Member
	Version uint32         // 0 = ProtocolVersion
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
	of     map[lease.ResourceID]*resource // the handle opened last
	serial uint32                         // the handle opened last

	timers      timers
	ready       []*resource // scratch
	unconfirmed []*resource // see acks.unconfirmed

	timing  timing
	epochs  epochs
	reports reports
	left    bool
}

// epochs are those of the coordinators that sent grants.
type epochs struct {
	current uint64 // the highest; 0 = none
	lower   uint64 // a lower one that came after it; 0 = none
	claims  bool   // some lease may be of a former coordinator
}

// reports are the Reports of all resources together.
type reports struct {
	number uint64     // of the latest
	sentAt limit.Time // the latest
	renew  limit.Time // when one is due even if there is nothing to report
	last   lease.Report
}

// Starved says that a Take found the bucket of a handle empty, so that more is asked
// for at once if that can help.
type Starved struct{ Handle uint32 }

// Connected says that the connection is new: everything is told again.
type Connected struct{}

// Leave gives everything back. The Report that the Step returns is the last.
type Leave struct{}

func (Starved) Event()   {}
func (Connected) Event() {}
func (Leave) Event()     {}

// New returns a Holder without leases.
func New(o Options) *Agent {
	o.Version = cmp.Or(o.Version, lease.ProtocolVersion)
	if o.Jitter == nil {
		o.Jitter = func() float64 { return 0.5 }
	}
	return &Agent{opts: o, leases: map[uint32]*resource{}, of: map[lease.ResourceID]*resource{}, timing: timing{refresh: lease.DefaultRefresh}, reports: reports{renew: lease.Never}}
}

// Deadline is until when its leases may be spent.
func (h *Agent) Deadline() *bucket.Deadline { return &h.deadline }

// Open begins to use a resource. The Spender should be empty. A resource that is open
// may be opened again once it is closed, and begins when the coordinator has taken
// note of that.
func (h *Agent) Open(now limit.Time, id lease.ResourceID, o LeaseOptions, s Bucket) (handle uint32) {
	h.serial++
	l := &resource{
		id: id, handle: h.serial, opts: o, bucket: s, lease: leased{current: h.epochs.current},
		answer: answer{capRate: fixed.MaxAmount, capBurst: fixed.MaxAmount},
		report: pending{gap: lease.MinReportGap}, sampling: sampling{next: now}, timer: timer{index: -1},
	}
	// A coordinator knows one handle for a resource at a time.
	if l.earlier = h.of[id]; l.earlier != nil {
		l.earlier.later, l.blocked = l, true
	}
	l.opts.Weight = max(1, o.Weight)
	l.load.meter.Observe(now, s.Observe(now).Attempted, 1)
	if o.Start > 0 {
		l.fallback.starting = true
		l.fallBack(now, o.Start)
	}
	l.report.urgent = true // what kind of limit it is has to be known before it is asked
	h.leases[l.handle], h.of[id] = l, l
	h.list = append(h.list, l)
	h.plan(l)
	if h.reports.renew == lease.Never {
		h.reports.renew = now // introduce yourself: the answer brings the round trip
	}
	return l.handle
}

// Close gives back everything that is held under a handle and forgets it. Places of a
// gauge that are in use are given back as they are released.
func (h *Agent) Close(now limit.Time, handle uint32) {
	l := h.leases[handle]
	if l == nil || l.closed {
		return
	}
	l.giveUp(now)
	l.closed, l.report.urgent, l.sampling.next = true, true, now
	if l.blocked {
		h.remove(l) // nobody was told of it
		return
	}
	h.plan(l)
}

// remove forgets a lease that is closed.
func (h *Agent) remove(l *resource) {
	l.sampling.next, l.report.urgent, l.acks.report = lease.Never, false, l.sent.number
	h.plan(l)
	delete(h.leases, l.handle)
	if i, ok := slices.BinarySearchFunc(h.list, l.handle, func(l *resource, handle uint32) int { return cmp.Compare(l.handle, handle) }); ok {
		h.list = slices.Delete(h.list, i, i+1)
	}
	if l.later != nil {
		l.later.earlier = l.earlier
	}
	if l.earlier != nil {
		l.earlier.later = l.later
	} else if l.later != nil {
		l.later.blocked = false
		h.plan(l.later)
	}
	if h.of[l.id] == l {
		if h.of[l.id] = l.earlier; l.earlier == nil {
			delete(h.of, l.id)
		}
	}
}

// Next returns when a Tick is due.
func (h *Agent) Next() limit.Time {
	if h.left {
		return lease.Never
	}
	next := h.reports.renew
	if d := limit.Time(h.deadline.Load()); d != 0 {
		next = min(next, d)
	}
	if len(h.timers) > 0 {
		next = min(next, h.timers[0].timer.at)
	}
	return next
}

// Step takes an event at now and returns the Report to send, or nil. It is valid
// until the next Step.
func (h *Agent) Step(now limit.Time, e lease.Event) *lease.Report {
	if h.left {
		return nil
	}
	h.expire(now)
	switch e := e.(type) {
	case *lease.Grant:
		h.receive(now, e)
	case Starved:
		if l := h.leases[e.Handle]; l != nil {
			l.refusals.starved, l.refusals.last = true, now
			l.sample(now, &h.timing)
			h.plan(l)
		}
	case Connected:
		h.reportAll(now)
	case Leave:
		return h.leave(now)
	}
	for _, l := range h.due(now) {
		if l.fallback.until != 0 && now >= l.fallback.until {
			l.endAlone(now)
		}
		if now >= l.sampling.next {
			l.sample(now, &h.timing)
		}
		h.plan(l)
	}
	return h.makeReport(now)
}

// expire ends the leases when no answer has come for too long.
func (h *Agent) expire(now limit.Time) {
	d := limit.Time(h.deadline.Load())
	if d == 0 || now < d {
		return
	}
	h.deadline.Store(0)
	for _, l := range h.list {
		l.drop(now, true)
		h.plan(l)
	}
}

// makeReport makes the Report of what is to be told at now.
func (h *Agent) makeReport(now limit.Time) *lease.Report {
	ready := h.due(now)
	if len(ready) == 0 && now < h.reports.renew {
		return nil
	}
	demands := h.reports.last.Demands[:0]
	for _, l := range ready {
		if len(demands) < maxDemands && l.due(now, &h.timing) {
			demands = append(demands, l.makeDemand(now, h.reports.number+1, h.timing.trip))
		}
		h.plan(l)
	}
	fresh := h.unconfirmed[:0]
	for _, l := range h.unconfirmed {
		switch {
		case !l.acks.unconfirmed() || h.leases[l.handle] != l:
		case len(demands) < maxDemands && !l.blocked:
			demands = append(demands, l.makeDemand(now, h.reports.number+1, h.timing.trip))
			h.plan(l)
		default:
			fresh = append(fresh, l)
		}
	}
	clear(h.unconfirmed[len(fresh):])
	h.unconfirmed = fresh
	return h.send(now, demands)
}

func (h *Agent) send(now limit.Time, demands []lease.Demand) *lease.Report {
	h.reports.number++
	h.reports.sentAt = now
	// A fleet that started together should not renew together.
	h.reports.renew = now.Add(h.timing.refresh - time.Duration(h.opts.Jitter()*float64(h.timing.refresh)/4))
	h.reports.last = lease.Report{
		Member: h.opts.Member, Version: h.opts.Version, Epoch: h.epochs.current, Number: h.reports.number,
		Stamp: time.Duration(now), Demands: demands,
	}
	return &h.reports.last
}

// reportAll prepares to tell everything to a coordinator that may know nothing.
func (h *Agent) reportAll(now limit.Time) {
	h.reports.renew = now
	for _, l := range h.list {
		l.report.urgent, l.acks.named, l.lease.claiming = true, false, l.lease.number != 0
		l.report.notBefore = now
		h.plan(l)
	}
	h.epochs.claims = true
}

func (h *Agent) leave(now limit.Time) *lease.Report {
	for _, l := range h.list {
		l.giveUp(now)
	}
	r := h.send(now, nil)
	r.Leaving, h.left = true, true
	h.deadline.Store(0)
	return r
}

// receive takes what a coordinator tells.
func (h *Agent) receive(now limit.Time, g *lease.Grant) {
	if g.To != h.opts.Member || g.NotMaster || g.Status != lease.StatusOK {
		return
	}
	if g.Epoch < h.epochs.current {
		// It lends what another coordinator may have lent already. A report tells it of
		// the higher epoch, above which it then goes. Not at once each time: it may be of
		// a version that does not.
		h.epochs.lower = g.Epoch
		h.reports.renew = min(h.reports.renew, max(now, h.reports.sentAt.Add(h.timing.refresh/4)))
		return
	}
	if g.Epoch > h.epochs.current {
		h.succeed(g.Epoch)
	}
	if g.Refresh > 0 {
		h.timing.refresh = min(g.Refresh, time.Minute)
	}
	if age := time.Duration(now) - g.Echo - g.Age; g.Echo > 0 && g.Age < time.Second && age >= 0 {
		if h.timing.trip == 0 || age < h.timing.trip {
			h.timing.trip = max(age, time.Microsecond)
		}
		h.timing.trip += (age - h.timing.trip) / 8
	}
	h.timing.lease = g.Lease
	h.extend(now, g)
	// Its own end counts as well: a later one may have extended the deadline in
	// another lease, after the coordinator took back what this one brings.
	if limit.Time(g.Echo).Add(g.Lease) <= now || limit.Time(h.deadline.Load()) <= now {
		return // it comes too late to be of use, and will be said again
	}
	defer h.extend(now, g) // what held it up may be gone
	for i := range g.Shares {
		s := &g.Shares[i]
		if l := h.leases[s.Handle]; l != nil {
			l.receive(now, &h.timing, g, s)
			if l.acks.unconfirmed() {
				h.unconfirmed = append(h.unconfirmed, l)
			}
			if l.sent.closed && l.acknowledged() {
				h.remove(l)
			} else {
				h.plan(l)
			}
		} else if s.Lease != 0 {
			h.refuse(s, g.Number)
		}
	}
}

// extend renews the leases. They are counted from the moment the report was made,
// which is before the coordinator had it: so they end here before they end there.
func (h *Agent) extend(now limit.Time, g *lease.Grant) {
	if h.epochs.claims {
		for _, l := range h.list {
			if l.lease.claiming && l.lease.number != 0 {
				return // of a former coordinator: this one does not count it yet
			}
		}
		h.epochs.claims = false
	}
	if end := limit.Time(g.Echo).Add(g.Lease); g.Echo > 0 && end > now {
		h.deadline.Store(max(int64(end), h.deadline.Load()))
	}
}

// LowerEpoch is the epoch of a coordinator that is below the one heard before, and was
// ackedGrant after it; 0 = there was none.
func (h *Agent) LowerEpoch() uint64 { return h.epochs.lower }

// Epoch is the highest epoch of a coordinator that was heard; 0 = none.
func (h *Agent) Epoch() uint64 { return h.epochs.current }

// succeed begins with a new coordinator. Leases of the former one hold until they
// run out, or until they are claimed.
func (h *Agent) succeed(epoch uint64) {
	first := h.epochs.current == 0
	h.epochs.claims = true
	h.epochs.current, h.epochs.lower = epoch, 0
	for _, l := range h.list {
		l.acks.grant, l.acks.confirmed, l.acks.changed, l.lease.dropped, l.lease.current = 0, 0, 0, 0, epoch
		if l.lease.number != 0 {
			l.lease.claiming, l.report.urgent, l.report.notBefore = true, true, 0
		}
		if !first {
			l.acks.named = false
		}
		h.plan(l)
	}
}

// refuse gives back what came for a handle that was forgotten.
func (h *Agent) refuse(s *lease.Share, number uint64) {
	l := &resource{
		handle: s.Handle, bucket: noBucket{}, closed: true,
		lease:  leased{number: s.Lease, granted: s.Granted, returned: s.Granted},
		answer: answer{capRate: fixed.MaxAmount, capBurst: fixed.MaxAmount},
		acks:   acks{named: true, grant: number, changed: number},
		report: pending{urgent: true, gap: lease.MinReportGap}, sampling: sampling{next: lease.Never}, timer: timer{index: -1},
	}
	h.leases[l.handle] = l
	i, _ := slices.BinarySearchFunc(h.list, l.handle, func(l *resource, handle uint32) int { return cmp.Compare(l.handle, handle) })
	h.list = slices.Insert(h.list, i, l)
	h.plan(l)
}

// noBucket is the Spender of a handle that was forgotten.
type noBucket struct{}

func (noBucket) Observe(limit.Time) bucket.Reading { return bucket.Reading{} }
func (noBucket) Update(limit.Time, fixed.Amount, fixed.Amount, fixed.Amount) (surplus, held fixed.Amount) {
	return 0, 0
}

// State is how a resource stands at the instance.
type State struct {
	Known      bool // an answer has come
	Leased     bool // a lease has come, and has not expired
	Status     lease.Status
	Held       lease.Capacity // rate and depth
	Saturated  bool           // demand is above the limit
	Contended  bool
	Recovering bool
	Expired    bool // the lease ran out
	Limit      lease.Terms
	RoundTrip  time.Duration // 0 = unknown
	Demand     fixed.Amount
	Asking     bool // more was asked for, and the answer is not there
	// Suppression is in force, of a limit that is shared so.
	Suppression bucket.Suppression
}

// State returns how the resource of a handle stands.
func (h *Agent) State(handle uint32) State {
	l := h.leases[handle]
	if l == nil {
		return State{}
	}
	held := l.lease.granted.Sub(l.lease.returned)
	held.Tokens = 0
	return State{
		Known: l.answer.known, Leased: l.lease.number != 0, Status: l.answer.status, Held: held, Saturated: l.answer.saturated, Contended: l.answer.contended, Recovering: l.answer.recovering,
		Expired: l.fallback.expired, Limit: l.answer.limit, RoundTrip: h.timing.trip, Demand: l.load.demand, Asking: l.sent.number > l.acks.report && l.sent.shortfall > 0, Suppression: l.suppression.sent,
	}
}
