// Package grpcclient has the interceptors of a gRPC client that spares the servers it calls, and
// its program the calls that would be refused anyway.
//
//	guard, err := grpcclient.New(grpcclient.Policy{})
//	...
//	conn, err := grpc.NewClient(target, append(guard.DialOptions(), credentials)...)
//
// It throttles itself while a server refuses, tries again within a budget, obeys RetryInfo and the
// ratelimit metadata, and asks a limit of one's own: see package outgoing, which says what the
// [Policy] means. Servers are told apart by the target of the connection, and methods are taken to
// meet limits of their own.
//
// A call that is held back fails with an error that is a [*Refusal] for errors.As and has the
// status RESOURCE_EXHAUSTED with QuotaFailure and RetryInfo, as package grpclimit answers.
//
// Refusals are RESOURCE_EXHAUSTED and UNAVAILABLE, and for its method alone DEADLINE_EXCEEDED of a call
// that was sent. A call for which there was no connection counts for nothing, and so do one that its caller
// cancelled and one whose message is larger than either side allows, which gRPC calls
// RESOURCE_EXHAUSTED as well. The latter is not tried again.
//
// A unary call is tried again when there was no connection, when the server says in RetryInfo when
// to, and, for the methods of [WithIdempotent], after every refusal. Streams are not tried again:
// messages may have been sent. Leave the retries of a service config off, or they multiply.
package grpcclient

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/stint-io/stint/internal/answer/grpcerror"
	"github.com/stint-io/stint/internal/answer/reader"
	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/middleware/outgoing"
	"github.com/stint-io/stint/throttle"
)

// Policy says how calls are sent; see [outgoing.Policy].
type Policy = outgoing.Policy

// Refusal is the error of a call that was not sent; see [outgoing.Refusal].
type Refusal = outgoing.Refusal

// Stats are what a [Guard] has done; see [outgoing.Stats].
type Stats = outgoing.Stats

// Option changes what [New] builds.
type Option func(*Guard)

// WithIdempotent sets which methods, such as /grpc.health.v1.Health/Check, may be called twice. The
// default is none. f is called concurrently.
func WithIdempotent(f func(fullMethod string) bool) Option {
	return func(g *Guard) { g.idempotent = f }
}

// WithAttributes adds attributes of a call for Policy.Limit, besides host and method; of a name
// that occurs twice the first counts. f is called concurrently.
func WithAttributes(f func(ctx context.Context, fullMethod string) []limit.Attribute) Option {
	return func(g *Guard) { g.attributes = f }
}

// Guard has the interceptors. It is safe for concurrent use; [New] makes one, and one can serve many
// connections.
type Guard struct {
	guard      *outgoing.Guard
	idempotent func(string) bool
	attributes func(context.Context, string) []limit.Attribute
}

// New returns a Guard. Its error names the value of the policy that is out of its range.
func New(p Policy, opts ...Option) (*Guard, error) {
	guard, err := outgoing.New(p)
	if err != nil {
		return nil, err
	}
	g := &Guard{guard: guard, idempotent: func(string) bool { return false }}
	for _, o := range opts {
		o(g)
	}
	return g, nil
}

// Stats returns what the Guard has done so far, for metrics.
func (g *Guard) Stats() Stats { return g.guard.Stats() }

// DialOptions returns both interceptors as options of grpc.NewClient. They come first in the chain.
func (g *Guard) DialOptions() []grpc.DialOption {
	return []grpc.DialOption{
		grpc.WithChainUnaryInterceptor(g.UnaryClientInterceptor()),
		grpc.WithChainStreamInterceptor(g.StreamClientInterceptor()),
	}
}

// UnaryClientInterceptor returns the interceptor of unary calls.
func (g *Guard) UnaryClientInterceptor() grpc.UnaryClientInterceptor {
	return func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		ctx, call := g.call(ctx, method, cc)
		var err error
		attempt, held := g.guard.Do(ctx, call, func(int) outgoing.Result {
			var header, trailer metadata.MD
			var p peer.Peer
			// The caller's own options keep their slots: those given twice are both filled.
			all := append(opts[:len(opts):len(opts)], grpc.Header(&header), grpc.Trailer(&trailer), grpc.Peer(&p))
			err = invoke(ctx, method, req, reply, cc, all...)
			res := outgoing.Result{Outcome: outcome(ctx, err, p.Addr != nil), Standing: standing(err, header, trailer)}
			switch {
			case err == nil || res.Outcome == outgoing.Accepted:
			case res.Outcome == outgoing.Dropped:
				res.Again = ctx.Err() == nil && !tooLarge(err)
			default:
				_, asked := grpcerror.RetryAfter(err)
				res.Again = asked || g.idempotent(method)
			}
			return res
		})
		if held != nil {
			return notSent(ctx, held)
		}
		attempt.Release()
		return err
	}
}

// StreamClientInterceptor returns the interceptor of streams. A stream is one call: it is accepted
// when the first header or message comes, and ends when it has been received to its end or its
// context is done.
func (g *Guard) StreamClientInterceptor() grpc.StreamClientInterceptor {
	return func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
		ctx, call := g.call(ctx, method, cc)
		attempt, err := g.guard.Begin(ctx, call)
		if err != nil {
			return nil, notSent(ctx, err)
		}
		s := &stream{ctx: ctx, attempt: attempt, more: desc.ServerStreams}
		s.ClientStream, err = open(ctx, desc, cc, method, opts...)
		if err != nil {
			// No stream was opened, so nothing has reached the server.
			attempt.End(outgoing.Dropped, outgoing.Standing{})
			attempt.Release()
			return nil, err
		}
		s.stop = context.AfterFunc(ctx, func() {
			attempt.End(outgoing.Dropped, outgoing.Standing{})
			attempt.Release()
		})
		return s, nil
	}
}

