// Package grpclimit protects a gRPC server with limits: it describes the call,
// takes, and answers RESOURCE_EXHAUSTED where the decision is a refusal.
//
//	grpc.NewServer(
//		grpc.UnaryInterceptor(grpclimit.UnaryServerInterceptor(taker)),
//		grpc.StreamInterceptor(grpclimit.StreamServerInterceptor(taker)))
//
// It decides nothing itself. A stream is one call, however many messages it
// carries.
//
// Each call has these attributes, in this order:
//
//   - those of [WithAttributes], and key of [WithKey]; where a name occurs twice the first one counts
//   - ip, the client's address: see [WithTrustedProxies] and [WithIPv6Prefix]
//   - method, the full method, such as /grpc.health.v1.Health/Check
//   - those that [WithMetadata] names
//   - the metadata that the taker's limits read as header:<name>, if it is a
//     [limit.AttributeReader] as that of stint.Open is
//
// A refusal has the google.rpc details QuotaFailure, which names the limits and
// the reason, and RetryInfo. Interceptors also send the header metadata ratelimit
// and ratelimit-policy, as the fields of the same name in HTTP, and
// x-ratelimit-warning with the names of limits used beyond their soft threshold.
//
// A limit may let a call wait for its turn, or let it through with the metadata
// x-ratelimit-degraded, for the handler, although it is over the limit. A redirect is a refusal
// with the place in the header metadata location.
//
// Use the interceptors or the tap, not both: each of them takes.
package grpclimit

import (
	"context"
	"net/http"
	"net/netip"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/tap"

	"github.com/stint-io/stint/internal/answer"
	"github.com/stint-io/stint/internal/answer/grpcerror"
	"github.com/stint-io/stint/internal/forwarded"
	"github.com/stint-io/stint/internal/forwarded/identify"
	"github.com/stint-io/stint/internal/held"
	"github.com/stint-io/stint/limit"
)

// Draft names the version of the ratelimit metadata. The zero value is [Draft10].
type Draft = answer.Draft

// The versions of ratelimit and ratelimit-policy.
const (
	Draft11 = answer.Draft11 // draft-ietf-httpapi-ratelimit-headers-11: as Draft10, and permits in flight are named as such
	Draft10 = answer.Draft10 // lists of limits: r and t, q and w
	Draft07 = answer.Draft07 // one limit: limit, remaining and reset
	Draft06 = answer.Draft06 // one limit: RateLimit-Limit, -Remaining and -Reset; RateLimit-Policy
	Draft03 = answer.Draft03 // as Draft06, with the policies in RateLimit-Limit
	Off     = answer.Off     // none of these
)

// OnError says what becomes of a call about which no decision could be made.
type OnError uint8

// The choices.
const (
	// Reject answers UNAVAILABLE. It is the default: what a limit does when its
	// store fails is said in the limit, so what is left here is a call that the
	// limiter does not understand, and a client must not get past a limit by
	// sending one.
	Reject OnError = iota
	// Allow lets the call pass without limit.
	Allow
)

// Option changes what the constructors of this package build.
type Option func(*guard)

// WithAttributes adds attributes, such as the user that an outer interceptor has
// put into ctx. f is called once for each call, concurrently; a tap calls it
// before any interceptor has run.
func WithAttributes(f func(ctx context.Context, fullMethod string) []limit.Attribute) Option {
	return func(g *guard) { g.attributes = f }
}

// WithKey adds the attribute key, by which stint.Per("key", rate) or a limit with key: [key] counts: f says who makes a
// call, such as the user that an outer interceptor has put into ctx. "" = nobody, so that the call has no such attribute.
// f is called once for each call, concurrently. It goes with [WithAttributes], and comes after those.
func WithKey(f func(ctx context.Context, fullMethod string) string) Option {
	return func(g *guard) { g.key = f }
}

// WithMetadata adds the attributes header:<name> for the metadata keys named.
// What a call does not have is no attribute; of several values the first counts;
// values are cut at 1 KiB.
func WithMetadata(keys ...string) Option {
	return func(g *guard) {
		for _, key := range keys {
			key = strings.ToLower(key)
			g.metadata = append(g.metadata, wanted{attribute: "header:" + key, key: key})
		}
	}
}

// WithTrustedProxies believes the metadata x-forwarded-for, forwarded or
// x-real-ip (the first that is there) from these proxies, and from these only. A
// list is read from the right and the first address that is not among proxies is
// the client. The default trusts no proxy: the client is the peer.
func WithTrustedProxies(proxies ...netip.Prefix) Option {
	return func(g *guard) { g.trusted = forwarded.TrustPrefixes(proxies) }
}

// WithIPv6Prefix cuts IPv6 addresses in the attribute ip to a prefix of that length, 1 to 127, such as 2001:db8:0:1::/64,
// for a Taker that counts by the attribute as it is. By default it has the whole address: the limits of a file match it,
// and cut it to their ipv6_prefix, 64, where they count by it.
func WithIPv6Prefix(bits int) Option {
	return func(g *guard) { g.ipv6Bits = bits }
}

