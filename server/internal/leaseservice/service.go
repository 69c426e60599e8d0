// Package leaseservice is the room of the lease protocol: instances hold a stream, and one
// loop owns the coordinator that lends them the parts of limits. The room translates,
// checks who is who, and bounds what a stranger can do; which instance is lent what is
// decided in internal/lease/coordinator.
package leaseservice

import (
	"cmp"
	"context"
	"log/slog"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/stint-io/stint/internal/gen/leasepb"
	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/internal/lease/coordinator"
	"github.com/stint-io/stint/internal/lease/holding"
	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/rules"
	"github.com/stint-io/stint/server/internal/leaselimits"
	"github.com/stint-io/stint/server/internal/leaseparent"
	"github.com/stint-io/stint/server/internal/leasestate"
	"github.com/stint-io/stint/server/internal/leasestream"
)

// The bounds on what instances can do.
const (
	// DefaultMaxStreams is how many instances are served. Not more: at some
	// 40 KiB each they are a gigabyte. Not less: fleets have ten thousand.
	DefaultMaxStreams = 25_000
	// firstReport is how long an instance may take to say who it is.
	firstReport = 10 * time.Second
	// stalled is how long one message may take to be sent to an instance. Not
	// longer than some leases: they have ended by then.
	stalled = 10 * time.Second
	// breath is how long the loop waits after a panic: a cause that stays must
	// not take a processor.
	breath = 10 * time.Millisecond
	// batch is how many events may wait, and about how many are taken before the timer is
	// checked.
	batch = 256
)

// Options are the choices of a Service. Limits is required.
type Options struct {
	// Limits are the limits at the start; see [Service.Reload].
	Limits *rules.Set
	// State says what was before; see [leasestate.Fresh] and [leasestate.Open].
	State leasestate.State
	// Raise is called with an epoch that the coordinator has gone up to, to keep it; nil = it
	// is not kept.
	Raise func(epoch uint64) error
	// RaiseOf is Raise for one of several shards, by its [Scope].
	RaiseOf func(scope string, epoch uint64) error
	// Lease and Refresh are how long leases last and how often instances
	// report; 0 = the defaults of internal/lease.
	Lease, Refresh time.Duration
	// MaxStreams bounds the instances; 0 = DefaultMaxStreams. MaxResources
	// bounds the resources; 0 = the default of the coordinator.
	MaxStreams, MaxResources int
	// Parent is where this service, as that of a site, has its capacity from; nil = it has all
	// of the limits itself.
	Parent *leaseparent.Parent
	// Shard is which of Shards shards of all resources this service lends, from 0. Shards is at most
	// [lease.MaxShards]; 0 and 1 = it lends all.
	Shard, Shards int
	// Logger takes what operators should read; nil = [slog.Default]. Keys never
	// are in it.
	Logger *slog.Logger
}

// Service serves the lease protocol. Make it with [New], register it with gRPC, and
// [Service.Run] it. Its methods are safe for concurrent use.
type Service struct {
	leasepb.UnimplementedLeasesServer

	opts    Options
	origin  time.Time // of the clock
	limits  atomic.Pointer[leaselimits.Index]
	events  chan event
	reload  chan struct{} // limits has changed
	leasing struct {
		begin sync.Once
		began chan struct{} // closed when a limit was first shared by leases
	}
	ended chan struct{} // closed when Run has ended

	admission leasestream.Admission

	decided leaselimits.Decisions

	// loop belongs to the goroutine of Run.
	loop struct {
		coordinator *coordinator.Coordinator
		epoch       uint64 // of it, as it is kept
		members     *leasestream.Members
		refused     [256]uint64 // by status
		panics      uint64
		saturated   map[string]float64
		sampled     limit.Time
	}

	// step is what the loop calls, and patience the bounds on waiting; tests
	// change them.
	step     func(now limit.Time, e lease.Event) []lease.Grant
	next     func() limit.Time // when a Tick is due
	patience struct{ firstReport, stalled time.Duration }

	// recoveredAt is when the coordinator knows what is lent, as a limit.Time.
	recoveredAt atomic.Int64

	membership *membership
	parent     *leaseparent.Link // nil = this is no site

	snapshots chan struct{} // one snapshot at a time
	figures   atomic.Pointer[Figures]
}

// event is what the loop is woken by.
type event struct {
	stream   *leasestream.Stream
	report   *lease.Report // nil: the stream has ended
	snapshot func(now limit.Time)
	parent   lease.Event // of the link to the parent
}

