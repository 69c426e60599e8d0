package lending

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

	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/internal/lease/coordinator"
	"github.com/stint-io/stint/internal/lease/holding"
	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/rules"
)

// The bounds on what instances can do.
const (
	// defaultMaxStreams is how many instances are served. Not more: at some
	// 40 KiB each they are a gigabyte. Not less: fleets have ten thousand.
	defaultMaxStreams = 25_000
	// reportWithin is how long an instance may take to say who it is.
	reportWithin = 10 * time.Second
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

// Options configure a [Service]. Limits is required.
type Options struct {
	// Limits are the limits at the start; see [Service.Reload].
	Limits *rules.Set
	// State says what was before; see [FreshState] and [OpenState].
	State State
	// Raise is called with an epoch that the coordinator has gone up to, to keep it; nil = it
	// is not kept.
	Raise func(epoch uint64) error
	// RaiseOf is Raise for one of several shards, by its [Scope].
	RaiseOf func(scope string, epoch uint64) error
	// lease and refresh are how long leases last and how often instances
	// report; 0 = the defaults of internal/lease.
	lease, refresh time.Duration
	// maxStreams bounds the instances; 0 = defaultMaxStreams. maxResources
	// bounds the resources; 0 = the default of the coordinator.
	maxStreams, maxResources int
	// Parent is where this service, as that of a site, has its capacity from; nil = it has all
	// of the limits itself.
	Parent *Parent
	// shard is the number of a shard, from 0, and shards how many there are, at most [lease.MaxShards]; 0 counts as 1.
	// New sets both.
	shard, shards int
	// Logger takes what operators should read; nil = [slog.Default]. Keys never
	// are in it.
	Logger *slog.Logger
}

// shard lends one shard of all resources. Make it with newShard. Its methods are safe for concurrent use, but those that
// the loop calls.
type shard struct {
	opts    Options
	origin  time.Time // of the clock
	limits  atomic.Pointer[limitIndex]
	events  chan event
	reload  chan struct{} // limits has changed
	leasing struct {
		begin sync.Once
		began chan struct{} // closed when a limit was first shared by leases
	}
	ended chan struct{} // closed when run has ended

	admission admission

	decided decisions

	// loop belongs to the goroutine of run.
	loop struct {
		coordinator *coordinator.Coordinator
		epoch       uint64 // of it, as it is kept
		members     *members
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
	parent     *parentLink // nil = this is no site

	snapshots chan struct{} // one snapshot at a time
	figures   atomic.Pointer[Figures]
}

// event is what the loop is woken by.
type event struct {
	stream   *stream
	report   *lease.Report // nil: the stream has ended
	snapshot func(now limit.Time)
	parent   lease.Event // of the link to the parent
}

// newShard returns a shard. It lends nothing before run.
func newShard(o Options) *shard {
	o.lease, o.refresh = cmp.Or(o.lease, lease.DefaultLease), cmp.Or(o.refresh, lease.DefaultRefresh)
	o.maxStreams = cmp.Or(o.maxStreams, defaultMaxStreams)
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	s := &shard{
		opts: o, origin: time.Now(),
		events: make(chan event, batch), ended: make(chan struct{}), snapshots: make(chan struct{}, 1),
		reload: make(chan struct{}, 1),
	}
	s.leasing.began = make(chan struct{})
	s.setLimits(o.Limits)
	s.figures.Store(&Figures{})
	s.loop.members, s.loop.saturated = newMembers(o.lease, o.Logger), map[string]float64{}
	var seal *coordinator.Seal
	if len(o.State.Key) > 0 {
		seal = coordinator.NewSeal(o.State.Key)
	}
	c := s.newCoordinator(coordinator.Options{
		Epoch: o.State.Epoch, Former: o.State.former, Above: epochAbove, Lease: o.lease, Refresh: o.refresh, Recovery: o.State.Recovery, First: o.State.first, MaxResources: o.maxResources, Seal: seal,
		Resolve: s.resolve,
	})
	s.loop.coordinator, s.loop.epoch = c, c.Epoch()
	s.recoveredAt.Store(int64(c.RecoveredAt()))
	s.patience.firstReport, s.patience.stalled = reportWithin, stalled
	s.resume(&o.State)
	return s
}

// now is the service's clock: monotonic, and never 0.
func (s *shard) now() limit.Time { return limit.Time(time.Since(s.origin) + time.Second) }

// resolve says what a resource asks for.
func (s *shard) resolve(id lease.ResourceID) (lease.Terms, lease.Status) {
	limits := s.limits.Load()
	terms, st := limits.resolve(id)
	if n := s.opts.shards; n > 1 && st == lease.StatusOK {
		if shard := limits.shard(id, n); shard != s.opts.shard {
			return lease.Terms{Shard: shard}, lease.StatusElsewhere
		}
	}
	return terms, st
}

// shardOf returns which of the shards a resource is in, by its bucket's key.
func (s *shard) shardOf(id lease.ResourceID) int {
	return s.limits.Load().shard(id, max(1, s.opts.shards))
}

// reconfigure makes the service lend by the limits of set from here on.
func (s *shard) reconfigure(set *rules.Set) {
	s.setLimits(set)
	select {
	case s.reload <- struct{}{}:
	default: // it will see the latest
	}
}

func (s *shard) setLimits(set *rules.Set) {
	s.limits.Store(newLimitIndex(set))
	if s.hasLeased() {
		s.leasing.begin.Do(func() { close(s.leasing.began) })
	}
}

// awaitLeasing waits until a limit is shared by leases.
func (s *shard) awaitLeasing(ctx context.Context) error {
	select {
	case <-s.leasing.began:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// hasLeased says whether a limit of those in force is shared by leases.
func (s *shard) hasLeased() bool { return s.limits.Load().leasing() }

// post hands an event to the loop. It reports false when the loop has ended, or ctx.
func (s *shard) post(ctx context.Context, e event) bool {
	select {
	case s.events <- e:
		return true
	case <-ctx.Done():
	case <-s.ended:
	}
	return false
}

// feed steps the coordinator and hands out what it answers.
func (s *shard) feed(now limit.Time, from *stream, e lease.Event) {
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
func (s *shard) risen() {
	c := s.loop.coordinator
	epoch := c.Epoch()
	if epoch == s.loop.epoch {
		return
	}
	if p := s.membership; p != nil && p.replicas != nil {
		p.replicas.endAll() // what they know is of the former one
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
func (s *shard) raise(epoch uint64) {
	if s.opts.Raise == nil {
		return
	}
	if err := s.opts.Raise(epoch); err != nil {
		s.opts.Logger.Error("the epoch cannot be kept: a next coordinator does not know what this one has lent", "error", err)
	}
}

// resume begins with the buckets as the former coordinator left them at its end in order, at which nothing
// was lent; they count as empty where that is not known. After a crash the coordinator counts them as empty itself.
func (s *shard) resume(st *State) {
	if st.former == 0 || st.Recovery > 0 || s.parent != nil {
		return
	}
	var used *coordinator.Used
	if r, err := coordinator.DecodeRecord(st.Last); err == nil && r.Used != nil {
		used = r.Used
		used.Later(st.down)
	}
	s.step(s.now(), coordinator.Takeover{Epoch: st.Epoch, Former: st.former, Used: used})
	s.noteEpoch()
}

// lends says whether this service may lend: it has no rivals, or is elected.
func (s *shard) lends() bool {
	return s.membership == nil || s.membership.election.Leads(time.Now())
}

// recovering is for how long yet the coordinator does not know what a former one has lent,
// and lends nothing that may be in use; 0 = it knows.
func (s *shard) recovering() time.Duration {
	return max(0, time.Duration(limit.Time(s.recoveredAt.Load())-s.now()))
}

// noteRecovered takes note that recovery is over before its time.
func (s *shard) noteRecovered(now limit.Time) {
	if s.recovering() > 0 && !s.loop.coordinator.Recovering(now) {
		s.recoveredAt.Store(int64(now))
	}
}

func (s *shard) send(g *lease.Grant) {
	g.Shards = s.opts.shards
	for i := range g.Shares {
		if st := g.Shares[i].Status; st != lease.StatusOK {
			s.loop.refused[st]++
		}
	}
	if m := s.loop.members.get(g.To.Instance); m != nil && m.Session == g.To.Session && !s.withhold(m, g) {
		s.deliver(m, g)
	}
}

// deliver puts a grant on the stream of an instance, if it has one.
func (s *shard) deliver(m *member, g *lease.Grant) {
	if m.stream == nil || !s.lends() {
		return
	}
	if m.own && s.membership != nil {
		s.shorten(g)
	}
	m.stream.put(g)
}

// guard survives a panic of f. The coordinator keeps a fault of one resource to
// itself; what gets past that ends the stream that brought it, and nothing else.
func (s *shard) guard(from *stream, what string, f func()) {
	defer func() {
		p := recover()
		if p == nil {
			return
		}
		s.loop.panics++
		if m := s.membership; m != nil && m.replicas != nil {
			m.replicas.endAll() // they may have missed what the step has changed
		}
		s.opts.Logger.Error("the coordinator of leases failed", "in", what, "panic", p, "stack", string(debug.Stack()))
		if from != nil {
			from.end(errFault)
		}
	}()
	f()
}

var errFault = status.Error(codes.Internal, "the coordinator failed at this report: it is logged")

// inLoop runs f in the loop and waits for it. It reports false when it did not run.
func (s *shard) inLoop(ctx context.Context, f func(now limit.Time)) bool {
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

// snapshot runs f, which visits all resources, in the loop, and waits for it: one at a time, since the loop stands still
// meanwhile. It reports false when the loop does not run, or ctx ends.
func (s *shard) snapshot(ctx context.Context, f func(now limit.Time)) bool {
	select {
	case s.snapshots <- struct{}{}:
		defer func() { <-s.snapshots }()
	case <-ctx.Done():
		return false
	}
	return s.inLoop(ctx, f)
}

// newCoordinator makes the coordinator: of the root, or of a site.
func (s *shard) newCoordinator(o coordinator.Options) *coordinator.Coordinator {
	if s.opts.Parent == nil {
		o.Name = nameOfProcess("")
		c := coordinator.New(o, s.now())
		s.step, s.next = c.Step, c.Next
		return c
	}
	s.parent = newParentLink(linkOptions{
		parent:    s.opts.Parent,
		translate: func(id lease.ResourceID) (lease.ResourceID, []string, bool) { return s.limits.Load().translate(id) },
		lends:     func() bool { return s.lends() },
		post:      func(ctx context.Context, e lease.Event) bool { return s.post(ctx, event{parent: e}) },
		logger:    s.opts.Logger,
	}, o, s.now())
	site := s.parent.site
	s.step, s.next = site.Step, site.Next
	return site.Coordinator()
}

// parentProblem says why limits shared by leases have no capacity from a parent; nil = they have,
// or there is no parent.
func (s *shard) parentProblem() error {
	if s.parent == nil || !s.hasLeased() {
		return nil
	}
	return s.parent.err()
}

// supplied says whether the site has capacity to lend, under a lease or as its mode at expiry says.
func (s *shard) supplied() bool { return s.parent == nil || s.parent.supplied(s.now()) }