// WithHeaders sets the version of the ratelimit metadata. The default is
// [Draft10]. A tap sends none.
func WithHeaders(d Draft) Option {
	return func(g *guard) { g.answer.RateLimitFields = d }
}

// WithOnError sets what becomes of a call about which no decision could be made.
// The default is [Reject].
func WithOnError(o OnError) Option {
	return func(g *guard) { g.onError = o }
}

// WithCost sets what a call takes; the default is 1. A call that costs 0 takes
// nothing and passes while one that costs 1 would. A negative cost is an error,
// to which [WithOnError] applies.
func WithCost(f func(ctx context.Context, fullMethod string) int64) Option {
	return func(g *guard) { g.cost = f }
}

// WithHooks calls h for each decision, and of each call about which none could be made.
func WithHooks(h limit.Hooks) Option {
	return func(g *guard) { g.hooks = &h }
}

type wanted struct{ attribute, key string }

// guard is what interceptors and taps share. It is not changed once it is built.
type guard struct {
	hooks      *limit.Hooks // nil = none
	taker      limit.Taker
	finisher   limit.Finisher                                  // nil when the taker holds no concurrency limits
	reader     limit.AttributeReader                           // nil when the taker does not say what it reads
	attributes func(context.Context, string) []limit.Attribute // nil = none
	key        func(context.Context, string) string            // nil = none
	metadata   []wanted
	trusted    *forwarded.Trusted
	ipv6Bits   int
	answer     answer.Options
	onError    OnError
	cost       func(context.Context, string) int64
}

func newGuard(taker limit.Taker, opts []Option) *guard {
	g := &guard{taker: taker}
	g.finisher, _ = taker.(limit.Finisher)
	g.reader, _ = taker.(limit.AttributeReader)
	for _, o := range opts {
		o(g)
	}
	return g
}

// UnaryServerInterceptor asks taker about each unary call before its handler
// sees it. If taker is a [limit.Finisher], its permit is released when
// the handler returns. If a leaky bucket asks for a delay, the call waits that
// long, or until its context is done.
func UnaryServerInterceptor(taker limit.Taker, opts ...Option) grpc.UnaryServerInterceptor {
	g := newGuard(taker, opts)
	return func(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		a, err := g.admit(ctx, info.FullMethod)
		if err != nil {
			return nil, err
		}
		defer a.finish()
		return handler(a.tagged(ctx), req)
	}
}

// StreamServerInterceptor is [UnaryServerInterceptor] for streams. A permit
// is held until the stream ends.
func StreamServerInterceptor(taker limit.Taker, opts ...Option) grpc.StreamServerInterceptor {
	g := newGuard(taker, opts)
	return func(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
		ctx := stream.Context()
		a, err := g.admit(ctx, info.FullMethod)
		if err != nil {
			return err
		}
		defer a.finish()
		if tagged := a.tagged(ctx); tagged != ctx {
			stream = taggedStream{stream, tagged}
		}
		return handler(srv, stream)
	}
}

// ServerInHandle returns a tap, for [grpc.InTapHandle]: it refuses calls before
// the server has set up anything for them, which is the cheapest way to withstand
// a flood.
//
// gRPC calls a tap in the goroutine that reads the connection. So give it a taker
// that answers at once, such as one in memory, and no leaky bucket: the delay
// that one asks for is not kept. A permit is released when the call
// has ended.
func ServerInHandle(taker limit.Taker, opts ...Option) tap.ServerInHandle {
	g := newGuard(taker, opts)
	return func(ctx context.Context, info *tap.Info) (context.Context, error) {
		a, d, err := g.take(ctx, info.FullMethodName, info.Header, true)
		if err != nil {
			return ctx, err
		}
		if !d.Allowed {
			return ctx, grpcerror.Of(&d)
		}
		if a.held != nil {
			// gRPC ends a call's context with the call, however it ends.
			context.AfterFunc(ctx, a.finish)
		}
		return ctx, nil
	}
}

// admission is a call that was let in.
type admission struct {
	g    *guard
	req  limit.Request
	held *held.Permit // nil = it holds none
	tags []limit.Attribute
}

// degraded is limit.DegradedHeader as gRPC spells it. A client that sends it is not believed.
const degraded = "x-ratelimit-degraded"

// tagged returns ctx with the marks of the limits that let the call through although it is over
// them.
func (a admission) tagged(ctx context.Context) context.Context {
	md, _ := metadata.FromIncomingContext(ctx)
	if len(a.tags) == 0 && len(md[degraded]) == 0 {
		return ctx
	}
	md = md.Copy()
	delete(md, degraded)
	for _, t := range a.tags {
		delete(md, strings.ToLower(t.Name))
	}
	for _, t := range a.tags {
		md.Append(t.Name, t.Value)
	}
	return metadata.NewIncomingContext(ctx, md)
}