// New returns a service. It lends nothing before Run.
func New(o Options) *Service {
	o.Lease, o.Refresh = cmp.Or(o.Lease, lease.DefaultLease), cmp.Or(o.Refresh, lease.DefaultRefresh)
	o.MaxStreams = cmp.Or(o.MaxStreams, DefaultMaxStreams)
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	s := &Service{
		opts: o, origin: time.Now(),
		events: make(chan event, batch), ended: make(chan struct{}), snapshots: make(chan struct{}, 1),
		reload: make(chan struct{}, 1),
	}
	s.leasing.began = make(chan struct{})
	s.setLimits(o.Limits)
	s.figures.Store(&Figures{})
	s.loop.members, s.loop.saturated = leasestream.NewMembers(o.Lease, o.Logger), map[string]float64{}
	var seal *coordinator.Seal
	if len(o.State.Key) > 0 {
		seal = coordinator.NewSeal(o.State.Key)
	}
	c := s.newCoordinator(coordinator.Options{
		Epoch: o.State.Epoch, Former: o.State.Former, Above: leasestate.Above, Lease: o.Lease, Refresh: o.Refresh, Recovery: o.State.Recovery, First: o.State.First, MaxResources: o.MaxResources, Seal: seal,
		Resolve: s.resolve,
	})
	s.loop.coordinator, s.loop.epoch = c, c.Epoch()
	s.recoveredAt.Store(int64(c.RecoveredAt()))
	s.patience.firstReport, s.patience.stalled = firstReport, stalled
	s.resume(&o.State)
	return s
}

// now is the service's clock: monotonic, and never 0.
func (s *Service) now() limit.Time { return limit.Time(time.Since(s.origin) + time.Second) }

// resolve says what a resource asks for.
func (s *Service) resolve(id lease.ResourceID) (lease.Terms, lease.Status) {
	limits := s.limits.Load()
	terms, st := limits.Resolve(id)
	if n := s.opts.Shards; n > 1 && st == lease.StatusOK {
		if shard := limits.Shard(id, n); shard != s.opts.Shard {
			return lease.Terms{Shard: shard}, lease.StatusElsewhere
		}
	}
	return terms, st
}

// ShardOf returns which of the shards a resource is in, by its bucket's key.
func (s *Service) ShardOf(id lease.ResourceID) int {
	return s.limits.Load().Shard(id, max(1, s.opts.Shards))
}

// Reload makes the service lend by the limits of set from here on.
func (s *Service) Reload(set *rules.Set) {
	s.setLimits(set)
	select {
	case s.reload <- struct{}{}:
	default: // it will see the latest
	}
}

func (s *Service) setLimits(set *rules.Set) {
	s.limits.Store(leaselimits.New(set))
	if s.Leasing() {
		s.leasing.begin.Do(func() { close(s.leasing.began) })
	}
}

