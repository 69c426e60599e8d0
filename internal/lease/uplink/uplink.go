// Package uplink makes a site out of a coordinator and an agent: a server whose capacity is a lease
// of a parent, and which lends it on.
//
// Each resource of the site's coordinator is, at the parent, one account of the site. What the
// instances of the site demand is summed up and reported; what the parent grants goes into the
// pool of the resource; and what the parent revokes is taken out of that pool before it is
// returned. The arithmetic is in package ledger, the protocol in packages agent and coordinator:
// this package joins them, and both are the shipped ones. Like them, a [Site] is a deterministic
// state machine without goroutine, clock or network.
//
// # Why a tree of sites admits no more than one bucket
//
// Between a parent and a site hold the two totals of package lease: the site uses at most what
// the parent counts as lent. What the site uses is its pool and what it counts as lent to its own
// instances. So by induction over the levels the leaves together hold at most the limit, and
// tokens move from bucket to bucket and are never made. The lease of an instance ends before that
// of its site, since a coordinator sends no longer one: when the site's lease ends, nothing is
// spent below it any more.
package uplink

import (
	"slices"
	"sync/atomic"

	"github.com/stint-io/stint/internal/bucket"
	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/internal/lease/agent"
	"github.com/stint-io/stint/internal/lease/coordinator"
	"github.com/stint-io/stint/internal/lease/ledger"
	"github.com/stint-io/stint/internal/lease/pool"
	"github.com/stint-io/stint/limit"
)

// Options are the choices of a Site. Member, Name and Send are required.
type Options struct {
	// Member is the site as an instance of its parent. Its name is unique among the sites of the
	// parent.
	lease.Member
	// Name names this process, and no other: a site that finds it above itself has a cycle of
	// parents.
	Name string
	// Expiry is what the site lends when its lease is over, because no parent could be reached.
	Expiry agent.ExpiryMode
	// Jitter is in [0, 1); nil = always 0.5.
	Jitter func() float64
	// Session returns the session of the site after its coordinator began anew; nil = the next
	// number.
	Session func() uint64
	// Send sends a report to the parent. The report is the receiver's.
	Send func(*lease.Report)
	// Translate returns the resource as the parent knows it; ok is false if the parent cannot
	// know it. nil = as the site knows it.
	Translate func(lease.ResourceID) (id lease.ResourceID, attributes []string, ok bool)
}

// Site is a coordinator and its uplink. It is not safe for concurrent use.
type Site struct {
	opts        Options
	coordinator *coordinator.Coordinator
	agent       *agent.Agent
	supplies    map[*ledger.Resource]*supply
	ends        atomic.Int64
	path        []string // of the latest grant
	cycle       []string // a path with this site in it; nil = there is none

	touched  []uint32           // handles of resources that were divided
	supplied []*ledger.Resource // resources whose capacity the agent has changed
	out      []lease.Grant
}

// FromParent is a grant of the parent.
type FromParent struct{ Grant *lease.Grant }

// Connected says that the connection to the parent is new.
type Connected struct{}

func (FromParent) Event() {}
func (Connected) Event()  {}

// New returns a site that has nothing yet. Its coordinator is made with c, whose Name and Parent
// are set here.
func New(o Options, c coordinator.Options, now limit.Time) *Site {
	s := &Site{opts: o, supplies: map[*ledger.Resource]*supply{}}
	s.newAgent()
	c.Name, c.Parent = o.Name, s
	s.coordinator = coordinator.New(c, now)
	return s
}

func (s *Site) newAgent() {
	s.agent = agent.New(agent.Options{Member: s.opts.Member, Site: true, Jitter: s.opts.Jitter})
}

// Coordinator is the coordinator of the site. Only Step may change it.
func (s *Site) Coordinator() *coordinator.Coordinator { return s.coordinator }

// Next returns when a Tick is due.
func (s *Site) Next() limit.Time { return min(s.coordinator.Next(), s.agent.Next()) }

// Ends is when the lease of the site ends; 0 = there is none. It may be called at any time.
func (s *Site) Ends() int64 { return s.ends.Load() }

// Cycle returns the path in which the site has found itself; nil = there is none.
func (s *Site) Cycle() []string { return s.cycle }

// Member is the site as an instance of its parent.
func (s *Site) Member() lease.Member { return s.opts.Member }

// Step takes an event at now and returns the grants to send to the instances of the site. They
// are valid until the next Step.
func (s *Site) Step(now limit.Time, e lease.Event) []lease.Grant {
	s.out = s.out[:0]
	switch e := e.(type) {
	case FromParent:
		if s.accept(e.Grant) {
			s.stepAgent(now, e.Grant)
		}
	case Connected:
		s.stepAgent(now, agent.Connected{})
	case lease.Tick:
	default:
		s.stepCoordinator(now, e)
	}
	// A round changes the load of the uplink, and what the uplink returns or is granted is divided
	// in a round some milliseconds later, so this ends.
	for {
		switch {
		case len(s.touched) > 0:
			handles := s.touched
			s.touched = nil
			s.stepAgent(now, agent.Observed{Handles: handles})
		case now >= s.agent.Next():
			s.stepAgent(now, lease.Tick{})
		case len(s.supplied) > 0:
			changed := s.supplied
			s.supplied = nil
			s.stepCoordinator(now, coordinator.Supplied{Resources: changed})
		case now >= s.coordinator.Next():
			s.stepCoordinator(now, lease.Tick{})
		default:
			return s.out
		}
	}
}