// taggedStream is a stream with another context.
type taggedStream struct {
	grpc.ServerStream
	ctx context.Context
}

// Context implements grpc.ServerStream.
func (s taggedStream) Context() context.Context { return s.ctx }

// admit decides about a call for the interceptors.
func (g *guard) admit(ctx context.Context, fullMethod string) (admission, error) {
	md, _ := metadata.FromIncomingContext(ctx)
	a, d, err := g.take(ctx, fullMethod, md, false)
	if err != nil {
		return admission{}, err
	}
	g.sendHeader(ctx, &d)
	if !d.Allowed {
		return admission{}, grpcerror.Of(&d)
	}
	if d.Delay > 0 {
		if err := wait(ctx, d.Delay); err != nil {
			a.finish()
			return admission{}, err
		}
	}
	return a, nil
}

// take asks about a call. An error is a gRPC status.
func (g *guard) take(ctx context.Context, fullMethod string, md metadata.MD, atOnce bool) (admission, limit.Decision, error) {
	a := admission{g: g, req: limit.Request{Attributes: g.describe(ctx, fullMethod, md)}}
	if g.cost != nil {
		a.req.Cost = g.cost(ctx, fullMethod)
		a.req.Peek = a.req.Cost == 0
	}
	d, err := g.ask(ctx, a.req, atOnce)
	g.hooks.Decided(ctx, &d, err)
	if err != nil {
		if g.onError == Allow {
			return admission{}, limit.Decision{Allowed: true}, nil
		}
		// The reason is the operator's: it may name hosts.
		return admission{}, limit.Decision{}, status.Error(codes.Unavailable, "the rate limiter could not decide")
	}
	if g.finisher != nil && d.Permit != 0 {
		a.held = held.Hold(ctx, g.finisher, a.req, d.Permit, d.PermitFor)
	}
	a.tags = d.Tags
	return a, d, nil
}

// ask takes. With atOnce nothing waits.
func (g *guard) ask(ctx context.Context, req limit.Request, atOnce bool) (limit.Decision, error) {
	if patient, ok := g.taker.(limit.PatientTaker); ok && atOnce {
		return patient.TakeWithin(ctx, req, 0)
	}
	return g.taker.Take(ctx, req)
}

// describe returns the attributes of a call.
func (g *guard) describe(ctx context.Context, fullMethod string, md metadata.MD) []limit.Attribute {
	attributes := make([]limit.Attribute, 0, 2+len(g.metadata))
	if g.attributes != nil {
		attributes = append(attributes, g.attributes(ctx, fullMethod)...)
	}
	if g.key != nil {
		if key := g.key(ctx, fullMethod); key != "" {
			attributes = append(attributes, limit.Attribute{Name: "key", Value: key})
		}
	}
	if ip := forwarded.Network(g.clientIP(ctx, md), g.ipv6Bits); ip != "" {
		attributes = append(attributes, limit.Attribute{Name: "ip", Value: ip})
	}
	attributes = append(attributes, limit.Attribute{Name: "method", Value: identify.Bound(fullMethod)})
	for _, w := range g.metadata {
		if values := md[w.key]; len(values) > 0 {
			attributes = append(attributes, limit.Attribute{Name: w.attribute, Value: identify.Bound(values[0])})
		}
	}
	if g.reader == nil {
		return attributes
	}
	for _, name := range g.reader.Attributes() {
		key, ok := strings.CutPrefix(name, "header:")
		if values := md[key]; ok && len(values) > 0 {
			attributes = append(attributes, limit.Attribute{Name: name, Value: identify.Bound(values[0])})
		}
	}
	return attributes
}

func (g *guard) clientIP(ctx context.Context, md metadata.MD) netip.Addr {
	p, ok := peer.FromContext(ctx)
	if !ok || p.Addr == nil {
		return netip.Addr{}
	}
	remote := p.Addr.String()
	addr, trusted := g.trusted.Peer(remote)
	if !trusted {
		return addr
	}
	h := http.Header{}
	for _, name := range [...]string{"X-Forwarded-For", "Forwarded", "X-Real-Ip"} {
		h[name] = md[strings.ToLower(name)]
	}
	addr, _ = g.trusted.ClientIP(remote, h)
	return addr
}

// sendHeader puts what d says of its limits into the call's header metadata.
func (g *guard) sendHeader(ctx context.Context, d *limit.Decision) {
	if len(d.Results) == 0 {
		return
	}
	h := http.Header{}
	answer.Header(h, d, g.answer)
	md := make(metadata.MD, len(h))
	for name, values := range h {
		md[strings.ToLower(name)] = values
	}
	// It fails when the handler of an outer interceptor has sent its header
	// already; the decision stands without it.
	_ = grpc.SetHeader(ctx, md)
}

// finish releases the permits.
func (a admission) finish() {
	if a.held != nil {
		a.held.Release()
	}
}

// wait waits for d. Its error is a gRPC status.
func wait(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return status.FromContextError(ctx.Err()).Err()
	}
}