// AwaitLeasing waits until a limit is shared by leases.
func (s *Service) AwaitLeasing(ctx context.Context) error {
	select {
	case <-s.leasing.began:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Leasing says whether a limit of those in force is shared by leases.
func (s *Service) Leasing() bool { return s.limits.Load().Leasing() }

// post hands an event to the loop. It reports false when the loop has ended, or ctx.
func (s *Service) post(ctx context.Context, e event) bool {
	select {
	case s.events <- e:
		return true
	case <-ctx.Done():
	case <-s.ended:
	}
	return false
}

// feed steps the coordinator and hands out what it answers.
func (s *Service) feed(now limit.Time, from *leasestream.Stream, e lease.Event) {
	s.guard(from, "step", func() {
		grants := s.step(now, e)
		s.risen()
		s.tellReplicas(now)
		s.noteRecovered(now)
		for i := range grants {
			s.send(&grants[i])
		}
	})
}

// risen takes note that the coordinator went above an epoch that an instance knew,
// before a grant is sent.
func (s *Service) risen() {
	c := s.loop.coordinator
	epoch := c.Epoch()
	if epoch == s.loop.epoch {
		return
	}
	if p := s.membership; p != nil && p.replicas != nil {
		p.replicas.EndAll() // what they know is of the former one
		// Grants wait until a successor knows that anybody may hold leases.
		p.holders, p.published = c.Holders(), holding.Holders{}
		p.edition++
		s.publish()
	}
	s.opts.Logger.Error("an instance has heard a coordinator that this one does not know of: the state was lost or is an old copy, the clock was set back, or a second coordinator lends the same limits, of which there may be exactly one; nothing new is lent until the leases of the other one have ended",
		"epoch", s.loop.epoch, "now", epoch)
	s.noteEpoch()
	s.raise(epoch)
}

// raise keeps the epoch in which this service lends from here on.
func (s *Service) raise(epoch uint64) {
	if s.opts.Raise == nil {
		return
	}
	if err := s.opts.Raise(epoch); err != nil {
		s.opts.Logger.Error("the epoch cannot be kept: a next coordinator does not know what this one has lent", "error", err)
	}
}

// resume begins with the buckets as the former coordinator left them at its end in order, at which nothing
// was lent; they count as empty where that is not known. After a crash the coordinator counts them as empty itself.
func (s *Service) resume(st *leasestate.State) {
	if st.Former == 0 || st.Recovery > 0 || s.parent != nil {
		return
	}
	var used *coordinator.Used
	if r, err := coordinator.DecodeRecord(st.Last); err == nil && r.Used != nil {
		used = r.Used
		used.Later(st.Down)
	}
	s.step(s.now(), coordinator.Takeover{Epoch: st.Epoch, Former: st.Former, Used: used})
	s.noteEpoch()
}

// Last returns what a later start on the same host has to know of what is left. It is called when Run has
// reported that nothing is lent.
func (s *Service) Last() []byte { return s.lastRecord(s.now()) }

// lends says whether this service may lend: it has no rivals, or is elected.
func (s *Service) lends() bool {
	return s.membership == nil || s.membership.election.Leads(time.Now())
}

// Recovering is for how long yet the coordinator does not know what a former one has lent,
// and lends nothing that may be in use; 0 = it knows.
func (s *Service) Recovering() time.Duration {
	return max(0, time.Duration(limit.Time(s.recoveredAt.Load())-s.now()))
}

// noteRecovered takes note that recovery is over before its time.
func (s *Service) noteRecovered(now limit.Time) {
	if s.Recovering() > 0 && !s.loop.coordinator.Recovering(now) {
		s.recoveredAt.Store(int64(now))
	}
}

func (s *Service) send(g *lease.Grant) {
	g.Shards = s.opts.Shards
	for i := range g.Shares {
		if st := g.Shares[i].Status; st != lease.StatusOK {
			s.loop.refused[st]++
		}
	}
	if m := s.loop.members.Get(g.To.Instance); m != nil && m.Session == g.To.Session && !s.withhold(m, g) {
		s.deliver(m, g)
	}
}

// deliver puts a grant on the stream of an instance, if it has one.
func (s *Service) deliver(m *leasestream.Member, g *lease.Grant) {
	if m.Stream == nil || !s.lends() {
		return
	}
	if m.Own && s.membership != nil {
		s.shorten(g)
	}
	m.Stream.Put(g)
}

// guard survives a panic of f. The coordinator keeps a fault of one resource to
// itself; what gets past that ends the stream that brought it, and nothing else.
func (s *Service) guard(from *leasestream.Stream, what string, f func()) {
	defer func() {
		p := recover()
		if p == nil {
			return
		}
		s.loop.panics++
		if m := s.membership; m != nil && m.replicas != nil {
			m.replicas.EndAll() // they may have missed what the step has changed
		}
		s.opts.Logger.Error("the coordinator of leases failed", "in", what, "panic", p, "stack", string(debug.Stack()))
		if from != nil {
			from.End(errFault)
		}
	}()
	f()
}

var errFault = status.Error(codes.Internal, "the coordinator failed at this report: it is logged")

// inLoop runs f in the loop and waits for it. It reports false when it did not run.
func (s *Service) inLoop(ctx context.Context, f func(now limit.Time)) bool {
	done := make(chan struct{})
	if !s.post(ctx, event{snapshot: func(now limit.Time) { defer close(done); f(now) }}) {
		return false
	}
	select {
	case <-done:
		return true
	case <-s.ended:
		return false
	}
}

// newCoordinator makes the coordinator: of the root, or of a site.
func (s *Service) newCoordinator(o coordinator.Options) *coordinator.Coordinator {
	if s.opts.Parent == nil {
		o.Name = leaseparent.NameOfProcess("")
		c := coordinator.New(o, s.now())
		s.step, s.next = c.Step, c.Next
		return c
	}
	s.parent = leaseparent.New(leaseparent.Options{
		Parent:    s.opts.Parent,
		Translate: func(id lease.ResourceID) (lease.ResourceID, []string, bool) { return s.limits.Load().Translate(id) },
		Lends:     func() bool { return s.lends() },
		Post:      func(ctx context.Context, e lease.Event) bool { return s.post(ctx, event{parent: e}) },
		Logger:    s.opts.Logger,
	}, o, s.now())
	site := s.parent.Site()
	s.step, s.next = site.Step, site.Next
	return site.Coordinator()
}
