// Package lease is the room of the lease protocol: instances hold a stream, and one
// loop owns the coordinator that lends them the parts of limits. The room translates,
// checks who is who, and bounds what a stranger can do; what is lent to whom is
// decided in package share.
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
	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/rules"
)

// The bounds on what instances can do.
const (
	// DefaultMaxStreams is how many instances are served. Not more: at some
	// 40 KiB each they are a gigabyte. Not less: fleets have ten thousand.
	DefaultMaxStreams = 25_000
	// maxHandles is how many resources one instance has. Not more: all its
	// demands come in one report when it connects anew.
	maxHandles = 10_000
	// firstReport is how long an instance may take to say who it is.
	firstReport = 10 * time.Second
	// stalled is how long one message may take to be sent to an instance. Not
	// longer than some leases: they have ended by then.
	stalled = 10 * time.Second
	// silence is after how many leases without a report a stream is ended. Not
	// fewer: a process that was paused should find its stream.
	silence = 6
	// breath is how long the loop waits after a panic: a cause that stays must
	// not take a processor.
	breath = 10 * time.Millisecond
	// batch is how many events are taken before a look at the clock.
	batch = 256
)

// Options are the choices of a Service. Limits is required.
type Options struct {
	// Limits are the limits at the start; see [Service.Reload].
	Limits *rules.Set
	// State says what was before; see [Fresh] and [OpenState].
	State State
	// Raise is told of an epoch that the coordinator has gone up to, to keep it; nil = it
	// is not kept.
	Raise func(epoch uint64) error
	// Lease and Refresh are how long leases last and how often instances
	// report; 0 = the defaults of package share.
	Lease, Refresh time.Duration
	// MaxStreams bounds the instances; 0 = DefaultMaxStreams. MaxResources
	// bounds the resources; 0 = the default of package share.
	MaxStreams, MaxResources int
	// Claim is where services that could lend the same limits agree on one of them; nil
	// = there is no such place, and this one lends.
	Claim Claim
	// Logger takes what operators should read; nil = [slog.Default]. Keys never
	// are in it.
	Logger *slog.Logger
}

// Service serves the lease protocol. Make it with [New], register it with gRPC, and
// [Service.Run] it. Its methods are safe for concurrent use.
type Service struct {
	leasepb.UnimplementedLeasesServer

	opts   Options
	origin time.Time // of the clock
	limits atomic.Pointer[index]
	events chan event
	reload chan struct{} // limits has changed
	ended  chan struct{} // closed when Run has ended

	admission struct {
		sync.Mutex
		streams  int
		closing  bool
		refused  uint64         // streams, since the start
		handlers sync.WaitGroup // what reads and writes
	}

	// decided is what instances of other processes told of their decisions, by limit.
	decided struct {
		sync.Mutex
		limits map[string]lease.Usage
	}

	// loop belongs to the goroutine of Run.
	loop struct {
		coordinator *coordinator.Coordinator
		epoch       uint64 // of it, as it is kept
		members     map[string]*member
		refused     [256]uint64 // by status
		panics      uint64
		saturated   map[string]float64
		sampled     limit.Time
	}

	// step is what the loop calls, and patience the bounds on waiting; tests
	// change them.
	step     func(now limit.Time, e lease.Event) []lease.Grant
	patience struct{ firstReport, stalled time.Duration }

	// recoveredAt is when the coordinator knows what is lent, as a limit.Time.
	recoveredAt atomic.Int64

	claim claim

	snapshots chan struct{} // one look at everything at a time
	figures   atomic.Pointer[Figures]
}

// event is what the loop is woken by.
type event struct {
	stream   *stream
	report   *lease.Report // nil: the stream has ended
	snapshot func(now limit.Time)
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
	s.limits.Store(newIndex(o.Limits))
	s.figures.Store(&Figures{})
	s.loop.members, s.loop.saturated = map[string]*member{}, map[string]float64{}
	var seal *coordinator.Seal
	if len(o.State.Key) > 0 {
		seal = coordinator.NewSeal(o.State.Key)
	}
	c := coordinator.New(coordinator.Options{
		Epoch: o.State.Epoch, Former: o.State.Former, Above: above, Lease: o.Lease, Refresh: o.Refresh, Recovery: o.State.Recovery, MaxResources: o.MaxResources, Seal: seal,
		Resolve: func(id lease.ResourceID) (lease.Terms, lease.Status) { return s.limits.Load().resolve(id) },
	}, s.now())
	s.loop.coordinator, s.loop.epoch, s.step = c, c.Epoch(), c.Step
	s.recoveredAt.Store(int64(c.RecoveredAt()))
	s.patience.firstReport, s.patience.stalled = firstReport, stalled
	s.claim.init(&s.opts)
	return s
}

// now is the service's clock: monotonic, and never 0.
func (s *Service) now() limit.Time { return limit.Time(time.Since(s.origin) + time.Second) }

// Reload makes the service lend by the limits of set from here on.
func (s *Service) Reload(set *rules.Set) {
	s.limits.Store(newIndex(set))
	select {
	case s.reload <- struct{}{}:
	default: // it will see the latest
	}
}

// Leasing says whether a limit of those in force is shared by leases.
func (s *Service) Leasing() bool { return s.limits.Load().leased > 0 }

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

