package server

import (
	"fmt"
	"log/slog"
	"net/http"
	"runtime/debug"
	"strings"
	"time"

	quotapb "github.com/envoyproxy/go-control-plane/envoy/service/rate_limit_quota/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/reflection"

	"github.com/stint-io/stint/internal/answer"
	"github.com/stint-io/stint/internal/gen/kuadrantpb"
	"github.com/stint-io/stint/internal/gen/leasepb"
	"github.com/stint-io/stint/internal/gen/memberpb"
	"github.com/stint-io/stint/internal/grpcserver"
	"github.com/stint-io/stint/internal/listen"
	"github.com/stint-io/stint/server/internal/gate"
	"github.com/stint-io/stint/server/internal/rls"
	"github.com/stint-io/stint/server/internal/rpc"
	"github.com/stint-io/stint/stintpb"
)

// The bounds on what a stranger can send. Honest requests are some hundred bytes
// and answered in microseconds, so all of these are generous.
const (
	maxHeaderBytes = 64 << 10 // of HTTP: a gateway passes on all that it takes from its clients, nginx 32 KiB
	readHeaderTime = 5 * time.Second
	readTime       = 10 * time.Second
	writeTime      = 15 * time.Second // above readTime, so that a client that was too slow gets an answer
	idleTime       = 2 * time.Minute  // above the 60 s for which gateways keep connections, so that they close first
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
		case r.URL.Path == documentPath:
			serveDocument(w, r)
		default:
			calls.ServeHTTP(w, r)
		}
	})
}

// onAdmin says of what the admin port has where that is.
func (s *Server) onAdmin(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch path, _, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/"); {
		case s.addrs.Admin == nil:
		case path == "", path == "ui", path == "metrics", path == "readyz", path == "admin", r.URL.Path == "/v1/bans", r.URL.Path == "/v1/leases", r.URL.Path == "/v1/top", strings.HasPrefix(r.URL.Path, "/v1/admin/"):
			answer.WriteError(w, http.StatusNotFound, fmt.Sprintf("the dashboard, metrics and administration are on the admin port: %s/ui and /metrics", listen.URL(scheme(s.security.admin != nil), s.addrs.Admin)))
			return
		}
		next.ServeHTTP(w, r)
	})
}

func scheme(secure bool) string {
	if secure {
		return "https"
	}
	return "http"
}

// grpcDoors are the services that decide, as the metric of their latency calls them.
var grpcDoors = map[string]string{
	pb.RateLimitService_ServiceDesc.ServiceName:         "envoy",
	stintpb.Limits_ServiceDesc.ServiceName:              "grpc",
	kuadrantpb.RateLimitService_ServiceDesc.ServiceName: "kuadrant",
}

func newGRPC(service *rls.Service, own *rpc.Service, kuadrant *rls.Kuadrant, leases leasepb.LeasesServer, quotas quotapb.RateLimitQuotaServiceServer, others memberpb.MembersServer, c grpcserver.Config, more ...grpc.ServerOption) (*grpc.Server, *health.Server) {
	s := grpc.NewServer(append(grpcserver.Options(c), more...)...)
	h := health.NewServer()
	h.SetServingStatus(pb.RateLimitService_ServiceDesc.ServiceName, healthpb.HealthCheckResponse_SERVING)
	h.SetServingStatus(stintpb.Limits_ServiceDesc.ServiceName, healthpb.HealthCheckResponse_SERVING)
	h.SetServingStatus(kuadrantpb.RateLimitService_ServiceDesc.ServiceName, healthpb.HealthCheckResponse_SERVING)
	h.SetServingStatus(quotapb.RateLimitQuotaService_ServiceDesc.ServiceName, healthpb.HealthCheckResponse_SERVING)
	h.SetServingStatus(envoyHealth, healthpb.HealthCheckResponse_SERVING)
	h.SetServingStatus(leasepb.Leases_ServiceDesc.ServiceName, healthpb.HealthCheckResponse_SERVING)
	h.Shutdown() // until the server is ready
	to := c.Noting(s)
	pb.RegisterRateLimitServiceServer(to, service)
	stintpb.RegisterLimitsServer(to, own)
	kuadrantpb.RegisterRateLimitServiceServer(to, kuadrant)
	leasepb.RegisterLeasesServer(to, leases)
	quotapb.RegisterRateLimitQuotaServiceServer(to, quotas)
	memberpb.RegisterMembersServer(to, others)
	healthpb.RegisterHealthServer(to, h)
	reflection.Register(s)
	return s, h
}

// surviveHTTP turns a panic into an answer: net/http would close the connection without an
// answer, and log it at debug level only.
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

// faultsTo reports what gRPC's handlers panicked with.
func faultsTo(log *slog.Logger) func(method string, p any) {
	return func(method string, p any) { report(log, method, p) }
}

func report(log *slog.Logger, method string, p any) {
	log.Error("a request met a fault in stint, please report it", "method", method, "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
}