// call describes a call, and returns ctx with the class of the call in its metadata.
func (g *Guard) call(ctx context.Context, method string, cc *grpc.ClientConn) (context.Context, outgoing.Call) {
	c := outgoing.Call{Host: cc.CanonicalTarget(), Scope: method}
	if g.attributes != nil {
		c.Attributes = g.attributes(ctx, method)
	}
	c.Attributes = append(c.Attributes, limit.Attribute{Name: "method", Value: method})
	md, _ := metadata.FromOutgoingContext(ctx)
	if names := md.Get(throttle.Header); len(names) > 0 {
		if i, err := throttle.ParseImportance(names[0]); err == nil {
			c.Criticality = i.Criticality
		}
	} else if i := outgoing.ImportanceOf(ctx); i.Criticality != throttle.Default {
		ctx = metadata.AppendToOutgoingContext(ctx, throttle.Header, i.String())
	}
	return ctx, c
}

// outcome says what a call's error means. reached tells whether there was a connection for it.
func outcome(ctx context.Context, err error, reached bool) outgoing.Outcome {
	switch status.Code(err) {
	case codes.Canceled:
		if ctx.Err() != nil {
			return outgoing.Dropped
		}
	case codes.ResourceExhausted, codes.Unavailable, codes.DeadlineExceeded:
		switch {
		case !reached || tooLarge(err):
			return outgoing.Dropped
		case status.Code(err) == codes.DeadlineExceeded:
			return outgoing.Unanswered
		}
		return outgoing.Refused
	}
	return outgoing.Accepted
}

// tooLarge reports whether err says that a message was too large to be sent or received. The status is
// that of load, and the implementations of gRPC tell the two apart by their texts alone: that of Go, those
// on its core, and those of Java, .NET and Node.
func tooLarge(err error) bool {
	st, ok := status.FromError(err)
	if !ok || st.Code() != codes.ResourceExhausted {
		return false
	}
	text := strings.ToLower(st.Message())
	for _, size := range [...]string{"message larger than max", "message after decompression larger than max", "message exceeds maximum size", "message exceeds the maximum configured message size", "message with a size larger than"} {
		if strings.Contains(text, size) {
			return true
		}
	}
	return false
}

// standing returns what an answer says of the server's limits: in the details of its status, and in
// its metadata.
func standing(err error, sent ...metadata.MD) outgoing.Standing {
	h := http.Header{}
	for _, md := range sent {
		for name, values := range md {
			h[name] = append(h[name], values...)
		}
	}
	s := reader.Read(h, time.Now())
	if err != nil {
		if wait, ok := grpcerror.RetryAfter(err); ok {
			s.RetryAfter, s.Wait = wait, true
		}
	}
	return s
}

// refusedError is the error of a call that was not sent: a refusal with a gRPC status.
type refusedError struct{ *Refusal }

// Unwrap lets errors.As find the refusal.
func (e refusedError) Unwrap() error { return e.Refusal }

// GRPCStatus lets package status find the status.
func (e refusedError) GRPCStatus() *status.Status {
	return status.Convert(grpcerror.Of(&e.Decision))
}

// notSent returns the error of a call that was held back.
func notSent(ctx context.Context, err error) error {
	var r *Refusal
	switch {
	case errors.As(err, &r):
		return refusedError{r}
	case ctx.Err() != nil:
		return status.FromContextError(ctx.Err()).Err()
	default:
		return status.Error(codes.Unavailable, "grpcclient: the limit of one's own could not decide: "+err.Error())
	}
}

// stream is a ClientStream that says how it ended.
type stream struct {
	grpc.ClientStream
	ctx     context.Context
	attempt *outgoing.Attempt
	more    bool // the server may send more than one message
	stop    func() bool
}

// Header implements grpc.ClientStream.
func (s *stream) Header() (metadata.MD, error) {
	md, err := s.ClientStream.Header()
	if err == nil && md != nil {
		s.end(outgoing.Accepted, standing(nil, md), false)
	}
	return md, err
}

// SendMsg implements grpc.ClientStream. An error of its own ends the stream; io.EOF says that the server has
// ended it, and RecvMsg says how.
func (s *stream) SendMsg(m any) error {
	err := s.ClientStream.SendMsg(m)
	if err != nil && !errors.Is(err, io.EOF) {
		s.end(outcome(s.ctx, err, true), outgoing.Standing{}, true)
	}
	return err
}

// RecvMsg implements grpc.ClientStream.
func (s *stream) RecvMsg(m any) error {
	err := s.ClientStream.RecvMsg(m)
	switch {
	case err == nil:
		s.end(outgoing.Accepted, outgoing.Standing{}, !s.more)
	case errors.Is(err, io.EOF):
		s.end(outgoing.Accepted, outgoing.Standing{}, true)
	default:
		header, _ := s.ClientStream.Header() // it does not block: the stream has ended
		s.end(outcome(s.ctx, err, true), standing(err, header, s.Trailer()), true)
	}
	return err
}

// end says how the call went, of which the first time counts, and whether it is over.
func (s *stream) end(o outgoing.Outcome, st outgoing.Standing, over bool) {
	s.attempt.End(o, st)
	if over {
		s.stop()
		s.attempt.Release()
	}
}
