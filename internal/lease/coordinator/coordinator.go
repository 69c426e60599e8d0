package coordinator

import (
	"cmp"
	"time"

	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/limit"
)

// The defaults of [CoordinatorOptions].
const (
	// DefaultMaxResources bounds the table of resources, whose names come from
	// outside. At some 1,600 bytes each, with two instances, it is 400 MB.
	DefaultMaxResources = 1 << 18
)

// Options are the choices of a Coordinator. Resolve is required.
type Options struct {
	// Epoch is above that of every former coordinator of the same limits. One that
	// hears of a higher one goes above it; see [Coordinator.Epoch].
	Epoch uint64
	// Former is the epoch of the coordinator whose leases can be claimed; 0 = the one
	// below Epoch.
	Former uint64
	// Above returns an epoch above one that an instance has heard, which no other
	// coordinator has; nil = the next one. Two of one epoch would be taken for one.
	Above func(heard uint64) uint64
	// Lease and Refresh are sent to instances; 0 = the defaults.
	Lease, Refresh time.Duration
	// Recovery is how long leases of a former coordinator may still be in use. 0 says
	// that there are none, so that everything can be lent at once.
	Recovery time.Duration
	// Resolve returns the terms of a resource, or why it has none.
	Resolve func(lease.ResourceID) (lease.Terms, lease.Status)
	// Seal signs leases for the next coordinator, and reads what the former one
	// signed; nil = instances cannot claim anything.
	Seal *Seal
	// MaxResources bounds the table of resources; 0 = the default.
	MaxResources int
}

// Coordinator owns the accounting of shared limits. It is a state machine: Step it
// with every event, and with a Tick when Next says so. It is not safe for concurrent
// use.
type Coordinator struct {
	opts         Options
	recoverUntil limit.Time
	sessions     map[lease.Member]*session
	resources    map[lease.ResourceID]*resource
	list         []*resource // in the order of making, so that a run can be repeated
	dirty        []*resource
	sweepAt      limit.Time
	serial       uint64 // of leases
	out          []lease.Grant
	queue        []*session // with shares to be sent
	stats        Stats
}

// Reconfigure says that Resolve answers differently from here on.
type Reconfigure struct{}

func (Reconfigure) Event() {}

// New returns a coordinator that begins at now.
func New(o Options, now limit.Time) *Coordinator {
	o.Lease = cmp.Or(o.Lease, lease.DefaultLease)
	o.Refresh = cmp.Or(o.Refresh, lease.DefaultRefresh)
	o.MaxResources = cmp.Or(o.MaxResources, DefaultMaxResources)
	c := &Coordinator{opts: o}
	c.begin(now, o.Epoch, cmp.Or(o.Former, o.Epoch-1), o.Recovery)
	c.sweepAt = now.Add(c.sweepInterval())
	return c
}

// begin makes the coordinator that of an epoch, which knows of nothing that is lent.
// Leases of the former one may be in use for as long as learn says.
func (c *Coordinator) begin(now limit.Time, epoch, former uint64, learn time.Duration) {
	c.opts.Epoch, c.opts.Former = epoch, former
	c.recoverUntil = now.Add(learn)
	c.sessions, c.resources = map[lease.Member]*session{}, map[lease.ResourceID]*resource{}
	c.list, c.dirty, c.queue = nil, nil, nil
	// Leases of different epochs must not have the same number. The factor spreads
	// epochs that follow each other over the whole range.
	c.serial = epoch * 0x9e3779b97f4a7c15 >> 2
}

// MaxEpoch is the highest epoch that counts. Epochs are nanoseconds since 1970 where they
// come from a clock, and this one is in 2116; and there is room above it to go to.
const MaxEpoch = 1 << 62

// Epoch is the epoch of the coordinator. It goes above one that an instance has heard:
// grants of a lower epoch are for nobody.
func (c *Coordinator) Epoch() uint64 { return c.opts.Epoch }

// Next returns when a Tick is due.
func (c *Coordinator) Next() limit.Time {
	next := c.sweepAt
	for _, r := range c.dirty {
		next = min(next, r.due)
	}
	return next
}

// Step takes an event at now and returns the grants to send. They are valid until the
// next Step.
func (c *Coordinator) Step(now limit.Time, e lease.Event) []lease.Grant {
	c.out = c.out[:0]
	switch e := e.(type) {
	case *lease.Report:
		c.stats.Reports++
		c.report(now, e)
	case Reconfigure:
		c.reconfigure(now)
	case Takeover:
		c.takeOver(now)
	}
	if now >= c.sweepAt {
		c.sweep(now)
		if c.sweepAt = now.Add(c.sweepInterval()); now < c.recoverUntil {
			c.sweepAt = min(c.sweepAt, c.recoverUntil) // those who wait for its end wait no longer
		}
	}
	c.rounds(now)
	c.flush(now)
	c.stats.Grants += uint64(len(c.out))
	return c.out
}

// scheduleRound plans a round of r.
func (c *Coordinator) scheduleRound(r *resource, now limit.Time) {
	due := now.Add(r.delay())
	if !r.dirty || due < r.due {
		r.due = due
	}
	r.dirty = true
	if !r.queued {
		r.queued = true
		c.dirty = append(c.dirty, r)
	}
}

