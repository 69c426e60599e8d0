package coordinator

import (
	"cmp"
	"time"

	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/internal/lease/holding"
	"github.com/stint-io/stint/internal/lease/ledger"
	"github.com/stint-io/stint/internal/lease/pool"
	"github.com/stint-io/stint/limit"
)

// The defaults of [Options].
const (
	// DefaultMaxResources bounds the table of resources, whose names come from
	// outside. At some 1,600 bytes each, with two instances, it is 400 MB.
	DefaultMaxResources = 1 << 18
	// DefaultMaxAccounts bounds what all instances together open, such as 10,000 instances of 100
	// keys each. At some 700 bytes each it is 700 MB.
	DefaultMaxAccounts = 1 << 20
)

// Options are the choices of a Coordinator. Resolve is required.
type Options struct {
	// Epoch is above that of every former coordinator of the same limits. When Former is not below it, or a report
	// has a higher one, the coordinator goes above that; see [Coordinator.Epoch].
	Epoch uint64
	// Former is the epoch of the coordinator whose leases can be claimed; 0 = the one
	// below Epoch.
	Former uint64
	// Above returns an epoch above one that a report had, which no other
	// coordinator has; nil = the next one. Two of one epoch would be taken for one.
	Above func(received uint64) uint64
	// Lease and Refresh are sent to instances; 0 = the defaults.
	Lease, Refresh time.Duration
	// Recovery is how long leases of a former coordinator may still be in use. 0 says
	// that there are none, so that everything can be lent at once. After a Former that
	// may have leases in use every bucket counts as empty.
	Recovery time.Duration
	// Resolve returns the terms of a resource, or why it has none.
	Resolve func(lease.ResourceID) (lease.Terms, lease.Status)
	// First says that no coordinator is known to have lent before: buckets that are asked for in recovery are full
	// at its end. Otherwise they are empty, since a former one may have lent of them.
	First bool
	// Seal signs leases for the next coordinator, and reads what the former one
	// signed; nil = instances cannot claim anything.
	Seal *Seal
	// Name is what sites below are told, to find a cycle of parents; "" = nothing.
	Name string
	// Parent is where the coordinator of a site has capacity from; nil = it has all of the
	// limits itself.
	Parent Parent
	// MaxResources bounds the table of resources; 0 = the default.
	MaxResources int
	// MaxAccounts bounds the accounts of all instances; 0 = the default.
	MaxAccounts int
}

// Coordinator owns the accounting of shared limits. It is a state machine: Step it
// with every event, and with a Tick when Next says so. It is not safe for concurrent
// use.
type Coordinator struct {
	opts         Options
	first        uint64 // the lowest epoch of this coordinator; it may have risen since
	idle         uint64 // Takeover.Idle
	recoverUntil limit.Time
	expected     holding.Holders // until recoverUntil: who may hold leases of a former coordinator and has not reported
	emptySince   limit.Time      // pools that are made later were empty then; 0 = they are new
	full         bool            // and so are those that are made in recovery
	beganAt      limit.Time      // with this epoch
	settledAt    limit.Time      // when the latest instance was known to hold nothing else of a former coordinator
	draining     bool            // nothing is lent any more
	sessions     map[lease.Member]*session
	resources    map[lease.ResourceID]*resource
	list         []*resource // in the order of making, so that a run can be repeated
	accounts     int         // of all resources
	dirty        []*resource
	sweepAt      limit.Time
	serial       uint64 // of leases
	out          []lease.Grant
	queue        []*session // with shares to be sent
	stats        Stats
	scratch      *ledger.Scratch // of all resources
	replication
	withoutLease
}

// withoutLease is the buckets that are not full and of which nobody has a lease.
type withoutLease struct {
	used   Used    // as the predecessor left them; without a map = nothing is known
	unlent *unlent // of which servers have asked since, or that were lent
}

// replication is what replicas have to know.
type replication struct {
	replicating bool    // there are some
	levels      []Level // what the latest Step has changed for them
	number      uint64  // of the latest Level: they are counted, from 2 on
}

type unlent = pool.Table[pool.Bucket, *pool.Bucket]

// Reconfigure says that Resolve answers differently from here on.
type Reconfigure struct{}

func (Reconfigure) Event() {}

// New returns a coordinator that begins at now.
func New(o Options, now limit.Time) *Coordinator {
	o.Lease = cmp.Or(o.Lease, lease.DefaultLease)
	o.Refresh = cmp.Or(o.Refresh, lease.DefaultRefresh)
	o.MaxResources = cmp.Or(o.MaxResources, DefaultMaxResources)
	o.MaxAccounts = cmp.Or(o.MaxAccounts, DefaultMaxAccounts)
	c := &Coordinator{opts: o, scratch: new(ledger.Scratch), replication: replication{number: 1}}
	if o.Epoch <= o.Former {
		o.Epoch = c.above(o.Former)
	}
	c.first = o.Epoch
	c.begin(now, o.Epoch, cmp.Or(o.Former, o.Epoch-1), o.Recovery, holding.Holders{Unknown: o.Recovery > 0})
	c.full = o.First
	if o.Recovery > 0 && o.Former != 0 {
		c.emptySince = max(now, 1) // it ended without a word: what the buckets had is not known
	}
	c.sweepAt = now.Add(c.sweepInterval())
	return c
}

// begin makes the coordinator that of an epoch, which knows of nothing that is lent.
// Leases of the former one may be in use for as long as recovery, by those holders.
func (c *Coordinator) begin(now limit.Time, epoch, former uint64, recovery time.Duration, holders holding.Holders) {
	c.opts.Epoch, c.opts.Former = epoch, former
	c.recoverUntil, c.expected, c.emptySince, c.full = now.Add(recovery), holders, 0, false
	c.beganAt, c.settledAt, c.used, c.draining, c.replicating = now, now, Used{}, false, false
	c.unlent = new(unlent)
	c.sessions, c.resources = map[lease.Member]*session{}, map[lease.ResourceID]*resource{}
	c.list, c.dirty, c.queue, c.accounts = nil, nil, nil, 0
	if c.opts.Parent != nil {
		c.opts.Parent.Restarted(now)
	}
	// Leases of different epochs must not have the same number. The factor spreads
	// epochs that follow each other over the whole range.
	c.serial = epoch * 0x9e3779b97f4a7c15 >> 2
}

// MaxEpoch is the highest epoch that counts. Epochs are nanoseconds since 1970 where they
// come from a clock, and this one is in 2116; and there is room above it to go to.
const MaxEpoch = 1 << 62

// Epoch is the epoch of the coordinator. It goes above a higher one that a
// report has, since instances ignore grants of a lower epoch.
func (c *Coordinator) Epoch() uint64 { return c.opts.Epoch }

// Next returns when a Tick is due.
func (c *Coordinator) Next() limit.Time {
	next := c.sweepAt
	for _, r := range c.dirty {
		next = min(next, r.due)
	}
	return next
}

// sweepInterval is how often the coordinator checks for expired sessions and unacknowledged
// grants.
func (c *Coordinator) sweepInterval() time.Duration { return c.opts.Refresh / 4 }

// Stats are running totals and present sizes.
type Stats struct {
	Instances, Resources int
	Reports, Grants      uint64
	Rounds               uint64
	Expired              uint64 // sessions whose leases ran out
	Ended                uint64 // sessions that have ended in any way
	Refused              uint64 // demands that got a status other than StatusOK
	Asks                 uint64 // that were decided without a lease
	Unlent               int    // buckets that are not full and of which nobody has a lease
	Broken               uint64 // times that a resource failed
	Recovering           bool
}
