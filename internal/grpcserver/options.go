// Package grpcserver has the options of stint's gRPC server: bounds on what a stranger
// can send, keepalive, texts that are not UTF-8, and what a panic of a handler becomes. It registers no service.
//
// It is apart from package server so that benchmarks can give a server that does
// nothing the same options: what is then between the two is the work of a decision.
package grpcserver

import (
	"context"
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
	// maxMetadata bounds the metadata of a call: names and values, in bytes. Proxies send what clients choose, such as
	// tracestate, and Envoy admits 60 KiB of header fields.
	maxMetadata = 64 << 10
	// maxHeaderList bounds what is read of it. Above it grpc-go ends the whole connection, with all calls of all
	// clients behind a proxy, so a call is refused long before.
	maxHeaderList = 1 << 20

	maxStreams    = 1024 // per connection; Envoy multiplexes all its requests on a few
	connectTime   = 5 * time.Second
	connectionAge = 30 * time.Minute // so that clients spread anew over instances that were added; streams go on
)

// streamWorkers are goroutines that answer streams one after the other. A new goroutine
// for each would grow its stack for each, a tenth of what a request costs. Not more:
// each keeps its stack. Not fewer: those that wait for a store are busy.
const streamWorkers = 128

// Options returns the options. Messages have at most maxMessage bytes; streams end when
// their context does; fault is told the method and the value of each panic.
func Options(streams context.Context, maxMessage int, fault func(method string, p any)) []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.ForceServerCodecV2(newCodec()),
		grpc.NumStreamWorkers(streamWorkers),
		grpc.MaxConcurrentStreams(maxStreams),
		grpc.MaxRecvMsgSize(maxMessage),
		grpc.MaxHeaderListSize(maxHeaderList),
		grpc.InTapHandle(boundMetadata),
		grpc.ConnectionTimeout(connectTime),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 10 * time.Second, PermitWithoutStream: true}),
		grpc.KeepaliveParams(keepalive.ServerParameters{
			MaxConnectionAge: connectionAge, Time: time.Minute, Timeout: 10 * time.Second,
		}),
		grpc.WaitForHandlers(true),
		grpc.UnaryInterceptor(Survive(fault)),
		grpc.ChainStreamInterceptor(SurviveStream(fault), endWith(streams)),
	}
}

// boundMetadata refuses a call whose metadata is too large, before its stream begins.
func boundMetadata(ctx context.Context, call *tap.Info) (context.Context, error) {
	size := 0
	for name, values := range call.Header {
		for _, v := range values {
			size += len(name) + len(v)
		}
	}
	if size > maxMetadata {
		return nil, status.Errorf(codes.InvalidArgument, "stint: the metadata of the call has %d bytes, want at most %d", size, maxMetadata)
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