// rounds runs those that are due.
func (c *Coordinator) rounds(now limit.Time) {
	left := c.dirty[:0]
	for _, r := range c.dirty {
		if r.due > now {
			left = append(left, r)
			continue
		}
		c.stats.Rounds++
		r.queued = false
		if !r.broken {
			c.guard(r, func() { r.round(now) })
		}
		c.collect(r, now)
		if r.dirty && !r.broken {
			r.queued = true
			left = append(left, r)
		}
	}
	clear(c.dirty[len(left):])
	c.dirty = left
}

// guard keeps a fault of one resource from the others: it lends nothing more until
// its terms change, and says so.
func (c *Coordinator) guard(r *resource, f func()) {
	defer func() {
		if recover() != nil {
			c.stats.Broken++
			r.broken, r.dirty = true, false
			for _, a := range r.accounts {
				a.pending, a.status = true, lease.StatusBroken
			}
		}
	}()
	f()
}

// collect puts what the accounts of r have to be told into the grants of their
// sessions.
func (c *Coordinator) collect(r *resource, now limit.Time) {
	kept := r.accounts[:0]
	for _, a := range r.accounts {
		if a.pending {
			c.addShare(a, now)
		}
		if a.closed {
			a.end()
			delete(a.session.accounts, a.handle)
			delete(a.session.of, r)
			r.rotation.leave(a)
			continue
		}
		kept = append(kept, a)
	}
	clear(r.accounts[len(kept):])
	r.accounts = kept
}

// addShare adds the state of an account to the next grant of its session.
func (c *Coordinator) addShare(a *account, now limit.Time) {
	s, r := a.session, a.resource
	if a.lease == 0 && a.held() != (lease.Capacity{}) {
		c.serial++
		a.lease, a.born = c.serial, s.number+1
	}
	a.pending = false
	a.sentGrant, a.sentAt = s.number+1, now
	if a.unsent != (lease.Capacity{}) {
		a.unackedGrants = append(a.unackedGrants, unackedGrant{a.sentGrant, a.unsent})
		a.unsent = lease.Capacity{}
	}
	share := lease.Share{
		Handle: a.handle, Status: a.status, AckedReport: a.lastReport, Lease: a.lease, Granted: a.granted,
		CapRate: a.capRate, CapBurst: a.capBurst, Safe: r.safe(),
		Contended: r.contended, Saturated: r.saturatedFor(a), Recovering: r.recovering, Limit: r.terms,
		Suppress: r.suppressionOf(a),
	}
	if a.lease != 0 && c.opts.Seal != nil {
		share.Token = c.opts.Seal.sign(c.opts.Epoch, s.Member, r.id, a.lease, a.granted, a.held())
	}
	c.queueShare(s, share)
}

// queueShare queues a share for a session.
func (c *Coordinator) queueShare(s *session, share lease.Share) {
	s.shares = append(s.shares, share)
	if share.Status != lease.StatusOK {
		c.stats.Refused++
	}
	if !s.queued {
		s.queued = true
		c.queue = append(c.queue, s)
	}
}

// flush makes the grants.
func (c *Coordinator) flush(now limit.Time) {
	for _, s := range c.queue {
		s.uncut()
		for _, a := range s.cuts {
			if a.sentGrant <= s.number {
				c.addShare(a, now)
			}
		}
		s.queued = false
		s.number++
		c.out = append(c.out, lease.Grant{
			To: s.Member, Epoch: c.opts.Epoch, Number: s.number,
			Echo: s.stamp, Age: time.Duration(now - s.heardAt), Lease: c.opts.Lease, Refresh: c.opts.Refresh,
			Shares: s.shares,
		})
		s.shares = nil
	}
	c.queue = c.queue[:0]
}

// resolve asks for the terms of a resource. The answer comes from outside: one that
// panics, or is out of range, spoils this resource and no other.
func (c *Coordinator) resolve(id lease.ResourceID) (t lease.Terms, status lease.Status) {
	defer func() {
		if recover() != nil {
			c.stats.Broken++
			t, status = lease.Terms{}, lease.StatusBroken
		}
	}()
	t, status = c.opts.Resolve(id)
	if status == lease.StatusOK && (t.Rate < 0 || t.Burst < 0 || t.Safe < 0 || t.Rate > fixed.MaxAmount || t.Burst > fixed.MaxAmount ||
		t.Suppress != nil && (t.Semaphore || t.Suppress.Validate() != nil)) {
		return lease.Terms{}, lease.StatusBroken
	}
	return t, status
}

// reconfigure asks for the terms of every resource again.
func (c *Coordinator) reconfigure(now limit.Time) {
	for _, r := range c.list {
		terms, status := c.resolve(r.id)
		for _, a := range r.accounts {
			a.pending, a.status = true, status
			if status != lease.StatusOK {
				a.demand, a.shortfall = 0, 0
			}
		}
		if status != lease.StatusOK {
			terms = lease.Terms{Semaphore: r.terms.Semaphore}
		}
		r.status, r.broken = status, false
		r.setTerms(terms, now)
		c.scheduleRound(r, now)
	}
}
