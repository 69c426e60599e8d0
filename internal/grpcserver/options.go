// Package grpcserver has the options of stint's gRPC server: bounds on what a stranger
// can send, keepalive, texts that are not UTF-8, and what a panic of a handler becomes. It registers no service.
//
// It is apart from package server so that benchmarks can give a server that does
// nothing the same options: what is then between the two is the work of a decision.
package grpcserver

import (
	"cmp"
	"context"
	"net"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/tap"
)

// The bounds on what a stranger can send. Honest requests are some hundred bytes
// and answered in microseconds, so all of these are generous.
const (
	// DefaultMetadata bounds the metadata of a call. Proxies send what clients choose, such as tracestate, and Envoy
	// admits 60 KiB of header fields unless it is told otherwise.
	DefaultMetadata = 64 << 10
	// MaxMetadata is the most that the bound can be. Envoy admits at most 8 MiB of header fields.
	MaxMetadata = 8 << 20
	// maxHeaderList bounds what is read of it. Above it grpc-go ends the whole connection, with all calls of all
	// clients behind a proxy, so it lies above what Envoy can be told to admit, and its own fields.
	maxHeaderList = MaxMetadata + 1<<20
	// MaxMessage bounds a message, but for reports of quotas. Every implementation of gRPC has this bound by default.
	MaxMessage = 4 << 20

	maxStreams    = 1024 // per connection; Envoy multiplexes all its requests on a few
	connectTime   = 5 * time.Second
	connectionAge = 30 * time.Minute // so that clients spread anew over instances that were added; streams go on
	// pingEvery is how often a client may ping. Proxies ping each few seconds to notice a service that hangs, and
	// one that pings too often is cut off, with all calls of the connection.
	pingEvery = time.Second
)

// streamWorkers are goroutines that answer streams one after the other. A new goroutine
// for each would grow its stack for each, a tenth of what a request costs. Not more:
// each keeps its stack. Not fewer: those that wait for a store are busy.
const streamWorkers = 128

// Config is what differs between servers.
type Config struct {
	// Streams ends every stream when it ends.
	Streams context.Context
	// MaxMetadata bounds the metadata of a call, names and values, in bytes; 0 = [DefaultMetadata].
	MaxMetadata int
	// MaxReport bounds a report of an Envoy about all buckets of its quotas, in bytes; 0 = [MaxMessage].
	MaxReport int
	// Fault is told the method and the value of each panic.
	Fault func(method string, p any)
	// Refused is told of each call that is refused for its form; nil = nobody is. peer is nil where it is not known.
	Refused func(method string, peer net.Addr, why Reason, err error)
}

// Options returns the options.
func Options(c Config) []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.ForceServerCodecV2(newCodec()),
		grpc.NumStreamWorkers(streamWorkers),
		grpc.MaxConcurrentStreams(maxStreams),
		grpc.MaxRecvMsgSize(max(MaxMessage, c.MaxReport)),
		grpc.MaxHeaderListSize(maxHeaderList),
		grpc.InTapHandle(c.boundMetadata),
		grpc.ConnectionTimeout(connectTime),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: pingEvery, PermitWithoutStream: true}),
		grpc.KeepaliveParams(keepalive.ServerParameters{
			MaxConnectionAge: connectionAge, Time: time.Minute, Timeout: 10 * time.Second,
		}),
		grpc.WaitForHandlers(true),
		grpc.UnaryInterceptor(Survive(c.Fault)),
		grpc.ChainStreamInterceptor(c.noteStream, SurviveStream(c.Fault), endWith(c.Streams)),
	}
}

// boundMetadata refuses a call whose metadata is too large, before its stream begins.
func (c *Config) boundMetadata(ctx context.Context, call *tap.Info) (context.Context, error) {
	size := 0
	for name, values := range call.Header {
		for _, v := range values {
			size += len(name) + len(v)
		}
	}
	if most := cmp.Or(c.MaxMetadata, DefaultMetadata); size > most {
		err := status.Errorf(codes.InvalidArgument, "stint: the metadata of the call has %d bytes, want at most %d", size, most)
		if c.Refused != nil {
			c.Refused(call.FullMethodName, peerOf(ctx), MetadataTooLarge, err)
		}
		return nil, err
	}
	return ctx, nil
}

// stream is a stream with a context of its own.
type stream struct {
	grpc.ServerStream
	ctx context.Context
}

func (s *stream) Context() context.Context { return s.ctx }

// endWith ends every stream when ctx ends: a graceful stop would wait for them
// until its time is over.
func endWith(ctx context.Context) grpc.StreamServerInterceptor {
	return func(srv any, ss grpc.ServerStream, _ *grpc.StreamServerInfo, next grpc.StreamHandler) error {
		own, cancel := context.WithCancel(ss.Context())
		defer cancel()
		defer context.AfterFunc(ctx, cancel)()
		return next(srv, &stream{ss, own})
	}
}

// Survive turns a panic into an error, as net/http does: one request that meets a
// fault must not end the limits of everybody else.
func Survive(fault func(string, any)) grpc.UnaryServerInterceptor {
	return func(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (_ any, err error) {
		defer func() {
			if p := recover(); p != nil {
				fault(info.FullMethod, p)
				err = errFault
			}
		}()
		return next(ctx, req)
	}
}

// SurviveStream is Survive for streams.
func SurviveStream(fault func(string, any)) grpc.StreamServerInterceptor {
	return func(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) (err error) {
		defer func() {
			if p := recover(); p != nil {
				fault(info.FullMethod, p)
				err = errFault
			}
		}()
		return next(srv, ss)
	}
}

var errFault = status.Error(codes.Internal, "stint: internal fault, see the service's log")
