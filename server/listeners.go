package server

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"runtime/debug"
	"strings"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/reflection"
	"google.golang.org/grpc/status"

	"github.com/stint-io/stint/internal/answer"
	"github.com/stint-io/stint/internal/gen/leasepb"
	"github.com/stint-io/stint/internal/leasewire"
	"github.com/stint-io/stint/server/internal/gate"
	"github.com/stint-io/stint/server/internal/rls"
)

// The bounds on what a stranger can send. Honest requests are some hundred bytes
// and answered in microseconds, so all of these are generous.
const (
	maxHeaderBytes = 64 << 10             // of HTTP: a gateway passes on all that it takes from its clients, nginx 32 KiB
	maxMetadata    = 16 << 10             // of gRPC, whose clients are proxies that send their own
	maxMessage     = leasewire.MaxMessage // of gRPC: a report about all that an instance uses; what rls takes is far below
	maxStreams     = 1024                 // per connection; Envoy multiplexes all its requests on a few
	readHeaderTime = 5 * time.Second
	readTime       = 10 * time.Second
	writeTime      = 15 * time.Second // above readTime, so that a client that was too slow is told
	idleTime       = 2 * time.Minute  // above the 60 s for which gateways keep connections, so that they close first
	connectTime    = 5 * time.Second
	connectionAge  = 30 * time.Minute // so that clients spread anew over instances that were added
	ageGrace       = 30 * time.Second
)

func newHTTP(h http.Handler, log *slog.Logger) *http.Server {
	return &http.Server{
		Handler:           surviveHTTP(log, h),
		ReadHeaderTimeout: readHeaderTime,
		ReadTimeout:       readTime,
		WriteTimeout:      writeTime,
		IdleTimeout:       idleTime,
		MaxHeaderBytes:    maxHeaderBytes,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
}

// route sends requests to their rooms. It compares paths as they are: a gateway
// must never be answered with the redirect to a cleaned path that a ServeMux sends.
func route(gates, json, health, calls http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case strings.HasPrefix(r.URL.Path, gate.Prefix):
			gates.ServeHTTP(w, r)
		case r.URL.Path == "/json":
			json.ServeHTTP(w, r)
		case r.URL.Path == "/healthcheck":
			health.ServeHTTP(w, r)
		case r.URL.Path == "/healthz":
			fmt.Fprintln(w, "ok")
		default:
			calls.ServeHTTP(w, r)
		}
	})
}

// streamWorkers are goroutines that answer streams one after the other. A new goroutine
// for each would grow its stack for each, a tenth of what a request costs. Not more:
// each keeps its stack. Not fewer: those that wait for a store are busy.
const streamWorkers = 128

func newGRPC(streams context.Context, service *rls.Service, leases leasepb.LeasesServer, log *slog.Logger) (*grpc.Server, *health.Server) {
	s := grpc.NewServer(
		grpc.NumStreamWorkers(streamWorkers),
		grpc.MaxConcurrentStreams(maxStreams),
		grpc.MaxRecvMsgSize(maxMessage),
		grpc.MaxHeaderListSize(maxMetadata),
		grpc.ConnectionTimeout(connectTime),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 10 * time.Second, PermitWithoutStream: true}),
		grpc.KeepaliveParams(keepalive.ServerParameters{
			MaxConnectionAge: connectionAge, MaxConnectionAgeGrace: ageGrace,
			Time: time.Minute, Timeout: 10 * time.Second,
		}),
		grpc.WaitForHandlers(true),
		grpc.UnaryInterceptor(survive(log)),
		grpc.ChainStreamInterceptor(surviveStream(log), endWith(streams)),
	)
	h := health.NewServer()
	h.SetServingStatus(pb.RateLimitService_ServiceDesc.ServiceName, healthpb.HealthCheckResponse_SERVING)
	h.SetServingStatus(envoyHealth, healthpb.HealthCheckResponse_SERVING)
	h.SetServingStatus(leasepb.Leases_ServiceDesc.ServiceName, healthpb.HealthCheckResponse_SERVING)
	h.Shutdown() // until the server is ready
	pb.RegisterRateLimitServiceServer(s, service)
	leasepb.RegisterLeasesServer(s, leases)
	healthpb.RegisterHealthServer(s, h)
	reflection.Register(s)
	return s, h
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

// survive turns a panic into an error, as net/http does: one request that meets a
// fault must not end the limits of everybody else.
func survive(log *slog.Logger) grpc.UnaryServerInterceptor {
	return func(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (_ any, err error) {
		defer func() {
			if p := recover(); p != nil {
				report(log, info.FullMethod, p)
				err = errFault
			}
		}()
		return next(ctx, req)
	}
}

// surviveStream is survive for streams.
func surviveStream(log *slog.Logger) grpc.StreamServerInterceptor {
	return func(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) (err error) {
		defer func() {
			if p := recover(); p != nil {
				report(log, info.FullMethod, p)
				err = errFault
			}
		}()
		return next(srv, ss)
	}
}

// surviveHTTP is survive for HTTP: net/http would close the connection without an
// answer, and tell nobody but its debug log.
func surviveHTTP(log *slog.Logger, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() {
			switch p := recover(); p {
			case nil:
			case http.ErrAbortHandler:
				panic(p)
			default:
				// Not the path: it may hold keys.
				report(log, r.Method, p)
				answer.WriteUnavailable(w)
			}
		}()
		next.ServeHTTP(w, r)
	})
}

var errFault = status.Error(codes.Internal, "stint: internal fault, see the service's log")

func report(log *slog.Logger, method string, p any) {
	log.Error("a request met a fault in stint, please report it", "method", method, "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
}
