package rlqs

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/rate_limit_quota/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/rules"
)

// Stream carries the messages of one instance to its coordinator and back. Send and Receive are called
// by one goroutine each.
type Stream interface {
	Send(r *lease.Report) error
	CloseSend() error
	Receive() (*lease.Grant, error)
}

// Options are the choices of a Service. Match and Connect are required.
type Options struct {
	// Match returns the limits in force that apply to a bucket of a domain.
	Match func(domain string, pairs []limit.Attribute) []rules.Matched
	// Connect opens a stream to the coordinator of a shard, that lives until ctx ends. Keys in its
	// reports are those of [rules.Matched].
	Connect func(ctx context.Context, shard int) (Stream, error)
	// ShardOf returns the shard of a resource, of Shards; nil and 0 = there is one.
	ShardOf func(lease.ResourceID) int
	Shards  int
	// MaxStreams bounds the streams, also those that have ended while what they were assigned is in use; 0 = [MaxStreams].
	MaxStreams int
	// Draining is closed before the server ends all streams; nil = they end without a word.
	Draining <-chan struct{}
	// Logger takes what operators should read; nil = [slog.Default]. Keys never are in it.
	Logger *slog.Logger
}

// Service is the quota service. Make it with [New]; it serves while [Service.Run] runs. It is safe for
// concurrent use.
type Service struct {
	pb.UnimplementedRateLimitQuotaServiceServer
	opts   Options
	origin time.Time // of the clock

	mu       sync.Mutex
	running  context.Context // of Run; nil = it does not run
	sessions map[*running]struct{}
	wg       sync.WaitGroup
	ended    SessionStats // of sessions that are over
	refused  uint64       // reports that were wrong
	wrong    uint64       // usages that were, of buckets without a valid name
	long     uint64       // usages of buckets with a name that is too long
	turned   uint64       // streams for which there was no room

	refusedLog, wrongLog sometimes

	buckets atomic.Int64 // of all sessions, also those that are ending
	warned  sync.Map     // names of limits that are not leased, once each
}

// New returns a service that has no streams yet.
func New(o Options) *Service {
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	if o.MaxStreams == 0 {
		o.MaxStreams = MaxStreams
	}
	return &Service{opts: o, origin: time.Now(), sessions: map[*running]struct{}{}}
}

// now is the service's clock: monotonic, and never 0.
func (s *Service) now() limit.Time { return limit.Time(time.Since(s.origin) + time.Second) }

// Run owns the sessions until ctx ends, and returns when all have given back what they held. It runs
// once.
func (s *Service) Run(ctx context.Context) {
	s.mu.Lock()
	s.running = ctx
	s.mu.Unlock()
	<-ctx.Done()
	s.mu.Lock()
	s.running = nil
	s.mu.Unlock()
	s.wg.Wait()
}

// Drain waits until every session has given back what it held, or ctx is done. It is called when Draining is closed and
// before the context of Run ends, with which the coordinator ends too.
func (s *Service) Drain(ctx context.Context) {
	s.mu.Lock()
	all := slices.Collect(maps.Keys(s.sessions))
	s.mu.Unlock()
	for _, r := range all {
		select {
		case <-r.over:
		case <-ctx.Done():
			return
		}
	}
}

// Reload has the sessions follow the limits that are in force now.
func (s *Service) Reload() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for r := range s.sessions {
		select {
		case r.rematch <- struct{}{}:
		default: // it will see the latest
		}
	}
}

// begin makes the session of the stream of ctx.
func (s *Service) begin(of context.Context) (*running, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.running == nil || s.draining() {
		return nil, errGoing
	}
	if len(s.sessions) >= s.opts.MaxStreams {
		s.turned++
		return nil, errFull
	}
	ctx, cancel := context.WithCancel(s.running)
	r := &running{
		service: s, ctx: ctx, cancel: cancel, events: make(chan event, 64), rematch: make(chan struct{}, 1),
		lost: make(chan struct{}), over: make(chan struct{}), outbox: outbox{wake: make(chan struct{}, 1)}, links: map[Peer]*link{},
	}
	r.session = NewSession(SessionOptions{
		Instance: instanceName(of), Number: max(1, rand.Uint64()), Match: s.match, Shards: s.opts.Shards, ShardOf: s.opts.ShardOf,
		Send: r.sendReport, Joined: r.join, Jitter: rand.Float64, Buckets: &s.buckets,
	}, s.now())
	s.sessions[r] = struct{}{}
	s.wg.Go(func() {
		defer s.finish(r)
		r.run()
	})
	return r, nil
}

func (s *Service) finish(r *running) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.sessions, r)
	s.buckets.Add(-int64(len(r.session.all))) // none, but at the end of the server
	s.ended.add(*r.stats.Load())
}

var errGoing = status.Error(codes.Unavailable, "the server goes: come back later")

// errFull ends a stream for which there is no room.
var errFull = status.Error(codes.ResourceExhausted, "too many Envoys hold a stream here: add servers")

// errSlow ends a stream whose Envoy does not read what it is sent: it may be using what was given to
// others.
var errSlow = status.Error(codes.ResourceExhausted, "the assignments are not read: read them as they come")

