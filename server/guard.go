package server

import (
	"context"
	"crypto/tls"
	"errors"
	"net/http"
	"strings"
	"sync/atomic"

	quotapb "github.com/envoyproxy/go-control-plane/envoy/service/rate_limit_quota/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/stint-io/stint/internal/answer"
	"github.com/stint-io/stint/internal/gen/kuadrantpb"
	"github.com/stint-io/stint/internal/gen/leasepb"
	"github.com/stint-io/stint/server/internal/access"
	"github.com/stint-io/stint/server/internal/gate"
	"github.com/stint-io/stint/stintpb"
)

// tokenHeader carries the token of a gateway on its decision endpoint: there Authorization is what
// the gateway's own client has sent. It is taken from the request, so that nothing behind sees it.
const tokenHeader = "X-Stint-Token"

// guard asks who comes, and whether he may. The zero value lets everybody do everything.
type guard struct {
	live *access.Live // nil = nobody is asked

	http, grpc, admin refusals
}

// refusals count what a listener refused.
type refusals struct {
	unauthenticated, denied atomic.Uint64
}

// check says whether who shows the credential has the role. A credential that could not be read comes as
// an error.
func (g *guard) check(c access.Credential, err error, role access.Role, of *refusals) (unauthenticated, denied error) {
	var id *access.Identity
	if err == nil {
		id, err = g.live.Identify(&c)
	}
	if err != nil {
		of.unauthenticated.Add(1)
		return err, nil
	}
	if err := id.Refuses(role); err != nil {
		of.denied.Add(1)
		return nil, err
	}
	return nil, nil
}

// onHTTP guards the HTTP listener. What shows health only is open.
func (g *guard) onHTTP(next http.Handler) http.Handler {
	if g.live == nil {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/healthz" || r.URL.Path == "/healthcheck" {
			next.ServeHTTP(w, r)
			return
		}
		c, err := httpCredential(r, strings.HasPrefix(r.URL.Path, gate.Prefix))
		unauthenticated, denied := g.check(c, err, access.Take, &g.http)
		switch {
		case unauthenticated != nil:
			w.Header().Set("WWW-Authenticate", "Bearer")
			answer.WriteError(w, http.StatusUnauthorized, unauthenticated.Error())
		case denied != nil:
			answer.WriteError(w, http.StatusForbidden, denied.Error())
		default:
			next.ServeHTTP(w, r)
		}
	})
}

// onAdmin says whether a request to the admin port may go on; 0 = yes.
func (g *guard) onAdmin(r *http.Request) (status int, text string) {
	c, err := httpCredential(r, false)
	unauthenticated, denied := g.check(c, err, access.Admin, &g.admin)
	switch {
	case unauthenticated != nil:
		return http.StatusUnauthorized, unauthenticated.Error()
	case denied != nil:
		return http.StatusForbidden, denied.Error()
	}
	return 0, ""
}

// httpCredential reads who sends a request. More than one token is a mistake, or somebody who wants
// another server in between to see another one.
func httpCredential(r *http.Request, fromGateway bool) (access.Credential, error) {
	tokens := r.Header.Values(tokenHeader)
	r.Header.Del(tokenHeader)
	if !fromGateway {
		for _, v := range r.Header.Values("Authorization") {
			if token, ok := bearer(v); ok {
				tokens = append(tokens, token)
			}
		}
	}
	return credential(tokens, r.TLS)
}

// bearer returns the token of an Authorization field; of other schemes there is none.
func bearer(value string) (string, bool) {
	scheme, token, ok := strings.Cut(value, " ")
	return token, ok && strings.EqualFold(scheme, "Bearer")
}

func credential(tokens []string, state *tls.ConnectionState) (access.Credential, error) {
	switch {
	case len(tokens) > 1:
		return access.Credential{}, access.ErrMalformed
	case len(tokens) == 1:
		return access.TokenOf(tokens[0])
	case state != nil && len(state.VerifiedChains) > 0:
		return access.CertificateOf(state.PeerCertificates[0]), nil
	}
	return access.Credential{}, access.ErrNone
}

// grpcCredential reads who calls.
func grpcCredential(ctx context.Context) (access.Credential, error) {
	var tokens []string
	for _, v := range metadata.ValueFromIncomingContext(ctx, "authorization") {
		if token, ok := bearer(v); ok {
			tokens = append(tokens, token)
		}
	}
	var state *tls.ConnectionState
	if len(tokens) == 0 {
		if p, ok := peer.FromContext(ctx); ok {
			if info, ok := p.AuthInfo.(credentials.TLSInfo); ok {
				state = &info.State
			}
		}
	}
	return credential(tokens, state)
}

// roleOf is the role that a method needs. What is not known here is between servers.
func roleOf(method string) (role access.Role, open bool) {
	switch {
	case method == pb.RateLimitService_ShouldRateLimit_FullMethodName,
		method == quotapb.RateLimitQuotaService_StreamRateLimitQuotas_FullMethodName,
		strings.HasPrefix(method, "/"+stintpb.Limits_ServiceDesc.ServiceName+"/"),
		strings.HasPrefix(method, "/"+kuadrantpb.RateLimitService_ServiceDesc.ServiceName+"/"):
		return access.Take, false
	case method == leasepb.Leases_Hold_FullMethodName:
		return access.Lease, false
	case strings.HasPrefix(method, "/"+healthpb.Health_ServiceDesc.ServiceName+"/"):
		return access.Any, true
	case strings.HasPrefix(method, "/grpc.reflection."):
		return access.Any, false
	}
	return access.Member, false
}

// call says whether a call may go on, as a status.
func (g *guard) call(ctx context.Context, method string) (access.Credential, error) {
	role, open := roleOf(method)
	if open {
		return access.Credential{}, nil
	}
	c, err := grpcCredential(ctx)
	unauthenticated, denied := g.check(c, err, role, &g.grpc)
	switch {
	case unauthenticated != nil:
		return c, status.Error(codes.Unauthenticated, unauthenticated.Error())
	case denied != nil:
		return c, status.Error(codes.PermissionDenied, denied.Error())
	}
	return c, nil
}

// onGRPC are the options of the gRPC server.
func (g *guard) onGRPC() []grpc.ServerOption {
	if g.live == nil {
		return nil
	}
	return []grpc.ServerOption{
		grpc.ChainUnaryInterceptor(func(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
			if _, err := g.call(ctx, info.FullMethod); err != nil {
				return nil, err
			}
			return next(ctx, req)
		}),
		grpc.ChainStreamInterceptor(func(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) error {
			c, err := g.call(ss.Context(), info.FullMethod)
			if err != nil {
				return err
			}
			return next(srv, &identified{ss, access.NewContext(ss.Context(), g.live.Begin(c))})
		}),
	}
}

// identified is a stream whose context carries who has begun it.
type identified struct {
	grpc.ServerStream
	ctx context.Context
}

func (s *identified) Context() context.Context { return s.ctx }

// reload reads the identities again.
func (g *guard) reload() error {
	if g.live == nil {
		return nil
	}
	if err := g.live.Reload(); err != nil {
		return errors.New("server: " + err.Error())
	}
	return nil
}