// Leave gives everything back to the parent. Nothing may be lent on any more.
func (s *Site) Leave(now limit.Time) { s.stepAgent(now, agent.Leave{}) }

func (s *Site) stepCoordinator(now limit.Time, e lease.Event) {
	s.out = append(s.out, s.coordinator.Step(now, e)...)
}

func (s *Site) stepAgent(now limit.Time, e lease.Event) {
	defer func() { s.ends.Store(s.agent.Deadline().Load()) }()
	if r := s.agent.Step(now, e); r != nil {
		own := *r // r is the agent's, until its next step
		own.Demands = slices.Clone(r.Demands)
		s.opts.Send(&own)
	}
}

// accept takes note of who is above, and refuses the grants of a coordinator that is below.
func (s *Site) accept(g *lease.Grant) bool {
	if g.To != s.opts.Member || g.NotMaster {
		return true // the agent disregards it
	}
	if s.cycle = nil; slices.Contains(g.Path, s.opts.Name) {
		s.cycle = slices.Clone(g.Path)
		return false
	}
	s.path = append(s.path[:0:0], g.Path...)
	return true
}

// Lends implements [coordinator.Parent]: a limit for each instance alone needs no parent.
func (s *Site) Lends(t *lease.Terms) bool { return !t.PerInstance() }

// Opened implements [coordinator.Parent].
func (s *Site) Opened(now limit.Time, r *ledger.Resource) {
	id, attributes, ok := r.ID, []string(nil), true
	if s.opts.Translate != nil {
		id, attributes, ok = s.opts.Translate(id)
	}
	if !ok {
		r.Inform(pool.Answer{Known: true, Status: lease.StatusBadKey})
		return
	}
	u := &supply{Resource: r, site: s}
	u.handle = s.agent.Open(now, id, agent.LeaseOptions{Estimator: agent.Declared, Expiry: s.opts.Expiry, Attributes: attributes}, u)
	s.supplies[r] = u
}

// Closed implements [coordinator.Parent].
func (s *Site) Closed(now limit.Time, r *ledger.Resource) {
	if u := s.supplies[r]; u != nil {
		s.agent.Close(now, u.handle)
		delete(s.supplies, r)
	}
}

// Divided implements [coordinator.Parent].
func (s *Site) Divided(r *ledger.Resource) {
	if u := s.supplies[r]; u != nil {
		s.touched = append(s.touched, u.handle)
	}
}

// Until implements [coordinator.Parent].
func (s *Site) Until() limit.Time { return limit.Time(s.agent.Deadline().Load()) }

// Path implements [coordinator.Parent].
func (s *Site) Path() []string { return s.path }

// Restarted implements [coordinator.Parent]. What was lent on is not known any more, so the site is
// another member from here on: the parent counts what the former one held until it has expired.
func (s *Site) Restarted(limit.Time) {
	if len(s.supplies) == 0 {
		return
	}
	if s.opts.Session != nil {
		s.opts.Member.Session = s.opts.Session()
	} else {
		s.opts.Member.Session++
	}
	s.newAgent()
	s.supplies, s.touched, s.supplied = map[*ledger.Resource]*supply{}, nil, nil
}

// supply is a resource of the site as a bucket of its agent.
type supply struct {
	*ledger.Resource
	site   *Site
	handle uint32
}

var _ agent.Lender = (*supply)(nil)

func (u *supply) changed() { u.site.supplied = append(u.site.supplied, u.Resource) }

// Observe implements [agent.Bucket]; Load says more.
func (u *supply) Observe(limit.Time) bucket.Reading { return bucket.Reading{} }

// Update implements [agent.Bucket]; Hold is called instead.
func (u *supply) Update(limit.Time, fixed.Amount, fixed.Amount, fixed.Amount) (surplus, held fixed.Amount) {
	return 0, 0
}

// UpdateFallback is what the site lends while it is cut off.
func (u *supply) UpdateFallback(now limit.Time, rate, burst fixed.Amount) {
	u.Alone(now, rate, burst)
	u.changed()
}

// Load implements [agent.Lender].
func (u *supply) Load(now limit.Time) agent.Load {
	a := u.Aggregate(now)
	return agent.Load{
		Permits: a.Permits, Demand: a.Demand, Shortfall: a.Shortfall, ShortUntil: a.ShortUntil, Claims: a.Claims, Weight: a.Weight, Band: a.Band, Most: a.Most,
		Free: a.Free, Room: a.Room,
	}
}

// Hold implements [agent.Lender].
func (u *supply) Hold(now limit.Time, held, ceiling lease.Capacity, tokens fixed.Amount) (lease.Capacity, fixed.Amount) {
	before := u.Resource.Pool
	inForce, surplus := u.Resource.Hold(now, held, ceiling, tokens)
	if after := u.Resource.Pool; after.Rate != before.Rate || after.Burst != before.Burst || tokens > 0 || u.Owes() {
		u.changed()
	}
	return inForce, surplus
}

// Lapse implements [agent.Lender].
func (u *supply) Lapse(now limit.Time) {
	u.Resource.Lapse(now)
	u.changed()
}

// Expire implements [agent.Lender].
func (u *supply) Expire(now limit.Time) {
	u.Resource.Expire(now)
	u.changed()
}

// Inform implements [agent.Lender].
func (u *supply) Inform(a agent.Answer) {
	if u.Resource.Inform(pool.Answer{
		Known: true, Status: a.Status, Limit: a.Limit, Safe: a.Safe, Contended: a.Contended, Saturated: a.Saturated, Recovering: a.Recovering,
	}) {
		u.changed()
	}
}