// Run lends until ctx ends; then it ends all streams and returns once everything it
// started has ended. It reports whether nothing was lent at the end. It runs once.
func (s *Service) Run(ctx context.Context) (nothingLent bool) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	sample := time.NewTimer(0)
	defer sample.Stop()
	s.loop.sampled = s.now()
	claiming := s.beginClaiming(ctx)
	for running := true; running; {
		panics := s.loop.panics
		select {
		case <-ctx.Done():
			running = false
		case e := <-s.events:
			select {
			case <-s.reload:
				// What was reported after a Reload is answered by its limits.
				s.feed(s.now(), nil, coordinator.Reconfigure{})
			default:
			}
			s.take(e)
			s.takeWaiting()
		case <-s.reload:
			s.feed(s.now(), nil, coordinator.Reconfigure{})
		case <-timer.C:
			s.feed(s.now(), nil, lease.Tick{})
		case <-sample.C:
			pause := time.Second
			s.guard(nil, "sample", func() { pause = s.sample(s.now()) })
			sample.Reset(pause)
		}
		wait := max(0, time.Duration(s.loop.coordinator.Next()-s.now()))
		if s.loop.panics > panics {
			wait = max(wait, breath)
		}
		timer.Reset(wait)
	}
	s.admission.Lock()
	s.admission.closing = true
	s.admission.Unlock()
	for _, m := range s.loop.members {
		if m.stream != nil {
			m.stream.end(errGoing)
		}
	}
	s.guard(nil, "end", func() { nothingLent = s.nothingLent() })
	close(s.ended)
	s.admission.handlers.Wait()
	claiming.Wait()
	s.unclaim(nothingLent)
	return nothingLent
}

var errGoing = status.Error(codes.Unavailable, "the coordinator goes: come back later, leases run on meanwhile")

// takeWaiting takes what has come meanwhile, so that one round serves it all.
func (s *Service) takeWaiting() {
	for range batch {
		select {
		case e := <-s.events:
			s.take(e)
		default:
			return
		}
	}
}

func (s *Service) take(e event) {
	now := s.now()
	switch {
	case e.snapshot != nil:
		s.guard(nil, "look", func() { e.snapshot(now) })
	case e.report == nil:
		s.gone(e.stream)
	case !s.lends(now):
		e.stream.end(s.notHere())
		e.stream.taken <- struct{}{}
	default:
		if m := s.admit(now, e.stream, e.report); m != nil {
			m.decided = s.limits.Load().count(m.decided, e.report.Usage)
			s.feed(now, e.stream, e.report)
			if e.report.Leaving {
				delete(s.loop.members, m.Instance)
				e.stream.end(nil)
			}
		}
		e.stream.taken <- struct{}{}
	}
}

// feed steps the coordinator and hands out what it answers.
func (s *Service) feed(now limit.Time, from *stream, e lease.Event) {
	s.guard(from, "step", func() {
		grants := s.step(now, e)
		s.risen()
		for i := range grants {
			s.send(&grants[i])
		}
	})
}

// risen takes note that the coordinator went above an epoch that an instance had heard,
// before anybody is told of it.
func (s *Service) risen() {
	c := s.loop.coordinator
	epoch := c.Epoch()
	if epoch == s.loop.epoch {
		return
	}
	s.opts.Logger.Error("an instance has heard a coordinator of a later epoch: the state was lost, the clock was set back, or a second coordinator lends the same limits, of which there may be exactly one; nothing new is lent until the leases of the other one have ended",
		"epoch", s.loop.epoch, "now", epoch)
	s.loop.epoch = epoch
	s.recoveredAt.Store(int64(c.RecoveredAt()))
	if s.opts.Raise == nil {
		return
	}
	if err := s.opts.Raise(epoch); err != nil {
		s.opts.Logger.Error("the epoch cannot be kept: leases of this coordinator cannot be claimed from the next one", "error", err)
	}
}

// Recovering is for how long yet the coordinator does not know what a former one has lent,
// and lends nothing that may be in use; 0 = it knows.
func (s *Service) Recovering() time.Duration {
	return max(0, time.Duration(limit.Time(s.recoveredAt.Load())-s.now()))
}

func (s *Service) send(g *lease.Grant) {
	for i := range g.Shares {
		if st := g.Shares[i].Status; st != lease.StatusOK {
			s.loop.refused[st]++
		}
	}
	if m := s.loop.members[g.To.Instance]; m != nil && m.Session == g.To.Session && m.stream != nil {
		m.stream.put(g)
	}
}

// guard survives a panic of f. The coordinator keeps a fault of one resource to
// itself; what gets past that ends the stream that brought it, and nothing else.
func (s *Service) guard(from *stream, what string, f func()) {
	defer func() {
		p := recover()
		if p == nil {
			return
		}
		s.loop.panics++
		s.opts.Logger.Error("the coordinator of leases failed", "in", what, "panic", p, "stack", string(debug.Stack()))
		if from != nil {
			from.end(errFault)
		}
	}()
	f()
}

var errFault = status.Error(codes.Internal, "the coordinator failed at this report: it is logged")

// nothingLent says whether no instance holds anything: no lease of a former coordinator
// either, of which nothing is known before the learning is over.
func (s *Service) nothingLent() bool {
	nothing := !s.loop.coordinator.Recovering(s.now())
	s.loop.coordinator.Each(s.now(), func(r *coordinator.ResourceState) bool {
		nothing = nothing && r.Lent == lease.Capacity{} && !r.Recovering
		return nothing
	})
	return nothing
}
