// Package grpcthrottle protects a gRPC server from more work than it can do: calls run, wait or are
// turned away as a [throttle.Throttle] decides.
//
//	t, err := throttle.New(throttle.Options{Rate: 1.6}) // 80 % of two cores
//	server := grpc.NewServer(
//		grpc.ChainUnaryInterceptor(grpcthrottle.UnaryServerInterceptor(t)),
//		grpc.ChainStreamInterceptor(grpcthrottle.StreamServerInterceptor(t)))
//
// It says which method is called, who calls and how important it is, and what the call has cost if
// its handler reports that; it decides nothing itself. A stream is one call: it runs, and holds
// its place, until its handler returns.
//
// The user is the peer's address. The metadata x-criticality says how important a call is, such
// as critical or "sheddable;level=3": from strangers it only lowers the class, see
// [WithTrustedPeers]. The context of the call carries it on: the interceptors of package outgoing
// send it with the calls that the handler makes.
//
// A call that is refused, evicted or has waited too long ends once, with RESOURCE_EXHAUSTED and the
// google.rpc details QuotaFailure, which has the reason, and RetryInfo. It is not UNAVAILABLE, which
// clients try again on their own, at once and elsewhere, and so multiply an overload. A call that is
// cancelled while it runs ends so as well, when its handler returns an error.
//
// What a call has cost is, in this order: what the handler says by [throttle.SetCost]; the
// request_cost of an ORCA report in its trailer (endpoint-load-metrics-bin, in which cpu is CPU
// time in milliseconds), as [google.golang.org/grpc/orca] writes it if its option is given to
// NewServer after these interceptors; what the throttle's Meter measures.
package grpcthrottle

import (
	"context"
	"errors"
	"net/netip"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/stint-io/stint/internal/answer/grpcerror"
	"github.com/stint-io/stint/internal/costs/orca"
	"github.com/stint-io/stint/internal/forwarded"
	"github.com/stint-io/stint/internal/forwarded/identify"
	"github.com/stint-io/stint/throttle"
)

// Option changes what the constructors of this package build.
type Option func(*guard)

// WithUser sets who calls, such as the account that an outer interceptor has put into ctx. Users
// share what is served fairly, and of a class that is shed in part the same users are always shed.
// The default is the peer's address.
func WithUser(f func(ctx context.Context, fullMethod string) string) Option {
	return func(g *guard) { g.user = f }
}

// WithKey sets who shares what is served fairly, if that is not the user. See [ByMethod].
func WithKey(f func(ctx context.Context, fullMethod string) string) Option {
	return func(g *guard) { g.key = f }
}

// ByMethod lets the methods rather than the users share what is served: a cheap method does not
// wait behind a dear one, whoever calls them.
func ByMethod() Option {
	return WithKey(func(_ context.Context, fullMethod string) string { return fullMethod })
}

// WithRoute sets the route of a call, where the cost of a method differs by more than its name:
// calls of one route are expected to cost the same. Have few of them: a throttle knows some 1,000.
// The default is the full method.
func WithRoute(f func(ctx context.Context, fullMethod string) string) Option {
	return func(g *guard) { g.route = f }
}

// WithCriticality sets the class of calls that say nothing, which is also the highest that a
// stranger's may have. The default is [throttle.SheddablePlus].
func WithCriticality(c throttle.Criticality) Option {
	return func(g *guard) { g.class = c }
}

// WithTrustedPeers believes the x-criticality of these peers whole. They are the other end of the
// connection: own services, and only proxies that remove the metadata of strangers.
func WithTrustedPeers(peers ...netip.Prefix) Option {
	return func(g *guard) { g.peers = forwarded.TrustPrefixes(peers) }
}

// WithCost sets the CPU time that a call will take, where the program knows it; 0 = as predicted.
func WithCost(f func(ctx context.Context, fullMethod string) time.Duration) Option {
	return func(g *guard) { g.cost = f }
}

// WithThreadClock measures what a call costs by the clock of a thread, to which its handler is bound
// while it runs: see [throttle.Work.Pin]. For handlers that mostly compute.
func WithThreadClock() Option { return func(g *guard) { g.pin = true } }

// WithExempt lets calls pass that neither wait nor count. The default are those of
// grpc.health.v1.Health: a server that fails them because it is busy is taken out of service, and
// the others are busier still.
func WithExempt(f func(fullMethod string) bool) Option {
	return func(g *guard) { g.exempt = f }
}

// guard is what the interceptors share. It is not changed once it is built.
type guard struct {
	throttle  *throttle.Throttle
	user, key func(context.Context, string) string
	route     func(context.Context, string) string
	class     throttle.Criticality
	peers     *forwarded.Trusted
	cost      func(context.Context, string) time.Duration
	exempt    func(string) bool
	pin       bool
}

func newGuard(t *throttle.Throttle, opts []Option) *guard {
	g := &guard{throttle: t, exempt: isHealth}
	for _, o := range opts {
		o(g)
	}
	return g
}

func isHealth(fullMethod string) bool {
	return strings.HasPrefix(fullMethod, "/grpc.health.v1.Health/")
}