// StreamRateLimitQuotas serves one Envoy.
func (s *Service) StreamRateLimitQuotas(srv pb.RateLimitQuotaService_StreamRateLimitQuotasServer) error {
	r, err := s.begin(srv.Context())
	if err != nil {
		return err
	}
	reading := make(chan error, 1)
	go func() { reading <- s.read(r, srv) }() // ends with the stream, whose handler has returned then
	writing := make(chan error, 1)
	stop := make(chan struct{})
	go func() { writing <- r.outbox.write(srv, stop) }() // ends before the handler
	select {
	case err = <-reading:
	case err = <-writing:
		writing = nil
	case <-r.lost:
		err = errSlow
	case <-r.over:
		err = errGoing
	case <-srv.Context().Done():
		err = status.FromContextError(srv.Context().Err()).Err()
	}
	if s.draining() {
		r.drain()
		err = errGoing
	}
	r.lose()
	close(stop)
	if writing != nil {
		select {
		case <-writing:
		case <-time.After(Delivery):
		}
	}
	return err
}

func (s *Service) draining() bool {
	select {
	case <-s.opts.Draining:
		return true
	default:
		return false // also where there is no such channel
	}
}

// read hands reports to the session, one at a time. Its error says what the stream ends with.
func (s *Service) read(r *running, srv pb.RateLimitQuotaService_StreamRateLimitQuotasServer) error {
	reports := reader{}
	for {
		m, err := srv.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		usages, err := reports.read(m)
		s.note(srv.Context(), &reports, err)
		if err != nil {
			return err
		}
		// One at a time: a report can have as many buckets as a message has room for.
		taken := make(chan struct{})
		if !r.post(event{usages: usages, taken: taken}) {
			return errGoing
		}
		select {
		case <-taken:
		case <-r.over:
			return errGoing
		}
	}
}

// logEvery is between two lines about wrong reports, or about wrong usages.
const logEvery = time.Minute

// note counts and logs what was wrong with a report.
func (s *Service) note(ctx context.Context, r *reader, err error) {
	if err == nil && r.why == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	from := ""
	if p, ok := peer.FromContext(ctx); ok {
		from = p.Addr.String()
	}
	if err != nil {
		if s.refused++; s.refusedLog.due() {
			s.opts.Logger.Error("an Envoy's stream of quotas is ended, and it opens another: none of its buckets is assigned until its configuration is right", "error", err, "from", from, "reports", s.refused)
		}
	}
	if s.wrong, s.long = s.wrong+r.wrong, s.long+r.long; r.why != nil && s.wrongLog.due() {
		s.opts.Logger.Warn("a bucket of Envoy's quota filter has a name that gets no assignment, so Envoy does with its requests what no_assignment_behavior says: have the matcher check header fields of clients before they become a bucket",
			"because", r.why, "domain", r.domain, "from", from, "wrong", s.wrong, "too_long", s.long)
	}
	r.wrong, r.long, r.why = 0, 0, nil
}

// sometimes is when something was logged last.
type sometimes struct{ at time.Time }

// due reports whether the last time was logEvery ago.
func (s *sometimes) due() bool {
	if !s.at.IsZero() && time.Since(s.at) < logEvery {
		return false
	}
	s.at = time.Now()
	return true
}

// match returns the limits of a bucket.
func (s *Service) match(b *BucketName) Targets {
	var t Targets
	for _, m := range s.opts.Match(b.Domain, b.Pairs) {
		switch {
		case m.Shadow, m.Limit.Whitelist, m.Variant.Policy.Unlimited:
		case m.Limit.OnExceed.Tag != nil && !m.Missing: // it refuses nothing, and Envoy has no place for a mark
		case assignable(m.Limit) && !m.Missing:
			t.IDs = append(t.IDs, lease.ResourceID{Limit: m.Limit.Name, Key: string(m.Key)})
			rate := m.Variant.Policy.Rate
			t.Rates = append(t.Rates, tokensOf(uint64(rate.Count)).Scale(fixed.Amount(time.Second), fixed.Amount(rate.Period)))
		default:
			t.Unleased = true
			s.warn(m.Limit)
		}
	}
	if len(t.IDs) > 0 {
		t.Unleased = false
	}
	return t
}

// assignable says whether parts of a limit can be assigned.
func assignable(l *rules.Limit) bool {
	return !l.Envoy && (l.Sharing == rules.SharingLeased || l.Sharing == rules.SharingSplit) && l.Base.Policy.Algorithm != limit.Concurrency
}

// warn says once of a limit that it does not hold for buckets.
func (s *Service) warn(l *rules.Limit) {
	if _, known := s.warned.LoadOrStore(l.Name, true); known {
		return
	}
	s.opts.Logger.Warn("a limit applies to buckets of Envoy's quota filter but cannot be assigned to them, so it does not hold for them: a bucket with no other limit gets no assignment, and its Envoy does what its no_assignment_behavior says. Add sharing: leased to the limit, which has to be one of requests per time in stint's format",
		"limit", l.Name, "file", l.File, "line", l.Line)
}

func (a *SessionStats) add(b SessionStats) {
	a.Allowed, a.Denied = saturatingAdd(a.Allowed, b.Allowed), saturatingAdd(a.Denied, b.Denied)
	a.Assigned += b.Assigned
	a.Changed += b.Changed
	a.Abandoned += b.Abandoned
	a.Crowded += b.Crowded
	a.Unleased += b.Unleased
	a.Over = saturatingAdd(a.Over, b.Over)
}