// UnaryServerInterceptor lets unary calls wait until t lets them run. Put it outermost, so that
// what waits or is refused costs as little as can be. It is safe for concurrent use. Functions of
// options are called once for each call, concurrently.
func UnaryServerInterceptor(t *throttle.Throttle, opts ...Option) grpc.UnaryServerInterceptor {
	g := newGuard(t, opts)
	return func(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		if g.exempt(info.FullMethod) {
			return handler(ctx, req)
		}
		c, err := g.start(ctx, info.FullMethod)
		if err != nil {
			return nil, err
		}
		defer c.done()
		reply, err := handler(c.ctx, req)
		return reply, c.outcome(err)
	}
}

// StreamServerInterceptor is [UnaryServerInterceptor] for streams.
func StreamServerInterceptor(t *throttle.Throttle, opts ...Option) grpc.StreamServerInterceptor {
	g := newGuard(t, opts)
	return func(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
		if g.exempt(info.FullMethod) {
			return handler(srv, stream)
		}
		c, err := g.start(stream.Context(), info.FullMethod)
		if err != nil {
			return err
		}
		defer c.done()
		return c.outcome(handler(srv, &serverStream{ServerStream: stream, call: c}))
	}
}

// start waits until a call may run. An error is a gRPC status.
func (g *guard) start(ctx context.Context, fullMethod string) (*call, error) {
	work, d, err := g.throttle.Start(ctx, g.describe(ctx, fullMethod))
	switch {
	case err != nil:
		return nil, status.FromContextError(err).Err()
	case !d.Allowed:
		return nil, grpcerror.Of(&d)
	}
	c := &call{work: work, ctx: work.Context(), unpin: func() {}}
	if g.pin {
		c.unpin = work.Pin()
	}
	if s := grpc.ServerTransportStreamFromContext(ctx); s != nil {
		c.ServerTransportStream = s
		c.ctx = grpc.NewContextWithServerTransportStream(c.ctx, c)
	}
	return c, nil
}

// describe returns what the throttle has to know of a call.
func (g *guard) describe(ctx context.Context, fullMethod string) throttle.Request {
	remote := ""
	if p, ok := peer.FromContext(ctx); ok && p.Addr != nil {
		remote = p.Addr.String()
	}
	importance := g.importance(ctx, remote)
	q := throttle.Request{
		Route: identify.Bound(fullMethod), Criticality: importance.Criticality, Level: importance.Level, HasLevel: importance.HasLevel,
	}
	if g.route != nil {
		q.Route = identify.Bound(g.route(ctx, fullMethod))
	}
	if g.user != nil {
		q.User = identify.Bound(g.user(ctx, fullMethod))
	} else {
		addr, _ := g.peers.Peer(remote)
		q.User = forwarded.Network(addr, forwarded.SubscriberBits)
	}
	if g.key != nil {
		q.Key = identify.Bound(g.key(ctx, fullMethod))
	}
	if g.cost != nil {
		q.Cost = max(0, g.cost(ctx, fullMethod))
	}
	return q
}

// maxImportance bounds the metadata x-criticality. Not smaller: there may be parameters to come.
const maxImportance = 256

func (g *guard) importance(ctx context.Context, remote string) throttle.Importance {
	var said throttle.Importance
	// Several values, or what cannot be understood, say nothing.
	values := metadata.ValueFromIncomingContext(ctx, throttle.Header)
	if len(values) == 1 && len(values[0]) <= maxImportance {
		if i, err := throttle.ParseImportance(values[0]); err == nil {
			said = i
		}
	}
	if said.Criticality == throttle.Default {
		return throttle.Importance{Criticality: g.class}
	}
	if _, trusted := g.peers.Peer(remote); trusted {
		return said
	}
	return said.FromStranger(g.class)
}

// call is a call that runs. It stands between the handler and the transport, to see its trailer.
type call struct {
	grpc.ServerTransportStream
	work  *throttle.Work
	ctx   context.Context
	usage throttle.Usage // as reported
	unpin func()
}

// SetTrailer implements grpc.ServerTransportStream.
func (c *call) SetTrailer(md metadata.MD) error {
	c.read(md)
	return c.ServerTransportStream.SetTrailer(md)
}

// read takes the report out of a trailer, if it can be understood.
func (c *call) read(md metadata.MD) {
	if usage, err := orca.FromMetadata(md); err == nil && usage != nil {
		c.usage = usage
	}
}

// outcome is the error with which a call ends whose handler returned err.
func (c *call) outcome(err error) error {
	if err == nil || !errors.Is(context.Cause(c.ctx), throttle.ErrCancelled) {
		return err
	}
	if d, ok := c.work.Refusal(); ok {
		return grpcerror.Of(&d)
	}
	return err
}

func (c *call) done() {
	c.unpin()
	if c.usage != nil && !c.work.HasCost() {
		c.work.SetUsage(c.usage)
	}
	c.work.Done()
}

// serverStream gives the handler of a stream the context of the call.
type serverStream struct {
	grpc.ServerStream
	call *call
}

func (s *serverStream) Context() context.Context { return s.call.ctx }

func (s *serverStream) SetTrailer(md metadata.MD) {
	s.call.read(md)
	s.ServerStream.SetTrailer(md)
}
